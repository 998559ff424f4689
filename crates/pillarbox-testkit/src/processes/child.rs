//! What the processes do: nodes, writers, and whatever the application can.
//!
//! A process is the test binary again, with a task in its environment. Without one the test ends at once.

use std::{
    error::Error,
    fmt::Write as _,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use pillarbox_core::{
    Delivery, Event, Outbox, RetryPolicy,
    domain::EventBuilder,
    engine::{Builder, Transaction, mode::Delivers},
    port::{TransactStore, UpkeepStore as _},
};
use serde_json::{Value, json};

use super::{Application, Failure, Pen, site::Connection};
use crate::{Call, Faulty};

pub(crate) const TASK: &str = "PILLARBOX_TEST_TASK";
pub(crate) const ROUTE: &str = "Placed";

/// Plays the role that the environment names.
pub(crate) fn run<A: Application>() {
    let Ok(task) = std::env::var(TASK) else { return };
    // The other end of this pipe is the test's: when the test is gone, so is its process.
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0)
    });
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    runtime.unwrap().block_on(Arc::new(Task::new(&task)).run::<A>());
}

/// What a process is to do, as JSON.
///
/// Every task has a `role`; a `name` and a `folder` are given to it, and a `url` unless it has one.
///
/// | role | what it does |
/// |---|---|
/// | `multi`, `single` | a node of this mode; `heartbeat`, `lease`, `poll`, `workers`, `max_starts` are its settings, `work` is how long a delivery takes; it writes, and leaves at the word `stop-NAME` |
/// | `writer` | only writes |
/// | `chaos` | a node that writes, with handlers that fail; see [`chaos`](super::chaos) |
/// | `half` | writes an event with the dedup key `dedup`, and stands still when the key is entered and the event is not |
/// | `migrator` | says `ready`, and migrates at the word `go` |
/// | another | what [`Application::play`] makes of it |
///
/// What is written: the orders of `once`, in the first life of the process; then `count` orders one by one until
/// the word `stop-writing`, with a `pace`, on as many `keys`; at the last, `at` is a point to stand still at:
/// `written`, `unconfirmed`, or `late`, which commits at the word `commit`. An order may say what its handler does
/// `then`: `abort`, `fail`, `block` (in the process of `where`; another waits for the word of `elsewhere`) or `wait`; and it may have a `dedup` key.
///
/// All numbers that are times are milliseconds.
#[derive(Debug)]
pub struct Task {
    given: Value,
    folder: PathBuf,
    pen: Pen,
}

impl Task {
    fn new(text: &str) -> Self {
        let given: Value = serde_json::from_str(text).unwrap();
        let folder = PathBuf::from(given["folder"].as_str().unwrap());
        let pen = Pen::new(&folder.join("ledger"), given["name"].as_str().unwrap());
        Self { given, folder, pen }
    }

    /// The task of the test itself.
    pub(crate) fn of_test(folder: &Path) -> Self {
        let pen = Pen::new(&folder.join("ledger"), "test");
        Self { given: json!({ "name": "test" }), folder: folder.into(), pen }
    }

    /// A text of the task; empty if it has none of this name.
    pub fn text(&self, name: &str) -> &str {
        self.given[name].as_str().unwrap_or_default()
    }

    /// A time of the task.
    pub fn millis(&self, name: &str) -> Option<Duration> {
        self.given[name].as_u64().map(Duration::from_millis)
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        self.given[name].as_u64().unwrap_or_default()
    }

    /// Whether the test has said a word.
    pub(crate) fn said(&self, word: &str) -> bool {
        self.folder.join(word).exists()
    }

    /// Where the process writes what it does.
    pub fn pen(&self) -> &Pen {
        &self.pen
    }

