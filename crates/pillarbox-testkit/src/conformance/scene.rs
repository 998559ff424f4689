//! The scene of a case: a fresh database, and short words for what cases do with it.

use std::time::Duration;

use pillarbox_core::{
    Event,
    domain::{Epoch, EventBuilder, Key, Lease, NodeId, Partition, PartitionSet, Record, Seq, Timestamp},
    port::{
        Actor, AdminStore, Batch, Candidate, Change, Due, Found, Hold, HoldChange, Joining, NewRow, OwnStore, Page,
        Position, Query, ReadStore, Row, Scan, Settled, Settlement, Taken, TransactStore, WriteStore,
    },
};

use super::Backend;

/// A lease that does not lapse within a case.
pub(super) const LONG: Duration = Duration::from_mins(10);
/// More rows than a case writes.
pub(super) const PLENTY: usize = 100_000;

pub(super) struct Scene<B: Backend> {
    pub(super) backend: B,
}

/// A node with what it owns.
pub(super) struct Owner {
    pub(super) lease: Lease,
    pub(super) taken: Vec<Taken>,
}

impl Owner {
    pub(super) fn epoch(&self, partition: Partition) -> Epoch {
        let taken = self.taken.iter().find(|taken| taken.partition == partition);
        taken.expect("the partition is owned").epoch
    }

    pub(super) fn taken(&self, partition: Partition) -> &Taken {
        let taken = self.taken.iter().find(|taken| taken.partition == partition);
        taken.expect("the partition was taken")
    }

    pub(super) fn partitions(&self) -> PartitionSet {
        self.taken.iter().map(|taken| taken.partition).collect()
    }
}

/// An event of no importance.
pub(super) fn event() -> EventBuilder {
    Event::builder("Happened").json(&1)
}

/// One with a key.
pub(super) fn keyed(key: &str) -> EventBuilder {
    event().key(key)
}

pub(super) fn events(count: usize) -> Vec<EventBuilder> {
    (0..count).map(|_| event()).collect()
}

pub(super) fn partition_of(key: &str) -> Partition {
    Partition::of_key(&Key::from(key))
}

pub(super) fn build(builder: EventBuilder) -> Event {
    builder.build().expect("the event is valid")
}

pub(super) fn new_row(event: Event) -> NewRow {
    let partition = event.key_partition().unwrap_or(Partition(0));
    NewRow { event, partition }
}

pub(super) fn seqs(rows: &[Row]) -> Vec<Seq> {
    rows.iter().map(Row::seq).collect()
}

pub(super) fn dead(hold: bool) -> Change {
    Change::Dead { attempts: 3, error: "boom".to_owned(), progress: None, hold }
}

pub(super) fn retry(after: Duration) -> Change {
    Change::Retry { attempts: 1, after, error: Some("oops".to_owned()), progress: None }
}

pub(super) fn operator() -> Actor {
    Actor::new("ada").because("the shop is open again")
}

pub(super) fn joining(name: &str, ttl: Duration) -> Joining {
    Joining { node: NodeId::new(name), ttl, routes: vec![format!("(\"Order\", \"{name}\")")], in_flight: 2 }
}

pub(super) fn any(_: Candidate<'_>) -> bool {
    true
}

impl<B: Backend> Scene<B> {
    pub(super) async fn new() -> Self {
        Self { backend: B::fresh().await }
    }

    pub(super) fn store(&self) -> &B::Store {
        self.backend.store()
    }

    /// Writes events in one transaction: with a key to its partition, without to partition 0.
    pub(super) async fn write(&self, builders: impl IntoIterator<Item = EventBuilder>) -> Vec<Seq> {
        let rows: Vec<NewRow> = builders.into_iter().map(|builder| new_row(build(builder))).collect();
        self.write_rows(&rows).await
    }

    pub(super) async fn write_one(&self, builder: EventBuilder) -> Seq {
        self.write([builder]).await[0]
    }

    /// Writes events without a key to a partition.
    pub(super) async fn write_to(&self, partition: Partition, count: usize) -> Vec<Seq> {
        let row = || NewRow { event: build(event()), partition };
        let rows: Vec<NewRow> = (0..count).map(|_| row()).collect();
        self.write_rows(&rows).await
    }

    pub(super) async fn write_rows(&self, rows: &[NewRow]) -> Vec<Seq> {
        let mut tx = self.store().begin().await.expect("begin");
        let seqs = self.store().insert(&mut tx, rows).await.expect("insert");
        self.store().commit(tx).await.expect("commit");
        assert_eq!(seqs.len(), rows.len(), "each row has a number");
        seqs
    }

