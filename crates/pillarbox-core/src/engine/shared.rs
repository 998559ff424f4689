//! What the tasks of one outbox share.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

use super::{
    apart::Apart,
    backoff::Backoff,
    calling::Calling,
    flight::{Confirmed, Flight, Signals},
    handler::Routes,
    interceptor::Interceptor,
    settings::Settings,
    trace::Traces,
    watch::Works,
};
use crate::{
    domain::{Lease, NodeId, Seq, Timestamp},
    observe::Meters,
    port::{Clock, Released, Store, StoreError, StoreErrorKind},
};

/// A lease that was void is forgotten after this time: the next one is the first again.
const CALM: Duration = Duration::from_mins(1);

/// Leases that were void although nobody had ended them. After the first the node joins again at once, for the cause is over;
/// if it is not, each round would deliver anew what the one before could not settle, so it waits longer and longer.
#[derive(Debug)]
struct Voids {
    last: Option<Instant>,
    pause: Backoff,
}

impl Voids {
    fn new() -> Self {
        Self { last: None, pause: Backoff::new(Duration::from_millis(50), Duration::from_secs(5)) }
    }

    /// How long to stand back after another one.
    fn another(&mut self, now: Instant) -> Duration {
        if self.last.replace(now).is_none_or(|last| now.saturating_duration_since(last) > CALM) {
            self.pause.reset();
            return Duration::ZERO;
        }
        self.pause.next()
    }
}