    /// Waits until the test says a word.
    pub async fn wait_for(&self, word: &str) {
        let word = self.folder.join(word);
        while !word.exists() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn run<A: Application>(self: Arc<Self>) {
        match self.text("role") {
            "multi" => {
                let beat = self.millis("heartbeat").unwrap_or(Duration::from_millis(300));
                let builder = Outbox::multi_node(self.store::<A>().await)
                    .heartbeat(beat)
                    .rebalance_every(beat)
                    .stale_after(self.millis("lease").unwrap_or(Duration::from_secs(1)))
                    .node_name(self.text("name"));
                self.clone().node::<A, _>(builder).await;
            }
            // With the settings of the preset, unless the task says otherwise.
            "single" => {
                let mut builder = Outbox::single_node(self.store::<A>().await);
                if let Some(lease) = self.millis("lease") {
                    builder = builder.lease(lease);
                }
                self.clone().node::<A, _>(builder).await;
            }
            "writer" => {
                let outbox = Outbox::writer_only(self.store::<A>().await).start().await.unwrap();
                self.write::<A>(&outbox).await;
                outbox.shutdown().await;
            }
            "half" => self.write_half::<A>().await,
            "migrator" => {
                self.pen.word("ready", "-", 0);
                self.wait_for("go").await;
                let store = self.store::<A>().await;
                store.migrate().await.unwrap();
                store.check().await.unwrap();
            }
            "chaos" => self.storm::<A>().await,
            _ => A::play(&self).await,
        }
    }

    async fn node<A: Application, M: Delivers>(self: Arc<Self>, builder: Builder<A::Store, M>) {
        let stale = Stale::install();
        let task = self.clone();
        let mut builder = builder
            .route(ROUTE, move |delivery: Delivery| {
                let task = task.clone();
                async move { task.deliver(delivery).await }
            })
            .retry(RetryPolicy::fixed(Duration::from_millis(20)).max_attempts(5))
            .drain_timeout(Duration::from_secs(3));
        if let Some(starts) = self.given["max_starts"].as_u64() {
            builder = builder.max_starts(u32::try_from(starts).unwrap());
        }
        if let Some(workers) = self.given["workers"].as_u64() {
            builder = builder.workers(usize::try_from(workers).unwrap());
        }
        if let Some(poll) = self.millis("poll") {
            builder = builder.poll_interval(poll, poll);
        }
        let outbox = builder.start().await.unwrap();
        self.pen.word("joined", "-", 0);
        let task = self.clone();
        tokio::spawn(async move { task.tell_stale(&stale).await });
        self.write::<A>(&outbox).await;
        self.wait_for(&format!("stop-{}", self.text("name"))).await;
        outbox.shutdown().await;
        self.pen.word("left", "-", 0);
    }

    /// A line for every outcome that came too late.
    async fn tell_stale(&self, stale: &AtomicU64) {
        let mut told = 0;
        loop {
            let now = stale.load(Ordering::Relaxed);
            while told < now {
                told += 1;
                self.pen.word("stale", "-", 0);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn deliver(&self, delivery: Delivery) -> Result<(), io::Error> {
        let order: Value = delivery.event().payload().to()?;
        let number = order["number"].as_i64().unwrap();
        self.pen.delivery("begin", &delivery, number);
        match order["then"].as_str().unwrap_or_default() {
            "abort" => std::process::abort(),
            "fail" => return Err(io::Error::other("the order wants it")),
            // Only in this process, and its thread does not come back before.
            "block" if order["where"] == self.given["name"] => {
                let word = self.folder.join("unblock");
                tokio::task::block_in_place(|| {
                    while !word.exists() {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                });
            }
            "block" if !order["elsewhere"].is_null() => self.wait_for(order["elsewhere"].as_str().unwrap()).await,
            "wait" => self.wait_for("unblock").await,
            _ => tokio::time::sleep(self.millis("work").unwrap_or_default()).await,
        }
        self.pen.delivery("end", &delivery, number);
        Ok(())
    }

    async fn write<A: Application>(&self, outbox: &Outbox<A::Store>) {
        if let Some(orders) = self.given["once"].as_array() {
            self.place_once::<A>(outbox, orders).await.unwrap();
            self.pen.word("wrote", "-", 0);
        }
        let keys = self.given["keys"].as_u64().unwrap_or(4);
        for n in 0..self.given["count"].as_u64().unwrap_or(0) {
            let key = (n % 3 != 0).then(|| format!("k{}", n % (keys + 1)));
            if n % 7 == 6 {
                self.roll_back::<A>(outbox).await;
            }
            let pad = "x".repeat(usize::try_from(self.given["pad"].as_u64().unwrap_or(0)).unwrap());
            if let Err(error) = self.place::<A>(outbox, json!({ "key": key, "pad": pad })).await {
                eprintln!("refused: {}", in_full(&*error));
                self.pen.word("refused", "-", 0);
            }
            if self.folder.join("stop-writing").exists() {
                break;
            }
            tokio::time::sleep(self.millis("pace").unwrap_or_default()).await;
        }
        if self.given["count"].is_u64() {
            self.pen.word("wrote", "-", 0);
        }
        if let Some(at) = self.given["at"].as_str() {
            self.stand_still::<A>(outbox, at).await;
        }
    }

    /// Orders and their events in one transaction, unless an earlier life of the process has committed them.
    async fn place_once<A: Application>(&self, outbox: &Outbox<A::Store>, orders: &[Value]) -> Result<(), Failure> {
        let mut tx = outbox.begin().await?;
        if !A::begin_life(&mut tx, self.text("name")).await? {
            return Ok(tx.rollback().await?);
        }
        for order in orders {
            self.write_order::<A, _>(&mut tx, order.clone()).await?;
        }
        Ok(tx.commit().await?)
    }

    /// An order and its event, in one transaction.
    async fn place<A: Application>(&self, outbox: &Outbox<A::Store>, order: Value) -> Result<(), Failure> {
        let mut tx = outbox.begin().await?;
        let (id, number) = self.write_order::<A, _>(&mut tx, order).await?;
        match tx.commit().await {
            Ok(()) => self.pen.word("committed", &id, number),
            Err(error) if error.is_outcome_unknown() => {
                eprintln!("unknown: {}", in_full(&error));
                self.pen.word("unknown", &id, number);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    pub(crate) async fn write_order<A: Application, S: TransactStore<Connection = Connection<A>>>(
        &self,
        tx: &mut Transaction<S>,
        order: Value,
    ) -> Result<(String, i64), Failure> {
        let (number, event) = order_of::<A>(tx, order).await?;
        let id = tx.write(event).await?.to_string();
        A::name_event(tx, number, &id).await?;
        Ok((id, number))
    }

    async fn roll_back<A: Application>(&self, outbox: &Outbox<A::Store>) {
        let Ok(mut tx) = outbox.begin().await else { return };
        let Ok((_, event)) = order_of::<A>(&mut tx, json!({})).await else { return };
        let _ = tx.write(event).await;
        let _ = tx.rollback().await;
    }

    /// Stands still between the write and the commit, or between the commit and its confirmation, or is just late.
    async fn stand_still<A: Application>(&self, outbox: &Outbox<A::Store>, at: &str) {
        let store = outbox.store();
        let mut tx = store.begin().await.unwrap();
        let (number, event) = order_of::<A>(&mut tx, json!({ "key": self.given["key"] })).await.unwrap();
        let receipt = outbox.write(&mut tx, event).await.unwrap();
        let id = receipt.ids()[0].to_string();
        A::name_event(&mut tx, number, &id).await.unwrap();
        let mut open = Some(tx);
        if at == "unconfirmed" {
            store.commit(open.take().unwrap()).await.unwrap();
        }
        self.pen.word(at, &id, number);
        if at == "late" {
            self.wait_for("commit").await;
            store.commit(open.take().unwrap()).await.unwrap();
            self.pen.word("committed", &id, number);
            return receipt.confirm();
        }
        std::future::pending::<()>().await;
    }

    /// Stands still between the entering of a dedup key and the insert of its event.
    async fn write_half<A: Application>(&self) {
        let store = Faulty::new(self.store::<A>().await);
        let insert = store.faults().stop_before(Call::Insert);
        let outbox = Outbox::writer_only(store).start().await.unwrap();
        let mut tx = outbox.begin().await.unwrap();
        let event = deduplicated(Event::builder(ROUTE).json(&0), self.text("dedup"));
        let reached = async {
            insert.reached().await;
            self.pen.word("half", "-", 0);
        };
        let (written, ()) = tokio::join!(tx.write(event), reached);
        panic!("nobody lets it go on: {written:?}");
    }

    async fn store<A: Application>(&self) -> A::Store {
        A::open(self.text("url"), self).await.unwrap()
    }
}

async fn order_of<A: Application>(
    connection: &mut Connection<A>,
    mut order: Value,
) -> Result<(i64, EventBuilder), Failure> {
    let key = order["key"].as_str().map(str::to_owned);
    let number = A::add_order(connection, key.as_deref()).await?;
    order["number"] = json!(number);
    let mut event = Event::builder(ROUTE).json(&order);
    if let Some(dedup) = order["dedup"].as_str() {
        event = deduplicated(event, dedup);
    }
    Ok((number, if let Some(key) = key { event.key(key) } else { event }))
}

fn deduplicated(event: EventBuilder, key: &str) -> EventBuilder {
    event.dedup(key, Duration::from_hours(1))
}

/// An error and what caused it.
pub(crate) fn in_full(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

/// Counts the outcomes that came too late; all other metrics go nowhere.
struct Stale(Arc<AtomicU64>);

impl Stale {
    fn install() -> Arc<AtomicU64> {
        let count = Arc::<AtomicU64>::default();
        assert!(metrics::set_global_recorder(Self(count.clone())).is_ok(), "one recorder a process");
        count
    }
}

impl metrics::Recorder for Stale {
    fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}

    fn register_counter(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        if key.name().ends_with(pillarbox_core::observe::name::STALE_SETTLES) {
            return metrics::Counter::from_arc(self.0.clone());
        }
        metrics::Counter::noop()
    }

    fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        metrics::Gauge::noop()
    }

    fn register_histogram(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
        metrics::Histogram::noop()
    }
}
