//! Building an outbox for a test.

use std::{
    fmt::Debug,
    future::Future,
    sync::Arc,
    time::{Duration, SystemTime},
};

use pillarbox_core::{
    Outbox, RetryPolicy,
    domain::Route,
    engine::{
        Builder as Engine, EventBatchHandler, EventFallback, Handler, IntoHandlers, IntoInTx, IntoRegistration,
        OutboxError, mode::SingleNode,
    },
    port::{SettleStore, Store},
};

use super::{
    outbox::TestOutbox,
    recorder::Recorder,
    twice::{Twice, compare, without_comparison},
};
use crate::{ManualClock, MemoryStore};

/// Longer than a test runs, also in a debugger.
const LEASE: Duration = Duration::from_hours(24);

/// All test outboxes of a store are the same node to it: one that follows another that has crashed replaces it, where
/// another node would have to wait until the lease lapses.
const NODE: &str = "testing";

/// An outbox in memory, which delivers when it is told to. It needs no handler, where only writing is tested.
///
/// ```
/// # use pillarbox_core::{Delivery, Event};
/// # use pillarbox_testkit::testing;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = testing::outbox().route("Happened", |_: Delivery| async {}).start().await?;
/// let mut tx = outbox.begin().await?;
/// tx.write(Event::builder("Happened").json(&7)).await?;
/// tx.commit().await?;
/// assert_eq!(outbox.drain().await?.delivered.len(), 1);
/// # Ok(()) }
/// ```
pub fn outbox() -> Builder<MemoryStore> {
    // It begins now, so that due times that the code under test takes from the host's clock are where it means them.
    let clock = Arc::new(ManualClock::at(SystemTime::now().into()));
    let engine = Outbox::single_node(MemoryStore::with_clock(clock.clone())).clock(clock.clone());
    Builder::new(engine, Some(clock))
}

/// An outbox on a store of one's own, which delivers when it is told to. A retry is waited for, as long as it takes; a
/// short policy makes it short.
///
/// It must be alone on its store, but for others that are made here: these take turns.
pub fn outbox_on<S: Store>(store: S) -> Builder<S> {
    Builder::new(Outbox::single_node(store), None)
}

/// Gathers what an outbox for a test needs; made by [`outbox`] and [`outbox_on`].
#[must_use = "an outbox runs when it is started"]
#[derive(Debug)]
pub struct Builder<S> {
    engine: Engine<S, SingleNode>,
    recorder: Recorder,
    clock: Option<Arc<ManualClock>>,
    twice: Option<Twice>,
}

impl<S: Store> Builder<S> {
    fn new(engine: Engine<S, SingleNode>, clock: Option<Arc<ManualClock>>) -> Self {
        let recorder = Recorder::default();
        let engine = engine.lease(LEASE).node_name(NODE).no_purge().interceptor(recorder.clone());
        Self { engine, recorder, clock, twice: None }
    }

    /// Delivers events of a type to a handler; see [`Builder::handle`](pillarbox_core::engine::Builder::handle).
    pub fn handle<K>(self, handler: impl IntoRegistration<K>) -> Self {
        self.with(|engine| engine.handle(handler))
    }

