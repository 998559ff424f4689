//! Policies in settings: what is left out has the default of the policy itself.

use std::time::Duration;

use serde::Deserialize;

use super::span;
use crate::domain::{CircuitPolicy, RetryPolicy};

/// A [`RetryPolicy`] as it is written in settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetrySettings {
    /// How pauses grow.
    pub backoff: BackoffSetting,
    /// The first pause.
    #[serde(with = "span::option")]
    pub base: Option<Duration>,
    /// What each pause is multiplied by to give the next, where they grow exponentially.
    pub multiplier: Option<f64>,
    /// The longest pause.
    #[serde(with = "span::option")]
    pub max_delay: Option<Duration>,
    /// The share of a pause that is left to chance.
    pub jitter: Option<f64>,
    /// How often it is tried, the first time included.
    pub max_attempts: Option<u32>,
}

/// How pauses grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackoffSetting {
    /// They do not.
    Fixed,
    /// By the base.
    Linear,
    /// By a factor.
    #[default]
    Exponential,
    /// There is no second attempt.
    Never,
}

impl RetrySettings {
    /// The policy.
    pub fn policy(self) -> RetryPolicy {
        let default = RetryPolicy::default();
        let base = self.base.unwrap_or_else(|| default.delay(1, 0.5));
        let mut policy = match self.backoff {
            BackoffSetting::Fixed => RetryPolicy::fixed(base),
            BackoffSetting::Linear => RetryPolicy::linear(base),
            BackoffSetting::Exponential => RetryPolicy::exponential(base),
            BackoffSetting::Never => return RetryPolicy::never(),
        };
        if let Some(multiplier) = self.multiplier {
            policy = policy.multiplier(multiplier);
        }
        if let Some(max) = self.max_delay {
            policy = policy.max_delay(max);
        }
        if let Some(jitter) = self.jitter {
            policy = policy.jitter(jitter);
        }
        if let Some(attempts) = self.max_attempts {
            policy = policy.max_attempts(attempts);
        }
        policy
    }
}

/// A [`CircuitPolicy`] as it is written in settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CircuitSettings {
    /// After how many failures it opens.
    pub failures: Option<u32>,
    /// For how long at first.
    #[serde(with = "span::option")]
    pub shortest: Option<Duration>,
    /// For how long at the most.
    #[serde(with = "span::option")]
    pub longest: Option<Duration>,
}

impl CircuitSettings {
    /// The policy.
    pub fn policy(self) -> CircuitPolicy {
        let default = CircuitPolicy::default();
        CircuitPolicy {
            failures: self.failures.unwrap_or(default.failures),
            shortest: self.shortest.unwrap_or(default.shortest),
            longest: self.longest.unwrap_or(default.longest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_the_default() {
        let of = |json| serde_json::from_str::<RetrySettings>(json).map(RetrySettings::policy);
        assert_eq!(format!("{:?}", of("{}").unwrap()), format!("{:?}", RetryPolicy::default()));
        assert_eq!(format!("{:?}", of(r#"{"backoff": "never"}"#).unwrap()), format!("{:?}", RetryPolicy::never()));
        assert!(of(r#"{"attempts": 3}"#).unwrap_err().to_string().contains("max_attempts"));
        assert_eq!(CircuitSettings::default().policy(), CircuitPolicy::default());
    }
}
