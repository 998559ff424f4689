//! The source itself.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _};
use lapin::{
    Consumer, Queue,
    message::Delivery,
    options::{BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, QueueDeclareOptions},
    types::{FieldTable, ShortString},
};
use pillarbox_core::port::{BoxFuture, Gives, Received, SinkError, Source, Ticket, Tickets};
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    Subscription,
    connection::{Connection, Line},
    error, message,
};

/// Tickets end with their channel, and are forgotten no sooner.
const FOR_EVER: Duration = Duration::from_secs(u64::MAX);

/// Receives messages from a queue of RabbitMQ. Made by [`Options::subscribe`](crate::Options::subscribe).
pub struct RabbitMqSource {
    connection: Connection,
    answer_within: Duration,
    subscription: Subscription,
    queue: ShortString,
    // One receives at a time.
    reading: tokio::sync::Mutex<Reading>,
    state: Mutex<State>,
}

#[derive(Default)]
struct Reading {
    consumer: Option<Consumer>,
    came: VecDeque<Received>,
}

struct State {
    // The channel that messages come by, and on which alone they can be acknowledged.
    line: Option<Arc<Line>>,
    // By their number on that channel.
    tickets: Tickets<u64, ()>,
}

impl RabbitMqSource {
    pub(crate) fn new(connection: Connection, answer_within: Duration, subscription: Subscription) -> Self {
        let queue = ShortString::try_new(subscription.queue.as_str()).unwrap_or_default();
        let state = Mutex::new(State { line: None, tickets: Tickets::new(FOR_EVER) });
        Self { connection, answer_within, subscription, queue, reading: tokio::sync::Mutex::default(), state }
    }

    async fn receive_batch(&self, most: usize) -> Result<Vec<Received>, SinkError> {
        let mut reading = self.reading.lock().await;
        if most > 0
            && let Err(error) = self.read(&mut reading, most).await
        {
            // What came by a channel that is lost comes again.
            *reading = Reading::default();
            self.lose().await;
            return Err(error);
        }
        let count = most.min(reading.came.len());
        Ok(reading.came.drain(..count).collect())
    }

    async fn read(&self, reading: &mut Reading, most: usize) -> Result<(), SinkError> {
        if reading.consumer.is_none() {
            reading.came.clear();
            self.abandon().await;
            reading.consumer = Some(self.consume().await?);
        }
        self.take_ready(reading, most)?;
        if !reading.came.is_empty() {
            return Ok(());
        }
        let Some(consumer) = &mut reading.consumer else { return Ok(()) };
        match timeout(self.subscription.wait, consumer.next()).await {
            Ok(Some(Ok(delivery))) => {
                self.give(reading, delivery);
                self.take_ready(reading, most)
            }
            Ok(Some(Err(error))) => Err(error::unavailable(&error)),
            Ok(None) => Err(self.cancelled()),
            // Silence may be the end of a connection, or of its server: it has to say something.
            Err(_) => self.look().await.map(drop),
        }
    }

    /// Takes what has come in already.
    fn take_ready(&self, reading: &mut Reading, most: usize) -> Result<(), SinkError> {
        while reading.came.len() < most
            && let Some(consumer) = &mut reading.consumer
            && let Some(next) = consumer.next().now_or_never()
        {
            match next {
                Some(Ok(delivery)) => self.give(reading, delivery),
                Some(Err(error)) => return Err(error::unavailable(&error)),
                None => return Err(self.cancelled()),
            }
        }
        Ok(())
    }

    fn give(&self, reading: &mut Reading, delivery: Delivery) {
        let ticket = self.state().tickets.issue(delivery.delivery_tag, ());
        let (message, deliveries) = message::incoming(delivery);
        reading.came.push_back(Received { ticket, deliveries, message });
    }

    /// A new channel, on which messages come.
    async fn consume(&self) -> Result<Consumer, SinkError> {
        let deadline = Instant::now() + self.answer_within;
        self.judge_queue(deadline).await?;
        let line = Arc::new(self.connection.plain_line(deadline).await?);
        // Before messages may come by it: who is dropped from here on leaves it to be found.
        self.end_line();
        self.state().line = Some(Arc::clone(&line));
        let consuming = async {
            line.channel.basic_qos(self.subscription.most_out, BasicQosOptions::default()).await?;
            let (tag, options) = (ShortString::default(), BasicConsumeOptions::default());
            line.channel.basic_consume(self.queue.clone(), tag, options, FieldTable::default()).await
        };
        match timeout_at(deadline, consuming).await {
            Ok(Ok(consumer)) => Ok(consumer),
            Ok(Err(error)) => Err(error::unavailable(&error)),
            Err(_) => {
                self.connection.give_up_shared(&line).await;
                Err(self.silent())
            }
        }
    }

    /// Closes the channel of a receive that was dropped while it began to consume: the server would go on to send messages to
    /// it, which nobody reads.
    async fn abandon(&self) {
        let line = self.state().line.clone();
        if let Some(line) = line {
            if line.channel.status().connected() {
                // One that is silent goes with its connection, which is found out next.
                let _ = timeout(self.answer_within, line.channel.close(200, "OK".into())).await;
            }
            self.end_line();
        }
    }

    /// Whether the queue is there, and stays there. The server tells of neither its durability nor its end: but it compares
    /// them with those that one declares, before anything else, and says which of them differs.
    async fn judge_queue(&self, deadline: Instant) -> Result<(), SinkError> {
        self.declare(deadline, QueueDeclareOptions::default().passive()).await?;
        let Err(error) = self.declare(deadline, QueueDeclareOptions::durable()).await else { return Ok(()) };
        let words = error.to_string();
        let name = &self.subscription.queue;
        if words.contains("inequivalent arg 'durable'") {
            return Err(SinkError::unavailable(format_args!(
                "the queue {name} is not durable: the end of the server would lose its messages; declare it anew as durable"
            )));
        }
        if words.contains("inequivalent arg 'auto_delete'") {
            return Err(SinkError::unavailable(format_args!(
                "the queue {name} is auto-delete: it would go with its last consumer, and its messages with it; declare it anew \
                 without"
            )));
        }
        // Others may be as they are.
        if words.contains("inequivalent arg") { Ok(()) } else { Err(error) }
    }

