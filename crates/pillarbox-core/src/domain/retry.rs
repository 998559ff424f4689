//! How long to wait before the next attempt, and when to give up.

use std::{any::type_name, error::Error, fmt, sync::Arc, time::Duration};

use super::{Failure, HandlerError, verdict::Retry};

/// How the delay grows with the attempts.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Backoff {
    /// Always the base delay.
    Fixed,
    /// The base delay times the number of failures.
    Linear,
    /// The base delay, multiplied again with every failure.
    Exponential {
        /// What it is multiplied with.
        multiplier: f64,
    },
}

/// When a failed event is tried again, and how often.
///
/// The default is exponential from 200 ms to 60 s, jittered by a factor of 0.5 to 1.5, ten attempts.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::RetryPolicy;
///
/// let policy = RetryPolicy::exponential(Duration::from_millis(100))
///     .max_delay(Duration::from_secs(5))
///     .max_attempts(4)
///     .jitter(0.0);
/// let delays: Vec<_> = (1..4).map(|failures| policy.delay(failures, 0.5).as_millis()).collect();
/// assert_eq!(delays, [100, 200, 400]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    backoff: Backoff,
    base: Duration,
    max_delay: Duration,
    jitter: f64,
    max_attempts: u32,
    only: Vec<Class>,
    never: Vec<Class>,
    own: Option<Own>,
}

/// A policy of one's own: when the next attempt is due after a failure, or that there is none.
///
/// It is asked after the lists of classes and before the number of attempts, and what it answers is taken as it is,
/// without jitter. Errors that say themselves what is to be done are not brought before it.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::{RetryPolicy, domain::Failure};
///
/// // Once more at once, then every hour of a day.
/// let policy = RetryPolicy::by(|failures: u32, _failure: &Failure| match failures {
///     1 => Some(Duration::ZERO),
///     2..=24 => Some(Duration::from_secs(3_600)),
///     _ => None,
/// });
/// ```
pub trait Policy: Send + Sync + 'static {
    /// `failures` is how often the event has failed, this time included.
    fn next(&self, failures: u32, failure: &Failure) -> Option<Duration>;
}

impl<F: Fn(u32, &Failure) -> Option<Duration> + Send + Sync + 'static> Policy for F {
    fn next(&self, failures: u32, failure: &Failure) -> Option<Duration> {
        self(failures, failure)
    }
}

#[derive(Clone)]
struct Own(Arc<dyn Policy>);

impl PartialEq for Own {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own")
    }
}

/// The errors of a type.
#[derive(Clone, Copy)]
struct Class {
    name: &'static str,
    has: fn(&HandlerError) -> bool,
}

impl Class {
    fn of<E: Error + 'static>() -> Self {
        Self { name: type_name::<E>(), has: HandlerError::is::<E> }
    }
}

impl PartialEq for Class {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl RetryPolicy {
    /// The same delay before every attempt.
    pub fn fixed(delay: Duration) -> Self {
        Self::of(Backoff::Fixed, delay)
    }

    /// A delay that grows by `base` with every failure.
    pub fn linear(base: Duration) -> Self {
        Self::of(Backoff::Linear, base)
    }

    /// A delay that doubles with every failure, unless another multiplier is set.
    pub fn exponential(base: Duration) -> Self {
        Self::of(Backoff::Exponential { multiplier: 2.0 }, base)
    }

    /// No second attempt: the first failure is the last.
    pub fn never() -> Self {
        Self::fixed(Duration::ZERO).max_attempts(1)
    }

    fn of(backoff: Backoff, base: Duration) -> Self {
        Self {
            backoff,
            base,
            max_delay: Duration::from_mins(1).max(base),
            jitter: 0.5,
            max_attempts: 10,
            only: Vec::new(),
            never: Vec::new(),
            own: None,
        }
    }

    /// What the delay is multiplied with at every failure; makes the policy exponential.
    #[must_use]
    pub fn multiplier(mut self, multiplier: f64) -> Self {
        self.backoff = Backoff::Exponential { multiplier };
        self
    }

    /// No delay is longer than this, jitter included.
    #[must_use]
    pub fn max_delay(mut self, max: Duration) -> Self {
        self.max_delay = max;
        self
    }

    /// Spreads each delay by a factor of `1 - share` to `1 + share`; 0 switches it off.
    #[must_use]
    pub fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// How often an event is tried at the most, the first time included.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Tries again only after errors of this type, or of another that is named so. Panics and timeouts are not errors,
    /// and are tried again all the same.
    #[must_use]
    pub fn retry_on<E: Error + 'static>(mut self) -> Self {
        self.only.push(Class::of::<E>());
        self
    }

