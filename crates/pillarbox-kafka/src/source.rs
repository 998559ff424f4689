//! The source itself.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use futures_util::FutureExt as _;
use pillarbox_core::port::{BoxFuture, Gives, Incoming, Received, SinkError, Source, Ticket, Tickets};
use rdkafka::{
    ClientConfig, ClientContext, Message as _, Offset, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance, StreamConsumer},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    message::BorrowedMessage,
};
use tokio::{task::spawn_blocking, time::timeout};

use crate::{
    Subscription, error, message,
    progress::{Came, Partition, Progress},
};

/// Tickets end with their partition, and are forgotten no sooner.
const FOR_EVER: Duration = Duration::from_secs(u64::MAX);

/// Receives records from Kafka. Made by [`Options::subscribe`](crate::Options::subscribe).
pub struct KafkaSource {
    config: ClientConfig,
    brokers: String,
    answer_within: Duration,
    subscription: Subscription,
    name: String,
    consumer: Mutex<Option<Arc<Consumer>>>,
    // One receives at a time.
    reading: tokio::sync::Mutex<()>,
    state: Arc<Mutex<State>>,
}

struct State {
    progress: Progress,
    tickets: Tickets<(Partition, i64), Out>,
    // Received or given back, and not given yet.
    came: VecDeque<Received>,
}

/// What is needed to give a message again.
#[derive(Clone)]
struct Out {
    message: Arc<Incoming>,
    deliveries: u32,
}

impl State {
    fn give(&mut self, partition: Partition, offset: i64, out: Out) {
        let (message, deliveries) = ((*out.message).clone(), out.deliveries);
        let ticket = self.tickets.issue((partition, offset), out);
        self.came.push_back(Received { ticket, deliveries, message });
    }

    fn clear(&mut self) {
        self.progress.clear();
        self.tickets.clear();
        self.came.clear();
    }
}

impl KafkaSource {
    pub(crate) fn new(
        config: ClientConfig,
        brokers: String,
        answer_within: Duration,
        subscription: Subscription,
    ) -> Self {
        let name = format!("{}/{}", subscription.topics.join("+"), subscription.group);
        let state = State { progress: Progress::default(), tickets: Tickets::new(FOR_EVER), came: VecDeque::new() };
        Self {
            config,
            brokers,
            answer_within,
            subscription,
            name,
            consumer: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            state: Arc::new(Mutex::new(state)),
        }
    }

    async fn receive_batch(&self, most: usize) -> Result<Vec<Received>, SinkError> {
        let _turn = self.reading.lock().await;
        let consumer = self.open()?;
        self.take_ready(&consumer, most)?;
        if lock(&self.state).came.is_empty() && most > 0 {
            match timeout(self.subscription.wait, consumer.stream().recv()).await {
                Ok(Ok(record)) => {
                    self.give(&record);
                    self.take_ready(&consumer, most)?;
                }
                Ok(Err(error)) => return Err(self.lost(&consumer, &error)),
                // Silence may be the end of all brokers: somebody has to say something.
                Err(_) => self.look(&consumer).await?,
            }
        }
        let mut state = lock(&self.state);
        let count = most.min(state.came.len());
        Ok(state.came.drain(..count).collect())
    }

    /// Takes what has come in already.
    fn take_ready(&self, consumer: &Arc<Consumer>, most: usize) -> Result<(), SinkError> {
        while lock(&self.state).came.len() < most
            && let Some(next) = consumer.stream().recv().now_or_never()
        {
            match next {
                Ok(record) => self.give(&record),
                Err(error) => return Err(self.lost(consumer, &error)),
            }
        }
        Ok(())
    }

    fn give(&self, record: &BorrowedMessage<'_>) {
        let (partition, offset) = ((record.topic().to_owned(), record.partition()), record.offset());
        let mut state = lock(&self.state);
        if state.progress.receive(&partition, offset) == Came::Back {
            tracing::warn!(
                topic = partition.0,
                partition = partition.1,
                offset,
                "the partition goes back: its topic was created anew or cut off, and is read from here"
            );
            // What is still to be given of the old log is given; only its numbers are others' now.
            state.tickets.retain(|(other, _)| *other != partition);
        }
        let out = Out { message: Arc::new(message::incoming(record)), deliveries: 1 };
        state.give(partition, offset, out);
    }

