//! The shop: writers that commit orders together with their events, and sometimes change their mind.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use pillarbox::{Event, EventId, Outbox, SqliteStore, Transaction};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    check::Committed,
    handlers::{ORDER, OrderEvent, SIGNUP, SignupEvent},
    ledger::{Ledger, Place, Step, What},
    plan::{Fate, Plan},
};
use crate::error::Error;

pub(super) const WRITERS: u64 = 4;
/// Events in one transaction, at the most.
const LARGEST: u64 = 16;
const CUSTOMERS: u32 = 500;
/// Orders a writer works on at a time.
const OPEN: usize = 24;

/// What all writers share.
#[derive(Debug)]
pub(super) struct Shop {
    pub(super) outbox: Outbox<SqliteStore>,
    pub(super) run: Run,
    pub(super) plan: Plan,
    pub(super) ledger: Arc<Ledger>,
    pub(super) counters: Arc<Counters>,
    pub(super) pace: Option<Pace>,
    pub(super) stop: CancellationToken,
}

/// A run has a number, so that several can share a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run(pub(super) i64);

impl Run {
    /// The tenant of its events.
    pub(super) fn tenant(self) -> String {
        format!("run-{}", self.0)
    }
}

/// How far the writers are, for the progress display.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) written: AtomicU64,
    pub(super) rolled_back: AtomicU64,
}

/// What a writer did.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) committed: Vec<Committed>,
    pub(super) rolled_back: Vec<(EventId, What)>,
    pub(super) commits: u64,
    pub(super) rollbacks: u64,
}

impl Written {
    pub(super) fn add(&mut self, other: Self) {
        self.committed.extend(other.committed);
        self.rolled_back.extend(other.rolled_back);
        self.commits += other.commits;
        self.rollbacks += other.rollbacks;
    }
}

/// So many events a second, over all writers.
#[derive(Debug)]
pub(super) struct Pace {
    per_second: u32,
    next: Mutex<Option<Instant>>,
}

impl Pace {
    /// `None` is as fast as it goes.
    pub(super) fn new(per_second: u32) -> Option<Self> {
        (per_second > 0).then(|| Self { per_second, next: Mutex::default() })
    }

    /// Small transactions at a low rate, so that events come evenly.
    fn largest(&self) -> u64 {
        u64::from(self.per_second / 20).clamp(1, LARGEST)
    }

    /// When so many events may be written.
    fn turn(&self, events: u64) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = next.unwrap_or_else(Instant::now);
        let span = Duration::from_secs(1) * u32::try_from(events).unwrap_or(u32::MAX) / self.per_second;
        *next = Some(turn + span);
        turn
    }
}

/// Why a transaction failed: the driver, or the outbox.
type Failed = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Copy, Debug)]
struct Order {
    id: u32,
    customer: u32,
    total_cents: i64,
    step: Step,
}

/// One transaction's way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Commit,
    Rollback,
    /// Dropped without a word, as by `?` in the middle of a function.
    Drop,
}

/// A writer. Orders are its own; customers are everybody's.
#[derive(Debug)]
pub(super) struct Writer {
    shop: Arc<Shop>,
    number: u64,
    random: fastrand::Rng,
    open: VecDeque<Order>,
    next_id: u32,
    written: Written,
}

impl Writer {
    pub(super) fn new(shop: Arc<Shop>, number: u64) -> Self {
        Self {
            shop,
            number,
            random: fastrand::Rng::with_seed(number),
            open: VecDeque::new(),
            next_id: 0,
            written: Written::default(),
        }
    }

    /// Commits its share of the events, and rolls back about one transaction in ten on the way.
    pub(super) async fn run(mut self) -> Result<Written, Error> {
        let share = self.shop.plan.share(self.number);
        let mut done = 0;
        // Even the smallest run sees a rollback.
        let mut end = if self.number == 0 { End::Rollback } else { End::Commit };
        while done < share {
            let largest = self.shop.pace.as_ref().map_or(LARGEST, Pace::largest);
            let size = self.random.u64(1..=largest).min(share - done);
            if let Some(pace) = self.shop.pace.as_ref().filter(|_| end == End::Commit) {
                tokio::select! {
                    () = sleep_until(pace.turn(size)) => {}
                    () = self.shop.stop.cancelled() => {}
                }
            }
            if self.shop.stop.is_cancelled() {
                break;
            }
            let fates = (done..done + size).map(|nth| self.shop.plan.fate(self.number, nth)).collect();
            let transaction = self.transaction(fates, end).await;
            transaction.map_err(|error| Error::new("the shop could not write to its database").caused_by(error))?;
            if end == End::Commit {
                done += size;
            }
            end = match self.random.u8(0..20) {
                0 => End::Rollback,
                1 => End::Drop,
                _ => End::Commit,
            };
        }
        Ok(self.written)
    }

