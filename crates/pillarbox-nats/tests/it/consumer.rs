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
}
