//! Messages a second by a consumer with its inbox on PostgreSQL, beside the client's own loop on the same broker, which
//! receives and acknowledges the same messages, and has no database.

mod nats;
mod redis;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use pillarbox::{Outbox, prelude::*};
use pillarbox_core::{
    engine::Work,
    port::{Message, Source},
};
use pillarbox_inbox::{Consumer, DeadLetters, Inbox, MemoryLetters};
use pillarbox_postgres::{PostgresInbox, PostgresStore};
use pillarbox_relay::{Mode, Target as Address, message};
use serde::{Deserialize, Serialize};
use sqlx::AssertSqlSafe;

pub(super) use self::{nats::Nats, redis::Redis};
use super::{Sizes, sql};
use crate::{
    Result,
    backend::{Database as _, EVENT_TYPE, PAYLOAD, postgres},
    report::{Figure, Report, Target},
    rounds::{Rounds, float},
};

/// Of the client's own loop.
const OF_LOOP: Target = Target::AtLeast(0.5);
/// As many as orders have: each has several messages.
const KEYS: usize = 10_000;
/// A round may take so long.
const PATIENCE: Duration = Duration::from_mins(5);

/// How the consumer is set.
const WORKERS: usize = 4;
const PREFETCH: usize = 8_000;
const PER_TRANSACTION: usize = 1_000;

pub(super) mod names {
    pub(in super::super) const NATS: &str = "consumer_nats";
    pub(in super::super) const REDIS: &str = "consumer_redis";
}

/// A private broker for the run.
pub(super) trait Broker {
    const NAME: &'static str;
    type Source: Source;
    /// Of these the client's loop takes the fastest.
    const WINDOWS: &'static [usize];

    /// What it is, and how the client's own loop goes.
    fn place(&self, window: usize) -> Result<String>;

    /// Sends all messages, once for all rounds.
    async fn fill(&self, messages: &[Message]) -> Result<()>;

    /// Makes a group that has received nothing.
    async fn group(&self, name: &str) -> Result<()>;

    /// A source for a group.
    fn source(&self, group: &str) -> Result<Self::Source>;

    /// The client's own best loop: receives and acknowledges so many messages; how long it took from the first question to
    /// the broker's word on the last one.
    async fn limit(&self, group: &str, messages: usize, window: usize) -> Result<Duration>;

    /// How many messages a group has not acknowledged. The group is gone afterwards.
    async fn left(&self, group: &str) -> Result<u64>;
}

#[derive(Clone, Debug, Serialize, Deserialize, OutboxEvent)]
struct Measured {
    number: usize,
    note: String,
}

impl Measured {
    /// As JSON, it has the size of every payload here.
    fn new(number: usize) -> Result<Self> {
        let mut event = Self { number, note: String::new() };
        let size = serde_json::to_vec(&event)?.len();
        event.note = "x".repeat(PAYLOAD.saturating_sub(size));
        Ok(event)
    }
}

/// The message that a relay makes of an event.
fn made(number: usize) -> Result<Message> {
    let event: Event =
        Event::builder(EVENT_TYPE).json(&Measured::new(number)?).key(format!("key-{}", number % KEYS)).build()?;
    let address = Address { topic: EVENT_TYPE.into(), key: None, headers: Vec::new() };
    Ok(message(&event, address, Mode::Binary, "/pillarbox"))
}

pub(super) async fn run<B: Broker>(broker: &B, bed: &postgres::Bed, sizes: &Sizes, report: &mut Report) -> Result<()> {
    report.begin(B::NAME);
    let count = sizes.messages;
    broker.fill(&(0..count).map(made).collect::<Result<Vec<_>>>()?).await?;
    let window = best_window(broker, count).await?;
    let mut number = 0;
    let mut group = move || {
        number += 1;
        format!("round-{number}")
    };
    let mut rounds = Rounds::default();
    for round in 0..sizes.loops {
        report.begin(&format!("{}, round {} of {}", B::NAME, round + 1, sizes.loops));
        let mut sides = [false, true];
        sides.rotate_left(round % 2);
        for is_ours in sides {
            if is_ours {
                rounds.pillarbox.push(consumed(broker, bed, &group(), count).await?);
            } else {
                rounds.limit.push(limit(broker, &group(), count, window).await?);
            }
        }
        if let (Some(limit), Some(ours)) = (rounds.limit.last(), rounds.pillarbox.last()) {
            eprintln!("  the client's loop {limit:.0}, the consumer {ours:.0} messages/s");
        }
    }
    let note = format!(
        "{count} messages of {PAYLOAD} B; a handler that counts, in transactions of up to {PER_TRANSACTION}, {WORKERS} workers, \
         {PREFETCH} held; {}",
        broker.place(window)?
    );
    report.add(Figure::of_rounds(B::NAME, "events/s", &rounds, Some(OF_LOOP)).note(note));
    Ok(())
}

