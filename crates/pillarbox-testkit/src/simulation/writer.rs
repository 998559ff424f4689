//! The writers: transactions with one event or some, held open or rolled back at times.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, Ordering},
};

use pillarbox_core::{
    Event, Outbox,
    domain::EventBuilder,
    engine::{Transaction, WriteError},
    port::{Store, TransactStore},
};
use tokio::{
    sync::Mutex,
    time::{Duration, sleep},
};

use super::{handler::Told, life::Life, weather::Sky};
use crate::memory::MemoryConnection;

pub(super) const ROUTE: &str = "Happened";
/// The table of the application, in which every event of a committed transaction stands.
pub(super) const ORDERS: &str = "orders";

/// What all writers share: the numbers of their orders, and the locks of their keys.
#[derive(Debug)]
pub(super) struct Desk {
    keys: Vec<(String, Arc<Mutex<()>>)>,
    last: AtomicI64,
    closed: AtomicBool,
    longest_break: u64,
}

impl Desk {
    pub(super) fn drawn() -> Self {
        let keys = (0..fastrand::u8(1..5)).map(|n| (format!("k{n}"), Arc::default())).collect();
        Self { keys, last: AtomicI64::new(0), closed: AtomicBool::new(false), longest_break: fastrand::u64(60..600) }
    }

    /// No transaction begins any more.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn number(&self) -> i64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// An event to be written.
struct Draft {
    /// The place of its key among the desk's.
    key: Option<usize>,
    delay: Option<Duration>,
}

impl Draft {
    fn drawn(desk: &Desk) -> Self {
        let key = (fastrand::u8(..10) < 6).then(|| fastrand::usize(..desk.keys.len()));
        let delay = (fastrand::u8(..10) == 0).then(|| Duration::from_millis(fastrand::u64(..300)));
        Self { key, delay }
    }

    fn event(&self, desk: &Desk, told: &Told) -> EventBuilder {
        let mut event = Event::builder(ROUTE).bytes("text/plain", told.text());
        if let Some(key) = self.key {
            event = event.key(&desk.keys[key].0);
        }
        if let Some(delay) = self.delay {
            event = event.deliver_after(delay);
        }
        event
    }

    fn told(&self, desk: &Desk) -> Told {
        let key = self.key.filter(|_| self.delay.is_none()).map(|key| desk.keys[key].0.clone());
        Told { order: desk.number(), key }
    }
}

/// One writer, in the process of an outbox.
#[derive(Debug)]
pub(super) struct Writer<S> {
    pub(super) desk: Arc<Desk>,
    pub(super) life: Arc<Life>,
    pub(super) sky: Arc<Sky>,
    pub(super) outbox: Outbox<S>,
}

impl<S: Store + TransactStore<Connection = MemoryConnection>> Writer<S> {
    /// Writes until the desk is closed.
    pub(super) async fn run(self) {
        loop {
            sleep(Duration::from_millis(fastrand::u64(..self.desk.longest_break))).await;
            self.life.runs().await;
            if self.desk.closed.load(Ordering::Relaxed) {
                return;
            }
            self.run_once().await;
        }
    }

    async fn run_once(&self) {
        let drafts: Vec<Draft> = (0..[1, 1, 2, 3][fastrand::usize(..4)]).map(|_| Draft::drawn(&self.desk)).collect();
        let mut keys: Vec<usize> = drafts.iter().filter_map(|draft| draft.key).collect();
        keys.sort_unstable();
        keys.dedup();
        // Held until the transaction is at its end, as the row of an aggregate is: declared before it, dropped after.
        let mut locks = Vec::new();
        for key in keys {
            locks.push(self.desk.keys[key].1.clone().lock_owned().await);
        }
        let Ok(mut tx) = self.outbox.begin().await else { return };
        let mut told = Vec::new();
        if let Err(error) = self.write(&mut tx, &drafts, &mut told).await {
            self.say(if error.is_outcome_unknown() { "unknown" } else { "refused" }, &told);
            return;
        }
        if self.sky.strikes("long transactions", self.sky.weather().long_transaction) {
            sleep(Duration::from_millis(fastrand::u64(..600))).await;
            self.say("late", &told[..1]);
        }
        self.life.runs().await;
        match fastrand::u8(..20) {
            0 => drop(tx),
            1 => {
                let _ = tx.rollback().await;
            }
            _ => match tx.commit().await {
                Ok(()) => self.say("committed", &told),
                Err(error) if error.is_outcome_unknown() => self.say("unknown", &told),
                Err(_) => self.say("refused", &told),
            },
        }
        drop(locks);
    }

    /// In one statement, or one after another with others in between.
    async fn write(&self, tx: &mut Transaction<S>, drafts: &[Draft], told: &mut Vec<Told>) -> Result<(), WriteError> {
        let at_once = fastrand::bool();
        let mut events = Vec::new();
        for draft in drafts {
            let tells = draft.told(&self.desk);
            tx.put(ORDERS, tells.text());
            events.push(draft.event(&self.desk, &tells));
            told.push(tells);
            if !at_once {
                tx.write_all(events.drain(..)).await?;
                sleep(Duration::from_millis(fastrand::u64(..10))).await;
            }
        }
        tx.write_all(events).await?;
        Ok(())
    }

    fn say(&self, what: &str, told: &[Told]) {
        if let Some(pen) = self.life.pen() {
            told.iter().for_each(|told| pen.event(what, told.order, told.key.as_deref()));
        }
    }
}
