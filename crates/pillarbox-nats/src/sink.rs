//! The sink itself.

use std::{
    collections::HashMap,
    future::Future,
    pin::pin,
    time::{Duration, SystemTime},
};

use async_nats::jetstream::{
    context::{GetStreamByNameErrorKind, PublishError, PublishErrorKind},
    message::PublishMessage,
    publish::PublishAck,
    response::Response,
};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use pillarbox_core::port::{Abilities, BoxFuture, Confirms, Message, Sent, Sink, SinkError, SinkErrorKind};
use serde::de::IgnoredAny;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::{
    connection::{Connection, Open},
    error, message,
};

/// How often a subject that no stream takes is tried, and when again: while a stream's servers choose a leader there is none.
const TRIES: u32 = 3;
const BETWEEN_TRIES: Duration = Duration::from_millis(250);

/// The stream that has the message, or why none has it.
type Stored = Result<String, SinkError>;

/// Publishes messages to NATS JetStream. Made by [`Options::open`](crate::Options::open).
#[derive(Debug)]
pub struct NatsSink {
    connection: Connection,
}

impl NatsSink {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection }
    }

    async fn send_batch(&self, batch: &[Message]) -> Vec<Sent> {
        let options = self.connection.options();
        let deadline = Instant::now() + options.answer_within;
        let prepared: Vec<_> = batch.iter().map(|message| message::publish(message, options.largest)).collect();
        if prepared.iter().all(Result::is_err) {
            return prepared.into_iter().map(|prepared| prepared.map(drop)).collect();
        }
        let open = match self.open(deadline).await {
            Ok(open) => open,
            // What was refused here stays refused.
            Err(error) => return prepared.into_iter().map(|prepared| prepared.and(Err(error.clone()))).collect(),
        };
        let stored = self.send_all(&open, batch, prepared, deadline).await;
        let answers = self.trusting(&open, stored, deadline).await;
        let is_unavailable = |answer: &Sent| matches!(answer, Err(error) if error.kind() == SinkErrorKind::Unavailable);
        if answers.iter().any(is_unavailable) {
            self.connection.discard(&open);
        }
        answers
    }

    /// Takes the word of those streams that keep what they confirm. Each is looked at when it first says yes: which streams
    /// take the subjects is the server's to know.
    async fn trusting(&self, open: &Open, stored: Vec<Stored>, deadline: Instant) -> Vec<Sent> {
        let mut refused: HashMap<String, SinkError> = HashMap::new();
        let mut last = "";
        for stream in stored.iter().flatten() {
            // Mostly they are all the same.
            if stream == last || open.trusts(stream) || refused.contains_key(stream) {
                last = stream;
                continue;
            }
            match self.look_at(open, stream, deadline).await {
                Ok(()) => {}
                Err(error) if error.kind() == SinkErrorKind::Unavailable => {
                    refused.insert(stream.clone(), error);
                }
                // Who may not ask is to believe it.
                Err(_) => open.trust(stream),
            }
        }
        let sent = |stored: Stored| stored.and_then(|stream| refused.get(&stream).cloned().map_or(Ok(()), Err));
        stored.into_iter().map(sent).collect()
    }

    async fn look_at(&self, open: &Open, stream: &str, deadline: Instant) -> Sent {
        let question = self.connection.api(&format!("STREAM.INFO.{stream}"));
        let looking = self.connection.look_at_confirmer(open, stream);
        let Some(found) = self.unless_told(open, &question, deadline, looking).await? else { return Ok(()) };
        let question = self.connection.api(&format!("CONSUMER.LIST.{stream}"));
        let looking = self.connection.look_at_readers(open, &found);
        self.unless_told(open, &question, deadline, looking).await
    }

    /// Publishes all, then takes the answers as they come: from the stream, or from what the server says instead. One
    /// clock and one ear for the whole batch, since those of each message would cost more than the message.
    async fn send_all(
        &self,
        open: &Open,
        batch: &[Message],
        prepared: Vec<Result<PublishMessage, SinkError>>,
        deadline: Instant,
    ) -> Vec<Stored> {
        let mut news = open.news.clone();
        let mut forbidden = news.borrow().forbidden.clone();
        // It may be lost already.
        news.mark_changed();
        let mut answers: Vec<Option<Stored>> = vec![None; batch.len()];
        let mut under_way = FuturesUnordered::new();
        for (n, (message, prepared)) in batch.iter().zip(prepared).enumerate() {
            match prepared {
                Ok(publish) => {
                    under_way.push(async move { (n, self.send_one(open, message, publish, deadline).await) });
                }
                Err(error) => answers[n] = Some(Err(error)),
            }
        }
        let mut missing = under_way.len();
        let names = self.connection.names();
        let mut late = pin!(sleep_until(deadline));
        let unanswered = loop {
            // One that is forbidden has its answer, and would be under way until the end of all patience.
            if missing == 0 {
                break error::silent(names);
            }
            tokio::select! {
                biased;
                answered = under_way.next() => match answered {
                    Some((n, sent)) => {
                        missing -= usize::from(answers[n].is_none());
                        answers[n].get_or_insert(sent);
                    }
                    None => break error::silent(names),
                },
                told = news.changed() => {
                    if told.is_err() {
                        break error::unreachable(names, "the connection is lost");
                    }
                    let news = news.borrow_and_update();
                    if let Some(why) = &news.lost {
                        break error::unreachable(names, why);
                    }
                    let is_new = |topic: &str| news.forbidden.get(topic) != forbidden.get(topic);
                    for (message, answer) in batch.iter().zip(&mut answers).filter(|(message, _)| is_new(&message.topic)) {
                        missing -= usize::from(answer.is_none());
                        answer.get_or_insert_with(|| Err(error::forbidden(&message.topic)));
                    }
                    forbidden.clone_from(&news.forbidden);
                }
                () = &mut late => break error::silent(names),
            }
        };
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unanswered.clone()))).collect()
    }

    async fn send_one(&self, open: &Open, message: &Message, publish: PublishMessage, deadline: Instant) -> Stored {
        let again = || message::publish(message, self.connection.options().largest);
        let ack = self.publish(open, message, publish, again, deadline).await?;
        if self.has_stored(open, &ack, message).await {
            return Ok(ack.stream);
        }
        let id = message::id_for_subject(message);
        let with_id = || Ok(again()?.message_id(&id));
        let ack = self.publish(open, message, with_id()?, with_id, deadline).await?;
        if self.has_stored(open, &ack, message).await {
            return Ok(ack.stream);
        }
        // A stream that drops a message remembers its id, too: of this event's there is none left that it would take.
        let id = message::id_for_now(message, SystemTime::now());
        let with_id = || Ok(again()?.message_id(&id));
        Ok(self.publish(open, message, with_id()?, with_id, deadline).await?.stream)
    }

    async fn publish(
        &self,
        open: &Open,
        message: &Message,
        mut publish: PublishMessage,
        // A copy of the headers costs as much as all the rest, and hardly any message needs one.
        again: impl Fn() -> Result<PublishMessage, SinkError>,
        deadline: Instant,
    ) -> Result<PublishAck, SinkError> {
        let mut tries = 1;
        loop {
            let asked = open.jetstream.send_publish(message.topic.to_string(), publish);
            let told: Result<_, PublishError> = async { asked.await?.await }.await;
            match told {
                Ok(ack) => return Ok(ack),
                Err(error) if error.kind() == PublishErrorKind::StreamNotFound && tries < TRIES => {
                    tries += 1;
                    sleep(BETWEEN_TRIES).await;
                    publish = again()?;
                }
                Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                    return Err(self.without_answer(open, &message.topic, deadline).await);
                }
                Err(error) => {
                    return Err(error::answer(self.connection.names(), &message.topic, &error, open.is_lost()));
                }
            }
        }
    }

    /// Why nobody listens to a subject: there is no stream for it, or the stream's servers, or all of them, have no leader.
    async fn without_answer(&self, open: &Open, subject: &str, deadline: Instant) -> SinkError {
        let names = self.connection.names();
        let asking = async {
            Sent::Err(match open.jetstream.stream_by_subject(subject).await {
                Ok(stream) => error::unreachable(names, format_args!("stream {stream} has nobody who answers for it")),
                Err(error) if error.kind() == GetStreamByNameErrorKind::NotFound => error::no_stream(subject),
                Err(error) => error::unreachable(names, format_args!("JetStream: {error}")),
            })
        };
        let told = self.unless_told(open, &self.connection.api("STREAM.NAMES"), deadline, asking).await;
        // Who may not ask is to believe it.
        told.err()
            .filter(|error| error.kind() == SinkErrorKind::Unavailable)
            .unwrap_or_else(|| error::no_stream(subject))
    }

    /// Whether it is there: stored just now, or before, if the message that is there has this one's subject. No if nobody
    /// knows any more: twice is better than never.
    async fn has_stored(&self, open: &Open, ack: &PublishAck, message: &Message) -> bool {
        if !ack.duplicate {
            return true;
        }
        let Ok(stream) = open.jetstream.get_stream_no_info(&ack.stream).await else { return false };
        let found = stream.get_raw_message(ack.sequence).await;
        found.is_ok_and(|found| found.subject.as_str() == &*message.topic)
    }

    /// Does something until the time is over, or the server says that it will not answer.
    async fn unless_told<T>(
        &self,
        open: &Open,
        subject: &str,
        deadline: Instant,
        doing: impl Future<Output = Result<T, SinkError>>,
    ) -> Result<T, SinkError> {
        let mut news = open.news.clone();
        let before = news.borrow().forbidden.get(subject).copied();
        let told = news.wait_for(|news| news.lost.is_some() || news.forbidden.get(subject).copied() != before);
        let names = self.connection.names();
        tokio::select! {
            biased;
            done = timeout_at(deadline, doing) => done.unwrap_or_else(|_| Err(error::silent(names))),
            told = told => match told.as_deref() {
                Ok(news) => match &news.lost {
                    Some(why) => Err(error::unreachable(names, why)),
                    None => Err(error::forbidden(subject)),
                },
                Err(_) => Err(error::unreachable(names, "the connection is lost")),
            },
        }
    }

    async fn open(&self, deadline: Instant) -> Result<Open, SinkError> {
        let opened = timeout_at(deadline, self.connection.open()).await;
        opened.unwrap_or_else(|_| Err(error::silent(self.connection.names())))
    }

    async fn look(&self) -> Sent {
        let deadline = Instant::now() + self.connection.options().answer_within;
        let open = self.open(deadline).await?;
        let names = self.connection.names();
        let looking = async {
            if self.connection.options().stream.is_some() {
                return self.connection.look_at_stream(&open.jetstream).await;
            }
            // What it tells differs from version to version; that it tells something is enough.
            let account: Result<Response<IgnoredAny>, _> = open.jetstream.request("INFO", &()).await;
            match account {
                Ok(Response::Ok(_)) => Ok(()),
                Ok(Response::Err { error }) => Err(error::unreachable(names, format_args!("JetStream: {error}"))),
                Err(error) => Err(error::unreachable(names, format_args!("JetStream: {error}"))),
            }
        };
        let question = match &self.connection.options().stream {
            Some(stream) => self.connection.api(&format!("STREAM.INFO.{}", stream.name)),
            None => self.connection.api("INFO"),
        };
        match self.unless_told(&open, &question, deadline, looking).await {
            // Who may not ask this may publish all the same, and the server is there.
            Err(error) if error.kind() == SinkErrorKind::Failed => Ok(()),
            Err(error) => {
                self.connection.discard(&open);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }
}

impl Sink for NatsSink {
    fn abilities(&self) -> Abilities {
        let largest = Some(self.connection.options().largest);
        Abilities { confirms: Confirms::Stored, largest, keeps_order: true, dedupes: true }
    }

    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>> {
        Box::pin(self.send_batch(batch))
    }

    fn check(&self) -> BoxFuture<'_, Sent> {
        Box::pin(self.look())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.connection.close() })
    }
}
