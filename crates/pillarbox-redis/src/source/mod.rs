//! The source itself.
//!
//! When the process dies, or closes the source, while a question for new entries is under way: those of its answer are this
//! consumer's, which knows nothing of them. Others of the group take them when they were idle for `again_after`, and so does this
//! one at once if it lives and only its connection was lost.

mod earlier;

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pillarbox_core::port::{BoxFuture, Gives, Received, SinkError, Source, Ticket, Tickets};
use redis::{Cmd, Pipeline, RedisResult, Value, aio::ConnectionLike as _};
use tokio::time::{Instant, timeout_at};

use crate::{
    Subscription,
    connection::{Connection, Open},
    entry::{self, Entry},
    error,
};

/// How the names of consumers begin, so that those of dead processes are known as such.
const PREFIX: &str = "pillarbox-";

/// So many entries come in one answer at the most: they are dealt with while the next are on their way.
const AT_ONCE: usize = 1_000;

/// What was given back counts as this old, in milliseconds: older than any time after which others take it.
const LONG_AGO: u64 = 10 * 365 * 24 * 60 * 60 * 1000;

/// Receives entries of Redis Streams. Made by [`Options::subscribe`](crate::Options::subscribe).
pub struct RedisSource {
    // A connection that waits for entries can't be asked anything else.
    waiting: Connection,
    asking: Connection,
    subscription: Subscription,
    name: String,
    consumer: String,
    // One receives at a time.
    reading: tokio::sync::Mutex<Reading>,
    // By the stream's place in the subscription, and the entry's id. Good on any connection.
    tickets: Mutex<Tickets<(usize, Arc<str>), ()>>,
    // Something was given back, and nobody has looked for it yet.
    is_given_back: AtomicBool,
}

#[derive(Default)]
struct Reading {
    // With the groups on it.
    open: Option<Open>,
    came: VecDeque<Received>,
    // Entries may have been given to this consumer in an answer that it has not seen.
    is_unsure: bool,
    claimed: Option<Instant>,
    swept: Option<Instant>,
}

impl RedisSource {
    pub(crate) fn new(waiting: Connection, asking: Connection, subscription: Subscription) -> Self {
        let name = format!("{}/{}", subscription.streams.join("+"), subscription.group);
        let consumer = format!("{PREFIX}{}-{:016x}", std::process::id(), fastrand::u64(..));
        let tickets = Mutex::new(Tickets::new(subscription.again_after.saturating_mul(4)));
        let (reading, is_given_back) = (tokio::sync::Mutex::default(), AtomicBool::new(false));
        Self { waiting, asking, subscription, name, consumer, reading, tickets, is_given_back }
    }

