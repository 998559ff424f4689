//! An outbox store in memory.
//!
//! It keeps the contracts of all ports as a database would: transactions take their numbers at once and show
//! their rows at commit, so that several may be open and commit in any order; reads see one snapshot; settles
//! are fenced by the node's lease; all times are those of its own clock. It forgets everything when the last
//! handle goes.

mod action;
mod admin;
mod own;
mod read;
mod settle;
mod tables;
mod upkeep;
mod wake;
mod work;
mod write;

use std::{
    fmt,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use pillarbox_core::{
    domain::{Seq, Timestamp},
    port::{Action, Clock, SystemClock},
};
use tokio::sync::Notify;

use crate::{ManualClock, clock::TimerClock};
use tables::Tables;

pub(crate) use settle::Guards;
pub use write::{MemoryConnection, MemoryTx};

/// A store in memory. Clones share the database and stand for the same process.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use pillarbox_core::{Event, domain::Partition, port::{NewRow, TransactStore, WriteStore}};
/// use pillarbox_testkit::MemoryStore;
///
/// let store = MemoryStore::new();
/// let event = Event::builder("OrderPlaced").json(&7).build()?;
/// let mut tx = store.begin().await?;
/// tx.put("orders", "7");
/// store.insert(&mut tx, &[NewRow { event, partition: Partition(0) }]).await?;
/// store.commit(tx).await?;
/// assert_eq!(store.table("orders"), ["7"]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    database: Arc<Database>,
    process: Arc<Process>,
}

/// What all handles share.
struct Database {
    clock: Arc<dyn Clock>,
    tables: Mutex<Tables>,
    processes: Mutex<Vec<Weak<Process>>>,
}

/// What handles of one process share: the bells that other processes ring.
#[derive(Default)]
struct Process {
    news: Notify,
    fleet: Notify,
}

impl MemoryStore {
    /// An empty store whose database goes by the host's clock.
    pub fn new() -> Self {
        Self::on(Arc::new(SystemClock))
    }

    /// An empty store whose database goes by this clock.
    pub fn with_clock(clock: Arc<ManualClock>) -> Self {
        Self::on(clock)
    }

    /// An empty store whose database goes by tokio's timers: under `#[tokio::test(start_paused = true)]` its
    /// leases and due times pass as fast as nobody has anything to do.
    pub fn virtual_time() -> Self {
        Self::on(Arc::new(TimerClock::new()))
    }

    fn on(clock: Arc<dyn Clock>) -> Self {
        let database = Arc::new(Database { clock, tables: Mutex::default(), processes: Mutex::default() });
        Self::connect(database)
    }

    fn connect(database: Arc<Database>) -> Self {
        let process = Arc::new(Process::default());
        let mut processes = database.processes.lock();
        processes.retain(|process| process.strong_count() > 0);
        processes.push(Arc::downgrade(&process));
        drop(processes);
        Self { database, process }
    }

    /// A handle on the same database as another process would have: hints of one are news to the other.
    #[must_use]
    pub fn another_process(&self) -> Self {
        Self::connect(Arc::clone(&self.database))
    }

    /// The time of the database.
    pub fn now(&self) -> Timestamp {
        self.database.clock.now()
    }

    /// Damages a row, so that reading it gives `Row::Broken`. Says whether it is there.
    pub fn break_row(&self, seq: Seq) -> bool {
        let reason = "the row was broken by a test";
        self.database.tables.lock().update(seq, |row| row.broken = Some(reason.to_owned()))
    }

    /// What users' transactions have put into a table of their own, in the order of the commits.
    pub fn table(&self, name: &str) -> Vec<String> {
        self.database.tables.lock().user_rows(name)
    }

    /// What operators have done, in order.
    pub fn recorded(&self) -> Vec<Action> {
        self.database.tables.lock().actions.clone()
    }

    /// Runs one statement: in one snapshot, at one time, all of it or (if dropped before) nothing.
    async fn run<T>(&self, statement: impl FnOnce(&mut Tables, Timestamp) -> T) -> T {
        // A database is never ready at once; a loop around a store must not keep others from running.
        tokio::task::yield_now().await;
        self.database.run(statement)
    }
}

impl Database {
    fn run<T>(&self, statement: impl FnOnce(&mut Tables, Timestamp) -> T) -> T {
        let mut tables = self.tables.lock();
        // Read under the lock, so that times rise with the numbers.
        let now = self.clock.now();
        statement(&mut tables, now)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("clock", &self.database.clock).finish_non_exhaustive()
    }
}
