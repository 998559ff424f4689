//! The exams of guard and letters, on NATS.

use std::{thread, time::Duration};

use async_nats::jetstream::stream::Config;
use pillarbox_nats::{Bucket, NatsGuard, NatsLetters, Options};
use pillarbox_testkit::servers::Shared;

use crate::place::connect;

/// A bucket of its own.
struct Own(String);

impl Own {
    fn new() -> Self {
        Self(format!("pillarbox-{:x}", fastrand::u64(..)))
    }

    fn bucket(&self) -> Bucket {
        Bucket::named(&self.0)
    }

    fn stream(&self) -> String {
        format!("KV_{}", self.0)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let stream = self.stream();
        let cleaning = async move {
            // One that was never used is not there.
            let _ = connect(&Shared::Nats.url()).await.delete_stream(stream).await;
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        // A runtime can't wait for another on its own thread.
        thread::spawn(move || runtime.block_on(cleaning)).join().expect("to clean up");
    }
}

/// Leaves a message that says that there is nothing.
async fn remove(own: &Own, key: &str, purged: bool) {
    let jetstream = connect(&Shared::Nats.url()).await;
    let bucket = jetstream.get_key_value(&own.0).await.expect("a bucket");
    if purged { bucket.purge(key).await } else { bucket.delete(key).await }.expect("to remove");
}

fn options() -> Options {
    Options::new(Shared::Nats.url())
}

mod guard {
    use pillarbox_testkit::guards::Place;

    use super::{Config, Duration, NatsGuard, Own, Shared, connect, options};

    impl Place for Own {
        type Store = NatsGuard;

        async fn fresh() -> Self {
            Self::new()
        }

        fn store(&self) -> NatsGuard {
            options().guard(self.bucket(), self.ttl()).expect("a guard")
        }

        async fn pass(&self) {
            let jetstream = connect(&Shared::Nats.url()).await;
            let mut stream = jetstream.get_stream(self.stream()).await.expect("a bucket");
            let config = stream.cached_info().config.clone();
            let short = Duration::from_millis(100);
            let brief = Config { max_age: short, duplicate_window: short, ..config.clone() };
            jetstream.update_stream(brief).await.expect("to hurry");
            while stream.info().await.expect("a state").state.messages > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            jetstream.update_stream(config).await.expect("to go on");
        }
    }

    pillarbox_testkit::guards!(Own);

    #[tokio::test]
    async fn a_time_that_the_bucket_does_not_have_is_refused() {
        use pillarbox_core::port::{GuardStore as _, StoreErrorKind};
        let own = Own::new();
        let guard = own.store();
        let error = guard.take("billing", &["m-1"], "a", Duration::from_secs(7)).await.expect_err("another time");
        assert_eq!(error.kind(), StoreErrorKind::Rejected);
        assert!(error.to_string().contains("7s"), "{error}");
        assert_eq!(guard.take("billing", &["m-1"], "a", own.ttl()).await.expect("a mark"), [true]);
        let other = options().guard(own.bucket(), Duration::from_mins(5)).expect("a guard");
        let error = other.take("billing", &["m-2"], "a", Duration::from_mins(5)).await.expect_err("another time");
        assert!(error.to_string().contains("300s"), "{error}");
    }

    /// As `nats kv del` and `nats kv purge` do it.
    #[tokio::test]
    async fn a_mark_that_another_program_has_deleted_is_none() {
        use pillarbox_core::port::GuardStore as _;
        let own = Own::new();
        let guard = own.store();
        for purged in [false, true] {
            assert_eq!(guard.take("billing", &["m-1"], "a", own.ttl()).await.expect("a mark"), [true]);
            super::remove(&own, "billing.m-1", purged).await;
            guard.release("billing", &["m-1"], "a").await.expect("nothing to release");
            assert_eq!(guard.take("billing", &["m-1"], "b", own.ttl()).await.expect("a mark"), [true]);
            assert_eq!(guard.take("billing", &["m-1"], "c", own.ttl()).await.expect("an answer"), [false]);
            guard.release("billing", &["m-1"], "b").await.expect("to release");
        }
    }
}

mod letters {
    use pillarbox_testkit::letters::Place;

    use super::{NatsLetters, Own, options};

    impl Place for Own {
        type Store = NatsLetters;

        async fn fresh() -> Self {
            Self::new()
        }

        fn store(&self) -> NatsLetters {
            options().letters(self.bucket()).expect("letters")
        }
    }

    pillarbox_testkit::letters!(Own);

    #[tokio::test]
    async fn a_letter_that_is_too_large_is_refused_with_the_reason() {
        use pillarbox_core::port::{Letter, LetterStore as _, StoreErrorKind};
        use pillarbox_testkit::letters::letter;
        let own = Own::new();
        // The server's messages have a megabyte at the most.
        let fits = Letter { payload: vec![255; 1_000_000].into(), ..letter(2) };
        assert!(own.store().insert(&fits).await.expect("an answer"));
        let found = own.store().find(&fits.id).await.expect("an answer").expect("the letter");
        assert!(found.payload == fits.payload, "it comes back whole");
        let large = Letter { payload: vec![255; 1_100_000].into(), ..letter(1) };
        let error = own.store().insert(&large).await.expect_err("too large");
        assert_eq!(error.kind(), StoreErrorKind::Rejected, "{error}");
        assert_eq!(own.store().find(&large.id).await.expect("an answer"), None);
    }

