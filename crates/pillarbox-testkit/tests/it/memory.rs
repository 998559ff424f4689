//! What the store in memory has beyond the ports.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use pillarbox_core::{
    Event,
    domain::{EventBuilder, Lease, NodeId, Partition, PartitionSet, Seq},
    port::{
        Actor, AdminStore, Batch, Candidate, Change, Joining, NewRow, OwnStore, Page, Position, ReadStore, Scan,
        Settled, Settlement, StoreErrorKind, TransactStore, WakeStore, WriteStore,
    },
};
use pillarbox_testkit::{ManualClock, MemoryStore};

fn row(builder: EventBuilder) -> NewRow {
    NewRow { event: builder.build().unwrap(), partition: Partition(0) }
}

fn event() -> EventBuilder {
    Event::builder("Happened").json(&1)
}

async fn page(store: &MemoryStore, after: &Position, limit: usize) -> Page {
    let scan = Scan { partitions: PartitionSet::ALL, after, limit, skip_recent: Duration::ZERO };
    store.page(scan, &mut |_: Candidate<'_>| true).await.unwrap()
}

async fn join(store: &MemoryStore, ttl: Duration) -> Lease {
    let joining = Joining { node: NodeId::new("node"), ttl, routes: Vec::new(), in_flight: 1 };
    store.join(&joining).await.unwrap()
}

#[tokio::test]
async fn data_and_event_commit_or_vanish_together() {
    let store = MemoryStore::new();
    for (value, ending) in [("1", "commit"), ("2", "rollback"), ("3", "drop"), ("4", "commit")] {
        let mut tx = store.begin().await.unwrap();
        tx.put("orders", value);
        store.insert(&mut tx, &[row(event())]).await.unwrap();
        match ending {
            "commit" => store.commit(tx).await.unwrap(),
            "rollback" => store.rollback(tx).await.unwrap(),
            _ => drop(tx),
        }
    }
    assert_eq!(store.table("orders"), ["1", "4"]);
    let page = page(&store, &Position::START, 10).await;
    assert_eq!(page.rows.iter().map(pillarbox_core::port::Row::seq).collect::<Vec<_>>(), [Seq(1), Seq(4)]);
    assert_eq!(page.position.seq, Seq(4), "gaps hold nothing back");
}

#[tokio::test]
async fn a_commit_that_is_given_up_is_a_rollback() {
    let store = MemoryStore::new();
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &[row(event())]).await.unwrap();
    assert!(store.commit(tx).now_or_never().is_none());
    let page = page(&store, &Position::START, 10).await;
    assert!(page.rows.is_empty());
    assert_eq!(page.position.seq, Seq(1));
}

#[tokio::test]
async fn transactions_commit_in_any_order_and_the_position_waits_for_the_lowest() {
    let store = MemoryStore::new();
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut tx = store.begin().await.unwrap();
        store.insert(&mut tx, &[row(event()), row(event())]).await.unwrap();
        open.push(tx);
    }
    for (at, position, rows) in [(2, 0, 2), (0, 2, 4), (0, 6, 6)] {
        store.commit(open.remove(at)).await.unwrap();
        let page = page(&store, &Position::START, 10).await;
        assert_eq!((page.position.seq, page.rows.len()), (Seq(position), rows));
    }
}

#[tokio::test]
async fn the_transaction_of_another_store_is_refused() {
    let (store, other) = (MemoryStore::new(), MemoryStore::new());
    let mut tx = other.begin().await.unwrap();
    let refused = store.insert(&mut tx, &[row(event())]).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Rejected);
    assert_eq!(store.commit(tx).await.unwrap_err().kind(), StoreErrorKind::Rejected);
}

