//! The sink.

use std::{fmt, sync::Arc, time::Duration};

use pillarbox_core::{
    domain::Key,
    port::{Abilities, BoxFuture, Confirms, Message, Sent, Sink, SinkError, SinkErrorKind},
};
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode},
    producer::{BaseRecord, Producer as _},
};
use tokio::{
    sync::{RwLock, oneshot},
    task::spawn_blocking,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    connection::{Connection, Producer},
    error, message,
};

/// So often a full queue is tried again.
const FULL: Duration = Duration::from_millis(10);
/// librdkafka looks for messages whose time is over once a second; after this time more it has forgotten one.
const GRACE: Duration = Duration::from_secs(5);

/// So long a close waits for what is under way. It is nobody's any more: whoever waited has gone, and sends it again. What is
/// left then is thrown away with the producer, so that it does not come late, after what follows on it.
const GOODBYE: Duration = Duration::from_secs(1);

/// Kafka, by an idempotent producer. Made by [`Options::open`](crate::Options::open).
pub struct KafkaSink {
    connection: Connection,
    brokers: String,
    answer_within: Duration,
    largest: usize,
    /// Held for writing by who sends messages one by one: no others may travel with them.
    road: RwLock<()>,
}

/// Why a message was not taken, and whether others may be to blame.
struct Refusal {
    error: SinkError,
    is_shared: bool,
}

type Waiting = Result<oneshot::Receiver<Result<(), KafkaError>>, SinkError>;

impl KafkaSink {
    pub(crate) fn new(connection: Connection, brokers: String, answer_within: Duration, largest: usize) -> Self {
        Self { connection, brokers, answer_within, largest, road: RwLock::default() }
    }

    async fn send_all(&self, batch: &[Message]) -> Vec<Sent> {
        let producer = match self.connection.producer() {
            Ok(producer) => producer,
            Err(error) => return vec![Err(error); batch.len()],
        };
        let shared = self.road.read().await;
        let answers = self.send_together(&producer, batch).await;
        drop(shared);
        if !answers.iter().any(|answer| answer.as_ref().is_err_and(|refusal| refusal.is_shared)) {
            return answers.into_iter().map(|answer| answer.map_err(|refusal| refusal.error)).collect();
        }
        // Even one by itself may have travelled with those of another batch.
        let _alone = self.road.write().await;
        let mut nobody: Option<SinkError> = None;
        let mut sent = Vec::with_capacity(batch.len());
        for (message, answer) in batch.iter().zip(answers) {
            sent.push(match answer {
                Ok(()) => Ok(()),
                Err(refusal) if !refusal.is_shared => Err(refusal.error),
                Err(_) => match &nobody {
                    Some(error) => Err(error.clone()),
                    None => self.send_alone(&producer, message).await,
                },
            });
            if let Some(Err(error)) = sent.last()
                && error.kind() == SinkErrorKind::Unavailable
            {
                nobody = Some(error.clone());
            }
        }
        sent
    }

    async fn send_alone(&self, producer: &Arc<Producer>, message: &Message) -> Sent {
        let deadline = Instant::now() + self.answer_within;
        let waiting = self.enqueue(producer, message, deadline).await;
        self.answer(producer, waiting, deadline).await.map_err(|refusal| refusal.error)
    }

    /// Hands all messages over, then waits for all answers.
    async fn send_together(&self, producer: &Arc<Producer>, batch: &[Message]) -> Vec<Result<(), Refusal>> {
        let deadline = Instant::now() + self.answer_within;
        let mut waiting = Vec::with_capacity(batch.len());
        for message in batch {
            waiting.push(self.enqueue(producer, message, deadline).await);
        }
        let mut answers = Vec::with_capacity(batch.len());
        for answer in waiting {
            answers.push(self.answer(producer, answer, deadline).await);
        }
        answers
    }

    async fn enqueue(&self, producer: &Producer, message: &Message, deadline: Instant) -> Waiting {
        let bytes = message.payload.len();
        if bytes > self.largest {
            let largest = self.largest;
            return Err(SinkError::unfit(format_args!("{bytes} bytes are too many: {largest} is the most")));
        }
        message::check_topic(&message.topic)?;
        let (answer, answered) = oneshot::channel();
        let mut record = BaseRecord::with_opaque_to(&message.topic, Box::new(answer))
            .payload(&*message.payload)
            .headers(message::headers(message)?);
        record.key = message.key.as_ref().map(Key::as_str);
        loop {
            match producer.send(record) {
                Ok(()) => return Ok(answered),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back))
                    if Instant::now() < deadline =>
                {
                    record = back;
                    sleep(FULL).await;
                }
                Err((error, _)) => return Err(error::of_queue(&error, producer.heard())),
            }
        }
    }

    async fn answer(&self, producer: &Arc<Producer>, waiting: Waiting, deadline: Instant) -> Result<(), Refusal> {
        // It may have waited for a place in the queue until the deadline, and has its own time from then on.
        let end = deadline + self.answer_within + GRACE;
        let alone = |error| Refusal { error, is_shared: false };
        match timeout_at(end, waiting.map_err(alone)?).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => {
                let is_shared = error::is_shared(&error);
                Err(Refusal { error: error::of_message(&error, producer.heard()), is_shared })
            }
            Ok(Err(_)) => Err(alone(SinkError::unavailable("the producer ended before the brokers answered"))),
            Err(_) => {
                self.connection.lost(producer);
                Err(alone(SinkError::unavailable(format_args!("no answer within {:?}", self.answer_within))))
            }
        }
    }
}

impl Sink for KafkaSink {
    fn abilities(&self) -> Abilities {
        Abilities { confirms: Confirms::Stored, largest: Some(self.largest), keeps_order: true, dedupes: false }
    }

    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>> {
        Box::pin(self.send_all(batch))
    }

    /// Asks for what the cluster knows of its topics.
    fn check(&self) -> BoxFuture<'_, Sent> {
        Box::pin(async move {
            let (producer, within) = (self.connection.producer()?, self.answer_within);
            let asked = spawn_blocking(move || {
                let answer = producer.client().fetch_metadata(None, within);
                answer.map(drop).map_err(|error| error::of_check(&error, producer.heard()))
            });
            asked.await.unwrap_or_else(|error| Err(SinkError::failed(error)))
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Some(producer) = self.connection.close() else { return };
            let within = self.answer_within.min(GOODBYE);
            let flushed = spawn_blocking(move || producer.flush(within)).await;
            if !matches!(flushed, Ok(Ok(()))) {
                tracing::warn!("the Kafka producer was closed with messages under way");
            }
        })
    }
}

impl fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSink").field("brokers", &self.brokers).finish_non_exhaustive()
    }
}
