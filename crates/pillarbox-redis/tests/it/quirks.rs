//! Trimming, passwords, persistence, and who is asked what.

use std::time::Duration;

use pillarbox_core::port::{Confirms, Sink, SinkErrorKind};
use pillarbox_redis::Options;
use pillarbox_testkit::sinks::{Place, message, run};

use crate::place::{Redis, send_one};

#[test]
fn streams_are_trimmed_only_if_told_so() {
    run(async {
        for (max_len, left) in [(None, 50), (Some(7), 7)] {
            let place = Redis::fresh().await;
            let options = place.options();
            let options = match max_len {
                Some(entries) => options.max_len(entries).exact_max_len(true),
                None => options,
            };
            let sink = options.open().expect("a sink");
            let batch: Vec<_> = (0..50).map(|_| message(&place, None, b"1")).collect();
            // Messages of one batch are in no order.
            for message in batch.chunks(1) {
                assert_eq!(sink.send(message).await, [Ok(())]);
            }
            let received = place.received().await;
            assert_eq!(received.len(), left);
            assert_eq!(received.last().expect("one").id, batch[49].id.to_string());
        }
    });
}

#[test]
fn about_as_many_are_left_as_asked_for() {
    run(async {
        let place = Redis::fresh().await;
        let sink = place.options().max_len(100).open().expect("a sink");
        let batch: Vec<_> = (0..1000).map(|_| message(&place, None, b"1")).collect();
        assert!(sink.send(&batch).await.iter().all(Result::is_ok));
        let left = place.received().await.len();
        // Whole nodes of the stream's tree go, of 100 entries each.
        assert!((100..=300).contains(&left), "{left}");
    });
}

#[test]
fn nothing_to_send_asks_nobody() {
    run(async {
        let place = Redis::fresh().await;
        place.proxy().refuse();
        let sink = place.sink();
        assert_eq!(sink.send(&[]).await, []);
        let mut large = message(&place, None, b"1");
        large.payload = vec![0; sink.abilities().largest.expect("a limit") + 1].into();
        let error = send_one(&sink, large.clone()).await.expect_err("too large");
        assert_eq!(error.kind(), SinkErrorKind::Rejected);
        // It stays rejected beside one that can't be sent.
        let answers = sink.send(&[large, message(&place, None, b"1")]).await;
        let kinds: Vec<_> = answers.iter().map(|answer| answer.as_ref().expect_err("nobody").kind()).collect();
        assert_eq!(kinds, [SinkErrorKind::Rejected, SinkErrorKind::Unavailable]);
    });
}

#[test]
fn a_password_that_is_not_asked_for_is_told_without_it() {
    run(async {
        let place = Redis::fresh().await;
        let url = format!("redis://someone:hush@127.0.0.1:{}", place.proxy().port());
        let sink = Options::new(url).open().expect("a sink");
        for error in [
            sink.check().await.expect_err("a wrong password"),
            send_one(&sink, message(&place, None, b"1")).await.expect_err("a wrong password"),
        ] {
            assert_eq!(error.kind(), SinkErrorKind::Unavailable);
            let words = format!("{error} {error:?}");
            assert!(words.contains("uthentication") || words.contains("WRONGPASS"), "{words}");
            assert!(!words.contains("hush"), "{words}");
        }
    });
}

#[test]
fn tls_with_a_server_that_has_none_is_unavailable() {
    run(async {
        let place = Redis::fresh().await;
        let url = format!("rediss://127.0.0.1:{}", place.proxy().port());
        let sink = Options::new(url).answer_within(Duration::from_secs(2)).open().expect("a sink");
        let error = sink.check().await.expect_err("no TLS");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
        assert!(place.received().await.is_empty());
    });
}

#[test]
fn a_send_that_is_dropped_leaves_the_sink_usable() {
    run(async {
        let place = Redis::fresh().await;
        let sink = place.sink();
        let batch: Vec<_> = (0..100).map(|_| message(&place, None, b"1")).collect();
        for millis in 0..20 {
            let _ = tokio::time::timeout(Duration::from_micros(millis * 100), sink.send(&batch)).await;
        }
        // The answers that nobody waited for are not taken for these.
        let mut mixed = vec![message(&place, Some("a"), b"1"), message(&place, Some("b"), b"1")];
        mixed[0].topic = place.refused();
        let answers = sink.send(&mixed).await;
        assert_eq!(answers[0].as_ref().expect_err("a refusal").kind(), SinkErrorKind::Rejected);
        assert_eq!(answers[1], Ok(()));
        let last = place.received().await.pop().expect("some");
        assert_eq!(last.id, mixed[1].id.to_string());
    });
}

#[test]
fn many_callers_share_the_sink() {
    run(async {
        let place = Redis::fresh().await;
        let sink = std::sync::Arc::new(place.sink());
        let callers: Vec<_> = (0..16)
            .map(|_| {
                let (sink, batch) = (sink.clone(), (0..20).map(|_| message(&place, None, b"1")).collect::<Vec<_>>());
                tokio::spawn(async move { sink.send(&batch).await })
            })
            .collect();
        for caller in callers {
            assert!(caller.await.expect("an end").iter().all(Result::is_ok));
        }
        assert_eq!(place.received().await.len(), 320);
        assert_eq!(place.proxy().connections(), 1);
    });
}

#[test]
fn what_is_not_checked_is_not_called_stored() {
    use pillarbox_redis::Persistence::{Always, EverySecond, Unchecked};
    for (persistence, confirms) in
        [(Always, Confirms::Stored), (EverySecond, Confirms::Stored), (Unchecked, Confirms::Received)]
    {
        let sink = Options::new("redis://localhost").persistence(persistence).open().expect("a sink");
        assert_eq!(sink.abilities().confirms, confirms);
    }
}

#[test]
fn a_connection_ends_when_it_is_closed_or_its_answers_are_late() {
    run(async {
        let place = Redis::fresh().await;
        let sink = place.sink();
        assert_eq!(send_one(&sink, message(&place, None, b"1")).await, Ok(()));
        assert_eq!(place.proxy().connections(), 1);
        sink.close().await;
        until(|| place.proxy().connections() == 0).await;
        assert_eq!(send_one(&sink, message(&place, None, b"2")).await, Ok(()));
        place.proxy().lose_answers();
        let error = send_one(&sink, message(&place, None, b"3")).await.expect_err("no answer");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
        until(|| place.proxy().connections() == 0).await;
    });
}

/// Waits for what happens on other threads.
async fn until(has_happened: impl Fn() -> bool) {
    while !has_happened() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