#[tokio::test(start_paused = true)]
async fn under_virtual_time_leases_and_due_times_pass_with_the_timers() {
    let store = MemoryStore::virtual_time();
    let lease = join(&store, Duration::from_secs(30)).await;
    let mut tx = store.begin().await.unwrap();
    let delayed = row(event().deliver_after(Duration::from_secs(20)));
    store.insert(&mut tx, &[delayed]).await.unwrap();
    store.commit(tx).await.unwrap();
    let mut any = |_: Candidate<'_>| true;
    let due = store.due(PartitionSet::ALL, 10, &mut any).await.unwrap();
    assert_eq!((due.rows.len(), due.next), (0, Some(Duration::from_secs(20))));
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(store.due(PartitionSet::ALL, 10, &mut any).await.unwrap().rows.len(), 1);
    assert!(store.take(&lease, PartitionSet::ALL).await.unwrap().is_some());
    tokio::time::advance(Duration::from_secs(10)).await;
    assert!(store.renew(&lease, Duration::from_secs(30)).await.unwrap().is_none());
}

#[tokio::test]
async fn a_hint_is_news_to_other_processes_alone() {
    let store = MemoryStore::new();
    let other = store.another_process();
    store.hint(PartitionSet::ALL).await.unwrap();
    assert!(store.news().now_or_never().is_none());
    assert!(other.news().now_or_never().is_some());
    assert!(other.news().now_or_never().is_none(), "told once");
    drop(store.clone());
    other.hint(PartitionSet::ALL).await.unwrap();
    assert!(store.news().now_or_never().is_some());
}

#[tokio::test]
async fn actions_are_recorded_with_their_actor() {
    let store = MemoryStore::with_clock(Arc::new(ManualClock::new()));
    let lease = join(&store, Duration::from_secs(30)).await;
    let taken = store.take(&lease, PartitionSet::ALL).await.unwrap().unwrap();
    let mut tx = store.begin().await.unwrap();
    let seqs = store.insert(&mut tx, &[row(event())]).await.unwrap();
    store.commit(tx).await.unwrap();
    let change = Change::Dead { attempts: 1, error: "boom".to_owned(), progress: None, hold: true };
    store.settle(&lease, &batch(&seqs, taken[0].epoch, &change)).await.unwrap();
    let actor = Actor::new("ada").because("mended");
    assert_eq!(store.replay(&seqs, &actor).await.unwrap(), seqs);
    assert_eq!(store.discard(&seqs, &actor).await.unwrap(), []);
    let actions = store.recorded();
    assert_eq!(actions.len(), 1, "what changed nothing is not recorded");
    assert_eq!((actions[0].action.as_str(), actions[0].seq, &actions[0].actor), ("REPLAY", Some(seqs[0]), &actor));
    assert_eq!(actions[0].at, store.now());
}

#[tokio::test]
async fn a_hundred_thousand_events_go_through_page_by_page() {
    let store = MemoryStore::new();
    let lease = join(&store, Duration::from_mins(10)).await;
    let epoch = store.take(&lease, PartitionSet::ALL).await.unwrap().unwrap()[0].epoch;
    let rows: Vec<NewRow> = (0..100_000).map(|n| row(event().key(format!("k{}", n % 1_000)))).collect();
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &rows).await.unwrap();
    store.commit(tx).await.unwrap();
    let mut position = Position::START;
    let mut delivered = 0;
    loop {
        let page = page(&store, &position, 500).await;
        if page.rows.is_empty() {
            break;
        }
        delivered += page.rows.len();
        let seqs: Vec<Seq> = page.rows.iter().map(pillarbox_core::port::Row::seq).collect();
        let settled = store.settle(&lease, &batch(&seqs, epoch, &Change::Done)).await.unwrap();
        assert_eq!(settled, Settled::Applied { stale: 0 });
        position = page.position;
    }
    assert_eq!(delivered, 100_000);
}

fn batch(seqs: &[Seq], epoch: pillarbox_core::domain::Epoch, change: &Change) -> Batch {
    let outcome =
        |seq: &Seq| Settlement { seq: *seq, partition: Partition(0), epoch, key: None, change: change.clone() };
    Batch { outcomes: seqs.iter().map(outcome).collect(), ..Batch::default() }
}
