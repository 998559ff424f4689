//! How much a caller may ask.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::problem::Problem;

/// The limits of the API.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// How many items a page has where nothing is asked. Default: 20.
    pub page: u32,
    /// How many items a page may have. Default: 500.
    pub largest_page: u32,
    /// After so many bytes of payload a page ends early, and the next one goes on. Default: 8 MiB.
    pub page_bytes: usize,
    /// How long a body may be, but for a new payload. Default: 64 KiB.
    pub body: usize,
    /// How many events one request may replay or discard. Default: 10,000; the answer says where to go on.
    pub bulk: u64,
    /// How many requests a caller may send a second, on the average. Default: 50.
    pub requests_per_second: f64,
    /// How many it may send at once after a pause. Default: 100.
    pub burst: u32,
    /// How many requests are worked on at once. Default: 32.
    pub at_once: usize,
    /// How long one may take. Default: 30 s.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            page: 20,
            largest_page: 500,
            page_bytes: 8 << 20,
            body: 64 << 10,
            bulk: 10_000,
            requests_per_second: 50.0,
            burst: 100,
            at_once: 32,
            time: Duration::from_secs(30),
        }
    }
}

impl Limits {
    /// No limits of rate, for programs that call the router themselves.
    pub fn unhurried() -> Self {
        Self { requests_per_second: 1e9, burst: u32::MAX, time: Duration::from_hours(24), ..Self::default() }
    }
}

/// How many callers are remembered: more than anybody has tokens for.
const CALLERS: usize = 10_000;

/// A bucket of requests for each caller, filled again by time.
#[derive(Debug, Default)]
pub(crate) struct Buckets(Mutex<HashMap<String, Bucket>>);

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Buckets {
    /// Takes one request out of the caller's bucket, or says how long to wait.
    pub(crate) fn take(&self, caller: &str, limits: &Limits, now: Instant) -> Result<(), Problem> {
        let full = f64::from(limits.burst.max(1));
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= CALLERS && !buckets.contains_key(caller) {
            // Those that are full again have nothing to remember.
            let spent = |bucket: &Bucket| bucket.filled(limits, now) < full;
            buckets.retain(|_, bucket| spent(bucket));
            if buckets.len() >= CALLERS {
                return Err(Problem::busy());
            }
        }
        let bucket = buckets.entry(caller.to_owned()).or_insert(Bucket { left: full, at: now });
        let left = bucket.filled(limits, now);
        *bucket = Bucket { left, at: now };
        if left < 1.0 {
            let wait = (1.0 - left) / limits.requests_per_second;
            return Err(Problem::too_fast(Duration::try_from_secs_f64(wait).unwrap_or(Duration::from_mins(1))));
        }
        bucket.left = left - 1.0;
        Ok(())
    }
}

impl Bucket {
    fn filled(&self, limits: &Limits, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        (self.left + passed * limits.requests_per_second).min(f64::from(limits.burst.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_emptied_and_filled_again_for_each_caller_alone() {
        let limits = Limits { requests_per_second: 2.0, burst: 3, ..Limits::default() };
        let (buckets, begun) = (Buckets::default(), Instant::now());
        let at = |millis| begun + Duration::from_millis(millis);
        for _ in 0..3 {
            buckets.take("ada", &limits, begun).unwrap();
        }
        assert_eq!(buckets.take("ada", &limits, begun).unwrap_err().status(), 429);
        buckets.take("bob", &limits, begun).unwrap();
        assert!(buckets.take("ada", &limits, at(400)).is_err());
        buckets.take("ada", &limits, at(600)).unwrap();
        assert!(buckets.take("ada", &limits, at(600)).is_err());
        for _ in 0..3 {
            buckets.take("ada", &limits, at(60_000)).unwrap();
        }
        assert!(buckets.take("ada", &limits, at(60_000)).is_err(), "it never has more than the burst");
    }

    #[test]
    fn callers_beyond_number_do_not_fill_the_memory() {
        let limits = Limits { requests_per_second: 1.0, burst: 1, ..Limits::default() };
        let (buckets, begun) = (Buckets::default(), Instant::now());
        for n in 0..CALLERS {
            buckets.take(&n.to_string(), &limits, begun).unwrap();
        }
        assert_eq!(buckets.take("one more", &limits, begun).unwrap_err().status(), 503);
        buckets.take("one more", &limits, begun + Duration::from_secs(2)).unwrap();
        assert_eq!(buckets.0.lock().unwrap().len(), 1);
    }
}