    /// On a channel of its own, which the server closes if it disagrees.
    async fn declare(&self, deadline: Instant, options: QueueDeclareOptions) -> Result<Queue, SinkError> {
        let line = self.connection.plain_line(deadline).await?;
        let declaring = line.channel.queue_declare(self.queue.clone(), options, FieldTable::default());
        match timeout_at(deadline, declaring).await {
            Ok(Ok(queue)) => Ok(queue),
            Ok(Err(error)) => Err(error::unavailable(&error)),
            Err(_) => {
                self.connection.give_up(line).await;
                Err(self.silent())
            }
        }
    }

    /// Asks for the queue on the channel that messages come by: what was said on it before has been heard then.
    async fn look(&self) -> Result<Queue, SinkError> {
        let line = self.state().line.clone();
        let line = line.filter(|line| line.channel.status().connected());
        let line = line.ok_or_else(|| SinkError::unavailable("the connection is lost"))?;
        let passive = QueueDeclareOptions::default().passive();
        let asked = line.channel.queue_declare(self.queue.clone(), passive, FieldTable::default());
        match timeout(self.answer_within, asked).await {
            Ok(Ok(queue)) => Ok(queue),
            Ok(Err(error)) => Err(error::unavailable(&error)),
            Err(_) => Err(self.silent()),
        }
    }

    async fn acknowledge_batch(&self, tickets: &[Ticket]) -> Vec<Result<(), SinkError>> {
        let void = || SinkError::failed("the ticket is not good any more: the message comes again, or has come");
        let line = self.state().line.clone();
        let tags: Vec<_> =
            tickets.iter().map(|ticket| self.state().tickets.take(*ticket).map(|(tag, ())| tag)).collect();
        let known = || tags.iter().flatten();
        let told = match line {
            Some(line) if known().next().is_some() => {
                let acknowledging = async {
                    for tag in known() {
                        line.channel
                            .basic_ack(*tag, BasicAckOptions::default())
                            .await
                            .map_err(|error| error::unavailable(&error))?;
                    }
                    // An acknowledgement has no answer: this has one, and the server takes one after the other.
                    self.look().await.map(drop)
                };
                timeout(self.answer_within, acknowledging).await.unwrap_or_else(|_| Err(self.silent()))
            }
            _ => Err(SinkError::unavailable("the connection is lost")),
        };
        if told.is_err() && known().next().is_some() {
            self.lose().await;
        }
        tags.iter().map(|tag| if tag.is_some() { told.clone() } else { Err(void()) }).collect()
    }

    async fn give_back_batch(&self, tags: Vec<u64>) {
        let Some(line) = self.state().line.clone() else { return };
        let giving = async {
            for tag in tags {
                let options = BasicNackOptions { multiple: false, requeue: true };
                // Then the channel is lost, and all its messages come again.
                if line.channel.basic_nack(tag, options).await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(self.answer_within, giving).await;
    }

    /// Those in the queue, and those that this source has.
    async fn count(&self) -> Result<Option<u64>, SinkError> {
        let queue = if self.state().line.is_some() {
            self.look().await
        } else {
            self.declare(Instant::now() + self.answer_within, QueueDeclareOptions::default().passive()).await
        };
        let queue = match queue {
            Ok(queue) => queue,
            Err(error) => {
                self.lose().await;
                return Err(error);
            }
        };
        if let Ok(mut reading) = self.reading.try_lock() {
            // What has come in without being asked for counts, too. A fault is found by who receives.
            let _ = self.take_ready(&mut reading, usize::MAX);
        }
        Ok(Some(u64::from(queue.message_count()) + self.state().tickets.len() as u64))
    }

    /// The channel is not to be used again, nor its connection: messages that came by it come again.
    async fn lose(&self) {
        if let Some(line) = self.end_line() {
            self.connection.give_up_shared(&line).await;
        }
    }

    /// All tickets are void with it.
    fn end_line(&self) -> Option<Arc<Line>> {
        let mut state = self.state();
        state.tickets.clear();
        state.line.take()
    }

    fn cancelled(&self) -> SinkError {
        SinkError::unavailable(format_args!("the queue {} was deleted, or has moved", self.subscription.queue))
    }

    fn silent(&self) -> SinkError {
        SinkError::unavailable(format_args!("rabbitmq does not answer within {:?}", self.answer_within))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for RabbitMqSource {
    fn name(&self) -> &str {
        &self.subscription.queue
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
        let mut state = self.state();
        let tags = tickets.iter().filter_map(|ticket| state.tickets.take(*ticket)).map(|(tag, ())| tag).collect();
        drop(state);
        Box::pin(self.give_back_batch(tags))
    }

    fn lag(&self) -> BoxFuture<'_, Result<Option<u64>, SinkError>> {
        Box::pin(self.count())
    }

    fn check(&self) -> BoxFuture<'_, Result<(), SinkError>> {
        Box::pin(self.judge_queue(Instant::now() + self.answer_within))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            *self.reading.lock().await = Reading::default();
            self.end_line();
            self.connection.close().await;
        })
    }
}

impl fmt::Debug for RabbitMqSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RabbitMqSource");
        shown.field("connection", &self.connection).field("subscription", &self.subscription).finish_non_exhaustive()
    }
}
