//! From what a handler answered to what becomes of the event.

use std::{any::type_name, error::Error, fmt, sync::Arc, time::Duration};

use super::RetryPolicy;

/// The longest error that is kept, in characters.
pub const ERROR_LIMIT: usize = 4_000;

/// How a handler ended well.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::{Delivery, HandlerError, Outcome};
///
/// async fn ship(delivery: Delivery) -> Result<Outcome, HandlerError> {
///     let is_holiday: bool = delivery.event().payload().to()?;
///     // Not now, and not the event's fault: no attempt is used up.
///     Ok(if is_holiday { Outcome::RetryAfter(Duration::from_secs(3_600)) } else { Outcome::Done })
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The event is dealt with.
    Done,
    /// Not now: deliver it again after this time. No attempt is used up.
    RetryAfter(Duration),
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::Done
    }
}

/// What a handler answers.
pub type Answer = Result<Outcome, HandlerError>;

/// Anything a handler may return: nothing, an [`Outcome`], or a `Result` of them with any error.
#[diagnostic::on_unimplemented(
    message = "a handler can't return `{Self}`",
    note = "return nothing, an `Outcome`, or a `Result` of one of them with an error type"
)]
pub trait IntoAnswer {
    /// The answer it stands for.
    fn into_answer(self) -> Answer;
}

impl IntoAnswer for () {
    fn into_answer(self) -> Answer {
        Ok(Outcome::Done)
    }
}

impl IntoAnswer for Outcome {
    fn into_answer(self) -> Answer {
        Ok(self)
    }
}

/// Any error that converts into a box: those of the standard trait, `anyhow::Error`, `Box<dyn Error + Send + Sync>`,
/// a `String`, and [`HandlerError`].
impl<T: Into<Outcome>, E: Into<BoxError>> IntoAnswer for Result<T, E> {
    fn into_answer(self) -> Answer {
        self.map(Into::into).map_err(|error| HandlerError::from_box(error.into()))
    }
}

/// Any error, in a box.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Why a handler failed. Any error converts into one; its sources become part of the text.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::HandlerError;
///
/// fn parse(text: &str) -> Result<i64, HandlerError> {
///     let number: i64 = text.parse()?;
///     match number {
///         // No further attempt can succeed.
///         ..0 => Err(HandlerError::msg("a number below zero").permanent()),
///         0 => Err(HandlerError::msg("not yet").retry_after(Duration::from_secs(60))),
///         number => Ok(number),
///     }
/// }
/// assert_eq!(parse("x").unwrap_err().to_string(), "invalid digit found in string");
/// assert!(parse("-1").unwrap_err().is_permanent());
/// ```
#[derive(Clone)]
pub struct HandlerError {
    text: String,
    class: &'static str,
    cause: Option<Arc<dyn Error + Send + Sync>>,
    retry: Retry,
    /// How long until the next attempt at the least.
    wish: Duration,
    unsent: bool,
}

/// A destination may ask to be left alone for longer, and is tried again all the same.
const LONGEST_WISH: Duration = Duration::from_hours(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    ByPolicy,
    After(Duration),
    Never,
    /// Nor has the handler been called: its payload could not be read.
    Unread,
    /// What the handler needs was not there.
    Unavailable,
}

impl HandlerError {
    /// An error of these words.
    pub fn msg(text: impl fmt::Display) -> Self {
        Self {
            text: text.to_string(),
            class: "message",
            cause: None,
            retry: Retry::ByPolicy,
            wish: Duration::ZERO,
            unsent: false,
        }
    }