    /// Delivers events of a type to a handler that takes many at once; see
    /// [`Builder::handle_batch`](pillarbox_core::engine::Builder::handle_batch).
    pub fn handle_batch<K: 'static>(self, most: usize, handler: impl EventBatchHandler<K>) -> Self {
        self.with(|engine| engine.handle_batch(most, handler))
    }

    /// Delivers events of a type to a handler that works in a transaction of the store; see
    /// [`Builder::handle_in_tx`](pillarbox_core::engine::Builder::handle_in_tx).
    pub fn handle_in_tx<K>(self, handler: impl IntoInTx<S, K>) -> Self
    where
        S: SettleStore,
    {
        self.with(|engine| engine.handle_in_tx(handler))
    }

    /// Adds the handlers and fallbacks that `#[handlers]` has made of a type's methods.
    pub fn handlers(self, handlers: impl IntoHandlers) -> Self {
        self.with(|engine| engine.handlers(handlers))
    }

    /// Delivers the events of a route to a handler as they are.
    pub fn route(self, route: impl Into<Route>, handler: impl Handler) -> Self {
        self.with(|engine| engine.route(route, handler))
    }

    /// What runs when a handler of a type has failed for good.
    pub fn fallback<K: 'static>(self, fallback: impl EventFallback<K>) -> Self {
        self.with(|engine| engine.fallback(fallback))
    }

    /// When failed events are tried again, and how often.
    pub fn retry(self, policy: RetryPolicy) -> Self {
        self.with(|engine| engine.retry(policy))
    }

    /// Everything else that an outbox can be told. A function that registers an application's handlers is used here as
    /// it is where the outbox of the application is built:
    ///
    /// ```
    /// use pillarbox_core::{Delivery, engine::{Builder, mode::Delivers}, port::Store};
    /// use pillarbox_testkit::testing;
    ///
    /// fn handlers<S: Store, M: Delivers>(outbox: Builder<S, M>) -> Builder<S, M> {
    ///     outbox.route("Happened", |_: Delivery| async {})
    /// }
    ///
    /// let outbox = testing::outbox().with(handlers);
    /// ```
    ///
    /// Rows of delivered events must be kept, as they are by default: the assertions read them.
    pub fn with(mut self, set: impl FnOnce(Engine<S, SingleNode>) -> Engine<S, SingleNode>) -> Self {
        self.engine = set(self.engine);
        self
    }

    /// Runs every handler twice, to find those that can't bear it: each event is delivered, its outcome is lost in a
    /// crash, and it is delivered again, before the next event is. The test then looks at what came of it.
    ///
    /// The work of a transactional handler is rolled back with such a crash, so that it is there once whatever happens. It
    /// is run twice in vain and then a third time: what it does outside of its transaction must bear that.
    pub fn twice(mut self) -> Self {
        self.twice = Some(without_comparison());
        self
    }

    /// The same, and compares: what `snapshot` gives after the first run, if that went well, must be what it gives after
    /// the second. If it is not, the drain fails, and its error shows both.
    ///
    /// ```
    /// # use std::sync::{Arc, atomic::{AtomicU32, Ordering}};
    /// # use pillarbox_core::{Delivery, Event};
    /// # use pillarbox_testkit::testing;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let sent = Arc::new(AtomicU32::new(0));
    /// let count = sent.clone();
    /// let outbox = testing::outbox()
    ///     .route("Happened", move |_: Delivery| {
    ///         count.fetch_add(1, Ordering::Relaxed);
    ///         async {}
    ///     })
    ///     .twice_comparing(move || std::future::ready(sent.load(Ordering::Relaxed)))
    ///     .start()
    ///     .await?;
    /// # let mut tx = outbox.begin().await?;
    /// # tx.write(Event::builder("Happened").json(&7)).await?;
    /// # tx.commit().await?;
    /// assert!(outbox.drain().await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn twice_comparing<F, Fut>(mut self, snapshot: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output: PartialEq + Debug + Send> + Send + 'static,
    {
        self.twice = Some(compare(snapshot));
        self
    }

    /// Checks the settings and prepares the tables. Nothing is delivered yet.
    pub async fn start(self) -> Result<TestOutbox<S>, OutboxError> {
        let Self { mut engine, recorder, clock, twice } = self;
        if twice.is_some() {
            recorder.one_at_a_time();
            // So that the event which was delivered last before a crash is the first after it; and no event is dead of it.
            engine = engine.cold_capacity(1).page_size(1).lane_capacity(1).events_per_transaction(1).max_starts(1_000);
        }
        let (outbox, hand) = engine.start_by_hand().await?;
        Ok(TestOutbox::new(outbox, hand, recorder, clock, twice))
    }
}
