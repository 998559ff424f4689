//! One file, its processes, and the questions that a test asks afterwards.

use std::{
    fmt::Debug,
    fs::File,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use pillarbox_core::port::UpkeepStore as _;
use pillarbox_sqlite::SqliteStore;
use serde_json::{Value, json};
use sqlx::Connection as _;
use tempfile::TempDir;

use crate::{child::TASK, ledger::Ledger};

/// Far longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// What the application has committed.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) number: i64,
    pub(crate) id: String,
    pub(crate) key: Option<String>,
}

pub(crate) struct Stage {
    pub(crate) folder: TempDir,
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) store: SqliteStore,
}

impl Stage {
    /// A file with the outbox's tables and the application's.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let path = folder.path().join("shop.db");
        let store = runtime.block_on(async {
            let store = SqliteStore::open(path.to_str().unwrap()).await.unwrap();
            store.migrate().await.unwrap();
            let orders =
                "create table orders (number integer primary key autoincrement, event_id text, event_key text)";
            for sql in [orders, "create table lives (name text primary key)"] {
                sqlx::query(sql).execute(store.pool()).await.unwrap();
            }
            store
        });
        Self { folder, runtime, store }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a process. `task` says what it does, see [`crate::child`].
    pub(crate) fn start(&self, name: &str, task: Value) -> Process {
        self.start_by(Command::new(std::env::current_exe().unwrap()), name, task)
    }

    /// Starts a process by a command that ends in this test binary.
    pub(crate) fn start_by(&self, mut command: Command, name: &str, mut task: Value) -> Process {
        task["name"] = json!(name);
        task["folder"] = json!(self.folder.path());
        let log = File::options().append(true).create(true).open(self.path("log")).unwrap();
        let mut child = command
            .args(["--exact", "child::child", "--nocapture"])
            .env(TASK, task.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        // Waiting for a child closes its pipe, and that would end it: the pipe is kept apart.
        let pipe = child.stdin.take();
        Process { child, _pipe: pipe, name: name.into() }
    }

    /// Lets the processes that wait for this word go on.
    pub(crate) fn say(&self, word: &str) {
        File::create(self.path(word)).unwrap();
    }

    pub(crate) fn ledger(&self) -> Ledger {
        Ledger::read(&self.path("ledger"))
    }

    /// Waits until the ledger shows something.
    pub(crate) fn until<T>(&self, what: &str, mut look: impl FnMut(&Ledger) -> Option<T>) -> T {
        wait(what, || look(&self.ledger()))
    }

    /// Waits until a node has joined.
    pub(crate) fn until_joined(&self, node: &str) {
        self.until(node, |ledger| (ledger.count("joined", node) > 0).then_some(()));
    }

    /// Waits until every committed order is delivered, and the outbox has it as DONE.
    pub(crate) fn until_all_done(&self) -> (Vec<Order>, Ledger) {
        let begun = Instant::now();
        loop {
            let orders = self.orders();
            let ledger = self.ledger();
            let delivered = ledger.delivered();
            let missing = orders.iter().filter(|order| !delivered.contains_key(order.id.as_str())).count();
            let pending = self.number("select count(*) from outbox_event where status in ('NEW', 'RETRY')");
            if missing == 0 && pending == 0 {
                return (orders, ledger);
            }
            assert!(begun.elapsed() < PATIENCE, "{missing} of {} not delivered, {pending} pending", orders.len());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn orders(&self) -> Vec<Order> {
        let rows: Vec<(i64, String, Option<String>)> = self.runtime.block_on(async {
            sqlx::query_as("select number, event_id, event_key from orders order by number")
                .fetch_all(self.store.pool())
                .await
                .unwrap()
        });
        rows.into_iter().map(|(number, id, key)| Order { number, id, key }).collect()
    }

    pub(crate) fn number(&self, sql: &'static str) -> i64 {
        self.runtime.block_on(sqlx::query_scalar(sql).fetch_one(self.store.pool())).unwrap()
    }

    /// Whether a process holds the write lock.
    pub(crate) fn is_locked(&self) -> bool {
        self.runtime.block_on(async {
            let mut connection = self.store.pool().acquire().await.unwrap();
            sqlx::query("pragma busy_timeout = 50").execute(&mut *connection).await.unwrap();
            let tx = connection.begin_with("begin immediate").await;
            let locked = tx.is_err();
            if let Ok(tx) = tx {
                tx.rollback().await.unwrap();
            }
            locked
        })
    }

    pub(crate) fn numbers(&self, sql: &'static str, name: &str) -> Vec<i64> {
        self.runtime.block_on(sqlx::query_scalar(sql).bind(name.to_owned()).fetch_all(self.store.pool())).unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

/// Waits until something is seen.
pub(crate) fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begun.elapsed() < PATIENCE, "waited for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A test that fails tells what its processes said.
impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// A process that ends with its test, whatever becomes of the test.
pub(crate) struct Process {
    child: Child,
    _pipe: Option<ChildStdin>,
    pub(crate) name: String,
}

impl Process {
    /// kill -9.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// kill -STOP: comes back when every thread stands still.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
        let stat = format!("/proc/{}/stat", self.child.id());
        let begun = Instant::now();
        // The state follows the name, which is in brackets.
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            assert!(begun.elapsed() < PATIENCE, "{self:?} does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    /// There is room again for a process that was started with a limit on the size of files.
    pub(crate) fn raise_file_size(&self) {
        let raised =
            Command::new("prlimit").args(["--pid", &self.child.id().to_string(), "--fsize=unlimited"]).status();
        assert!(raised.unwrap().success(), "prlimit");
    }

    /// Waits for its end; `true` if it was a good one.
    pub(crate) fn end(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    fn signal(&self, signal: &str) {
        let done = Command::new("sh").args(["-c", &format!("kill -{signal} {}", self.child.id())]).status();
        assert!(done.unwrap().success(), "kill -{signal}");
    }
}

impl Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