    /// Asks for the next attempt after this time instead of the policy's. The attempt counts.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry = Retry::After(delay);
        self
    }

    /// Asks for the next attempt when the policy says, and not before this time has passed. The attempt counts.
    #[must_use]
    pub fn retry_not_before(mut self, delay: Duration) -> Self {
        self.retry = Retry::ByPolicy;
        self.wish = delay;
        self
    }

    /// Says that no further attempt can succeed.
    #[must_use]
    pub fn permanent(mut self) -> Self {
        self.retry = Retry::Never;
        self
    }

    /// Says that what the handler needs is down, which is not the event's fault. If the handler has named its
    /// destination, no attempt is used up, and after some such errors in a row its circuit opens; without one, this is an
    /// error like any other.
    #[must_use]
    pub fn unavailable(mut self) -> Self {
        self.retry = Retry::Unavailable;
        self.wish = self.wish.min(LONGEST_WISH);
        self
    }

    /// The same, and what is down has said when to come back: it is not tried before, for an hour at the most.
    #[must_use]
    pub fn unavailable_for(mut self, span: Duration) -> Self {
        self.wish = span;
        self.unavailable()
    }

    /// Says that the handler's destination was not asked: the error tells nothing of it, and its circuit stays as it is.
    #[must_use]
    pub fn unsent(mut self) -> Self {
        self.unsent = true;
        self
    }

    /// Whether what the handler needs is down.
    pub fn is_unavailable(&self) -> bool {
        self.retry == Retry::Unavailable
    }

    /// Whether no further attempt can succeed.
    pub fn is_permanent(&self) -> bool {
        matches!(self.retry, Retry::Never | Retry::Unread)
    }

    /// The type of the error it was made from.
    pub fn class(&self) -> &'static str {
        self.class
    }

    /// Whether it was made from an error of this type, or from one that has such a one among its sources.
    pub fn is<E: Error + 'static>(&self) -> bool {
        self.find::<E>().is_some()
    }

    /// The error of this type that it was made from.
    pub fn find<E: Error + 'static>(&self) -> Option<&E> {
        let mut cause: Option<&(dyn Error + 'static)> = self.cause.as_deref().map(|cause| cause as _);
        while let Some(error) = cause {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            cause = error.source();
        }
        None
    }

    /// The payload could not be read as what the handler takes.
    pub(crate) fn undecodable(error: super::CodecError) -> Self {
        Self { retry: Retry::Unread, ..error.into() }
    }

    pub(super) fn retry(&self) -> Retry {
        self.retry
    }

    fn from_box(error: BoxError) -> Self {
        match error.downcast::<Carried>() {
            Ok(carried) => carried.0,
            Err(error) => {
                let text = in_full(&*error);
                Self { class: "boxed", cause: Some(error.into()), ..Self::msg(text) }
            }
        }
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandlerError({:?}, {}, {:?})", self.text, self.class, self.retry)
    }
}

/// The same words, of the same class, with the same wish.
impl PartialEq for HandlerError {
    fn eq(&self, other: &Self) -> bool {
        (&self.text, self.class, self.retry) == (&other.text, other.class, other.retry)
    }
}

impl Eq for HandlerError {}

// Not an `Error` itself: that leaves room for this conversion of every other one.
impl<E: Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let text = in_full(&error);
        Self { class: type_name::<E>(), cause: Some(Arc::new(error)), ..Self::msg(text) }
    }
}

/// So that `?` takes it into a box, and [`IntoAnswer`] takes it out again as it was.
impl From<HandlerError> for BoxError {
    fn from(error: HandlerError) -> Self {
        Box::new(Carried(error))
    }
}

/// A [`HandlerError`] in a box.
#[derive(Debug)]
struct Carried(HandlerError);

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Carried {}

/// An error and what caused it.
fn in_full(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Why a delivery failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// A handler or an interceptor answered with an error.
    Error(HandlerError),
    /// A handler panicked, with these words.
    Panic(String),
    /// A handler took longer than it may.
    Timeout(Duration),
    /// No handler is registered for the route.
    NoRoute(String),
    /// The stored row could not be read as an event.
    Undecodable(String),
    /// The payload could not be read as the type that its handler takes.
    Payload(String),
    /// It was started this often and ended its process each time.
    Lethal(u32),
}

/// What a handler answered as a failure of its delivery.
impl From<HandlerError> for Failure {
    fn from(error: HandlerError) -> Self {
        match error.retry {
            Retry::Unread => Self::Payload(error.text),
            Retry::ByPolicy | Retry::After(_) | Retry::Never | Retry::Unavailable => Self::Error(error),
        }
    }
}

impl Failure {
    /// Whether it says that a destination is down: an error that says so, or no answer in time.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Error(error) => error.is_unavailable(),
            Self::Timeout(_) => true,
            Self::Panic(_) | Self::NoRoute(_) | Self::Undecodable(_) | Self::Payload(_) | Self::Lethal(_) => false,
        }
    }

    /// How long until the next attempt at the least; for a destination that is down, how long it asks to be left alone.
    pub(crate) fn wish(&self) -> Duration {
        if let Self::Error(error) = self { error.wish } else { Duration::ZERO }
    }

    /// Whether it came before the destination was asked, and tells nothing of it.
    pub(crate) fn is_unsent(&self) -> bool {
        match self {
            Self::Error(error) => error.unsent,
            Self::Panic(_) | Self::Timeout(_) => false,
            Self::NoRoute(_) | Self::Undecodable(_) | Self::Payload(_) | Self::Lethal(_) => true,
        }
    }

    /// Whether it uses up an attempt: a handler was called, and did not succeed.
    pub fn counts(&self) -> bool {
        match self {
            Self::Error(_) | Self::Panic(_) | Self::Timeout(_) => true,
            Self::NoRoute(_) | Self::Undecodable(_) | Self::Payload(_) | Self::Lethal(_) => false,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Panic(words) => write!(f, "the handler panicked: {words}"),
            Self::Timeout(limit) => write!(f, "the handler was cut off after {limit:?}"),
            Self::NoRoute(route) => {
                write!(f, "no handler is registered for the route {route}: register one and replay the event")
            }
            Self::Undecodable(reason) => write!(f, "the stored row can't be read as an event: {reason}"),
            Self::Payload(reason) => {
                write!(
                    f,
                    "the payload can't be read: {reason}; mend the handler's type or the payload, and replay the event"
                )
            }
            Self::Lethal(starts) => write!(
                f,
                "its delivery was started {starts} times, and each time the process ended before the handler did"
            ),
        }
    }
}

