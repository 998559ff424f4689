//! What the processes do: nodes, writers, and one that only holds a lock.
//!
//! A process is this test binary again, with a task in its environment. Without one the test ends at once.

use std::{
    error::Error,
    io::Read as _,
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
    engine::{Builder, mode::Delivers},
    port::UpkeepStore as _,
};
use pillarbox_sqlite::{Options, SqliteStore};
use serde_json::{Value, json};
use sqlx::{Connection as _, SqliteConnection};

use crate::ledger::Pen;

pub(crate) const TASK: &str = "PILLARBOX_TEST_TASK";
const ROUTE: &str = "Placed";

#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    // The other end of this pipe is the test's: when the test is gone, so is its process.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0)
    });
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    runtime.unwrap().block_on(Arc::new(Task::new(&task)).run());
}

struct Task {
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

    async fn run(self: Arc<Self>) {
        match self.text("role") {
            "multi" => {
                let beat = self.millis("heartbeat").unwrap_or(Duration::from_millis(300));
                let builder = Outbox::multi_node(self.store().await)
                    .heartbeat(beat)
                    .rebalance_every(beat)
                    .stale_after(self.millis("lease").unwrap_or(Duration::from_secs(1)))
                    .node_name(self.text("name"));
                self.clone().node(builder).await;
            }
            // With the settings of the preset, unless the task says otherwise.
            "single" => {
                let mut builder = Outbox::single_node(self.store().await);
                if let Some(lease) = self.millis("lease") {
                    builder = builder.lease(lease);
                }
                self.clone().node(builder).await;
            }
            "writer" => {
                let outbox = Outbox::writer_only(self.store().await).start().await.unwrap();
                self.write(&outbox).await;
            }
            "migrator" => {
                self.pen.word("ready", "-", 0);
                wait_for(&self.folder.join("go")).await;
                let store = self.store().await;
                store.migrate().await.unwrap();
                store.check().await.unwrap();
            }
            "locker" => self.hold_the_lock().await,
            other => panic!("no such role: {other}"),
        }
    }