/// Of the windows to choose from the one with which the client's loop is fastest.
async fn best_window<B: Broker>(broker: &B, count: usize) -> Result<usize> {
    let mut best = None;
    for &window in B::WINDOWS {
        let rate = limit(broker, &format!("window-{window}"), count, window).await?;
        eprintln!("  the client's loop, window {window}: {rate:.0} messages/s");
        if best.is_none_or(|(fastest, _)| rate > fastest) {
            best = Some((rate, window));
        }
    }
    Ok(best.map(|(_, window)| window).ok_or("there is no window")?)
}

/// Messages a second by the client's own loop.
async fn limit<B: Broker>(broker: &B, group: &str, count: usize, window: usize) -> Result<f64> {
    broker.group(group).await?;
    let took = tokio::time::timeout(PATIENCE, broker.limit(group, count, window)).await;
    let took = took.map_err(|_| "the client's own loop is stuck")??;
    all_acknowledged(broker, group).await?;
    Ok(float(count) / took.as_secs_f64())
}

async fn all_acknowledged<B: Broker>(broker: &B, group: &str) -> Result<()> {
    match broker.left(group).await? {
        0 => Ok(()),
        left => Err(format!("{left} messages are not acknowledged").into()),
    }
}

/// How often each message was handled.
#[derive(Debug)]
struct Handled {
    times: Vec<AtomicU8>,
    all: AtomicUsize,
}

impl Handled {
    fn new(count: usize) -> Self {
        Self { times: (0..count).map(|_| AtomicU8::new(0)).collect(), all: AtomicUsize::new(0) }
    }

    fn add(&self, number: usize) {
        if let Some(times) = self.times.get(number) {
            times.fetch_add(1, Ordering::Relaxed);
        }
        self.all.fetch_add(1, Ordering::Relaxed);
    }

    fn each_once(&self) -> Result<()> {
        let wrong = self.times.iter().position(|times| times.load(Ordering::Relaxed) != 1);
        match wrong {
            None if self.all.load(Ordering::Relaxed) == self.times.len() => Ok(()),
            _ => Err(format!("message {wrong:?} was not handled exactly once").into()),
        }
    }
}

/// Messages a second by a consumer, from its start until everything is acknowledged.
async fn consumed<B: Broker>(broker: &B, bed: &postgres::Bed, group: &str, count: usize) -> Result<f64> {
    let (_database, store) = sql::open_postgres(bed).await?;
    let outbox = Outbox::writer_only(store.clone()).start().await?;
    broker.group(group).await?;
    let handled = Arc::new(Handled::new(count));
    let builder = Consumer::builder("billing", broker.source(group)?, DeadLetters::new(MemoryLetters::new()))
        .inbox(Inbox::new(PostgresInbox::new(&store)), &outbox)
        .workers(WORKERS)
        .prefetch(PREFETCH)
        .messages_per_transaction(PER_TRANSACTION)
        .handle_in_tx({
            let handled = handled.clone();
            move |_: Work<PostgresStore>, event: Measured| {
                handled.add(event.number);
                async {}
            }
        });
    let begun = Instant::now();
    let consumer = builder.start().await?;
    while handled.all.load(Ordering::Relaxed) < count || consumer.held() > 0 {
        if begun.elapsed() > PATIENCE {
            return Err(format!("{} of {count} are handled", handled.all.load(Ordering::Relaxed)).into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = begun.elapsed();
    consumer.shutdown().await;
    handled.each_once()?;
    all_acknowledged(broker, group).await?;
    let seen: i64 = sqlx::query_scalar(AssertSqlSafe(sql::count_seen())).fetch_one(store.pool()).await?;
    if usize::try_from(seen)? != count {
        return Err(format!("{seen} of {count} messages are in the inbox").into());
    }
    outbox.shutdown().await;
    postgres::Database::close(&store).await;
    Ok(float(count) / took.as_secs_f64())
}