/// What becomes of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is delivered.
    Done,
    /// It is tried again after a delay, and the attempt counts.
    Retry {
        /// Failed attempts so far, this one included.
        attempts: u32,
        /// How long until it is due.
        after: Duration,
        /// The error, at most [`ERROR_LIMIT`] characters.
        error: String,
    },
    /// It is tried again after a delay, and no attempt counts.
    Defer {
        /// How long until it is due.
        after: Duration,
    },
    /// It is given up.
    Dead {
        /// Failed attempts so far, this one included if it was one.
        attempts: u32,
        /// The error, at most [`ERROR_LIMIT`] characters.
        error: String,
    },
}

/// The one place where the result of a handler becomes a verdict. `attempts` is the number of failures before this one,
/// `random` in 0 to 1 picks the jitter.
pub fn decide(policy: &RetryPolicy, attempts: u32, result: &Result<Outcome, Failure>, random: f64) -> Verdict {
    let failure = match result {
        Ok(Outcome::Done) => return Verdict::Done,
        Ok(Outcome::RetryAfter(after)) => return Verdict::Defer { after: *after },
        Err(failure) => failure,
    };
    let attempts = if failure.counts() { attempts.saturating_add(1) } else { attempts };
    let error = shorten(failure.to_string());
    match policy.next(attempts, failure, random) {
        Some(after) => Verdict::Retry { attempts, after, error },
        None => Verdict::Dead { attempts, error },
    }
}

/// The verdict on an event of which several handlers had a part. It is tried again as long as one of them may have
/// another try, at the time of whoever is first; then it is given up if one of them was.
pub fn combine(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
    let mut verdicts = verdicts.into_iter();
    let first = verdicts.next().unwrap_or(Verdict::Done);
    verdicts.fold(first, pair)
}

fn pair(one: Verdict, other: Verdict) -> Verdict {
    use Verdict::{Dead, Defer, Done, Retry};
    match (one, other) {
        (Done, verdict) | (verdict, Done) => verdict,
        (Defer { after: one }, Defer { after: other }) => Defer { after: one.min(other) },
        // What was given up counts, and what was put off comes again.
        (Dead { attempts, error }, Defer { after }) | (Defer { after }, Dead { attempts, error }) => {
            Retry { attempts, after, error }
        }
        (Retry { attempts, after, error }, Defer { after: other })
        | (Defer { after: other }, Retry { attempts, after, error }) => {
            Retry { attempts, after: after.min(other), error }
        }
        // All that failed in one delivery have counted the same attempt.
        (Retry { attempts, after, error }, Dead { error: last, .. })
        | (Dead { error: last, .. }, Retry { attempts, after, error }) => {
            Retry { attempts, after, error: both(&error, &last) }
        }
        (Retry { attempts, after, error }, Retry { after: sooner, error: last, .. }) => {
            Retry { attempts, after: after.min(sooner), error: both(&error, &last) }
        }
        (Dead { attempts, error }, Dead { attempts: other, error: last }) => {
            Dead { attempts: attempts.max(other), error: both(&error, &last) }
        }
    }
}

/// Two errors in one text.
pub fn both(one: &str, other: &str) -> String {
    shorten(format!("{one}; {other}"))
}

