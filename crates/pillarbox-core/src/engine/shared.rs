//! What the tasks of one outbox share.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    flight::{Flight, Signals},
    handler::Routes,
    interceptor::Interceptor,
    settings::Settings,
};
use crate::{
    domain::{NodeId, Timestamp},
    observe::Meters,
    port::{Clock, Store},
};

/// The node: its store, its memory, and the bells of its tasks.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) settings: Settings,
    pub(crate) routes: Routes,
    pub(crate) interceptors: Vec<Arc<dyn Interceptor>>,
    pub(crate) meters: Meters,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) node: NodeId,
    pub(crate) flight: Mutex<Flight>,
    /// The routes of other live nodes.
    pub(crate) peer_routes: Mutex<HashSet<String>>,
    pub(crate) work: Notify,
    pub(crate) solo: Notify,
    pub(crate) read: Notify,
    pub(crate) outcomes: Notify,
    pub(crate) full_batch: Notify,
    /// Rung after every settle.
    pub(crate) settled: Notify,
    pub(crate) own: Notify,
    pub(crate) hints: Notify,
    pub(crate) hinted: Mutex<crate::domain::PartitionSet>,
    /// Cancelled when the lease is lost, and replaced under the lock of `flight`: running handlers are dropped.
    pub(crate) session: Mutex<CancellationToken>,
    /// How far the database's clock is ahead of the host's, in microseconds, as last seen.
    database_ahead: AtomicI64,
    pub(crate) running: AtomicUsize,
}

impl Shared {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        settings: Settings,
        routes: Routes,
        interceptors: Vec<Arc<dyn Interceptor>>,
        meters: Meters,
        clock: Arc<dyn Clock>,
        node: NodeId,
    ) -> Self {
        let flight = Mutex::new(Flight::new(&settings));
        Self {
            store,
            settings,
            routes,
            interceptors,
            meters,
            clock,
            node,
            flight,
            peer_routes: Mutex::default(),
            work: Notify::new(),
            solo: Notify::new(),
            read: Notify::new(),
            outcomes: Notify::new(),
            full_batch: Notify::new(),
            settled: Notify::new(),
            own: Notify::new(),
            hints: Notify::new(),
            hinted: Mutex::default(),
            session: Mutex::new(CancellationToken::new()),
            database_ahead: AtomicI64::new(0),
            running: AtomicUsize::new(0),
        }
    }

    /// Rings the bells that a change asks for.
    pub(crate) fn signal(&self, signals: Signals) {
        for _ in 0..signals.workers {
            self.work.notify_one();
        }
        if signals.solo {
            self.solo.notify_one();
        }
        if signals.reader {
            self.read.notify_one();
        }
        if signals.settler {
            self.outcomes.notify_one();
        }
        if signals.full_batch {
            self.full_batch.notify_one();
        }
    }

    /// The lease is not in force any more: whatever runs is dropped, and whatever waits is forgotten.
    pub(crate) fn lose_lease(&self, why: &str) {
        let stale = {
            let mut flight = self.flight.lock();
            if flight.owned.lease().is_none() {
                return;
            }
            // Under the lock: whoever sees the next lease must see the next session.
            std::mem::take(&mut *self.session.lock()).cancel();
            flight.lose_everything()
        };
        tracing::warn!(node = %self.node, why, dropped_outcomes = stale, "the node has lost its lease");
        self.meters.stale_settles.increment(stale as u64);
        self.settled.notify_waiters();
        self.own.notify_one();
    }

    pub(crate) fn session(&self) -> CancellationToken {
        self.session.lock().clone()
    }

    /// Learns the database's time.
    pub(crate) fn database_time_is(&self, now: Timestamp) {
        let ahead = now.as_micros().saturating_sub(self.clock.now().as_micros());
        self.database_ahead.store(ahead, Ordering::Relaxed);
    }

    /// The database's time, as far as it is known without asking.
    pub(crate) fn database_time(&self) -> Timestamp {
        let ahead = self.database_ahead.load(Ordering::Relaxed);
        Timestamp::from_micros(self.clock.now().as_micros().saturating_add(ahead))
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("node", &self.node)
            .field("routes", &self.routes)
            .finish_non_exhaustive()
    }
}
