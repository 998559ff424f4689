//! A store in a file of its own, and the steps that most tests take.

use std::{ops::Deref, time::Duration};

use pillarbox_core::domain::{Event, EventBuilder, Lease, NodeId, Partition, PartitionSet, Seq};
use pillarbox_core::port::{
    Batch, Candidate, Change, Joining, NewRow, OwnStore as _, Page, Position, ReadStore as _, Row, Scan, Settled,
    Settlement, Taken, TransactStore as _, UpkeepStore as _, WriteStore as _,
};
use pillarbox_sqlite::{Options, SqliteStore};
use tempfile::TempDir;

pub(crate) const MINUTE: Duration = Duration::from_mins(1);

pub(crate) struct Outbox {
    pub(crate) store: SqliteStore,
    pub(crate) folder: TempDir,
}

impl Deref for Outbox {
    type Target = SqliteStore;

    fn deref(&self) -> &SqliteStore {
        &self.store
    }
}

impl Outbox {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder, Options::new()).await;
        store.migrate().await.unwrap();
        Self { store, folder }
    }

    /// Another store on the same file, as another process would have it.
    pub(crate) async fn another(&self) -> SqliteStore {
        open(&self.folder, Options::new()).await
    }

    /// Runs a statement by hand.
    pub(crate) async fn run(&self, sql: &'static str) -> u64 {
        sqlx::query(sql).execute(self.pool()).await.unwrap().rows_affected()
    }

    pub(crate) async fn number(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(self.pool()).await.unwrap()
    }

    pub(crate) async fn write(&self, events: impl IntoIterator<Item = EventBuilder>) -> Vec<Seq> {
        let rows: Vec<_> = events.into_iter().map(new_row).collect();
        let mut tx = self.begin().await.unwrap();
        let seqs = self.insert(&mut tx, &rows).await.unwrap();
        self.commit(tx).await.unwrap();
        seqs
    }

    pub(crate) async fn page_after(&self, seq: i64) -> Page {
        page(self, seq, &mut |_: Candidate<'_>| true).await
    }
}

pub(crate) async fn open(folder: &TempDir, options: Options) -> SqliteStore {
    options.open(folder.path().join("outbox.db").to_str().unwrap()).await.unwrap()
}

pub(crate) async fn page(store: &SqliteStore, seq: i64, pick: &mut (dyn FnMut(Candidate<'_>) -> bool + Send)) -> Page {
    let after = Position::at(Seq(seq));
    let scan = Scan { partitions: PartitionSet::ALL, after: &after, limit: 100, skip_recent: Duration::ZERO };
    store.page(scan, &mut |candidate: Candidate<'_>| pick(candidate)).await.unwrap()
}

pub(crate) fn event() -> EventBuilder {
    Event::builder("Placed").json(&7)
}

pub(crate) fn keyed(key: &str) -> EventBuilder {
    event().key(key)
}

pub(crate) fn new_row(event: EventBuilder) -> NewRow {
    let event = event.build().unwrap();
    let partition = event.key_partition().unwrap_or(Partition(7));
    NewRow { event, partition }
}

pub(crate) fn seqs(rows: &[Row]) -> Vec<i64> {
    rows.iter().map(|row| row.seq().0).collect()
}

pub(crate) async fn join(store: &SqliteStore, name: &str, ttl: Duration) -> Lease {
    let joining = Joining { node: NodeId::new(name), ttl, routes: vec!["a".into()], in_flight: 2 };
    store.join(&joining).await.unwrap()
}

/// A node that owns everything.
pub(crate) async fn owner(store: &SqliteStore, name: &str) -> (Lease, Vec<Taken>) {
    let lease = join(store, name, MINUTE).await;
    let taken = store.take(&lease, PartitionSet::ALL).await.unwrap().unwrap();
    (lease, taken)
}

/// The outcome of a row, under the present epoch of its partition.
pub(crate) fn outcome(row: &Row, taken: &[Taken], change: Change) -> Settlement {
    let partition = row.partition();
    Settlement {
        seq: row.seq(),
        partition,
        epoch: taken.iter().find(|taken| taken.partition == partition).unwrap().epoch,
        key: row.key().cloned(),
        change,
    }
}

pub(crate) async fn settle(store: &SqliteStore, lease: &Lease, outcomes: Vec<Settlement>) -> Settled {
    let batch = Batch { outcomes, ..Batch::default() };
    store.settle(lease, &batch).await.unwrap()
}

pub(crate) fn dead(hold: bool) -> Change {
    Change::Dead { attempts: 3, error: "Boom".into(), progress: None, hold }
}