fn shorten(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(ERROR_LIMIT) {
        text.truncate(end);
    }
    // A column of text on PostgreSQL keeps no NUL, and losing the settle would be worse than losing it.
    if text.contains('\0') {
        text = text.replace('\0', "\u{fffd}");
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn policy() -> RetryPolicy {
        RetryPolicy::fixed(SECOND).jitter(0.0).max_attempts(3)
    }

    fn boom() -> HandlerError {
        HandlerError::msg("boom")
    }

    #[test]
    fn every_outcome_has_its_verdict() {
        let retry = |attempts, after| Verdict::Retry { attempts, after, error: "boom".into() };
        let dead = |attempts| Verdict::Dead { attempts, error: "boom".into() };
        let cases = [
            (0, Ok(Outcome::Done), Verdict::Done),
            (2, Ok(Outcome::Done), Verdict::Done),
            (2, Ok(Outcome::RetryAfter(SECOND * 9)), Verdict::Defer { after: SECOND * 9 }),
            (0, Err(Failure::Error(boom())), retry(1, SECOND)),
            (1, Err(Failure::Error(boom())), retry(2, SECOND)),
            (2, Err(Failure::Error(boom())), dead(3)),
            (7, Err(Failure::Error(boom())), dead(8)),
            (0, Err(Failure::Error(boom().retry_after(SECOND * 5))), retry(1, SECOND * 5)),
            (2, Err(Failure::Error(boom().retry_after(SECOND * 5))), dead(3)),
            (0, Err(Failure::Error(boom().permanent())), dead(1)),
        ];
        for (attempts, result, verdict) in cases {
            assert_eq!(decide(&policy(), attempts, &result, 0.5), verdict, "{attempts} {result:?}");
        }
    }

    #[test]
    fn nobody_is_left_alone_for_longer_than_an_hour_however_it_is_asked_for() {
        let day = Duration::from_hours(24);
        for error in [boom().unavailable_for(day), boom().retry_not_before(day).unavailable()] {
            assert_eq!(Failure::Error(error).wish(), LONGEST_WISH);
        }
    }

    #[test]
    fn panics_and_timeouts_are_failures_like_any_other() {
        for failure in [Failure::Panic("oh".into()), Failure::Timeout(SECOND)] {
            assert!(matches!(decide(&policy(), 0, &Err(failure.clone()), 0.5), Verdict::Retry { attempts: 1, .. }));
            assert!(matches!(decide(&policy(), 2, &Err(failure), 0.5), Verdict::Dead { attempts: 3, .. }));
        }
    }

    #[test]
    fn what_no_attempt_can_mend_is_dead_at_once_and_says_why() {
        let cases = [
            (Failure::NoRoute("(\"Order\", \"Placed\")".into()), "(\"Order\", \"Placed\")"),
            (Failure::Undecodable("no id".into()), "no id"),
            (Failure::Lethal(3), "3 times"),
        ];
        for (failure, words) in cases {
            match decide(&policy(), 0, &Err(failure), 0.5) {
                Verdict::Dead { attempts: 0, error } => assert!(error.contains(words), "{error}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn the_text_of_an_error_names_its_sources() {
        #[derive(Debug, thiserror::Error)]
        #[error("charging failed")]
        struct Charge(#[source] std::num::ParseIntError);

        let error = HandlerError::from(Charge("x".parse::<i32>().unwrap_err()));
        assert_eq!(error.to_string(), "charging failed: invalid digit found in string");
        assert!(error.class().ends_with("Charge"));
    }

    #[test]
    fn results_of_every_shape_are_answers() {
        assert_eq!(().into_answer(), Ok(Outcome::Done));
        assert_eq!(Ok::<_, fmt::Error>(()).into_answer(), Ok(Outcome::Done));
        assert_eq!(Ok::<_, HandlerError>(Outcome::RetryAfter(SECOND)).into_answer(), Ok(Outcome::RetryAfter(SECOND)));
        assert!(Err::<(), _>(fmt::Error).into_answer().is_err());
    }

    #[test]
    fn an_event_is_tried_again_while_one_of_its_handlers_may_be() {
        let retry = |after| Verdict::Retry { attempts: 2, after, error: "r".into() };
        let dead = || Verdict::Dead { attempts: 2, error: "d".into() };
        let defer = |after| Verdict::Defer { after };
        let cases = [
            (vec![], Verdict::Done),
            (vec![Verdict::Done, Verdict::Done], Verdict::Done),
            (vec![Verdict::Done, dead()], dead()),
            (vec![Verdict::Done, retry(SECOND), Verdict::Done], retry(SECOND)),
            (vec![defer(SECOND * 2), defer(SECOND)], defer(SECOND)),
            (vec![retry(SECOND * 2), defer(SECOND)], retry(SECOND)),
            (vec![dead(), defer(SECOND)], Verdict::Retry { attempts: 2, after: SECOND, error: "d".into() }),
            (vec![dead(), retry(SECOND)], Verdict::Retry { attempts: 2, after: SECOND, error: "r; d".into() }),
            (
                vec![retry(SECOND), retry(SECOND * 3)],
                Verdict::Retry { attempts: 2, after: SECOND, error: "r; r".into() },
            ),
            (vec![dead(), dead()], Verdict::Dead { attempts: 2, error: "d; d".into() }),
        ];
        for (verdicts, all) in cases {
            assert_eq!(combine(verdicts.clone()), all, "{verdicts:?}");
        }
    }

    proptest! {
        #[test]
        fn kept_errors_are_a_prefix_of_at_most_4000_characters(text in "\\PC{0,5000}") {
            let kept = shorten(text.clone());
            prop_assert!(text.starts_with(&kept));
            prop_assert_eq!(kept.chars().count(), text.chars().count().min(ERROR_LIMIT));
        }
    }
}