/// The node: its store, its memory, and the bells of its tasks.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) settings: Settings,
    pub(crate) routes: Routes,
    pub(crate) interceptors: Vec<Arc<dyn Interceptor>>,
    pub(crate) traces: Traces,
    pub(crate) meters: Meters,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) node: NodeId,
    pub(crate) flight: Mutex<Flight>,
    /// The routes of other live nodes.
    pub(crate) peer_routes: Mutex<HashSet<String>>,
    pub(crate) work: Notify,
    pub(crate) solo: Notify,
    pub(crate) read: Notify,
    /// Events with a key are written, and the scout should see what comes before them.
    pub(crate) expected: Notify,
    pub(crate) outcomes: Notify,
    pub(crate) full_batch: Notify,
    /// Rung after every settle.
    pub(crate) settled: Notify,
    pub(crate) own: Notify,
    /// Rung when deliveries are interrupted because their partitions are given up.
    pub(crate) evicted: Notify,
    /// Another process has told the nodes to look around.
    pub(crate) look_around: AtomicBool,
    /// The lease was ended before its time, or was void again and again: the node joins no sooner.
    pub(crate) stand_back_until: Mutex<Option<Instant>>,
    voids: Mutex<Voids>,
    /// The outbox shuts down: everything is given up, and nothing taken.
    pub(crate) departing: AtomicBool,
    /// What was given up for good, and could not be released yet.
    pub(crate) unreleased: Mutex<Vec<(Vec<Released>, Seq)>>,
    pub(crate) hints: Notify,
    pub(crate) hinted: Mutex<crate::domain::PartitionSet>,
    /// Cancelled and replaced when the lease is lost: running handlers are dropped. Whose session it is holds
    /// only behind the lock of `flight`, which is taken first.
    pub(crate) session: Mutex<CancellationToken>,
    /// How far the database's clock is ahead of the host's, in microseconds, as last seen.
    database_ahead: AtomicI64,
    pub(crate) running: AtomicUsize,
    /// The thread that renews the lease, while there is one.
    pub(crate) apart: Mutex<Option<Apart>>,
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
            traces: Traces::default(),
            meters,
            clock,
            node,
            flight,
            peer_routes: Mutex::default(),
            work: Notify::new(),
            solo: Notify::new(),
            read: Notify::new(),
            expected: Notify::new(),
            outcomes: Notify::new(),
            full_batch: Notify::new(),
            settled: Notify::new(),
            own: Notify::new(),
            evicted: Notify::new(),
            look_around: AtomicBool::new(false),
            stand_back_until: Mutex::default(),
            voids: Mutex::new(Voids::new()),
            departing: AtomicBool::new(false),
            unreleased: Mutex::default(),
            hints: Notify::new(),
            hinted: Mutex::default(),
            session: Mutex::new(CancellationToken::new()),
            database_ahead: AtomicI64::new(0),
            running: AtomicUsize::new(0),
            apart: Mutex::default(),
        }
    }

    /// With spans by this tracer.
    pub(crate) fn traced_by(mut self, traces: Traces) -> Self {
        self.traces = traces;
        self
    }

    /// Makes a call beside the renewals of the lease, where no handler starves it, if there is such a place. For what holds
    /// something that a renewal waits for.
    pub(crate) async fn apart<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let place = self.apart.lock().clone();
        let Some(place) = place else { return call.await };
        match place.spawn(call).await {
            Ok(answer) => answer,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(StoreError::new(StoreErrorKind::Unavailable, "the outbox has stopped")),
            },
        }
    }

    /// How handlers are called.
    pub(crate) fn calling(&self) -> Calling<'_> {
        let Settings { retry, handler_timeout, .. } = &self.settings;
        Calling { retry, handler_timeout: *handler_timeout, traces: &self.traces }
    }

    /// Tells of writes that were confirmed.
    pub(crate) fn confirmed(&self, confirmed: Confirmed, signals: Signals) {
        self.meters.hot_enqueued.increment(confirmed.enqueued as u64);
        if confirmed.dropped > 0 {
            self.meters.hot_dropped.increment(confirmed.dropped as u64);
            tracing::warn!(
                dropped = confirmed.dropped,
                first_event_id = confirmed.first_dropped.map(tracing::field::display),
                "the hot queue is full: the reader will deliver these events"
            );
        }
        self.signal(signals);
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

    /// A lease is not in force any more: whatever runs under it is dropped, and whatever waits is forgotten. If it was ended
    /// before its time, the node stands back. Nothing happens if the node has another lease by now.
    pub(crate) fn lose_lease(&self, lease: &Lease, why: &str) {
        self.end_lease(lease, why, true);
    }

    /// A call under a lease has failed, which whoever made it tells. Most errors say nothing of the lease; if the database was
    /// rewound it is void, and nobody has ended it: the node joins anew, the first time at once.
    pub(crate) fn notice(&self, lease: &Lease, error: &StoreError) {
        if error.kind() == StoreErrorKind::Rewound {
            self.end_lease(lease, "what the node knows of the database is void, and it joins anew", false);
        }
    }

    /// A task has panicked. What it has left of the node's memory is not to be trusted: that ends with the lease.
    pub(crate) fn panicked(&self, task: &str, words: &str, works: Works) {
        self.meters.loop_errors.increment(1);
        tracing::error!(node = %self.node, task, panic = words, "a task of the outbox has panicked, and begins again: please report it");
        let lease = self.flight.lock().owned.lease().cloned();
        if let (Works::OnMemory, Some(lease)) = (works, lease) {
            self.end_lease(
                &lease,
                "a task has panicked, and the node joins anew to read its memory from the table",
                false,
            );
        }
    }

    fn end_lease(&self, lease: &Lease, why: &str, stands_back: bool) {
        let (stale, lost, ended) = {
            let mut flight = self.flight.lock();
            if flight.owned.lease() != Some(lease) {
                return;
            }
            let now = Instant::now();
            let ended = stands_back && flight.owned.deadline().is_some_and(|deadline| now < deadline);
            let wait = match (stands_back, ended) {
                (true, true) => self.settings.stale_after,
                (true, false) => Duration::ZERO,
                (false, _) => self.voids.lock().another(now),
            };
            if !wait.is_zero() {
                *self.stand_back_until.lock() = Some(now + wait);
            }
            // Behind one lock: between the two the node may join again, and what runs then is not to be dropped.
            (flight.lose_everything(), std::mem::take(&mut *self.session.lock()), ended)
        };
        tracing::warn!(node = %self.node, why, dropped_outcomes = stale, "the node has lost its lease");
        if ended && !self.is_departing() {
            let wait = self.settings.stale_after;
            tracing::error!(
                node = %self.node,
                ?wait,
                "the lease was ended before its time, as by another process with this node's name: the node stands back. Give \
                 each process a name of its own"
            );
        }
        self.meters.stale_settles.increment(stale as u64);
        self.meters.partitions_owned.set(0.0);
        lost.cancel();
        self.settled.notify_waiters();
        self.own.notify_one();
    }

    pub(crate) fn session(&self) -> CancellationToken {
        self.session.lock().clone()
    }

    pub(crate) fn is_departing(&self) -> bool {
        self.departing.load(Ordering::Acquire)
    }

    /// Sets the gauge of the partitions.
    #[expect(clippy::cast_precision_loss, reason = "there are 256 partitions")]
    pub(crate) fn measure_owned(&self) {
        self.meters.partitions_owned.set(self.flight.lock().owned.len() as f64);
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
        f.debug_struct("Shared").field("node", &self.node).field("routes", &self.routes).finish_non_exhaustive()
    }
}
