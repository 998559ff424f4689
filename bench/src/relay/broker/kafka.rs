//! Kafka: librdkafka's own mock cluster, in the process of the bench. It speaks the protocol over TCP and keeps messages
//! in memory; it is no Kafka, and so its figures are about the client and the relay alone.

use std::{
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use pillarbox_core::port::Message;
use rdkafka::{
    ClientConfig, Message as _,
    consumer::{Consumer as _, StreamConsumer},
    message::{Header, OwnedHeaders},
    mocking::MockCluster,
    producer::{BaseRecord, DefaultProducerContext, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer},
};
use tokio::sync::Semaphore;

use super::{Arrivals, Broker, Names, sink};
use crate::{Result, backend::EVENT_TYPE};

/// The mock keeps 5 MiB of each, and forgets the oldest: so many that a whole round is kept.
const PARTITIONS: i32 = 32;

/// A cluster of one broker.
#[derive(Debug)]
pub(in crate::relay) struct Kafka {
    brokers: String,
    /// Each round has a topic of its own: the mock deletes none.
    topics: AtomicUsize,
    orders: mpsc::Sender<String>,
}

impl Kafka {
    fn topic(&self) -> String {
        format!("{EVENT_TYPE}-{}", self.topics.load(Ordering::Relaxed))
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers);
        config
    }
}

impl Broker for Kafka {
    const NAMES: Names =
        Names { rate: "relay_kafka", memory: "kafka_memory", latency: "kafka_latency", start: "kafka_start" };
    const WINDOWS: &'static [usize] = &[1_000, 5_000, 20_000];
    const KEEPS: bool = true;
    const SEEN: &'static str = "seen by a consumer";
    const OWN_MEMORY: bool = true;

    async fn start() -> Result<Self> {
        let (orders, ordered) = mpsc::channel::<String>();
        let (ready, brokers) = mpsc::channel();
        // The mock may not leave its thread.
        thread::spawn(move || {
            let mock: MockCluster<'_, DefaultProducerContext> = match MockCluster::new(1) {
                Ok(mock) => mock,
                Err(error) => return ready.send(Err(error)).unwrap_or_default(),
            };
            let _ = ready.send(Ok(mock.bootstrap_servers()));
            for topic in ordered {
                let _ = ready.send(mock.create_topic(&topic, PARTITIONS, 1).map(|()| String::new()));
            }
        });
        let brokers = brokers.recv()??;
        Ok(Self { brokers, topics: AtomicUsize::new(0), orders })
    }

    fn place(&self) -> Result<String> {
        Ok(format!("librdkafka's MOCK cluster in memory, {PARTITIONS} partitions, acks=all, idempotent"))
    }

    fn sink(&self) -> Vec<String> {
        let rule = format!("rules=[{{ topic = \"{}\" }}]", self.topic());
        sink("kafka", &[("brokers", self.brokers.clone())]).into_iter().chain([rule]).collect()
    }

    async fn clear(&self) -> Result<()> {
        self.topics.fetch_add(1, Ordering::Relaxed);
        self.orders.send(self.topic())?;
        Ok(())
    }

    async fn limit(&self, messages: &[Message], window: usize) -> Result<Duration> {
        let topic = self.topic();
        let context = Answers { room: Semaphore::new(window), failed: AtomicUsize::new(0) };
        let producer: ThreadedProducer<Answers> =
            self.config().set("enable.idempotence", "true").set("acks", "all").create_with_context(context)?;
        let answers = producer.context();
        let begun = Instant::now();
        for message in messages {
            answers.room.acquire().await?.forget();
            let mut headers = OwnedHeaders::new_with_capacity(16)
                .insert(Header { key: "content-type", value: Some(&*message.content_type) })
                .insert(Header { key: "event-id", value: Some(&message.id.to_string()) });
            for (name, value) in &message.attributes {
                headers = headers.insert(Header { key: &format!("ce_{name}"), value: Some(value) });
            }
            let mut record = BaseRecord::to(&topic).payload(&*message.payload).headers(headers);
            record.key = message.key.as_ref().map(pillarbox::Key::as_str);
            producer.send(record).map_err(|(error, _)| error)?;
        }
        let _all = answers.room.acquire_many(u32::try_from(window)?).await?;
        let took = begun.elapsed();
        match answers.failed.load(Ordering::Relaxed) {
            0 => Ok(took),
            failed => Err(format!("{failed} messages have failed").into()),
        }
    }

    async fn listen(&self) -> Result<Arrivals> {
        let mut config = self.config();
        config.set("group.id", self.topic()).set("auto.offset.reset", "earliest").set("enable.auto.commit", "false");
        // The mock lets a question wait for its whole time, whatever comes meanwhile.
        config.set("fetch.wait.max.ms", "5");
        let consumer: StreamConsumer = config.create()?;
        let mut list = rdkafka::TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            list.add_partition_offset(&self.topic(), partition, rdkafka::Offset::Beginning)?;
        }
        consumer.assign(&list)?;
        Ok(Arrivals::of(async move |inbox| {
            let mut records = consumer.stream();
            while let Some(record) = records.next().await {
                inbox.put(record?.payload().unwrap_or_default());
            }
            Ok(())
        }))
    }
}

/// The brokers' words, each of which makes room for a message.
struct Answers {
    room: Semaphore,
    failed: AtomicUsize,
}

impl rdkafka::ClientContext for Answers {}

impl ProducerContext for Answers {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.room.add_permits(1);
    }
}
