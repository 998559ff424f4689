//! What the handlers saw, kept apart from the outbox's own tables and figures.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use pillarbox::EventId;

use super::plan::Fate;

/// How far an order has come. Each step is an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Step {
    Placed = 1,
    Paid,
    Shipped,
}

impl Step {
    pub(super) const ALL: [Self; 3] = [Self::Placed, Self::Paid, Self::Shipped];

    /// The type of its event.
    pub(super) fn event_type(self) -> &'static str {
        match self {
            Self::Placed => "OrderPlaced",
            Self::Paid => "OrderPaid",
            Self::Shipped => "OrderShipped",
        }
    }
}

/// What an event tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    Order(u32, Step),
    Signup(u32),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order(order, step) => write!(f, "{} of order {order}", step.event_type()),
            Self::Signup(id) => write!(f, "NewsletterSignup {id}"),
        }
    }
}

/// The place of an event among those of its customer, counted by the shop in its own table from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) customer: u32,
    pub(super) nth: u32,
}

/// One call of a handler.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) id: EventId,
    pub(super) what: What,
    pub(super) place: Option<Place>,
    pub(super) ok: bool,
    /// Nanoseconds since the run began.
    pub(super) at: u64,
}

/// Takes down every call of a handler, in order.
#[derive(Debug)]
pub(super) struct Ledger {
    began: Instant,
    pages: Mutex<Pages>,
    /// Deliveries of what an earlier run left behind.
    leftovers: AtomicU64,
}

#[derive(Debug, Default)]
struct Pages {
    attempts: Vec<Attempt>,
    failures: HashMap<EventId, u32>,
    failed: u64,
    delivered: HashSet<EventId>,
}

/// How things stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) attempts: u64,
    /// Different events with a successful call.
    pub(super) delivered: u64,
    pub(super) failures: u64,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), pages: Mutex::default(), leftovers: AtomicU64::new(0) }
    }

    /// Takes down a call, and says whether the event's plan lets it succeed. Counts by itself: the outbox's
    /// number of the attempt has no say.
    pub(super) fn attempt(&self, id: EventId, what: What, place: Option<Place>, fate: Fate) -> bool {
        let at = self.now();
        let mut pages = self.pages();
        let failed = pages.failures.get(&id).copied().unwrap_or(0);
        let ok = !fate.is_dead() && failed >= fate.failures();
        if ok {
            pages.delivered.insert(id);
        } else {
            pages.failures.insert(id, failed + 1);
            pages.failed += 1;
        }
        pages.attempts.push(Attempt { id, what, place, ok, at });
        ok
    }

    pub(super) fn leftover(&self) {
        self.leftovers.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn leftovers(&self) -> u64 {
        self.leftovers.load(Ordering::Relaxed)
    }

    /// Nanoseconds since the run began.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn standing(&self) -> Standing {
        let pages = self.pages();
        Standing {
            attempts: pages.attempts.len() as u64,
            delivered: pages.delivered.len() as u64,
            failures: pages.failed,
        }
    }

    /// Every call so far.
    pub(super) fn take(&self) -> Vec<Attempt> {
        std::mem::take(&mut self.pages().attempts)
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flaky_event_succeeds_after_its_failures_by_the_ledgers_own_count() {
        let ledger = Ledger::new();
        let id = pillarbox::new_id();
        let call = || ledger.attempt(id, What::Signup(1), None, Fate::Flaky(2));
        assert_eq!([call(), call(), call()], [false, false, true]);
        let standing = ledger.standing();
        assert_eq!((standing.attempts, standing.delivered, standing.failures), (3, 1, 2));
    }

    #[test]
    fn a_dead_event_never_succeeds() {
        let ledger = Ledger::new();
        let id = pillarbox::new_id();
        assert!((0..20).all(|_| !ledger.attempt(id, What::Signup(1), None, Fate::Hopeless)));
    }
}