    async fn receive_batch(&self, most: usize) -> Result<Vec<Received>, SinkError> {
        let mut reading = self.reading.lock().await;
        if reading.came.is_empty() && most > 0 {
            let read = self.read(&mut reading, most).await;
            if read.is_err()
                && let Some(open) = reading.open.take()
            {
                self.waiting.discard(&open);
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
        let mut open = if let Some(open) = &reading.open {
            open.clone()
        } else {
            let open = self.prepared(&self.waiting).await?;
            reading.open.insert(open).clone()
        };
        let every = self.subscription.again_after / 4;
        self.take_old(&mut open, reading, most, every).await?;
        if reading.came.is_empty() {
            self.take_new(&mut open, reading, most, self.subscription.wait.min(every)).await?;
        }
        Ok(())
    }

    /// Entries that nobody had yet.
    async fn take_new(
        &self,
        open: &mut Open,
        reading: &mut Reading,
        most: usize,
        wait: Duration,
    ) -> Result<(), SinkError> {
        let Subscription { streams, group, .. } = &self.subscription;
        let mut question = redis::cmd("XREADGROUP");
        question.arg("GROUP").arg(group).arg(&self.consumer).arg("COUNT").arg(most.min(AT_ONCE));
        question.arg("BLOCK").arg(millis(wait).max(1)).arg("STREAMS").arg(streams).arg(vec![">"; streams.len()]);
        reading.is_unsure = true;
        let answer = self.ask(&self.waiting, open, &question).await?;
        for (stream, entries) in entry::of_streams(answer) {
            let Some(place) = streams.iter().position(|name| *name == stream) else { continue };
            for entry in entries {
                self.give(reading, place, entry, 1);
            }
        }
        reading.is_unsure = false;
        Ok(())
    }

    fn give(&self, reading: &mut Reading, place: usize, entry: Entry, deliveries: u32) {
        let ticket = self.tickets().issue((place, entry.id.as_str().into()), ());
        let message = entry.incoming(&self.subscription.streams[place]);
        reading.came.push_back(Received { ticket, deliveries, message });
    }

    /// A connection on which the groups are there.
    async fn prepared(&self, connection: &Connection) -> Result<Open, SinkError> {
        let mut open = self.open(connection).await?;
        let mut pipeline = Pipeline::new();
        for stream in &self.subscription.streams {
            let group = &self.subscription.group;
            pipeline.cmd("XGROUP").arg("CREATE").arg(stream).arg(group).arg("0").arg("MKSTREAM");
        }
        for (answer, stream) in
            self.exchange(connection, &mut open, &pipeline).await?.into_iter().zip(&self.subscription.streams)
        {
            match answer {
                Err(error) if error.code() != Some("BUSYGROUP") => {
                    connection.discard(&open);
                    let told = error::unreachable(connection.addr(), &error);
                    return Err(SinkError::unavailable(format_args!(
                        "{told}: the group {} of the stream {stream}",
                        self.subscription.group
                    )));
                }
                _ => {}
            }
        }
        Ok(open)
    }

    async fn open(&self, connection: &Connection) -> Result<Open, SinkError> {
        let opened = timeout_at(Instant::now() + connection.options().answer_within, connection.open()).await;
        opened.unwrap_or_else(|_| Err(error::silent(connection.addr())))
    }

    /// One answer to one question. It may stand behind another that was dropped, and that waits for entries.
    async fn ask(&self, connection: &Connection, open: &mut Open, question: &Cmd) -> Result<Value, SinkError> {
        let deadline = Instant::now() + self.subscription.wait + connection.options().answer_within;
        let told = |error| error::unreachable(connection.addr(), &error);
        // Not by the command itself, which would look for an error in every part of the answer: here it is the whole.
        match timeout_at(deadline, open.connection.req_packed_command(question)).await {
            Ok(Ok(wrong @ Value::ServerError(_))) => wrong.extract_error().map_err(told),
            Ok(answer) => answer.map_err(told),
            Err(_) => Err(error::silent(connection.addr())),
        }
    }

    /// One answer a command.
    async fn exchange(
        &self,
        connection: &Connection,
        open: &mut Open,
        pipeline: &Pipeline,
    ) -> Result<Vec<RedisResult<Value>>, SinkError> {
        let deadline = Instant::now() + connection.options().answer_within;
        let mut pipeline = pipeline.clone();
        let asked = pipeline.ignore_errors().query_async::<Vec<RedisResult<Value>>>(&mut open.connection);
        let told = match timeout_at(deadline, asked).await {
            Ok(Ok(answers)) if answers.len() == pipeline.len() => return Ok(answers),
            Ok(Err(error)) => error::unreachable(connection.addr(), &error),
            Ok(Ok(_)) | Err(_) => error::silent(connection.addr()),
        };
        connection.discard(open);
        Err(told)
    }

    /// One command for all entries of a stream, which is told how many of them were out.
    async fn acknowledge_batch(&self, tickets: &[Ticket]) -> Vec<Result<(), SinkError>> {
        let Subscription { streams, group, .. } = &self.subscription;
        let void = || SinkError::failed("the ticket is not good any more: the message comes again, or has come");
        let mut ids: Vec<Vec<Arc<str>>> = vec![Vec::new(); streams.len()];
        // By the ticket: the stream, if the ticket is good.
        let places: Vec<Option<usize>> = {
            let mut out = self.tickets();
            let mut note = |ticket: &Ticket| {
                let ((place, id), ()) = out.renew(*ticket)?;
                ids[place].push(id);
                Some(place)
            };
            tickets.iter().map(&mut note).collect()
        };
        let mut pipeline = Pipeline::new();
        for (stream, ids) in streams.iter().zip(&ids).filter(|(_, ids)| !ids.is_empty()) {
            pipeline.cmd("XACK").arg(stream).arg(group).arg(ids.iter().map(|id| &**id).collect::<Vec<_>>());
        }
        if pipeline.is_empty() {
            return places.iter().map(|_| Err(void())).collect();
        }
        let (answers, is_second) = match self.tell(&pipeline).await {
            Ok(told) => told,
            Err(error) => {
                return places.iter().map(|place| Err(if place.is_some() { error.clone() } else { void() })).collect();
            }
        };
        let mut answers = answers.into_iter();
        // By the stream: whether its entries are acknowledged.
        let told = ids.iter().map(|ids| match if ids.is_empty() { None } else { answers.next() } {
            // Those that were not out were acknowledged by somebody else, and don't come again either.
            Some(Ok(Value::Int(1..))) => Ok(true),
            // None was out: this one has acknowledged them with the first try, or the group was made anew.
            Some(Ok(_)) => Ok(is_second),
            Some(Err(error)) => Err(error::unreachable(self.asking.addr(), &error)),
            None => Ok(false),
        });
        let told: Vec<Result<bool, SinkError>> = told.collect();
        let mut out = self.tickets();
        let answer = |(ticket, place): (&Ticket, &Option<usize>)| match place.map(|place| &told[place]) {
            Some(Err(error)) => Err(error.clone()),
            Some(Ok(is_done)) => {
                out.take(*ticket);
                if *is_done { Ok(()) } else { Err(void()) }
            }
            None => Err(void()),
        };
        tickets.iter().zip(&places).map(answer).collect()
    }

    /// Entries of this consumer's count as idle for so long.
    /// Tells Redis something that may be said twice. A connection that was not used for a while may be lost, and is found so:
    /// then once more, on another. One answer a command, and whether they are those to the second try.
    async fn tell(&self, pipeline: &Pipeline) -> Result<(Vec<RedisResult<Value>>, bool), SinkError> {
        let start = Instant::now();
        let mut open = self.open(&self.asking).await?;
        match self.exchange(&self.asking, &mut open, pipeline).await {
            Ok(answers) => Ok((answers, false)),
            Err(error) if start.elapsed() >= self.asking.options().answer_within => Err(error),
            Err(_) => {
                let mut open = self.open(&self.asking).await?;
                Ok((self.exchange(&self.asking, &mut open, pipeline).await?, true))
            }
        }
    }

    async fn count(&self) -> Result<Option<u64>, SinkError> {
        let mut open = self.prepared(&self.asking).await?;
        let mut pipeline = Pipeline::new();
        for stream in &self.subscription.streams {
            pipeline.cmd("XINFO").arg("GROUPS").arg(stream);
        }
        let mut all = Some(0);
        for answer in self.exchange(&self.asking, &mut open, &pipeline).await? {
            let answer = answer.map_err(|error| error::unreachable(self.asking.addr(), &error))?;
            let of_stream = entry::lag(answer, &self.subscription.group);
            all = all.zip(of_stream).map(|(all, of_stream): (u64, u64)| all + of_stream);
        }
        Ok(all)
    }

    fn tickets(&self) -> MutexGuard<'_, Tickets<(usize, Arc<str>), ()>> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl Source for RedisSource {
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
        let entries = tickets.iter().filter_map(|ticket| out.take(*ticket)).map(|(entry, ())| entry).collect();
        drop(out);
        Box::pin(async move {
            self.set_idle(entries, LONG_AGO).await;
            self.is_given_back.store(true, Ordering::SeqCst);
        })
    }

    fn hold<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, ()> {
        let mut out = self.tickets();
        let entries = tickets.iter().filter_map(|ticket| out.renew(*ticket)).map(|(entry, ())| entry).collect();
        drop(out);
        Box::pin(self.set_idle(entries, 0))
    }

    fn lag(&self) -> BoxFuture<'_, Result<Option<u64>, SinkError>> {
        Box::pin(self.count())
    }

    fn check(&self) -> BoxFuture<'_, Result<(), SinkError>> {
        Box::pin(async { self.prepared(&self.asking).await.map(drop) })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.asking.close();
            self.waiting.close();
            let mut reading = self.reading.lock().await;
            reading.open = None;
            // Nobody waits for what the last question brings.
            reading.is_unsure = true;
        })
    }
}

impl fmt::Debug for RedisSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RedisSource");
        shown.field("connection", &self.asking).field("subscription", &self.subscription);
        shown.field("consumer", &self.consumer).finish_non_exhaustive()
    }
}
