//! The source itself.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pillarbox_core::port::{BoxFuture, Gives, Received, SinkError, Source, Ticket, Tickets};
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use crate::{
    Subscription,
    connection::{Connection, Open},
    entry::{self, Entry},
    error,
};

/// How the names of consumers begin, so that those of dead processes are known as such.
const PREFIX: &str = "pillarbox-";

/// How often consumers are looked for that are gone.
const SWEEP: Duration = Duration::from_mins(10);

/// What was given back counts as this old, in milliseconds: older than any time after which others take it.
const LONG_AGO: u64 = 10 * 365 * 24 * 60 * 60 * 1000;

/// Sets how long entries have been idle, of those that are this consumer's yet.
const SET_IDLE: &str = "
for n = 4, #ARGV do
  local found = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[n], ARGV[n], 1)
  if found[1] and found[1][2] == ARGV[2] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[n], 'IDLE', ARGV[3], 'JUSTID')
  end
end";

/// Removes consumers of ours that have not been heard of for a time and have no entries. In one step: a consumer that is
/// removed takes its entries with it.
const REMOVE_DEAD: &str = "
for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for n = 1, #flat, 2 do consumer[flat[n]] = flat[n + 1] end
  local is_ours = string.sub(consumer.name, 1, #ARGV[3]) == ARGV[3] and consumer.name ~= ARGV[2]
  if is_ours and consumer.pending == 0 and consumer.idle > tonumber(ARGV[4]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer.name)
  end
end";

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
    tickets: Mutex<Tickets<(usize, String), ()>>,
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

/// An entry that was given to somebody before.
struct Pending {
    id: String,
    deliveries: u32,
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
        if reading.is_unsure {
            self.take_own(&mut open, reading, most).await?;
        }
        let every = self.subscription.again_after / 4;
        let is_due = reading.claimed.is_none_or(|claimed| claimed.elapsed() >= every);
        if reading.came.is_empty() && (self.is_given_back.swap(false, Ordering::SeqCst) || is_due) {
            self.take_idle(&mut open, reading, most).await?;
            reading.claimed = Some(Instant::now());
        }
        if reading.swept.is_none_or(|swept| swept.elapsed() >= SWEEP) {
            self.remove_dead(&mut open).await?;
            reading.swept = Some(Instant::now());
        }
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
        question.arg("GROUP").arg(group).arg(&self.consumer).arg("COUNT").arg(most);
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

    /// Entries that are this consumer's, and that it does not know of: their answer was lost.
    async fn take_own(&self, open: &mut Open, reading: &mut Reading, most: usize) -> Result<(), SinkError> {
        const PAGE: usize = 100;
        for place in 0..self.subscription.streams.len() {
            let mut after = "-".to_owned();
            loop {
                let mut question = self.pending(place);
                question.arg(&after).arg("+").arg(PAGE).arg(&self.consumer);
                let page = pending(self.ask(&self.waiting, open, &question).await?);
                let Some(last) = page.last().filter(|_| page.len() == PAGE).map(|last| format!("({}", last.id)) else {
                    self.claim_unknown(open, reading, place, page).await?;
                    break;
                };
                after = last;
                self.claim_unknown(open, reading, place, page).await?;
                if reading.came.len() >= most {
                    // The others the next time.
                    return Ok(());
                }
            }
        }
        reading.is_unsure = false;
        Ok(())
    }

    async fn claim_unknown(
        &self,
        open: &mut Open,
        reading: &mut Reading,
        place: usize,
        mut page: Vec<Pending>,
    ) -> Result<(), SinkError> {
        page.retain(|pending| !self.tickets().is_out(&(place, pending.id.clone())));
        self.claim(open, reading, place, page, Duration::ZERO).await
    }

    /// Entries whose time is over: their consumer is gone, or has forgotten them, or has given them back.
    async fn take_idle(&self, open: &mut Open, reading: &mut Reading, most: usize) -> Result<(), SinkError> {
        let idle = self.subscription.again_after;
        for place in 0..self.subscription.streams.len() {
            let mut question = self.pending(place);
            question.arg("IDLE").arg(millis(idle)).arg("-").arg("+").arg(most);
            let page = pending(self.ask(&self.waiting, open, &question).await?);
            if page.len() == most {
                // There may be more.
                self.is_given_back.store(true, Ordering::SeqCst);
            }
            self.claim(open, reading, place, page, idle).await?;
        }
        Ok(())
    }

    /// Those that are idle for this time yet: others may have been faster.
    async fn claim(
        &self,
        open: &mut Open,
        reading: &mut Reading,
        place: usize,
        page: Vec<Pending>,
        idle: Duration,
    ) -> Result<(), SinkError> {
        if page.is_empty() {
            return Ok(());
        }
        let Subscription { streams, group, .. } = &self.subscription;
        let mut question = redis::cmd("XCLAIM");
        question.arg(&streams[place]).arg(group).arg(&self.consumer).arg(millis(idle));
        for pending in &page {
            question.arg(&pending.id);
        }
        let was_unsure = std::mem::replace(&mut reading.is_unsure, true);
        let answer = self.ask(&self.waiting, open, &question).await?;
        for entry in entry::all(answer) {
            let before = page.iter().find(|pending| pending.id == entry.id).map_or(1, |pending| pending.deliveries);
            self.give(reading, place, entry, before.saturating_add(1));
        }
        reading.is_unsure = was_unsure;
        Ok(())
    }

    fn give(&self, reading: &mut Reading, place: usize, entry: Entry, deliveries: u32) {
        let ticket = self.tickets().issue((place, entry.id.clone()), ());
        let message = entry.incoming(&self.subscription.streams[place]);
        reading.came.push_back(Received { ticket, deliveries, message });
    }

    fn pending(&self, place: usize) -> Cmd {
        let mut question = redis::cmd("XPENDING");
        question.arg(&self.subscription.streams[place]).arg(&self.subscription.group);
        question
    }

    async fn remove_dead(&self, open: &mut Open) -> Result<(), SinkError> {
        // One that lives, and was removed because it had nothing, is made anew when it reads.
        let idle = self.subscription.again_after.saturating_mul(2);
        for stream in &self.subscription.streams {
            let mut question = redis::cmd("EVAL");
            question.arg(REMOVE_DEAD).arg(1).arg(stream).arg(&self.subscription.group);
            question.arg(&self.consumer).arg(PREFIX).arg(millis(idle));
            self.ask(&self.waiting, open, &question).await?;
        }
        Ok(())
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
        match timeout_at(deadline, question.query_async(&mut open.connection)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(error::unreachable(connection.addr(), &error)),
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
        let mut ids: Vec<Vec<String>> = vec![Vec::new(); streams.len()];
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
            pipeline.cmd("XACK").arg(stream).arg(group).arg(ids);
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
    async fn set_idle(&self, entries: Vec<(usize, String)>, idle: u64) {
        let mut pipeline = Pipeline::new();
        for (place, stream) in self.subscription.streams.iter().enumerate() {
            let ids: Vec<_> = entries.iter().filter(|(of, _)| *of == place).map(|(_, id)| id).collect();
            if !ids.is_empty() {
                pipeline.cmd("EVAL").arg(SET_IDLE).arg(1).arg(stream).arg(&self.subscription.group);
                pipeline.arg(&self.consumer).arg(idle).arg(ids);
            }
        }
        if pipeline.is_empty() {
            return;
        }
        // What does not arrive is as if it was not said: the entries come again after their time.
        let _ = self.tell(&pipeline).await;
    }

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

    fn tickets(&self) -> MutexGuard<'_, Tickets<(usize, String), ()>> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn pending(answer: Value) -> Vec<Pending> {
    let rows: Vec<(String, String, u64, u32)> = redis::from_redis_value(answer).unwrap_or_default();
    rows.into_iter().map(|(id, _, _, deliveries)| Pending { id, deliveries }).collect()
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