    pub(super) async fn join(&self, name: &str) -> Lease {
        self.join_for(name, LONG).await
    }

    pub(super) async fn join_for(&self, name: &str, ttl: Duration) -> Lease {
        self.store().join(&joining(name, ttl)).await.expect("join")
    }

    /// A node that owns what was free of the partitions.
    pub(super) async fn owner_of(&self, name: &str, ttl: Duration, partitions: PartitionSet) -> Owner {
        let lease = self.join_for(name, ttl).await;
        let taken = self.take(&lease, partitions).await;
        Owner { lease, taken }
    }

    /// A node that owns everything.
    pub(super) async fn owner(&self) -> Owner {
        let owner = self.owner_of("owner", LONG, PartitionSet::ALL).await;
        assert_eq!(owner.partitions(), PartitionSet::ALL);
        owner
    }

    pub(super) async fn take(&self, lease: &Lease, partitions: PartitionSet) -> Vec<Taken> {
        let taken = self.store().take(lease, partitions).await.expect("take");
        taken.expect("the lease is in force")
    }

    pub(super) async fn expel(&self, lease: &Lease) -> Vec<NodeId> {
        let expelled = self.store().expel(lease).await.expect("expel");
        expelled.expect("the lease is in force")
    }

    /// A page of everything from a position on.
    pub(super) async fn page(&self, after: &Position) -> Page {
        let scan = Scan { partitions: PartitionSet::ALL, after, limit: PLENTY, skip_recent: Duration::ZERO };
        self.store().page(scan, &mut any).await.expect("page")
    }

    /// What pages would give from the beginning.
    pub(super) async fn fresh(&self) -> Vec<Seq> {
        seqs(&self.page(&Position::START).await.rows)
    }

    pub(super) async fn due(&self) -> Due {
        let due = self.store().due(PartitionSet::ALL, PLENTY, &mut any).await;
        due.expect("due")
    }

    pub(super) async fn due_seqs(&self) -> Vec<Seq> {
        seqs(&self.due().await.rows)
    }

    pub(super) async fn lane(&self, key: &str, from: Seq) -> Vec<Seq> {
        let rows = self.store().lane(partition_of(key), &Key::from(key), from, PLENTY).await;
        seqs(&rows.expect("lane"))
    }

    pub(super) async fn now(&self) -> Timestamp {
        self.page(&Position::START).await.now
    }

    /// The row as an operator sees it.
    pub(super) async fn find(&self, seq: Seq) -> Option<Found> {
        let listing = self.store().list(&Query::default(), seq, 1).await.expect("list");
        listing.events.into_iter().find(|found| found.seq == seq)
    }

    pub(super) async fn found(&self, seq: Seq) -> Found {
        self.find(seq).await.expect("the row is there")
    }

    /// All rows as an operator sees them.
    pub(super) async fn all(&self) -> Vec<Found> {
        let listing = self.store().list(&Query::default(), Seq(0), 100_000).await;
        listing.expect("list").events
    }

    pub(super) async fn record(&self, seq: Seq) -> Record {
        self.found(seq).await.record.expect("the row can be decoded")
    }

    /// What becomes of a row that is there.
    pub(super) async fn outcome(&self, owner: &Owner, seq: Seq, change: Change) -> Settlement {
        let record = self.record(seq).await;
        Settlement {
            seq,
            partition: record.partition,
            epoch: owner.epoch(record.partition),
            key: record.key().cloned(),
            change,
        }
    }

    pub(super) async fn settle_one(&self, owner: &Owner, seq: Seq, change: Change) {
        let outcome = self.outcome(owner, seq, change).await;
        assert_eq!(self.settle(owner, vec![outcome]).await, Settled::Applied { stale: 0 });
    }

    pub(super) async fn settle(&self, owner: &Owner, mut outcomes: Vec<Settlement>) -> Settled {
        outcomes.sort_by_key(|outcome| outcome.seq);
        let batch = Batch { outcomes, ..Batch::default() };
        self.settle_batch(owner, &batch).await
    }

    pub(super) async fn settle_batch(&self, owner: &Owner, batch: &Batch) -> Settled {
        self.store().settle(&owner.lease, batch).await.expect("settle")
    }

    pub(super) async fn change_holds(&self, owner: &Owner, holds: Vec<HoldChange>) {
        let batch = Batch { holds, ..Batch::default() };
        assert_eq!(self.settle_batch(owner, &batch).await, Settled::Applied { stale: 0 });
    }

    pub(super) async fn holds(&self, owner: &Owner) -> Vec<Hold> {
        self.store().recall(&owner.taken).await.expect("recall").holds
    }
}