    /// Does not try again after errors of this type, also where [`retry_on`](Self::retry_on) names it.
    #[must_use]
    pub fn never_on<E: Error + 'static>(mut self) -> Self {
        self.never.push(Class::of::<E>());
        self
    }

    /// A policy of one's own. How often at the most is still up to [`max_attempts`](Self::max_attempts). Where it panics, the default
    /// policy has its say in its place.
    pub fn by(policy: impl Policy) -> Self {
        Self { own: Some(Own(Arc::new(policy))), ..Self::default() }
    }

    /// When the next attempt is due after this failure; `None` if it was the last. `failures` counts it.
    pub fn next(&self, failures: u32, failure: &Failure, random: f64) -> Option<Duration> {
        let wish = match failure {
            Failure::Error(error) if !self.allows(error) => Retry::Never,
            Failure::Error(error) => error.retry(),
            Failure::Panic(_) | Failure::Timeout(_) => Retry::ByPolicy,
            Failure::NoRoute(_) | Failure::Undecodable(_) | Failure::Payload(_) | Failure::Lethal(_) => Retry::Never,
        };
        let delay = match (wish, &self.own) {
            (Retry::Never | Retry::Unread, _) => None,
            _ if self.is_exhausted(failures) => None,
            (Retry::After(delay), _) => return Some(delay),
            (Retry::ByPolicy | Retry::Unavailable, Some(own)) => own.0.next(failures, failure),
            (Retry::ByPolicy | Retry::Unavailable, None) => Some(self.delay(failures, random)),
        };
        delay.map(|delay| delay.max(failure.wish()))
    }

    fn allows(&self, error: &HandlerError) -> bool {
        let among = |classes: &[Class]| classes.iter().any(|class| (class.has)(error));
        (self.only.is_empty() || among(&self.only)) && !among(&self.never)
    }

    /// The delay after this many failures. `random` in 0 to 1 picks the jitter.
    pub fn delay(&self, failures: u32, random: f64) -> Duration {
        let nth = failures.max(1);
        let factor = match self.backoff {
            Backoff::Fixed => 1.0,
            Backoff::Linear => f64::from(nth),
            Backoff::Exponential { multiplier } => multiplier.powf(f64::from(nth - 1)),
        };
        let spread = 1.0 + self.jitter * (2.0 * random.clamp(0.0, 1.0) - 1.0);
        let seconds = self.base.as_secs_f64() * factor * spread;
        // An overflow is infinite, and no duration: the maximum stands for it.
        Duration::try_from_secs_f64(seconds).map_or(self.max_delay, |delay| delay.min(self.max_delay))
    }

    /// The default policy with the limit of this one, for when this one can't be asked.
    pub(crate) fn replaced(&self) -> Self {
        Self::default().max_attempts(self.max_attempts)
    }

    /// Whether this many failures are the last.
    pub fn is_exhausted(&self, failures: u32) -> bool {
        failures >= self.max_attempts
    }

    /// Says what is wrong with the policy, if anything is.
    pub fn validate(&self) -> Result<(), String> {
        if self.max_attempts == 0 {
            return Err("max_attempts is 0: it counts the first attempt, so the least is 1".into());
        }
        if !(0.0..=1.0).contains(&self.jitter) {
            return Err(format!("jitter is {}: it is a share from 0 to 1", self.jitter));
        }
        if let Backoff::Exponential { multiplier } = self.backoff
            && !(1.0..=1_000.0).contains(&multiplier)
        {
            return Err(format!("multiplier is {multiplier}: it is a number from 1 to 1000"));
        }
        if self.max_delay < self.base {
            return Err(format!("max_delay is {:?}, and less than the first delay of {:?}", self.max_delay, self.base));
        }
        Ok(())
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::exponential(Duration::from_millis(200))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn millis(policy: &RetryPolicy, failures: &[u32], random: f64) -> Vec<u128> {
        failures.iter().map(|n| policy.delay(*n, random).as_millis()).collect()
    }

    #[test]
    fn the_default_runs_from_200_ms_to_60_s_with_half_as_jitter() {
        let policy = RetryPolicy::default();
        assert_eq!(millis(&policy, &[1, 2, 3, 9, 10, 100], 0.5), [200, 400, 800, 51_200, 60_000, 60_000]);
        assert_eq!(millis(&policy, &[1, 2], 0.0), [100, 200]);
        assert_eq!(millis(&policy, &[1, 2], 1.0), [300, 600]);
        assert!(!policy.is_exhausted(9) && policy.is_exhausted(10));
    }

    #[test]
    fn each_backoff_grows_in_its_way() {
        let base = Duration::from_millis(10);
        let cases = [
            (RetryPolicy::fixed(base), [10, 10, 10]),
            (RetryPolicy::linear(base), [10, 20, 30]),
            (RetryPolicy::exponential(base), [10, 20, 40]),
            (RetryPolicy::exponential(base).multiplier(3.0), [10, 30, 90]),
        ];
        for (policy, delays) in cases {
            assert_eq!(millis(&policy.jitter(0.0), &[1, 2, 3], 0.9), delays);
        }
    }

    #[test]
    fn bad_policies_are_refused_with_the_reason() {
        let base = RetryPolicy::default();
        for (policy, word) in [
            (base.clone().max_attempts(0), "max_attempts"),
            (base.clone().jitter(1.5), "jitter"),
            (base.clone().jitter(f64::NAN), "jitter"),
            (base.clone().multiplier(0.5), "multiplier"),
            (base.clone().multiplier(f64::INFINITY), "multiplier"),
            (base.max_delay(Duration::from_millis(1)), "max_delay"),
        ] {
            assert!(policy.validate().unwrap_err().contains(word));
        }
    }

    fn failed(error: impl Error + Send + Sync + 'static) -> Failure {
        Failure::Error(error.into())
    }

    #[derive(Debug, thiserror::Error)]
    #[error("wrapped")]
    struct Wrapped(#[source] std::num::ParseIntError);

    #[test]
    fn a_policy_looks_at_the_class_of_an_error_and_exclusion_wins() {
        use std::num::ParseIntError;
        let number = || failed("x".parse::<i32>().unwrap_err());
        let boxed = || failed(Wrapped("x".parse::<i32>().unwrap_err()));
        let other = || failed(fmt::Error);
        let all = RetryPolicy::fixed(Duration::ZERO);
        let only = all.clone().retry_on::<ParseIntError>();
        let never = all.clone().never_on::<ParseIntError>();
        let both = only.clone().never_on::<ParseIntError>();
        let one_of_two = only.clone().retry_on::<fmt::Error>();
        for (policy, expected) in [
            (&all, [true, true, true]),
            // A source counts as well.
            (&only, [true, true, false]),
            (&never, [false, false, true]),
            (&both, [false, false, false]),
            (&one_of_two, [true, true, true]),
        ] {
            let seen = [number(), boxed(), other()].map(|failure| policy.next(1, &failure, 0.5).is_some());
            assert_eq!(seen, expected, "{policy:?}");
        }
        assert!(only.next(1, &Failure::Panic("oh".into()), 0.5).is_some());
        assert!(only.next(1, &Failure::Timeout(Duration::ZERO), 0.5).is_some());
    }

    #[test]
    fn a_policy_of_ones_own_decides_within_the_attempts() {
        let policy = RetryPolicy::by(|failures: u32, failure: &Failure| {
            let worth_it = !matches!(failure, Failure::Panic(_));
            worth_it.then(|| Duration::from_secs(u64::from(failures) * 7))
        });
        let policy = policy.max_attempts(3);
        assert_eq!(policy.next(2, &failed(fmt::Error), 0.1), Some(Duration::from_secs(14)));
        assert_eq!(policy.next(3, &failed(fmt::Error), 0.1), None);
        assert_eq!(policy.next(1, &Failure::Panic("oh".into()), 0.1), None);
        let wish = Failure::Error(HandlerError::msg("busy").retry_after(Duration::from_secs(1)));
        assert_eq!(policy.next(1, &wish, 0.1), Some(Duration::from_secs(1)));
    }

    #[test]
    fn not_before_a_time_is_no_sooner_than_the_policy_says() {
        let second = Duration::from_secs(1);
        let own = RetryPolicy::by(move |_: u32, _: &Failure| Some(second));
        for policy in [RetryPolicy::fixed(second).jitter(0.0), own] {
            let policy = policy.max_attempts(3);
            let busy = || HandlerError::msg("busy");
            for (error, after) in [
                (busy().retry_not_before(Duration::ZERO), second),
                (busy().retry_not_before(second * 90_000), second * 90_000),
                (busy().unavailable_for(second * 7), second * 7),
                (busy().unavailable_for(second * 90_000), second * 3_600),
                // That is another wish.
                (busy().retry_after(Duration::ZERO), Duration::ZERO),
            ] {
                assert_eq!(policy.next(1, &Failure::Error(error.clone()), 0.5), Some(after), "{error:?}");
                assert_eq!(policy.next(3, &Failure::Error(error), 0.5), None);
            }
        }
    }

    fn policies() -> impl Strategy<Value = RetryPolicy> {
        (0..3_u8, 0..100_000_u64, 0..100_000_u64, 0.0..=1.0, 1.0..=1_000.0).prop_map(
            |(kind, base, more, jitter, multiplier)| {
                let base = Duration::from_millis(base);
                let policy = match kind {
                    0 => RetryPolicy::fixed(base),
                    1 => RetryPolicy::linear(base),
                    _ => RetryPolicy::exponential(base).multiplier(multiplier),
                };
                policy.max_delay(base + Duration::from_millis(more)).jitter(jitter)
            },
        )
    }

    proptest! {
        #[test]
        fn never_over_the_maximum_and_no_overflow_at_any_attempt(
            policy in policies(), failures in any::<u32>(), random in -1.0..2.0,
        ) {
            prop_assert!(policy.delay(failures, random) <= policy.max_delay);
        }

        #[test]
        fn delays_never_shrink_without_jitter(policy in policies(), failures in 0..u32::MAX) {
            let policy = policy.jitter(0.0);
            prop_assert!(policy.delay(failures, 0.5) <= policy.delay(failures + 1, 0.5));
        }
    }
}
