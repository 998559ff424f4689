//! The source itself.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use async_nats::{
    Request, StatusCode, Subject, Subscriber,
    jetstream::{
        AckKind,
        consumer::{
            Consumer,
            pull::{self, BatchConfig},
        },
        context::ConsumerInfoErrorKind,
    },
};
use futures_util::StreamExt as _;
use pillarbox_core::port::{BoxFuture, Gives, Received, SinkError, Source, Ticket, Tickets};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    Subscription,
    connection::{Connection, Open},
    error, message,
};

/// When it is asked again while so many messages are out that there may be no more.
const WHILE_FULL: Duration = Duration::from_millis(100);

/// So many messages are given at once at the most: they are dealt with while the rest of their batch is on its way.
const AT_ONCE: usize = 1_000;

/// Receives messages from NATS JetStream. Made by [`Options::subscribe`](crate::Options::subscribe).
pub struct NatsSource {
    connection: Connection,
    subscription: Subscription,
    name: String,
    // One receives at a time.
    reading: tokio::sync::Mutex<Reading>,
    // By their number in the stream, with where the answer goes. It is good on any connection.
    tickets: Mutex<Tickets<u64, Subject>>,
}

#[derive(Default)]
struct Reading {
    on: Option<On>,
    // Asked for by a receive that was dropped before the end.
    asked: Option<Asked>,
    came: VecDeque<Received>,
}

#[derive(Clone)]
struct On {
    open: Open,
    consumer: Consumer<pull::Config>,
}

/// A batch that the server was asked for: it waits for the first message, and gives all that are there by then.
struct Asked {
    answers: Subscriber,
    left: usize,
    until: Instant,
}

/// What an answer to a pull means.
enum Told {
    Message,
    // The batch is over.
    End,
    // So many are out that there are no more until some are acknowledged.
    Full,
    Wrong(String),
}

impl NatsSource {
    pub(crate) fn new(connection: Connection, subscription: Subscription) -> Self {
        let name = format!("{}/{}", subscription.stream, subscription.group);
        let tickets = Mutex::new(Tickets::new(subscription.again_after.saturating_mul(4)));
        Self { connection, subscription, name, reading: tokio::sync::Mutex::default(), tickets }
    }

    async fn receive_batch(&self, most: usize) -> Result<Vec<Received>, SinkError> {
        let mut reading = self.reading.lock().await;
        if reading.came.is_empty() && most > 0 {
            let read = self.read(&mut reading, most).await;
            if read.is_err() {
                (reading.on, reading.asked) = (None, None);
            }
            // What came before the error comes now, and the error the next time.
            if reading.came.is_empty() {
                read?;
            }
        }
        let count = most.min(reading.came.len());
        Ok(reading.came.drain(..count).collect())
    }

    async fn read(&self, reading: &mut Reading, most: usize) -> Result<(), SinkError> {
        let answer_within = self.connection.options().answer_within;
        let on = self.on(reading).await?;
        let names = self.connection.names();
        let mut news = on.open.news.clone();
        let end = Instant::now() + self.subscription.wait;
        loop {
            let asked = match &mut reading.asked {
                Some(asked) => asked,
                none => none.insert(self.ask(&on, most, end).await?),
            };
            let next = tokio::select! {
                biased;
                next = timeout_at(asked.until + answer_within, asked.answers.next()) => next.unwrap_or(None),
                told = news.wait_for(|news| news.lost.is_some()) => {
                    let why = told.ok().and_then(|news| news.lost.clone());
                    return Err(error::unreachable(names, why.as_deref().unwrap_or("the connection is lost")));
                }
            };
            let Some(next) = next else {
                self.connection.discard(&on.open);
                return Err(self.silent(&on.open));
            };
            match told(&next) {
                Told::Message => {
                    asked.left -= 1;
                    let is_last = asked.left == 0;
                    // What has no metadata is not of JetStream, and nobody could acknowledge it.
                    if let Some((incoming, about)) = message::incoming(next) {
                        let ticket = self.tickets().issue(about.sequence, about.reply);
                        let deliveries = about.deliveries;
                        reading.came.push_back(Received { ticket, deliveries, message: incoming });
                    }
                    if is_last {
                        reading.asked = None;
                    }
                    if is_last || reading.came.len() >= AT_ONCE {
                        return Ok(());
                    }
                }
                Told::End => {
                    reading.asked = None;
                    return Ok(());
                }
                Told::Full => {
                    reading.asked = None;
                    if !reading.came.is_empty() || Instant::now() >= end {
                        return Ok(());
                    }
                    sleep(WHILE_FULL.min(self.subscription.wait)).await;
                }
                Told::Wrong(words) => {
                    let words = format_args!("consumer {}: {words}", self.name);
                    return Err(error::unreachable(names, words));
                }
            }
        }
    }