    fn open(&self) -> Result<Arc<Consumer>, SinkError> {
        let mut kept = lock(&self.consumer);
        if let Some(consumer) = &*kept {
            return Ok(Arc::clone(consumer));
        }
        let context = Context { state: Arc::clone(&self.state) };
        lock(&self.state).clear();
        let consumer: KafkaResult<StreamConsumer<Context>> = self.config.create_with_context(context);
        let consumer = consumer.map_err(|error| error::of_creation(&error))?;
        let topics: Vec<_> = self.subscription.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(|error| error::of_creation(&error))?;
        let consumer = Arc::new(Consumer(Some(consumer)));
        *kept = Some(Arc::clone(&consumer));
        Ok(consumer)
    }

    /// librdkafka goes on by itself after most errors; after others a new consumer begins.
    fn lost(&self, consumer: &Arc<Consumer>, error: &KafkaError) -> SinkError {
        if consumer.stream().client().fatal_error().is_some() {
            lock(&self.consumer).take_if(|kept| Arc::ptr_eq(kept, consumer));
        }
        SinkError::unavailable(format_args!("kafka at {}: {error}", self.brokers))
    }

    /// Whether the brokers answer, and have the topics.
    async fn look(&self, consumer: &Arc<Consumer>) -> Result<(), SinkError> {
        let (consumer, within) = (Arc::clone(consumer), self.answer_within);
        let topics = self.subscription.topics.clone();
        let asked = self.blocking(move || {
            for topic in &topics {
                let metadata = consumer.stream().fetch_metadata(Some(topic), within)?;
                let told = metadata.topics().iter().find_map(rdkafka::metadata::MetadataTopic::error);
                if let Some(code) = told {
                    return Ok(Some(format!("topic {topic}: {}", RDKafkaErrorCode::from(code))));
                }
            }
            Ok(None)
        });
        match asked.await? {
            None => Ok(()),
            Some(words) => Err(SinkError::unavailable(format_args!("kafka at {}: {words}", self.brokers))),
        }
    }

