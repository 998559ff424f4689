//! One database, its processes, and the questions that a test asks afterwards.

use std::{
    fmt,
    fs::File,
    future::Future,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use pillarbox_core::{
    domain::{Seq, Status},
    port::{AdminStore as _, Fleet, Found, Query, UpkeepStore as _},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::{Application, Failure, Ledger, Order, Process, Site, Task, child::TASK};

type StoreOf<S> = <<S as Site>::App as Application>::Store;

/// Far longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// How many lines of the processes' log a failed test shows.
const LAST_WORDS: usize = 60;

/// What stands in the outbox of events that nothing went wrong with: none of these.
const BLEMISHED: &str = "select count(*) from outbox_event where attempts > 0 or status <> 'DONE'";

/// One database and its processes.
pub struct Stage<S: Site> {
    // Before the site: its connections should end first.
    store: StoreOf<S>,
    /// The database.
    pub site: S,
    runtime: Runtime,
    folder: TempDir,
}

impl<S: Site> Stage<S> {
    /// A database with the outbox's tables and the application's.
    pub fn new() -> Self {
        let stage = Self::bare();
        stage.ask("the outbox's tables", || async { Ok(stage.store.migrate().await?) });
        stage.ask("the application's tables", || S::App::create(&stage.store));
        stage
    }

    /// A database without tables.
    pub fn bare() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let site = S::fresh();
        let task = Task::of_test(folder.path());
        let store = runtime.block_on(S::App::open(&site.url(), &task)).unwrap();
        Self { store, site, runtime, folder }
    }

    /// Starts a process. `task` says what it does, see [`Task`].
    pub fn start(&self, name: &str, task: Value) -> Process {
        self.start_by(Command::new(std::env::current_exe().unwrap()), name, task)
    }

    /// Starts a process by a command that ends in this test binary.
    pub fn start_by(&self, mut command: Command, name: &str, mut task: Value) -> Process {
        task["name"] = json!(name);
        task["folder"] = json!(self.folder.path());
        if task["url"].is_null() {
            task["url"] = json!(self.site.url());
        }
        let log = File::options().append(true).create(true).open(self.path("log")).unwrap();
        let child = command
            .args(["--exact", "child", "--nocapture"])
            .env(TASK, task.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Process::new(child, name)
    }

    /// Lets the processes that wait for this word go on.
    pub fn say(&self, word: &str) {
        File::create(self.path(word)).unwrap();
    }

    /// Ends the writing, and waits for these writers.
    pub fn stop_writing(&self, writers: &[&str]) {
        self.say("stop-writing");
        for writer in writers {
            self.until("the last write", |ledger| (ledger.count("wrote", writer) > 0).then_some(()));
        }
    }

    /// The test's own store.
    pub fn store(&self) -> &StoreOf<S> {
        &self.store
    }

    /// Where the test's own futures run.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// A file that all processes know.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Leaves the folder to whoever looks for the cause.
    pub(crate) fn keep(&mut self) {
        self.folder.disable_cleanup(true);
    }

    /// What the processes have done so far.
    pub fn ledger(&self) -> Ledger {
        Ledger::read(&self.path("ledger"))
    }

    /// What the processes have said so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until the ledger shows something.
    pub fn until<T>(&self, what: &str, mut look: impl FnMut(&Ledger) -> Option<T>) -> T {
        wait(what, || look(&self.ledger()))
    }

    /// Waits until a node has joined.
    pub fn until_joined(&self, node: &str) {
        self.until(node, |ledger| (ledger.count("joined", node) > 0).then_some(()));
    }

    /// Waits until every live node of these has an equal share of the partitions.
    pub fn until_shared(&self, nodes: &[&str]) {
        wait("an even share", || {
            let owned = |node: &&str| self.owned(node).len();
            (nodes.iter().map(owned).all(|owned| owned >= 256 / nodes.len())).then_some(())
        });
    }

    /// Waits until every committed order is delivered, and nothing is pending.
    pub fn until_all_done(&self) -> (Vec<Order>, Ledger) {
        let begun = Instant::now();
        loop {
            let orders = self.orders();
            let ledger = self.ledger();
            let delivered = ledger.delivered();
            let missing = orders.iter().filter(|order| !delivered.contains_key(order.id.as_str())).count();
            let pending = self.pending();
            if missing == 0 && pending == 0 {
                return (orders, ledger);
            }
            if begun.elapsed() > PATIENCE {
                for found in self.events(&[Status::New, Status::Retry]) {
                    eprintln!("pending: {found:?}");
                }
                eprintln!("{:#?}", self.fleet());
                panic!("{missing} of {} not delivered, {pending} pending", orders.len());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What the application has committed.
    pub fn orders(&self) -> Vec<Order> {
        self.ask("the orders", || S::App::orders(&self.store))
    }

    /// The answer to a query with one number.
    pub fn number(&self, sql: &'static str) -> i64 {
        self.ask(sql, || S::App::number(&self.store, sql))
    }

    /// How many events are NEW or RETRY.
    pub fn pending(&self) -> u64 {
        self.count(&[Status::New, Status::Retry])
    }

    /// How many events have one of these statuses.
    pub fn count(&self, statuses: &[Status]) -> u64 {
        let query = Query { statuses: statuses.to_vec(), ..Query::default() };
        self.ask("a count", || async { Ok(self.store.count(&query).await?) })
    }

    /// The events of the outbox with one of these statuses, or all of them.
    pub fn events(&self, statuses: &[Status]) -> Vec<Found> {
        let query = Query { statuses: statuses.to_vec(), ..Query::default() };
        let mut events = Vec::new();
        let mut from = Some(Seq(0));
        while let Some(seq) = from {
            let listing = self.ask("a listing", || async { Ok(self.store.list(&query, seq, 500).await?) });
            events.extend(listing.events);
            from = listing.next;
        }
        events
    }

    /// The nodes and what they own.
    pub fn fleet(&self) -> Fleet {
        self.ask("the nodes", || async { Ok(self.store.fleet().await?) })
    }

    /// The partitions of a node.
    pub fn owned(&self, node: &str) -> Vec<u8> {
        let nodes = self.fleet().nodes.into_iter();
        let owned = nodes
            .filter(|status| status.node.as_str() == node)
            .flat_map(|status| status.partitions.iter().map(|partition| partition.0).collect::<Vec<_>>());
        owned.collect()
    }

    /// Waits until only these are in the fleet: those that died are expelled.
    pub fn until_alone(&self, nodes: &[&str]) {
        wait("the dead to be expelled", || {
            let fleet = self.fleet().nodes;
            fleet.iter().all(|status| nodes.contains(&status.node.as_str())).then_some(())
        });
    }

    /// Every event is DONE, and no attempt was counted for any.
    pub fn assert_no_attempt_was_counted(&self) {
        assert_eq!(self.number(BLEMISHED), 0, "an attempt was counted, or an event is not DONE");
    }

    /// Whether somebody keeps all others from writing.
    pub fn is_locked(&self) -> bool {
        self.runtime.block_on(S::App::is_locked(&self.store))
    }

    /// Asks the database; when it does not answer, again.
    pub fn ask<T, F: Future<Output = Result<T, Failure>>>(&self, what: &str, mut question: impl FnMut() -> F) -> T {
        let begun = Instant::now();
        loop {
            match self.runtime.block_on(question()) {
                Ok(answer) => return answer,
                Err(error) => assert!(begun.elapsed() < PATIENCE, "asked for {what}: {error:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl<S: Site> Default for Stage<S> {
    fn default() -> Self {
        Self::new()
    }
}

/// Waits until something is seen.
pub fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begun.elapsed() < PATIENCE, "waited for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A test that fails tells what its processes said at last: of a long story, no more than leaves its failure in sight.
impl<S: Site> Drop for Stage<S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let (earlier, last) = lines.split_at(lines.len().saturating_sub(LAST_WORDS));
            eprintln!("{} earlier lines of the processes, and their last:\n{}", earlier.len(), last.join("\n"));
        }
    }
}

impl<S: Site> fmt::Debug for Stage<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage").field("folder", &self.folder.path()).finish_non_exhaustive()
    }
}