    /// A few steps of orders and their events, in one transaction.
    async fn transaction(&mut self, fates: Vec<Fate>, end: End) -> Result<(), Failed> {
        let before = self.open.clone();
        let outbox = self.shop.outbox.clone();
        let mut tx = outbox.begin().await?;
        let mut told = Vec::with_capacity(fates.len());
        let mut events = Vec::with_capacity(fates.len());
        for fate in fates {
            let (what, place, event) = self.step(&mut tx, fate).await?;
            told.push((what, place, fate));
            events.push(event);
        }
        let ids = tx.write_all(events).await?;
        match end {
            End::Commit => tx.commit().await?,
            End::Rollback => tx.rollback().await?,
            End::Drop => drop(tx),
        }
        let told = ids.into_iter().zip(told);
        if end == End::Commit {
            let at = self.shop.ledger.now();
            let committed = told.map(|(id, (what, place, fate))| Committed { id, what, place, fate, at });
            let count = self.written.committed.len();
            self.written.committed.extend(committed);
            self.written.commits += 1;
            let count = (self.written.committed.len() - count) as u64;
            self.shop.counters.written.fetch_add(count, Ordering::Relaxed);
        } else {
            self.open = before;
            let count = self.written.rolled_back.len();
            self.written.rolled_back.extend(told.map(|(id, (what, ..))| (id, what)));
            self.written.rollbacks += 1;
            let count = (self.written.rolled_back.len() - count) as u64;
            self.shop.counters.rolled_back.fetch_add(count, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A signup, a new order, or the next step of an old one.
    async fn step(
        &mut self,
        tx: &mut Transaction<SqliteStore>,
        fate: Fate,
    ) -> Result<(What, Option<Place>, Event), Failed> {
        if self.random.u8(0..10) == 0 {
            return self.sign_up(tx, fate).await;
        }
        let go_on = self.open.len() >= OPEN || self.random.u8(0..3) > 0;
        let oldest = if go_on { self.open.pop_front() } else { None };
        let order = match oldest {
            Some(order) => Order { step: if order.step == Step::Placed { Step::Paid } else { Step::Shipped }, ..order },
            None => Order {
                id: self.new_id(),
                customer: self.random.u32(1..=CUSTOMERS),
                total_cents: self.random.i64(500..=50_000),
                step: Step::Placed,
            },
        };
        if order.step < Step::Shipped {
            self.open.push_back(order);
        }
        self.order(tx, order, fate).await
    }

    async fn order(
        &self,
        tx: &mut Transaction<SqliteStore>,
        order: Order,
        fate: Fate,
    ) -> Result<(What, Option<Place>, Event), Failed> {
        let run = self.shop.run;
        let Order { id, customer, total_cents, step } = order;
        let nth: u32 = sqlx::query_scalar(
            "insert into demo_customer (run, id, events) values (?, ?, 1) \
             on conflict (run, id) do update set events = events + 1 returning events",
        )
        .bind(run.0)
        .bind(customer)
        .fetch_one(&mut **tx)
        .await?;
        let sql = match step {
            Step::Placed => "insert into demo_order (run, id, customer, total_cents, step) values (?, ?, ?, ?, ?)",
            Step::Paid | Step::Shipped => {
                "update demo_order set step = ?5 where run = ?1 and id = ?2 and customer = ?3 and total_cents = ?4"
            }
        };
        sqlx::query(sql)
            .bind(run.0)
            .bind(id)
            .bind(customer)
            .bind(total_cents)
            .bind(step as u8)
            .execute(&mut **tx)
            .await?;
        let payload = OrderEvent { order: id, customer, nth, total_cents, fate };
        let event = Event::builder(step.event_type())
            .aggregate(ORDER, id.to_string())
            .tenant(run.tenant())
            .key(format!("{}/customer-{customer}", run.tenant()))
            .json(&payload)
            .build()?;
        Ok((What::Order(id, step), Some(Place { customer, nth }), event))
    }

    async fn sign_up(
        &mut self,
        tx: &mut Transaction<SqliteStore>,
        fate: Fate,
    ) -> Result<(What, Option<Place>, Event), Failed> {
        let run = self.shop.run;
        let id = self.new_id();
        let email = format!("reader-{id}@example.com");
        sqlx::query("insert into demo_signup (run, id, email) values (?, ?, ?)")
            .bind(run.0)
            .bind(id)
            .bind(&email)
            .execute(&mut **tx)
            .await?;
        let event = Event::builder(SIGNUP)
            .aggregate("Newsletter", id.to_string())
            .tenant(run.tenant())
            .json(&SignupEvent { signup: id, email, fate })
            .build()?;
        Ok((What::Signup(id), None, event))
    }

    /// Never given twice, not even after a rollback: a rolled-back order must be recognised.
    fn new_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id * u32::try_from(WRITERS).unwrap_or(1) + u32::try_from(self.number).unwrap_or(0)
    }
}