    /// librdkafka waits in its own threads.
    async fn blocking<T: Send + 'static>(
        &self,
        asking: impl FnOnce() -> KafkaResult<T> + Send + 'static,
    ) -> Result<T, SinkError> {
        let told =
            |words: &dyn fmt::Display| SinkError::unavailable(format_args!("kafka at {}: {words}", self.brokers));
        match timeout(self.answer_within + Duration::from_secs(1), spawn_blocking(asking)).await {
            Ok(Ok(Ok(answer))) => Ok(answer),
            Ok(Ok(Err(error))) => Err(told(&error)),
            Ok(Err(error)) => Err(told(&error)),
            Err(_) => Err(told(&"no answer in time")),
        }
    }

    async fn acknowledge_batch(&self, tickets: &[Ticket]) -> Vec<Result<(), SinkError>> {
        let mut touched: BTreeMap<Partition, Option<i64>> = BTreeMap::new();
        let of: Vec<Option<Partition>> = tickets
            .iter()
            .map(|ticket| {
                let mut state = lock(&self.state);
                let ((partition, offset), _) = state.tickets.renew(*ticket)?;
                state.progress.done(&partition, offset).then_some(partition)
            })
            .collect();
        for partition in of.iter().flatten() {
            let at = lock(&self.state).progress.to_commit(partition);
            touched.insert(partition.clone(), at);
        }
        let told =
            self.commit(touched.into_iter().filter_map(|(partition, at)| Some((partition, at?))).collect()).await;
        if told.is_ok() {
            let mut state = lock(&self.state);
            tickets.iter().for_each(|ticket| drop(state.tickets.take(*ticket)));
        }
        let void = || SinkError::failed("the ticket is not good any more: the message comes again, or has come");
        of.into_iter().map(|of| if of.is_some() { told.clone() } else { Err(void()) }).collect()
    }

    async fn commit(&self, places: Vec<(Partition, i64)>) -> Result<(), SinkError> {
        if places.is_empty() {
            return Ok(());
        }
        let consumer = lock(&self.consumer).clone();
        let consumer = consumer.ok_or_else(|| SinkError::unavailable("the connection is closed"))?;
        let mut list = TopicPartitionList::new();
        for ((topic, partition), at) in &places {
            // It takes everything that came from it.
            let _ = list.add_partition_offset(topic, *partition, Offset::Offset(*at));
        }
        self.blocking(move || consumer.stream().commit(&list, CommitMode::Sync)).await?;
        let mut state = lock(&self.state);
        for (partition, at) in &places {
            state.progress.committed(partition, *at);
        }
        Ok(())
    }

    async fn count(&self) -> Result<Option<u64>, SinkError> {
        let (config, within, topics) = (self.config.clone(), self.answer_within, self.subscription.topics.clone());
        self.blocking(move || {
            // Not the one that receives: while its group changes it hears of nothing else.
            let consumer: BaseConsumer = config.create()?;
            let mut list = TopicPartitionList::new();
            for topic in &topics {
                for of_topic in consumer.fetch_metadata(Some(topic), within)?.topics() {
                    of_topic.partitions().iter().for_each(|partition| {
                        list.add_partition(topic, partition.id());
                    });
                }
            }
            let mut lag = 0;
            for place in consumer.committed_offsets(list, within)?.elements() {
                let (low, high) = consumer.fetch_watermarks(place.topic(), place.partition(), within)?;
                let from = match place.offset() {
                    Offset::Offset(at) => at.max(low),
                    _ => low,
                };
                lag += u64::try_from(high - from).unwrap_or(0);
            }
            Ok(Some(lag))
        })
        .await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A consumer whose end keeps nobody waiting.
struct Consumer(Option<StreamConsumer<Context>>);

impl Consumer {
    fn stream(&self) -> &StreamConsumer<Context> {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // It leaves its group, and waits for its threads: too long for a task of a runtime.
        let consumer = self.0.take();
        let _ = thread::Builder::new().name("kafka end".into()).spawn(move || drop(consumer));
    }
}

/// What librdkafka says that is no answer.
struct Context {
    state: Arc<Mutex<State>>,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, words: &str) {
        tracing::debug!(?level, facility, "librdkafka: {words}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, "librdkafka: {reason}");
    }
}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(list) = rebalance {
            let mut state = lock(&self.state);
            let mut gone = Vec::new();
            for place in list.elements() {
                let partition = (place.topic().to_owned(), place.partition());
                state.progress.revoke(&partition);
                gone.push(partition);
            }
            // Who has them next gives them.
            let State { tickets, came, .. } = &mut *state;
            tickets.retain(|(partition, _)| !gone.contains(partition));
            came.retain(|received| tickets.find(received.ticket).is_some());
        }
    }
}

impl Source for KafkaSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn gives(&self) -> Gives {
        Gives { order: true, again_after: None, counts: false }
    }

    fn receive(&self, most: usize) -> BoxFuture<'_, Result<Vec<Received>, SinkError>> {
        Box::pin(self.receive_batch(most))
    }

    fn acknowledge<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, Vec<Result<(), SinkError>>> {
        Box::pin(self.acknowledge_batch(tickets))
    }

    fn give_back<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, ()> {
        // The partition is this consumer's: nobody else could have them.
        let mut state = lock(&self.state);
        for ticket in tickets {
            if let Some(((partition, offset), out)) = state.tickets.take(*ticket) {
                let out = Out { deliveries: out.deliveries.saturating_add(1), ..out };
                if state.progress.is_open(&partition, offset) {
                    state.give(partition, offset, out);
                }
            }
        }
        drop(state);
        Box::pin(async {})
    }

    fn lag(&self) -> BoxFuture<'_, Result<Option<u64>, SinkError>> {
        Box::pin(self.count())
    }

    fn check(&self) -> BoxFuture<'_, Result<(), SinkError>> {
        Box::pin(async { self.look(&self.open()?).await })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let _turn = self.reading.lock().await;
            let consumer = lock(&self.consumer).take();
            lock(&self.state).clear();
            // Others have its partitions once it has left the group.
            let _ = timeout(
                self.answer_within,
                spawn_blocking(move || {
                    let consumer = consumer.and_then(Arc::into_inner).and_then(|mut consumer| consumer.0.take());
                    drop(consumer);
                }),
            )
            .await;
        })
    }
}

impl fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("KafkaSource");
        shown.field("brokers", &self.brokers).field("subscription", &self.subscription).finish_non_exhaustive()
    }
}
