//! The sink itself.

use futures_util::future::join_all;
use pillarbox_core::port::{Abilities, BoxFuture, Confirms, Message, Sent, Sink, SinkError, SinkErrorKind};
use redis::{Client, Pipeline, RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use crate::{
    Options, Persistence,
    connection::{Connection, Open},
    error, message,
};

/// Redis reads 16 KiB of a connection, runs what is in it, and writes that to the disk before it reads on. So the more
/// connections a batch comes by, the fewer times the disk is waited for.
const CONNECTIONS: usize = 8;
/// A batch has to have so many messages for each connection, which are about 16 KiB if they are small.
const SHARE: usize = 25;

/// Appends messages to Redis Streams. Made by [`Options::open`](crate::Options::open).
#[derive(Debug)]
pub struct RedisSink {
    lines: Vec<Line>,
}

/// What goes by one connection.
#[derive(Debug)]
struct Line {
    connection: Connection,
}

impl RedisSink {
    pub(crate) fn new(client: &Client, options: &Options) -> Self {
        let line = || Line { connection: Connection::new(client.clone(), options.clone()) };
        Self { lines: std::iter::repeat_with(line).take(CONNECTIONS).collect() }
    }

    /// No two messages of a batch have the same key: they need not come by the same connection.
    async fn send_batch(&self, batch: &[Message]) -> Vec<Sent> {
        let share = batch.len().div_ceil(self.lines.len()).max(SHARE);
        let parts = self.lines.iter().zip(batch.chunks(share)).map(|(line, part)| line.send(part));
        join_all(parts).await.concat()
    }
}

impl Line {
    async fn send(&self, batch: &[Message]) -> Vec<Sent> {
        let options = self.connection.options();
        let mut pipeline = Pipeline::with_capacity(batch.len() + 1);
        let mut answers: Vec<Sent> = Vec::with_capacity(batch.len());
        for message in batch {
            let command = message::command(message, options);
            answers.push(command.map(|command| {
                pipeline.add_command(command);
            }));
        }
        if pipeline.is_empty() {
            return answers;
        }
        let mut replies = match self.exchange(&mut pipeline).await {
            Ok(replies) => replies.into_iter(),
            Err(error) => {
                // What was refused here stays refused.
                answers.iter_mut().filter(|answer| answer.is_ok()).for_each(|answer| *answer = Err(error.clone()));
                return answers;
            }
        };
        for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
            *answer = replies.next().unwrap_or_else(|| Err(error::silent(self.connection.addr())));
        }
        answers
    }

    /// One answer a command.
    async fn exchange(&self, pipeline: &mut Pipeline) -> Result<Vec<Sent>, SinkError> {
        let options = self.connection.options();
        let deadline = Instant::now() + options.answer_within;
        if options.replicas > 0 {
            // Half of the time, so that the answer "not enough of them" comes before the end of all patience.
            let millis = u64::try_from(options.answer_within.as_millis() / 2).unwrap_or(u64::MAX).max(1);
            pipeline.cmd("WAIT").arg(options.replicas).arg(millis);
        }
        let mut open = self.open(deadline).await?;
        let asked = pipeline.ignore_errors().query_async::<Vec<RedisResult<Value>>>(&mut open.connection);
        let mut replies = match timeout_at(deadline, asked).await {
            Ok(Ok(replies)) if replies.len() == pipeline.len() => replies,
            Ok(Err(error)) => {
                self.connection.discard(&open);
                return Err(error::unreachable(self.connection.addr(), &error));
            }
            Ok(Ok(_)) | Err(_) => {
                self.connection.discard(&open);
                return Err(error::silent(self.connection.addr()));
            }
        };
        let copies = if options.replicas > 0 { replies.pop() } else { None };
        let mut answers: Vec<Sent> = replies.into_iter().map(answer).collect();
        if let Some(copies) = copies {
            let is_copied = enough(options.replicas, copies);
            answers.iter_mut().filter(|answer| answer.is_ok()).for_each(|answer| answer.clone_from(&is_copied));
        }
        let is_unavailable = |answer: &Sent| matches!(answer, Err(error) if error.kind() == SinkErrorKind::Unavailable);
        if answers.iter().any(is_unavailable) {
            // The server's name may lead to a better one by now.
            self.connection.discard(&open);
        }
        Ok(answers)
    }

    async fn open(&self, deadline: Instant) -> Result<Open, SinkError> {
        let opened = timeout_at(deadline, self.connection.open()).await;
        opened.unwrap_or_else(|_| Err(error::silent(self.connection.addr())))
    }

    async fn look(&self) -> Sent {
        let deadline = Instant::now() + self.connection.options().answer_within;
        let mut open = self.open(deadline).await?;
        let question = redis::cmd("ROLE");
        let asked = question.query_async::<Value>(&mut open.connection);
        let (told, is_lost) = match timeout_at(deadline, asked).await {
            Ok(Ok(Value::Array(role))) => match role.first() {
                Some(Value::BulkString(name)) if name == b"slave" => {
                    (Err(SinkError::unavailable("READONLY this is a replica, which takes no messages")), true)
                }
                _ => (Ok(()), false),
            },
            Ok(Ok(_)) => (Ok(()), false),
            // Who may not ask this may append all the same.
            Ok(Err(error)) if error.code() == Some("NOPERM") => (Ok(()), false),
            Ok(Err(error)) => (Err(error::unreachable(self.connection.addr(), &error)), true),
            Err(_) => (Err(error::silent(self.connection.addr())), true),
        };
        if is_lost {
            self.connection.discard(&open);
        }
        told
    }
}

/// `XADD` answers with the entry's id.
fn answer(reply: RedisResult<Value>) -> Sent {
    match reply {
        Ok(Value::BulkString(_) | Value::SimpleString(_)) => Ok(()),
        Ok(other) => Err(SinkError::failed(format_args!("redis answers with {other:?} in place of an id"))),
        Err(error) => Err(error::answer(&error)),
    }
}

/// `WAIT` answers with the number of replicas that have everything so far.
fn enough(required: u32, reply: RedisResult<Value>) -> Sent {
    match reply {
        Ok(Value::Int(count)) if count >= i64::from(required) => Ok(()),
        Ok(Value::Int(count)) => {
            Err(SinkError::unavailable(format_args!("{count} replicas have the message, and {required} are asked for")))
        }
        Ok(other) => Err(SinkError::unavailable(format_args!("redis answers WAIT with {other:?}"))),
        Err(error) => Err(SinkError::unavailable(error::answer(&error))),
    }
}

impl Sink for RedisSink {
    fn abilities(&self) -> Abilities {
        let options = self.lines[0].connection.options();
        let confirms = match options.persistence {
            Persistence::Always | Persistence::EverySecond => Confirms::Stored,
            Persistence::Unchecked => Confirms::Received,
        };
        Abilities { confirms, largest: Some(options.largest), keeps_order: true, dedupes: false }
    }

    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>> {
        Box::pin(self.send_batch(batch))
    }

    fn check(&self) -> BoxFuture<'_, Sent> {
        Box::pin(self.lines[0].look())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.lines.iter().for_each(|line| line.connection.close()) })
    }
}