    async fn node<M: Delivers>(self: Arc<Self>, builder: Builder<SqliteStore, M>) {
        let stale = Stale::install();
        let task = self.clone();
        let mut builder = builder
            .handle(ROUTE, move |delivery: Delivery| {
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
        let outbox = builder.start().await.unwrap();
        self.pen.word("joined", "-", 0);
        let task = self.clone();
        tokio::spawn(async move { task.tell_stale(&stale).await });
        self.write(&outbox).await;
        wait_for(&self.folder.join(format!("stop-{}", self.text("name")))).await;
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

    async fn deliver(&self, delivery: Delivery) -> Result<(), serde_json::Error> {
        let order: Value = delivery.event().payload().to()?;
        let number = order["number"].as_i64().unwrap();
        self.pen.delivery("begin", &delivery, number);
        match order["then"].as_str().unwrap_or_default() {
            "abort" => std::process::abort(),
            // Only in this process, and its thread does not come back before.
            "block" if order["where"] == self.given["name"] => {
                let word = self.folder.join("unblock");
                tokio::task::block_in_place(|| {
                    while !word.exists() {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                });
            }
            "wait" => wait_for(&self.folder.join("unblock")).await,
            _ => tokio::time::sleep(self.millis("work").unwrap_or_default()).await,
        }
        self.pen.delivery("end", &delivery, number);
        Ok(())
    }

    /// Writes what the task says: the orders of `once`, in the first life of the process; then `count` orders
    /// one by one. At the last, `at` is a point to stand still at.
    async fn write(&self, outbox: &Outbox<SqliteStore>) {
        if let Some(orders) = self.given["once"].as_array() {
            self.place_once(outbox, orders).await.unwrap();
            self.pen.word("wrote", "-", 0);
        }
        let keys = self.given["keys"].as_u64().unwrap_or(4);
        for n in 0..self.given["count"].as_u64().unwrap_or(0) {
            let key = (n % 3 != 0).then(|| format!("k{}", n % (keys + 1)));
            if n % 7 == 6 {
                self.roll_back(outbox).await;
            }
            let pad = "x".repeat(usize::try_from(self.given["pad"].as_u64().unwrap_or(0)).unwrap());
            if let Err(error) = self.place(outbox, json!({ "key": key, "pad": pad })).await {
                let cause = error.source().map_or(String::new(), ToString::to_string);
                eprintln!("refused: {error}: {cause}");
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
            self.stand_still(outbox, at).await;
        }
    }

    /// Orders and their events in one transaction, unless an earlier life of the process has committed them.
    async fn place_once(&self, outbox: &Outbox<SqliteStore>, orders: &[Value]) -> Result<(), Box<dyn Error>> {
        let mut tx = outbox.begin().await?;
        let once = sqlx::query("insert or ignore into lives (name) values (?)").bind(self.text("name").to_owned());
        if once.execute(&mut *tx).await?.rows_affected() == 0 {
            return Ok(tx.rollback().await?);
        }
        for order in orders {
            let (number, event) = self.order(&mut tx, order.clone()).await?;
            let id = tx.write(event).await?.to_string();
            self.name_event(&mut tx, number, &id).await?;
        }
        Ok(tx.commit().await?)
    }

    /// An order and its event, in one transaction.
    async fn place(&self, outbox: &Outbox<SqliteStore>, order: Value) -> Result<(), Box<dyn Error>> {
        let mut tx = outbox.begin().await?;
        let (number, event) = self.order(&mut tx, order).await?;
        let id = tx.write(event).await?.to_string();
        self.name_event(&mut tx, number, &id).await?;
        tx.commit().await?;
        self.pen.word("committed", &id, number);
        Ok(())
    }

    async fn roll_back(&self, outbox: &Outbox<SqliteStore>) {
        let Ok(mut tx) = outbox.begin().await else { return };
        let Ok((_, event)) = self.order(&mut tx, json!({})).await else { return };
        let _ = tx.write(event).await;
        let _ = tx.rollback().await;
    }

    async fn order(
        &self,
        connection: &mut SqliteConnection,
        mut order: Value,
    ) -> Result<(i64, EventBuilder), sqlx::Error> {
        let key = order["key"].as_str().map(str::to_owned);
        let number: i64 = sqlx::query_scalar("insert into orders (event_key) values (?) returning number")
            .bind(key.clone())
            .fetch_one(connection)
            .await?;
        order["number"] = json!(number);
        let event = Event::builder(ROUTE).json(&order);
        Ok((number, if let Some(key) = key { event.key(key) } else { event }))
    }

    async fn name_event(&self, connection: &mut SqliteConnection, number: i64, id: &str) -> Result<(), sqlx::Error> {
        let name = sqlx::query("update orders set event_id = ? where number = ?");
        name.bind(id.to_owned()).bind(number).execute(connection).await.map(drop)
    }

    /// Stands still between the write and the commit, or between the commit and its confirmation.
    async fn stand_still(&self, outbox: &Outbox<SqliteStore>, at: &str) {
        let mut tx = outbox.store().pool().begin_with("begin immediate").await.unwrap();
        let (number, event) = self.order(&mut tx, json!({ "key": self.given["key"] })).await.unwrap();
        let receipt = outbox.write(&mut tx, event).await.unwrap();
        let id = receipt.ids()[0].to_string();
        self.name_event(&mut tx, number, &id).await.unwrap();
        let _open = if at == "written" {
            Some(tx)
        } else {
            tx.commit().await.unwrap();
            None
        };
        self.pen.word(at, &id, number);
        std::future::pending::<()>().await;
        receipt.confirm();
    }

    async fn hold_the_lock(&self) {
        let path = self.folder.join("shop.db");
        let mut connection = SqliteConnection::connect(path.to_str().unwrap()).await.unwrap();
        let tx = connection.begin_with("begin immediate").await.unwrap();
        self.pen.word("locked", "-", 0);
        wait_for(&self.folder.join("unlock")).await;
        tx.rollback().await.unwrap();
    }

    async fn store(&self) -> SqliteStore {
        let mut options = Options::new();
        if let Some(timeout) = self.millis("busy_timeout") {
            options = options.busy_timeout(timeout);
        }
        let path = self.folder.join(self.given["file"].as_str().unwrap_or("shop.db"));
        options.open(path.to_str().unwrap()).await.unwrap()
    }

    fn text(&self, name: &str) -> &str {
        self.given[name].as_str().unwrap_or_default()
    }

    fn millis(&self, name: &str) -> Option<Duration> {
        self.given[name].as_u64().map(Duration::from_millis)
    }
}

async fn wait_for(word: &Path) {
    while !word.exists() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
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
