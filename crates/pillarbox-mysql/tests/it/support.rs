//! A store in a database of its own, and the steps that most tests take.

use std::{
    ops::Deref,
    time::{Duration, Instant},
};

use pillarbox_core::domain::{Event, EventBuilder, Lease, NodeId, Partition, PartitionSet, Seq};
use pillarbox_core::port::{
    Batch, Candidate, Change, Joining, NewRow, OwnStore as _, Page, Position, ReadStore as _, Row, Scan, Settled,
    Settlement, Taken, TransactStore as _, UpkeepStore as _, WriteStore as _,
};
use pillarbox_mysql::{MySqlStore, Options};
use pillarbox_testkit::servers::{Database, Shared};
use sqlx::{Connection as _, MySqlConnection, Row as _};

pub(crate) const MINUTE: Duration = Duration::from_mins(1);

/// Makes two tests of each function that takes a server: on MariaDB, and on MySQL if it is there.
macro_rules! on_each_server {
    ($($name:ident),+ $(,)?) => {
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(pillarbox_testkit::servers::Shared::MariaDb).await;
            })+
        }
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let server = pillarbox_testkit::servers::Shared::MySql;
                if server.is_there() {
                    super::$name(server).await;
                } else {
                    eprintln!("left out: {} is not set", server.variable());
                }
            })+
        }
    };
}
pub(crate) use on_each_server;

pub(crate) struct Outbox {
    pub(crate) store: MySqlStore,
    pub(crate) database: Database,
}

impl Deref for Outbox {
    type Target = MySqlStore;

    fn deref(&self) -> &MySqlStore {
        &self.store
    }
}

impl Outbox {
    pub(crate) async fn new(server: Shared) -> Self {
        Self::with(server, Options::new()).await
    }

    pub(crate) async fn with(server: Shared, options: Options) -> Self {
        Self::open(server.database(), options).await
    }

    pub(crate) async fn on(database: Database) -> Self {
        Self::open(database, Options::new()).await
    }

    async fn open(database: Database, options: Options) -> Self {
        let store = options.open(database.url()).await.unwrap();
        store.migrate().await.unwrap();
        Self { store, database }
    }

    /// Another store on the same database, as another process would have it.
    pub(crate) async fn another(&self) -> MySqlStore {
        MySqlStore::open(self.database.url()).await.unwrap()
    }

    /// A connection of the test's own.
    pub(crate) async fn session(&self) -> MySqlConnection {
        MySqlConnection::connect(&self.database.url()).await.unwrap()
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

    /// Waits until a session of the database waits for a lock, other than this one, and returns its number.
    pub(crate) async fn someone_waits(&self, other_than: u64) -> u64 {
        let here = "select cast(id as unsigned) from information_schema.processlist where db = database() and id <> ?";
        let end = Instant::now() + MINUTE;
        loop {
            let sessions = sqlx::query_scalar(here).bind(other_than).fetch_all(self.pool()).await.unwrap();
            // The views on transactions are made anew only when nobody has looked for a tenth of a second.
            let status = sqlx::query("show engine innodb status").fetch_one(self.pool()).await.unwrap();
            let waiting = waiting(status.get(2));
            if let Some(session) = sessions.into_iter().find(|session| waiting.contains(session)) {
                return session;
            }
            assert!(Instant::now() < end, "nobody waits for a lock");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn page(&self, after: &Position) -> Page {
        page(self, after, &mut |_: Candidate<'_>| true).await
    }

    /// Reads pages, and settles nothing, until the mark has come to a number.
    pub(crate) async fn until_mark(&self, mut position: Position, mark: Seq) -> Position {
        let end = Instant::now() + Duration::from_mins(1);
        while position.mark < mark {
            assert!(Instant::now() < end, "{position:?} does not come to {mark:?}");
            position = page(self, &position, &mut |_: Candidate<'_>| false).await.position;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        position
    }
}

/// The sessions that wait for a lock, from the server's report on its transactions.
fn waiting(status: &str) -> Vec<u64> {
    let transactions = status.split("---TRANSACTION ").skip(1).filter(|text| text.contains("\nLOCK WAIT"));
    let thread = |text: &str| text.split_once("thread id ")?.1.split(',').next()?.parse().ok();
    transactions.filter_map(thread).collect()
}

pub(crate) async fn page(
    store: &MySqlStore,
    after: &Position,
    pick: &mut (dyn FnMut(Candidate<'_>) -> bool + Send),
) -> Page {
    let scan = Scan { partitions: PartitionSet::ALL, after, limit: 100, skip_recent: Duration::ZERO };
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

pub(crate) fn seqs(rows: &[Row]) -> Vec<Seq> {
    rows.iter().map(Row::seq).collect()
}

pub(crate) async fn join(store: &MySqlStore, name: &str, ttl: Duration) -> Lease {
    let joining = Joining { node: NodeId::new(name), ttl, routes: vec!["a".into()], in_flight: 2 };
    store.join(&joining).await.unwrap()
}

/// A node that owns everything.
pub(crate) async fn owner(store: &MySqlStore, name: &str, ttl: Duration) -> (Lease, Vec<Taken>) {
    let lease = join(store, name, ttl).await;
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

pub(crate) async fn settle(store: &MySqlStore, lease: &Lease, outcomes: Vec<Settlement>) -> Settled {
    let batch = Batch { outcomes, ..Batch::default() };
    store.settle(lease, &batch).await.unwrap()
}
