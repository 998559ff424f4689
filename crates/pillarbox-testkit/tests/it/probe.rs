//! The probe sees what happens, and says so when it should not.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use pillarbox_core::{
    Event,
    domain::{Delivery, Epoch, Outcome, Partition, Record, Seq, Timestamp},
};
use pillarbox_testkit::{
    Probe,
    probe::{End, Which},
};

fn delivery(seq: i64, key: Option<&str>) -> Delivery {
    let mut builder = Event::builder("Happened").json(&1);
    if let Some(key) = key {
        builder = builder.key(key);
    }
    let record = Record {
        seq: Seq(seq),
        partition: Partition(0),
        event: builder.build().unwrap(),
        attempts: 0,
        starts: 0,
        progress: None,
        created_at: Timestamp::default(),
    };
    Delivery::new(record, Epoch(4))
}

fn panics(check: impl FnOnce()) -> String {
    let payload = std::panic::catch_unwind(AssertUnwindSafe(check)).unwrap_err();
    *payload.downcast::<String>().unwrap()
}

#[tokio::test]
async fn the_handler_does_what_is_scripted_and_then_succeeds() {
    let probe = Probe::new();
    let handler = probe.handler();
    let delivery = delivery(1, Some("k"));
    let id = delivery.event().id();
    probe.fail(id, 1);
    probe.defer(Which::of_key("k"), 1, Duration::from_secs(3));
    probe.panic(Which::of_type("Happened"), 1);
    probe.fail(Which::of_type("Other"), 1);
    assert!(handler(delivery.clone()).await.is_err());
    assert_eq!(handler(delivery.clone()).await, Ok(Outcome::RetryAfter(Duration::from_secs(3))));
    assert!(AssertUnwindSafe(handler(delivery.clone())).catch_unwind().await.is_err());
    assert_eq!(handler(delivery.clone()).await, Ok(Outcome::Done));

    let log = probe.log();
    let ends: Vec<_> = log.deliveries().iter().filter_map(|delivered| delivered.end).collect();
    assert_eq!(ends, [End::Failed, End::Deferred, End::Panicked, End::Done]);
    assert_eq!((log.begun(), log.done(), log.running(), log.times(id)), (4, 1, 0, 4));
    assert_eq!((log.deliveries()[0].epoch, log.deliveries()[0].attempt), (Epoch(4), 1));
    probe.assert_no_overlap();
}

#[tokio::test]
async fn a_stopped_handler_runs_until_its_gate_opens_or_it_is_dropped() {
    let probe = Probe::new();
    let handler = probe.handler();
    let gate = probe.stop(Which::any(), 2);
    let running = tokio::spawn(handler(delivery(1, None)));
    gate.reached().await;
    let dropped = tokio::spawn(handler(delivery(2, None)));
    gate.reached_by(2).await;
    assert_eq!(probe.log().running(), 2);
    dropped.abort();
    probe.wait_until(|log| log.running() == 1).await;
    gate.open();
    probe.wait_for(1).await;
    running.await.unwrap().unwrap();
    let ends: Vec<_> = probe.log().deliveries().iter().map(|delivered| delivered.end).collect();
    assert_eq!(ends, [Some(End::Done), Some(End::Dropped)]);
}

#[tokio::test]
async fn duplicates_and_losses_are_told() {
    let probe = Probe::new();
    let (once, twice, never) = (delivery(1, None), delivery(2, None), delivery(3, None));
    for delivery in [&once, &twice] {
        probe.handle(delivery).await.unwrap();
    }
    let ids = [once.event().id(), twice.event().id()];
    probe.assert_each_once(&ids);
    let lost = panics(|| probe.assert_each_once(&[ids[0], ids[1], never.event().id()]));
    assert!(lost.contains("was delivered 0 times"), "{lost}");
    let stray = panics(|| probe.assert_each_once(&ids[..1]));
    assert!(stray.contains("never written"), "{stray}");
    probe.handle(&twice).await.unwrap();
    let doubled = panics(|| probe.assert_each_once(&ids));
    assert!(doubled.contains(&format!("{} was delivered 2 times", ids[1])), "{doubled}");
}

#[tokio::test]
async fn a_wrong_order_is_told_and_a_repetition_is_none() {
    let probe = Probe::new();
    let [first, second, other] = [delivery(1, Some("k")), delivery(2, Some("k")), delivery(0, Some("other"))];
    for delivery in [&first, &second, &first, &other] {
        probe.handle(delivery).await.unwrap();
    }
    probe.assert_in_order_per_key();
    assert_eq!(probe.log().seqs_of_key("k"), [Seq(1), Seq(2), Seq(1)]);
    probe.handle(&delivery(1, Some("other"))).await.unwrap();
    probe.handle(&delivery(0, Some("k"))).await.unwrap();
    let wrong = panics(|| probe.assert_in_order_per_key());
    assert!(wrong.contains("key k: 0 was first delivered after 2"), "{wrong}");
}

#[tokio::test]
async fn an_overlap_of_one_key_or_one_event_is_told() {
    let same = delivery(1, None);
    for (pair, overlaps) in [
        ([delivery(1, Some("k")), delivery(2, Some("k"))], true),
        ([same.clone(), same], true),
        ([delivery(1, Some("a")), delivery(2, Some("b"))], false),
        ([delivery(1, None), delivery(2, None)], false),
    ] {
        let probe = Probe::new();
        let gate = probe.stop(Which::any(), 2);
        let open = async {
            gate.reached_by(2).await;
            gate.open();
        };
        let _ = tokio::join!(probe.handle(&pair[0]), probe.handle(&pair[1]), open);
        let told = std::panic::catch_unwind(AssertUnwindSafe(|| probe.assert_no_overlap())).is_err();
        assert_eq!(told, overlaps);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_too_long_shows_what_was_seen() {
    let probe = Probe::with_patience(Duration::from_millis(5));
    probe.handle(&delivery(17, Some("k"))).await.unwrap();
    let wait = AssertUnwindSafe(probe.wait_for(2)).catch_unwind().await;
    let text = *wait.unwrap_err().downcast::<String>().unwrap();
    assert!(text.contains("2 deliveries that end well") && text.contains("seq     17"), "{text}");
}