    /// I6: one that is deleted by hand does not keep the others from being read, nor itself from being parked again.
    #[tokio::test]
    async fn a_letter_that_another_program_has_deleted_is_none() {
        use pillarbox_core::{
            domain::Timestamp,
            port::{DeedQuery, DeedStore as _, Letter, LetterQuery, LetterStatus, LetterStore as _},
        };
        use pillarbox_testkit::letters::letter;
        let own = Own::new();
        let store = own.store();
        let everything = LetterQuery::default();
        let finished = Some(Timestamp::from_micros(1));
        let old = Letter { status: LetterStatus::Discarded, finished_at: finished, ..letter(4) };
        for letter in [letter(1), letter(2), letter(3), old] {
            assert!(store.insert(&letter).await.expect("an answer"));
        }
        super::remove(&own, &format!("letter.{}", letter(1).id), false).await;
        super::remove(&own, &format!("letter.{}", letter(3).id), true).await;
        assert_eq!(store.find(&letter(1).id).await.expect("an answer"), None);
        assert!(!store.replace(&Letter { version: 1, ..letter(1) }).await.expect("an answer"));
        assert_eq!(store.count(&everything).await.expect("a count"), 2);
        assert_eq!(store.list(&everything, None, 1).await.expect("a page").len(), 1);
        assert_eq!(store.deeds(&DeedQuery::default(), None, 10).await.expect("deeds"), []);
        assert_eq!(store.purge(Timestamp::from_micros(2), 10).await.expect("to purge"), 1);
        for number in [1, 3] {
            assert!(store.insert(&letter(number)).await.expect("an answer"), "{number}");
            assert!(!store.insert(&letter(number)).await.expect("an answer"), "{number}");
        }
        assert_eq!(store.list(&everything, None, 10).await.expect("a page"), [letter(3), letter(2), letter(1)]);
    }

    /// What is in the place of a letter, and is none, is told and left out.
    #[tokio::test]
    async fn a_letter_that_can_not_be_read_is_told_by_its_name_and_left_out() {
        use pillarbox_core::port::{LetterQuery, LetterStore as _, StoreErrorKind};
        use pillarbox_testkit::letters::letter;
        let own = Own::new();
        let store = own.store();
        assert!(store.insert(&letter(1)).await.expect("an answer"));
        let jetstream = super::connect(&super::Shared::Nats.url()).await;
        let bucket = jetstream.get_key_value(&own.0).await.expect("a bucket");
        let id = letter(2).id;
        bucket.put(format!("letter.{id}"), "garbage".into()).await.expect("to put");
        assert_eq!(store.list(&LetterQuery::default(), None, 10).await.expect("a page"), [letter(1)]);
        assert_eq!(store.count(&LetterQuery::default()).await.expect("a count"), 1);
        let error = store.find(&id).await.expect_err("garbage");
        assert_eq!(error.kind(), StoreErrorKind::Rejected);
        assert!(error.to_string().contains(&format!("letter.{id} can't be read")), "{error}");
        assert!(std::error::Error::source(&error).is_some_and(<dyn std::error::Error>::is::<serde_json::Error>));
        assert!(!store.insert(&letter(2)).await.expect("an answer"), "it may be of a newer program");
    }

    /// Its pages come from one reading of all letters, and each letter as it is when its page comes.
    #[tokio::test]
    async fn a_list_that_changes_while_it_is_read_has_each_letter_once_and_as_it_is() {
        use pillarbox_core::port::{Letter, LetterPlace, LetterQuery, LetterStatus, LetterStore as _};
        use pillarbox_testkit::letters::letter;
        for oldest_first in [false, true] {
            let own = Own::new();
            let store = own.store();
            for number in 1..=40 {
                assert!(store.insert(&letter(number)).await.expect("an answer"));
            }
            let query = LetterQuery { oldest_first, status: Some(LetterStatus::Pending), ..LetterQuery::default() };
            let mut listed: Vec<Letter> = store.list(&query, None, 7).await.expect("a page");
            // By another program: one of each kind is changed, finished, gone, and new at either end.
            let others = own.store();
            for number in [20, 21, 22] {
                let changed = Letter { version: 1, reason: "changed".into(), ..letter(number) };
                let changed = match number {
                    21 => Letter { status: LetterStatus::Discarded, ..changed },
                    22 => Letter { dead_at: letter(50).dead_at, ..changed },
                    _ => changed,
                };
                assert!(others.replace(&changed).await.expect("an answer"));
            }
            super::remove(&own, &format!("letter.{}", letter(23).id), false).await;
            assert!(others.insert(&letter(45)).await.expect("an answer"));
            loop {
                let after = listed.last().map(LetterPlace::of);
                let page = store.list(&query, after.as_ref(), 7).await.expect("a page");
                let is_end = page.len() < 7;
                listed.extend(page);
                if is_end {
                    break;
                }
            }
            let numbers: Vec<_> = listed.iter().map(|letter| u8::from_str_radix(&letter.id.0, 16).unwrap()).collect();
            let mut expected: Vec<_> = (1..=40).filter(|number| ![21, 22, 23].contains(number)).collect();
            if oldest_first {
                // Those that died last are at its end.
                expected.extend([45, 22]);
            } else {
                expected.reverse();
            }
            assert_eq!(numbers, expected);
            assert!(listed.contains(&Letter { version: 1, reason: "changed".into(), ..letter(20) }));
        }
    }
}