    async fn ask(&self, on: &On, most: usize, end: Instant) -> Result<Asked, SinkError> {
        let lost = |error: &dyn fmt::Display| error::unreachable(self.connection.names(), error);
        let client = on.open.jetstream.client();
        let inbox = Subject::from(client.new_inbox());
        let answers = client.subscribe(inbox.clone()).await.map_err(|error| lost(&error))?;
        // The server gives none if the time is over.
        let expires = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let batch = BatchConfig { batch: most, expires: Some(expires), no_wait: true, ..BatchConfig::default() };
        on.consumer.request_batch(batch, inbox).await.map_err(|error| lost(&error))?;
        Ok(Asked { answers, left: most, until: Instant::now() + expires })
    }

    /// The consumer on a connection that lives.
    async fn on(&self, reading: &mut Reading) -> Result<On, SinkError> {
        if let Some(on) = reading.on.as_ref().filter(|on| !on.open.is_lost()) {
            return Ok(on.clone());
        }
        // Nobody answers what was asked on another one.
        (reading.on, reading.asked) = (None, None);
        let on = self.look().await?;
        reading.on = Some(on.clone());
        Ok(on)
    }

    /// Connects, and looks at the consumer, which is created if need be.
    async fn look(&self) -> Result<On, SinkError> {
        let deadline = Instant::now() + self.connection.options().answer_within;
        let opened = timeout_at(deadline, self.connection.open()).await;
        let open = opened.unwrap_or_else(|_| Err(error::silent(self.connection.names())))?;
        let mut news = open.news.clone();
        let found = tokio::select! {
            biased;
            found = timeout_at(deadline, self.find(&open)) => found.unwrap_or_else(|_| Err(self.silent(&open))),
            _ = news.wait_for(|news| news.lost.is_some()) => {
                Err(error::unreachable(self.connection.names(), "the connection is lost"))
            }
        };
        match found {
            Ok(consumer) => Ok(On { open, consumer }),
            Err(error) => {
                self.connection.discard(&open);
                Err(error)
            }
        }
    }

    async fn find(&self, open: &Open) -> Result<Consumer<pull::Config>, SinkError> {
        let Subscription { stream, group, .. } = &self.subscription;
        let told = |error: &dyn fmt::Display| {
            error::unreachable(self.connection.names(), format_args!("consumer {group} of stream {stream}: {error}"))
        };
        let stream = open.jetstream.get_stream_no_info(stream).await.map_err(|error| told(&error))?;
        let info = match stream.consumer_info(group).await {
            Ok(info) => info,
            Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => {
                let created = stream.create_consumer(self.subscription.config()).await;
                created.map_err(|error| told(&error))?.cached_info().clone()
            }
            Err(error) if error.kind() == ConsumerInfoErrorKind::StreamNotFound => {
                return Err(told(&"there is no such stream: create it, or give the option stream its subjects"));
            }
            Err(error) => return Err(told(&error)),
        };
        self.subscription.judge_consumer(&info.config).map_err(|reason| told(&reason))?;
        Ok(Consumer::new(self.subscription.config(), info, open.jetstream.clone()))
    }

    async fn acknowledge_batch(&self, tickets: &[Ticket]) -> Vec<Result<(), SinkError>> {
        if tickets.is_empty() {
            return Vec::new();
        }
        let deadline = Instant::now() + self.connection.options().answer_within;
        let opened = timeout_at(deadline, self.connection.open()).await;
        let open = match opened.unwrap_or_else(|_| Err(error::silent(self.connection.names()))) {
            Ok(open) => open,
            Err(error) => return vec![Err(error); tickets.len()],
        };
        let replies: Vec<Option<Subject>> = {
            let mut out = self.tickets();
            tickets.iter().map(|ticket| out.renew(*ticket).map(|(_, reply)| reply)).collect()
        };
        let told = self.acknowledge_in_order(&open, replies.iter().flatten(), deadline).await;
        match &told {
            Ok(()) => {
                let mut out = self.tickets();
                tickets.iter().for_each(|ticket| drop(out.take(*ticket)));
            }
            Err(Unconfirmed::Silent) => self.connection.discard(&open),
            Err(Unconfirmed::Told(_)) => {}
        }
        let told = told.map_err(|unconfirmed| match unconfirmed {
            Unconfirmed::Silent => self.silent(&open),
            Unconfirmed::Told(words) => error::unreachable(self.connection.names(), words),
        });
        let void = || SinkError::failed("the ticket is not good any more: the message comes again, or has come");
        replies.iter().map(|reply| if reply.is_some() { told.clone() } else { Err(void()) }).collect()
    }

