//! What happens when things happen at once.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
};

use futures_util::future::join_all;
use pillarbox_core::{
    domain::{Key, PartitionSet, Seq, Status},
    port::{Batch, Change, NewRow, OwnStore, Position, Row, Settled, Settlement, TransactStore, WriteStore},
};
use tokio::sync::Mutex;

use super::{
    Backend,
    scene::{LONG, Owner, Scene, build, event, joining, keyed, new_row, seqs},
};

const WRITERS: u64 = 4;
const KEYS: [&str; 3] = ["a", "b", "c"];

/// P1, O8, O9: writers that hold the lock of their aggregate while they write, as the design asks, and a reader
/// that settles what it reads and hands its position on.
pub async fn every_event_of_racing_writers_is_read_once_and_in_order_per_key<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let locks = KEYS.map(|_| Mutex::new(()));
    let committed = RefCell::new(BTreeSet::new());
    // Each key's numbers in the order of the commits.
    let by_key: RefCell<BTreeMap<Key, Vec<Seq>>> = RefCell::default();
    let writing = Cell::new(WRITERS);

    let write = async |seed: u64| {
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..40 {
            let at = random.usize(..KEYS.len());
            let lock = locks[at].lock().await;
            let mut tx = scene.store().begin().await.expect("begin");
            let mut rows: Vec<NewRow> = Vec::new();
            for _ in 0..random.usize(1..4) {
                rows.push(new_row(build(if random.u8(..3) == 0 { event() } else { keyed(KEYS[at]) })));
            }
            let seqs = scene.store().insert(&mut tx, &rows).await.expect("insert");
            for _ in 0..random.usize(..6) {
                tokio::task::yield_now().await;
            }
            if random.u8(..5) == 0 {
                scene.store().rollback(tx).await.expect("rollback");
            } else {
                scene.store().commit(tx).await.expect("commit");
                committed.borrow_mut().extend(seqs.iter().copied());
                for (row, seq) in rows.iter().zip(seqs) {
                    if let Some(key) = row.event.key() {
                        by_key.borrow_mut().entry(key.clone()).or_default().push(seq);
                    }
                }
            }
            drop(lock);
        }
        writing.set(writing.get() - 1);
    };
    let read = async {
        let mut position = Position::START;
        let mut seen: Vec<(Seq, Option<Key>)> = Vec::new();
        // What a store said on the way, for the day on which a number is missing.
        let mut pages: Vec<(Vec<Seq>, Position)> = Vec::new();
        loop {
            let last = writing.get() == 0;
            let page = scene.page(&position).await;
            assert!(page.position.seq >= position.seq, "the position went back");
            let empty = page.rows.is_empty();
            seen.extend(page.rows.iter().map(|row| (row.seq(), row.key().cloned())));
            position = page.position;
            pages.push((seqs(&page.rows), position.clone()));
            let batch = Batch {
                outcomes: page.rows.iter().map(|row| done(&owner, row)).collect(),
                mark: Some(position.mark),
                ..Batch::default()
            };
            assert_eq!(scene.settle_batch(&owner, &batch).await, Settled::Applied { stale: 0 });
            if last && empty {
                return (seen, pages);
            }
        }
    };
    let writers = join_all((0..WRITERS).map(write));
    let (_, (seen, pages)) = tokio::join!(writers, read);

    let mut numbers: Vec<Seq> = seen.iter().map(|(seq, _)| *seq).collect();
    numbers.sort_unstable();
    let committed: Vec<Seq> = committed.into_inner().into_iter().collect();
    assert_eq!(numbers, committed, "each once, and none lost: {pages:#?}");
    for (key, written) in by_key.into_inner() {
        let of_key = seen.iter().filter(|(_, own)| own.as_ref() == Some(&key));
        assert_eq!(of_key.map(|(seq, _)| *seq).collect::<Vec<_>>(), written, "the order of key {key}");
    }
}

/// D3 of the design: an expiry check without a lock would let the old settle write after the takeover.
pub async fn a_settle_is_through_before_its_node_is_replaced_or_writes_nothing<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let other = scene.backend.second_handle().await;
    for round in 0..20 {
        let owner = scene.owner_of("twin", LONG, PartitionSet::ALL).await;
        let seq = scene.write_one(event()).await;
        let outcome = scene.outcome(&owner, seq, Change::Done).await;
        let settle = scene.settle(&owner, vec![outcome]);
        let replace = async {
            for _ in 0..round % 4 {
                tokio::task::yield_now().await;
            }
            let joining = joining("twin", LONG);
            other.join(&joining).await.expect("join");
            scene.found(seq).await.status
        };
        let (settled, at_takeover) = tokio::join!(settle, replace);
        let expected = match settled {
            Settled::Applied { .. } => Status::Done,
            Settled::Fenced => Status::New,
        };
        assert_eq!(at_takeover, expected, "the row changed after the takeover");
        assert_eq!(scene.found(seq).await.status, expected);
    }
}

fn done(owner: &Owner, row: &Row) -> Settlement {
    Settlement {
        seq: row.seq(),
        partition: row.partition(),
        epoch: owner.epoch(row.partition()),
        key: row.key().cloned(),
        change: Change::Done,
    }
}
