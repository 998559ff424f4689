//! kill -9 of a consumer, again and again, while messages come: on every broker each message has its effect once.
//!
//! The consumer is a process of its own: the test binary starts itself again, with a [`Task`] in its environment. Its work is a
//! row without any constraint, so that work done twice shows.

pub(crate) mod place;

use std::{
    fs::File,
    io::{Read as _, Write as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use pillarbox_core::{
    HandlerError, Outbox,
    domain::Key,
    engine::Work,
    port::{Message, Sink, Source},
};
use pillarbox_inbox::{Consumer, DeadLetters, Inbox};
use pillarbox_sqlite::{SqliteInbox, SqliteStore};
use pillarbox_testkit::exam::run;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use self::place::{Broker, Place};
use crate::support::{OrderPlaced, until};

const TASK: &str = "PILLARBOX_TEST_TASK";

/// What a consumer is told. Options and subscription are those of the broker's crate, as in a settings file.
#[derive(Clone, Serialize, Deserialize)]
struct Task {
    broker: Broker,
    options: Value,
    subscription: Value,
    database: PathBuf,
    /// A line for every call of the handler.
    calls: PathBuf,
}

/// The consumer, if the binary was started as one.
#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    let task: Task = serde_json::from_str(&task).unwrap();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(task.consume());
}

#[test]
fn a_consumer_of_redis_loses_nothing_and_does_nothing_twice() {
    run(kill_again_and_again(place::redis()));
}

#[test]
fn a_consumer_of_nats_loses_nothing_and_does_nothing_twice() {
    run(async { kill_again_and_again(place::nats().await).await });
}

#[test]
fn a_consumer_of_rabbitmq_loses_nothing_and_does_nothing_twice() {
    run(async { kill_again_and_again(place::rabbitmq().await).await });
}

#[test]
fn a_consumer_of_kafka_loses_nothing_and_does_nothing_twice() {
    run(kill_again_and_again(place::kafka()));
}

#[test]
fn a_consumer_of_mqtt_loses_nothing_and_does_nothing_twice() {
    run(async { kill_again_and_again(place::mqtt().await).await });
}

async fn kill_again_and_again(place: Place) {
    let folder = tempfile::tempdir().unwrap();
    let (database, calls) = (folder.path().join("shop.db"), folder.path().join("calls"));
    let store = SqliteStore::open(database.to_str().unwrap()).await.unwrap();
    // No key and no constraint.
    sqlx::query("create table effect (number integer not null)").execute(store.pool()).await.unwrap();
    let task = Task {
        broker: place.broker,
        options: place.options.clone(),
        subscription: place.subscription.clone(),
        database,
        calls: calls.clone(),
    };
    let _log = Log(task.log());
    let (stop, stopped) = watch::channel(false);
    let sending = tokio::spawn(send(place.sink(), place.topic.clone(), stopped));
    for kill in 0..place.kills {
        let before = effects(&store).await;
        let more = i64::from(fastrand::u8(1..60));
        let mut consumer = Running::start(&task);
        until(&format!("{more} effects after {kill} kills"), || async { effects(&store).await >= before + more }).await;
        consumer.kill();
    }
    stop.send_replace(true);
    let sent = sending.await.unwrap();
    let last = Running::start(&task);
    until("all effects", || async { numbers(&store).await == sent }).await;
    // What comes again by the clock has come, and is known.
    place.until_all_is_acknowledged().await;
    last.end();
    let called = std::fs::read_to_string(calls).unwrap().lines().count();
    println!("{sent} messages, {} kills, {called} calls", place.kills);
    assert!(called >= usize::try_from(sent).unwrap(), "{called} calls for {sent} messages");
    assert_eq!((numbers(&store).await, effects(&store).await), (sent, sent), "each once");
    let parked: i64 = sqlx::query_scalar("select count(*) from inbox_letter").fetch_one(store.pool()).await.unwrap();
    assert_eq!(parked, 0, "nothing failed");
}

/// Sends order after order until it is told to stop. Tells how many there are.
async fn send(sink: Arc<dyn Sink>, topic: Arc<str>, mut stopped: watch::Receiver<bool>) -> i64 {
    let mut number = 0;
    while !*stopped.borrow() {
        let batch: Vec<_> = (number..number + 5).map(|number| order(&topic, number)).collect();
        for message in &batch {
            while let [Err(error)] = &sink.send(std::slice::from_ref(message)).await[..] {
                println!("sent again: {error}");
            }
        }
        number += 5;
        let _ = tokio::time::timeout(Duration::from_millis(20), stopped.changed()).await;
    }
    sink.close().await;
    number
}

pub(crate) fn order(topic: &Arc<str>, number: i64) -> Message {
    let id = pillarbox_core::new_id();
    let attributes = [("specversion", "1.0"), ("id", &*id.to_string()), ("source", "/shop"), ("type", "OrderPlaced")]
        .map(|(name, value)| (name.into(), value.to_owned()));
    Message {
        topic: Arc::clone(topic),
        key: Some(Key::from(format!("k{}", number % 7))),
        id,
        content_type: "application/json".into(),
        attributes: attributes.to_vec(),
        headers: Vec::new(),
        payload: Bytes::from(format!("{{\"number\": {number}}}")),
    }
}

async fn effects(store: &SqliteStore) -> i64 {
    sqlx::query_scalar("select count(*) from effect").fetch_one(store.pool()).await.unwrap()
}

/// How many different messages had an effect.
async fn numbers(store: &SqliteStore) -> i64 {
    sqlx::query_scalar("select count(distinct number) from effect").fetch_one(store.pool()).await.unwrap()
}

impl Task {
    /// What the consumers say.
    fn log(&self) -> PathBuf {
        self.calls.with_file_name("log")
    }

    async fn consume(&self) {
        match self.broker {
            Broker::Kafka => self.consume_from(place::source!(pillarbox_kafka, self)).await,
            Broker::Mqtt => self.consume_from(place::source!(pillarbox_mqtt, self)).await,
            Broker::Nats => self.consume_from(place::source!(pillarbox_nats, self)).await,
            Broker::RabbitMq => self.consume_from(place::source!(pillarbox_rabbitmq, self)).await,
            Broker::Redis => self.consume_from(place::source!(pillarbox_redis, self)).await,
        }
    }

    /// Until the test lets go of it.
    async fn consume_from(&self, source: impl Source) {
        let store = SqliteStore::open(self.database.to_str().unwrap()).await.unwrap();
        let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
        let tables = SqliteInbox::new(&store);
        let calls = Arc::new(File::options().append(true).create(true).open(&self.calls).unwrap());
        let consumer = Consumer::builder("billing", source, DeadLetters::new(tables.clone()))
            .inbox(Inbox::new(tables), &outbox)
            .messages_per_transaction(10)
            .prefetch(50)
            .handle_in_tx(move |mut work: Work<SqliteStore>, placed: OrderPlaced| {
                let calls = calls.clone();
                async move {
                    (&*calls).write_all(format!("{}\n", placed.number).as_bytes())?;
                    sqlx::query("insert into effect (number) values (?)")
                        .bind(placed.number)
                        .execute(&mut *work)
                        .await?;
                    // Some are killed here.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    Ok::<_, HandlerError>(())
                }
            })
            .start()
            .await
            .unwrap();
        tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await.unwrap().unwrap();
        consumer.shutdown().await;
    }
}

/// Shown when the test fails.
struct Log(PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", std::fs::read_to_string(&self.0).unwrap_or_default());
        }
    }
}

/// A consumer that ends with its test, whatever becomes of the test: the other end of its pipe is here.
struct Running(Child);

impl Running {
    fn start(task: &Task) -> Self {
        let log = File::options().append(true).create(true).open(task.log()).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::child", "--nocapture"])
            .env(TASK, serde_json::to_string(task).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        Self(child.unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// In an orderly way.
    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}
