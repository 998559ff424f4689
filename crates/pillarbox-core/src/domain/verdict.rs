//! From what a handler answered to what becomes of the event.

use std::{any::type_name, error::Error, fmt, time::Duration};

use super::RetryPolicy;

/// The longest error that is kept, in characters.
pub const ERROR_LIMIT: usize = 4_000;

/// How a handler ended well.
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

impl<T: Into<Outcome>, E: Into<HandlerError>> IntoAnswer for Result<T, E> {
    fn into_answer(self) -> Answer {
        self.map(Into::into).map_err(Into::into)
    }
}

/// Why a handler failed. Any error converts into one; its sources become part of the text.
#[derive(Clone, PartialEq, Eq)]
pub struct HandlerError {
    text: String,
    class: &'static str,
    retry: Retry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    ByPolicy,
    After(Duration),
    Never,
}

impl HandlerError {
    /// An error of these words.
    pub fn msg(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), class: "message", retry: Retry::ByPolicy }
    }

    /// Asks for the next attempt after this time instead of the policy's. The attempt counts.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry = Retry::After(delay);
        self
    }

    /// Says that no further attempt can succeed.
    #[must_use]
    pub fn permanent(mut self) -> Self {
        self.retry = Retry::Never;
        self
    }

    /// The type of the error it was made from.
    pub fn class(&self) -> &'static str {
        self.class
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

// Not an `Error` itself: that leaves room for this conversion of every other one.
impl<E: Error> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        Self { text, class: type_name::<E>(), retry: Retry::ByPolicy }
    }
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
    /// It was started this often and ended its process each time.
    Lethal(u32),
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

/// The one place where an outcome becomes a verdict. `attempts` is the number of failures before this one,
/// `random` in 0 to 1 picks the jitter.
pub fn decide(policy: &RetryPolicy, attempts: u32, result: Result<Outcome, Failure>, random: f64) -> Verdict {
    let failure = match result {
        Ok(Outcome::Done) => return Verdict::Done,
        Ok(Outcome::RetryAfter(after)) => return Verdict::Defer { after },
        Err(failure) => failure,
    };
    let error = shorten(failure.to_string());
    let (attempts, retry) = match failure {
        Failure::Error(error) => (attempts.saturating_add(1), error.retry),
        Failure::Panic(_) | Failure::Timeout(_) => (attempts.saturating_add(1), Retry::ByPolicy),
        Failure::NoRoute(_) | Failure::Undecodable(_) | Failure::Lethal(_) => (attempts, Retry::Never),
    };
    let after = match retry {
        Retry::Never => return Verdict::Dead { attempts, error },
        Retry::ByPolicy | Retry::After(_) if policy.is_exhausted(attempts) => {
            return Verdict::Dead { attempts, error };
        }
        Retry::ByPolicy => policy.delay(attempts, random),
        Retry::After(delay) => delay,
    };
    Verdict::Retry { attempts, after, error }
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
            assert_eq!(decide(&policy(), attempts, result.clone(), 0.5), verdict, "{attempts} {result:?}");
        }
    }

    #[test]
    fn panics_and_timeouts_are_failures_like_any_other() {
        for failure in [Failure::Panic("oh".into()), Failure::Timeout(SECOND)] {
            assert!(matches!(decide(&policy(), 0, Err(failure.clone()), 0.5), Verdict::Retry { attempts: 1, .. }));
            assert!(matches!(decide(&policy(), 2, Err(failure), 0.5), Verdict::Dead { attempts: 3, .. }));
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
            match decide(&policy(), 0, Err(failure), 0.5) {
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

    proptest! {
        #[test]
        fn kept_errors_are_a_prefix_of_at_most_4000_characters(text in "\\PC{0,5000}") {
            let kept = shorten(text.clone());
            prop_assert!(text.starts_with(&kept));
            prop_assert_eq!(kept.chars().count(), text.chars().count().min(ERROR_LIMIT));
        }
    }
}
