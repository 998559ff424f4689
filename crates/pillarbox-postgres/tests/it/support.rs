//! A store in a database of its own, and the steps that most tests take.

use std::{ops::Deref, time::Duration};

use pillarbox_core::domain::{Event, EventBuilder, Lease, NodeId, Partition, PartitionSet, Seq};
use pillarbox_core::port::{
    Batch, Candidate, Change, Joining, NewRow, OwnStore as _, Page, Position, ReadStore as _, Row, Scan, Settled,
    Settlement, Taken, TransactStore as _, UpkeepStore as _, WriteStore as _,
};
use pillarbox_postgres::{Options, PostgresStore};
use pillarbox_testkit::servers::{Database, Shared};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

pub(crate) const MINUTE: Duration = Duration::from_mins(1);

pub(crate) struct Outbox {
    pub(crate) store: PostgresStore,
    pub(crate) database: Database,
}

impl Deref for Outbox {
    type Target = PostgresStore;

    fn deref(&self) -> &PostgresStore {
        &self.store
    }
}

impl Outbox {
    pub(crate) async fn new() -> Self {
        Self::on(Shared::Postgres.database()).await
    }

    pub(crate) async fn on(database: Database) -> Self {
        let store = PostgresStore::open(database.url()).unwrap();
        store.migrate().await.unwrap();
        Self { store, database }
    }

    /// Another store on the same database, as another process would have it.
    pub(crate) fn another(&self, options: Options) -> PostgresStore {
        options.open(self.database.url()).unwrap()
    }

    /// A session of the test's own.
    pub(crate) async fn session(&self) -> PgConnection {
        PgConnection::connect(&self.database.url()).await.unwrap()
    }

    /// Runs statements by hand.
    pub(crate) async fn run(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(self.pool()).await.unwrap();
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(self.pool()).await.unwrap()
    }

    pub(crate) async fn write(&self, events: impl IntoIterator<Item = EventBuilder>) -> Vec<Seq> {
        let rows: Vec<_> = events.into_iter().map(new_row).collect();
        let mut tx = self.begin().await.unwrap();
        let seqs = self.insert(&mut tx, &rows).await.unwrap();
        self.commit(tx).await.unwrap();
        seqs
    }

    pub(crate) async fn page(&self, after: &Position) -> Page {
        page(self, after, 100).await
    }

    /// Waits until a session of the database waits for a lock.
    pub(crate) async fn someone_waits(&self) {
        let waiting = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock' and state = 'active'";
        while self.number(waiting).await == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Ends all sessions of the database, as a failing server would.
    pub(crate) fn kill_sessions(&self) {
        let kill = "select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid()";
        self.database.run_as_admin(kill).unwrap();
    }
}

pub(crate) async fn page(store: &PostgresStore, after: &Position, limit: usize) -> Page {
    let scan = Scan { partitions: PartitionSet::ALL, after, limit, skip_recent: Duration::ZERO };
    store.page(scan, &mut |_: Candidate<'_>| true).await.unwrap()
}

pub(crate) async fn run_in(session: &mut PgConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(session).await.unwrap();
}

pub(crate) async fn number_in(session: &mut PgConnection, sql: &'static str) -> i64 {
    let row = sqlx::query(sql).fetch_one(session).await.unwrap();
    row.get(0)
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

pub(crate) async fn join(store: &PostgresStore, name: &str) -> Lease {
    let joining = Joining { node: NodeId::new(name), ttl: MINUTE, routes: vec!["a".into()], in_flight: 2 };
    store.join(&joining).await.unwrap()
}

/// A node that owns everything.
pub(crate) async fn owner(store: &PostgresStore, name: &str) -> (Lease, Vec<Taken>) {
    let lease = join(store, name).await;
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

pub(crate) async fn settle(store: &PostgresStore, lease: &Lease, outcomes: Vec<Settlement>) -> Settled {
    let batch = Batch { outcomes, ..Batch::default() };
    store.settle(lease, &batch).await.unwrap()
}