    /// One after another on one connection, and only the last one is to be answered: the server takes note of a consumer's
    /// acknowledgements in the order in which they come, so that its word on the last is its word on all.
    async fn acknowledge_in_order(
        &self,
        open: &Open,
        replies: impl Iterator<Item = &Subject>,
        deadline: Instant,
    ) -> Result<(), Unconfirmed> {
        let client = open.jetstream.client();
        let statistics = client.statistics();
        // The client connects again by itself, and what was under way on the connection before may be lost.
        let connection = statistics.connects.load(Ordering::Relaxed);
        let telling = async {
            let mut replies = replies.peekable();
            while let Some(reply) = replies.next() {
                if replies.peek().is_some() {
                    let told = client.publish(reply.clone(), AckKind::Ack.into()).await;
                    told.map_err(|error| self.unconfirmed(&error))?;
                } else {
                    // With an inbox for the answer.
                    let request = Request::new().payload(AckKind::Ack.into()).timeout(None);
                    let told = client.send_request(reply.clone(), request).await;
                    told.map_err(|error| self.unconfirmed(&error))?;
                }
            }
            Ok(())
        };
        let mut news = open.news.clone();
        let told = tokio::select! {
            biased;
            told = timeout_at(deadline, telling) => told.unwrap_or(Err(Unconfirmed::Silent)),
            _ = news.wait_for(|news| news.lost.is_some()) => Err(Unconfirmed::Silent),
        };
        if statistics.connects.load(Ordering::Relaxed) == connection { told } else { Err(Unconfirmed::Silent) }
    }

    fn unconfirmed(&self, error: &dyn fmt::Display) -> Unconfirmed {
        Unconfirmed::Told(format!("consumer {}: acknowledgement: {error}", self.name))
    }

    /// Tells something of messages that needs no answer: what does not arrive is as if it was not said.
    async fn tell(&self, replies: Vec<Subject>, what: AckKind) {
        let deadline = Instant::now() + self.connection.options().answer_within;
        if replies.is_empty() {
            return;
        }
        let telling = async {
            let Ok(open) = self.connection.open().await else { return };
            let client = open.jetstream.client();
            for reply in replies {
                // The connection is lost: then the messages come again after their time.
                if client.publish(reply, what.into()).await.is_err() {
                    return;
                }
            }
            let _ = client.flush().await;
        };
        let _ = timeout_at(deadline, telling).await;
    }

    async fn count(&self) -> Result<Option<u64>, SinkError> {
        // Which tells it, too.
        let on = self.look().await?;
        let info = on.consumer.cached_info();
        Ok(Some(info.num_pending + info.num_ack_pending as u64))
    }

    /// It did not answer in time, or was forbidden to be asked.
    fn silent(&self, open: &Open) -> SinkError {
        let news = open.news.borrow();
        match (&news.lost, news.forbidden.keys().next()) {
            (Some(why), _) => error::unreachable(self.connection.names(), why),
            (None, Some(subject)) => error::unreachable(
                self.connection.names(),
                format_args!("permissions violation for publish to {subject}"),
            ),
            (None, None) => error::silent(self.connection.names()),
        }
    }

    fn tickets(&self) -> MutexGuard<'_, Tickets<u64, Subject>> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why it is not known that messages are acknowledged.
enum Unconfirmed {
    Silent,
    Told(String),
}

fn told(answer: &async_nats::Message) -> Told {
    let words = answer.description.as_deref().unwrap_or_default();
    match answer.status {
        None | Some(StatusCode::OK) => Told::Message,
        Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND) => Told::End,
        Some(StatusCode::NO_RESPONDERS) => {
            Told::Wrong("nobody answers for it: it is gone, or its servers have no leader".into())
        }
        Some(_) if words.to_ascii_lowercase().contains("maxackpending") => Told::Full,
        Some(status) => Told::Wrong(format!("{status} {words}")),
    }
}

impl Source for NatsSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn gives(&self) -> Gives {
        Gives { order: true, again_after: Some(self.subscription.again_after), counts: true }
    }

    fn receive(&self, most: usize) -> BoxFuture<'_, Result<Vec<Received>, SinkError>> {
        Box::pin(self.receive_batch(most))
    }

    fn acknowledge<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, Vec<Result<(), SinkError>>> {
        Box::pin(self.acknowledge_batch(tickets))
    }

    fn give_back<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, ()> {
        let mut out = self.tickets();
        let replies = tickets.iter().filter_map(|ticket| out.take(*ticket)).map(|(_, reply)| reply).collect();
        drop(out);
        Box::pin(self.tell(replies, AckKind::Nak(None)))
    }

    fn hold<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, ()> {
        let mut out = self.tickets();
        let replies = tickets.iter().filter_map(|ticket| out.renew(*ticket)).map(|(_, reply)| reply).collect();
        drop(out);
        Box::pin(self.tell(replies, AckKind::Progress))
    }

    fn lag(&self) -> BoxFuture<'_, Result<Option<u64>, SinkError>> {
        Box::pin(self.count())
    }

    fn check(&self) -> BoxFuture<'_, Result<(), SinkError>> {
        Box::pin(async { self.look().await.map(drop) })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.connection.close();
            let mut reading = self.reading.lock().await;
            (reading.on, reading.asked) = (None, None);
        })
    }
}

impl fmt::Debug for NatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("NatsSource");
        shown.field("connection", &self.connection).field("subscription", &self.subscription).finish_non_exhaustive()
    }
}
