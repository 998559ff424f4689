//! Scripted faults strike where and as often as the script says.

use std::time::Duration;

use futures_util::FutureExt;
use pillarbox_core::{
    Event,
    domain::{NodeId, Partition},
    port::{AdminStore, Joining, NewRow, OwnStore, Query, StoreErrorKind, TransactStore, WriteStore},
};
use pillarbox_testkit::{Call, Faulty, MemoryStore};

fn store() -> Faulty<MemoryStore> {
    Faulty::new(MemoryStore::new())
}

fn joining(name: &str) -> Joining {
    Joining { node: NodeId::new(name), ttl: Duration::from_mins(1), routes: Vec::new(), in_flight: 1 }
}

async fn nodes(store: &Faulty<MemoryStore>) -> u64 {
    store.inner().stats().await.unwrap().live_nodes
}

#[tokio::test]
async fn calls_fail_as_often_as_scripted_and_then_pass() {
    let store = store();
    store.faults().pass(Call::Join, 1);
    store.faults().fail(Call::Join, 2, StoreErrorKind::Conflict);
    let mut results = Vec::new();
    for name in ["a", "b", "c", "d"] {
        results.push(store.join(&joining(name)).await.map_err(|error| error.kind()).err());
    }
    let conflict = Some(StoreErrorKind::Conflict);
    assert_eq!(results, [None, conflict, conflict, None]);
    assert_eq!(nodes(&store).await, 2, "a failed call does not reach the store");
    assert_eq!(store.faults().calls(Call::Join), 4);
    assert_eq!(store.faults().calls(Call::Leave), 0);
}

#[tokio::test]
async fn a_lost_answer_leaves_its_effect() {
    let store = store();
    store.faults().lose(Call::Join, 1, StoreErrorKind::OutcomeUnknown);
    let error = store.join(&joining("a")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::OutcomeUnknown);
    assert_eq!(nodes(&store).await, 1);
}

#[tokio::test]
async fn a_call_stops_before_or_after_its_effect_until_the_gate_opens() {
    for (after, effect) in [(false, 0), (true, 1)] {
        let store = store();
        let gate = if after { store.faults().stop_after(Call::Join) } else { store.faults().stop_before(Call::Join) };
        assert_eq!(gate.arrivals(), 0);
        let call = tokio::spawn({
            let store = store.clone();
            async move { store.join(&joining("a")).await }
        });
        gate.reached().await;
        assert_eq!(nodes(&store).await, effect);
        store.join(&joining("b")).await.unwrap();
        assert!(!call.is_finished(), "only the one call is stopped");
        gate.open();
        call.await.unwrap().unwrap();
        assert_eq!(nodes(&store).await, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_hangs_for_ever_or_comes_late() {
    let store = store();
    store.faults().hang(Call::Join);
    store.faults().hang_after(Call::Join);
    store.faults().delay(Call::Join, 1, Duration::from_secs(5));
    for (name, effect) in [("a", 0), ("b", 1)] {
        let joining = joining(name);
        let call = tokio::time::timeout(Duration::from_hours(1), store.join(&joining));
        assert!(call.await.is_err());
        assert_eq!(nodes(&store).await, effect);
    }
    let before = tokio::time::Instant::now();
    store.join(&joining("c")).await.unwrap();
    assert_eq!(before.elapsed(), Duration::from_secs(5));
}

#[tokio::test]
async fn a_database_that_is_down_answers_nothing_until_it_is_up() {
    let store = store();
    store.faults().go_down();
    for _ in 0..3 {
        assert_eq!(store.begin().await.unwrap_err().kind(), StoreErrorKind::Unavailable);
        assert!(store.count(&Query::default()).await.is_err());
    }
    store.faults().clear();
    assert_eq!(store.count(&Query::default()).await.unwrap(), 0);
}

#[tokio::test]
async fn writing_goes_through_the_script_too() {
    let store = store();
    let event = Event::builder("Happened").json(&1).build().unwrap();
    let rows = [NewRow { event, partition: Partition(0) }];
    store.faults().lose(Call::Commit, 1, StoreErrorKind::OutcomeUnknown);
    let mut tx = store.begin().await.unwrap();
    tx.put("orders", "1");
    store.insert(&mut tx, &rows).await.unwrap();
    assert!(store.commit(tx).await.is_err());
    assert_eq!(store.inner().table("orders"), ["1"]);
    store.faults().fail(Call::Commit, 1, StoreErrorKind::Unavailable);
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &rows).await.unwrap();
    assert!(store.commit(tx).await.is_err());
    assert_eq!(store.count(&Query::default()).await.unwrap(), 1);
}

#[tokio::test]
async fn what_is_scripted_for_nothing_does_nothing() {
    let store = store();
    store.faults().fail(Call::Stats, 0, StoreErrorKind::Schema);
    let mut call = store.stats();
    // The store in memory yields once, and the wrapper adds nothing to it.
    assert!((&mut call).now_or_never().is_none());
    assert!(call.now_or_never().is_some());
}

#[test]
fn every_call_has_its_own_line() {
    for (at, call) in Call::ALL.into_iter().enumerate() {
        assert_eq!(call as usize, at, "{call:?}");
    }
}
