//! Building an outbox: what every mode can be told. The modes, and what each has alone, are in [`mode`].

pub mod mode;

use std::{marker::PhantomData, sync::Arc, time::Duration};

use self::mode::Delivers;
use super::{
    by_hand::ByHand,
    context::{ContextProvider, Providers},
    error::OutboxError,
    handler::{
        EventBatchHandler, EventFallback, Handler, Handlers, IntoHandlers, IntoInTx, IntoRegistration, Registration,
        Routes, RoutesBuilder, batch,
    },
    hook::WriterHook,
    interceptor::Interceptor,
    node::Node,
    outbox::Outbox,
    settings::{Heartbeat, OnDeadHead, OnSuccess, PurgeOptions, Settings},
    shared::Shared,
    trace::Traces,
    work::{self, Desk},
    writer::{KeyRule, Writer},
};
use crate::{
    domain::{CircuitPolicy, Codec, Codecs, NodeId, RetryPolicy, Route},
    observe::Meters,
    port::{Clock, SettleStore, Store, SystemClock, Tracer},
};

/// Gathers the settings of an [`Outbox`]; `start` checks them all. What a mode does not have is not there:
///
/// ```compile_fail
/// # fn on(store: impl pillarbox_core::port::Store) {
/// use pillarbox_core::Outbox;
/// Outbox::writer_only(store).workers(4); // a writer has no workers
/// # }
/// ```
#[must_use = "an outbox runs when it is started"]
pub struct Builder<S, M> {
    store: S,
    settings: Settings,
    routes: RoutesBuilder,
    interceptors: Vec<Arc<dyn Interceptor>>,
    codecs: Codecs,
    providers: Providers,
    traces: Traces,
    hooks: Vec<Arc<dyn WriterHook>>,
    key_rule: KeyRule,
    clock: Arc<dyn Clock>,
    /// Once there is a transactional handler.
    desk: Option<MakeDesk<S>>,
    mode: PhantomData<M>,
}

impl<S: Store, M> Builder<S, M> {
    fn new(store: S) -> Self {
        Self {
            store,
            settings: Settings::default(),
            routes: RoutesBuilder::default(),
            interceptors: Vec::new(),
            codecs: Codecs::default(),
            providers: Providers::default(),
            traces: Traces::default(),
            hooks: Vec::new(),
            key_rule: KeyRule::default(),
            clock: Arc::new(SystemClock),
            desk: None,
            mode: PhantomData,
        }
    }

    /// Adds a hook that sees every batch that is written.
    pub fn hook(mut self, hook: impl WriterHook) -> Self {
        self.hooks.push(Arc::new(hook));
        self
    }

    /// The format in which events are written that are types and have no codec of their own. Default: JSON. What is in
    /// the table already is read by its content type.
    pub fn codec(mut self, codec: impl Codec) -> Self {
        self.codecs = Codecs::of(codec);
        self
    }

    /// Reads payloads of this format too. JSON is always read, and MessagePack where the feature is on.
    pub fn reads(mut self, codec: impl Codec) -> Self {
        self.codecs = self.codecs.and(codec);
        self
    }

    /// Adds to the context of every event that is written. Of two providers the later one wins; what the event is given
    /// itself comes before both.
    pub fn context(mut self, provider: impl ContextProvider) -> Self {
        self.providers.add(provider);
        self
    }

    /// Carries traces from the write to the handler: the trace of who writes an event is stored among its headers, and each
    /// handler runs in a span that is its child. An event that has such headers already keeps them. Default: none.
    pub fn tracer(mut self, tracer: impl Tracer) -> Self {
        self.traces = Traces::by(tracer);
        self
    }

    /// Whether `start` brings the tables to this program's version (default), or only checks them.
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.settings.migrate = migrate;
        self
    }

    /// What the names of metrics begin with. Default: `pillarbox`.
    pub fn metrics_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.metrics_prefix = prefix.into();
        self
    }

    /// The host's clock, for tests; it stamps nothing but `occurred_at`.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Checks the settings, as starting does. No database is touched.
    pub fn validate(&self) -> Result<(), OutboxError> {
        self.settings.validate()
    }

    async fn prepare(mut self, routes: Routes) -> Result<Parts<S>, OutboxError> {
        self.settings.most_at_once = routes.most_at_once(self.settings.events_per_transaction);
        self.settings.validate()?;
        if let KeyRule::Default(key) = &self.key_rule
            && (key.as_str().is_empty() || key.as_str().len() > crate::domain::limit::KEY)
        {
            let limit = crate::domain::limit::KEY;
            return Err(OutboxError::setting(format!(
                "default_key has {} bytes: allowed is 1 to {limit}",
                key.as_str().len()
            )));
        }
        let store = Arc::new(self.store);
        if self.settings.migrate {
            store.migrate().await?;
        } else {
            store.check().await?;
        }
        let name = self.settings.node_name.clone();
        let node = NodeId::new(name.unwrap_or_else(|| format!("node-{}", super::new_id())));
        let meters = Meters::new(&self.settings.metrics_prefix);
        let dynamic: Arc<dyn Store> = store.clone();
        let shared = Shared::new(dynamic, self.settings, routes, self.interceptors, meters, self.clock, node);
        let shared = Arc::new(shared.traced_by(self.traces));
        let writer = Writer::new(shared.clone(), self.codecs, self.providers, self.hooks, self.key_rule);
        let writer = Arc::new(writer);
        let desk = self.desk.map(|desk| desk(store.clone(), writer.clone()));
        Ok(Parts { store, shared, writer, desk })
    }
}

struct Parts<S> {
    store: Arc<S>,
    shared: Arc<Shared>,
    writer: Arc<Writer>,
    desk: Option<Arc<dyn Desk>>,
}

/// Makes the desk of a store that has one.
type MakeDesk<S> = fn(Arc<S>, Arc<Writer>) -> Arc<dyn Desk>;

impl<S: Store, M: Delivers> Builder<S, M> {
    /// Delivers events of a type to a handler: an async function or closure over it, alone or with
    /// [`Metadata`](super::Metadata). [`handler`](super::handler()) gives it a name, a retry policy, a fallback.
    ///
    /// Several handlers may take the same type: each has its part, and after a failure only those are called again that
    /// have not succeeded.
    ///
    /// ```
    /// # use pillarbox_core::{Metadata, domain::OutboxEvent, engine::{Builder, mode::SingleNode}, port::Store};
    /// # fn of<OrderPlaced: OutboxEvent, S: Store>(builder: Builder<S, SingleNode>) {
    /// # async fn ship<E>(_: E) -> Result<(), std::io::Error> { Ok(()) }
    /// builder
    ///     .handle(|placed: OrderPlaced| async move { ship(placed).await })
    ///     .handle(|_: OrderPlaced, meta: Metadata| async move { println!("attempt {}", meta.attempt()) });
    /// # }
    /// ```
    pub fn handle<K>(mut self, handler: impl IntoRegistration<K>) -> Self {
        self.routes.add(handler.into_registration());
        self
    }

    /// Delivers events of a type to a handler that takes up to `most` of them at once: an async function or closure over a
    /// `Vec<Batched<E>>` that answers for each of them, or for all. [`batch`](super::batch()) gives it settings of its own.
    ///
    /// It is given what is ready, and nobody waits for a batch to fill up; never two events of one key. A panic, a timeout or a
    /// wrong number of answers is a failure of all. A payload that can't be read never comes to it: that event alone is
    /// dead. It must be the only handler of its events.
    ///
    /// ```
    /// # use pillarbox_core::{domain::OutboxEvent, engine::{Batched, Builder, mode::SingleNode}, port::Store};
    /// # fn of<E: OutboxEvent, S: Store>(builder: Builder<S, SingleNode>) {
    /// # async fn index<E>(_: Vec<Batched<E>>) -> Vec<Result<(), String>> { Vec::new() }
    /// builder.handle_batch(100, |batch: Vec<Batched<E>>| async move { index(batch).await });
    /// # }
    /// ```
    pub fn handle_batch<K: 'static>(self, most: usize, handler: impl EventBatchHandler<K>) -> Self {
        self.handle(batch(most, handler))
    }

    /// Adds the handlers and fallbacks that `#[handlers]` has made of a type's methods.
    pub fn handlers(mut self, handlers: impl IntoHandlers) -> Self {
        self.routes.extend(handlers.into_handlers());
        self
    }

    /// Delivers the events of a route to a handler as they are. A route is an event type, or a pair of aggregate type
    /// and event type, and has at most one such handler.
    ///
    /// ```
    /// # use pillarbox_core::{Delivery, engine::{Builder, mode::SingleNode}, port::Store};
    /// # fn of<S: Store>(builder: Builder<S, SingleNode>) {
    /// builder
    ///     .route("OrderPlaced", |delivery: Delivery| async move { println!("{:?}", delivery.event().payload()) })
    ///     .route(("Order", "Cancelled"), |_: Delivery| async {});
    /// # }
    /// ```
    pub fn route(mut self, route: impl Into<Route>, handler: impl Handler) -> Self {
        self.routes.add(Registration::raw(route.into(), handler));
        self
    }

    /// Delivers every event to a handler, after those of its type.
    pub fn handle_every(mut self, handler: impl Handler) -> Self {
        self.routes.add(Registration::every(handler));
        self
    }

    /// What runs when a handler of this type has failed for good, and has no fallback of its own: an async function or
    /// closure over it, alone or with [`Failed`](super::Failed).
    pub fn fallback<K: 'static>(mut self, fallback: impl EventFallback<K>) -> Self {
        self.routes.extend(Handlers::new().fallback(fallback));
        self
    }

    /// Adds an interceptor around every delivery.
    pub fn interceptor(mut self, interceptor: impl Interceptor) -> Self {
        self.interceptors.push(Arc::new(interceptor));
        self
    }

    /// When failed events are tried again, and how often, unless their handler says otherwise.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use pillarbox_core::{RetryPolicy, engine::{Builder, mode::SingleNode}, port::Store};
    /// # fn of<S: Store>(builder: Builder<S, SingleNode>) {
    /// builder.retry(RetryPolicy::exponential(Duration::from_millis(200)).max_attempts(10));
    /// # }
    /// ```
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.settings.retry = policy;
        self
    }

    /// When the circuit of a destination opens, and for how long.
    pub fn circuit(mut self, policy: CircuitPolicy) -> Self {
        self.settings.circuit = policy;
        self
    }

    /// How many events transactional handlers deal with in one transaction, at the most. Default: 50.
    pub fn events_per_transaction(mut self, events: usize) -> Self {
        self.settings.events_per_transaction = events;
        self
    }

    /// How many handlers run at once. Default: 8.
    pub fn workers(mut self, workers: usize) -> Self {
        self.settings.workers = workers;
        self
    }

    /// How long a handler may take, unless it says otherwise. `Duration::MAX` is for ever. Default: 30 s.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.settings.handler_timeout = timeout;
        self
    }

    /// How many events may wait on the hot path. Default: 1000.
    pub fn hot_capacity(mut self, events: usize) -> Self {
        self.settings.hot_capacity = events;
        self
    }

    /// How many events read from the table may wait. Default: 2000.
    pub fn cold_capacity(mut self, events: usize) -> Self {
        self.settings.cold_capacity = events;
        self
    }

    /// How many rows one read takes at the most. Default: 500.
    pub fn page_size(mut self, rows: usize) -> Self {
        self.settings.page_size = rows;
        self
    }

    /// How many events of one key may wait in memory behind the one that runs. Default: 64.
    pub fn lane_capacity(mut self, events: usize) -> Self {
        self.settings.lane_capacity = events;
        self
    }

    /// Leaves rows to the hot path that are younger than this. Default: 0.
    pub fn skip_recent(mut self, age: Duration) -> Self {
        self.settings.skip_recent = age;
        self
    }

    /// The shortest and the longest wait of an idle reader. Default: 20 ms to 1 s.
    pub fn poll_interval(mut self, shortest: Duration, longest: Duration) -> Self {
        self.settings.poll_min = shortest;
        self.settings.poll_max = longest;
        self
    }

    /// How many outcomes make a settle that does not wait. Default: 500.
    pub fn settle_batch(mut self, outcomes: usize) -> Self {
        self.settings.settle_batch = outcomes;
        self
    }

    /// How long a smaller settle waits for more outcomes. Default: 5 ms.
    pub fn settle_linger(mut self, linger: Duration) -> Self {
        self.settings.settle_linger = linger;
        self
    }

    /// What becomes of the rows of delivered events. Default: they are kept until purged.
    pub fn on_success(mut self, on_success: OnSuccess) -> Self {
        self.settings.on_success = on_success;
        self
    }

    /// Whether a failed event holds back the later ones of its key until it succeeds or is dead. Default: yes.
    pub fn stop_on_first_failure(mut self, stop: bool) -> Self {
        self.settings.stop_on_first_failure = stop;
        self
    }

    /// What follows when the head of a key is dead. Default: the key is held.
    pub fn on_dead_head(mut self, on_dead_head: OnDeadHead) -> Self {
        self.settings.on_dead_head = on_dead_head;
        self
    }

    /// How often an event may be running when its process dies, before it is dead. Default: 3.
    pub fn max_starts(mut self, starts: u32) -> Self {
        self.settings.max_starts = starts;
        self
    }

    /// How long a clean stop waits for running handlers, and a partition that is handed to another node for its own.
    /// What has settled is handed over at once. `Duration::MAX` is for ever. Default: 15 s.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.settings.drain_timeout = timeout;
        self
    }

    /// How long an event that was written and not confirmed is left to its writer. Default: 5 s.
    pub fn reservation_ttl(mut self, ttl: Duration) -> Self {
        self.settings.reservation_ttl = ttl;
        self
    }

    /// How long an event waits whose route only another node has. Default: 5 s.
    pub fn route_grace(mut self, grace: Duration) -> Self {
        self.settings.route_grace = grace;
        self
    }

    /// When finished rows are removed. Default: after 7 days, 500 at a time, every hour.
    pub fn purge(mut self, options: PurgeOptions) -> Self {
        self.settings.purge = Some(options);
        self
    }

    /// Never removes finished rows.
    pub fn no_purge(mut self) -> Self {
        self.settings.purge = None;
        self
    }

    /// How often the gauges are set that need a look at the whole table; for the first time after a tenth of it. Default: 30 s.
    pub fn sample_every(mut self, every: Duration) -> Self {
        self.settings.sample_every = every;
        self
    }

    /// Where the lease is renewed. Default: on a thread of its own.
    pub fn heartbeat_on(mut self, place: Heartbeat) -> Self {
        self.settings.heartbeat_on = place;
        self
    }

    /// The name of this node in the database. Default: a new one for each start.
    pub fn node_name(mut self, name: impl Into<String>) -> Self {
        self.settings.node_name = Some(name.into());
        self
    }

    /// The name of the group of consumers that this node is one of. An outbox table has one group: `start` refuses to join
    /// live nodes of another. Default: none, which is a group of its own.
    pub fn group(mut self, name: impl Into<String>) -> Self {
        self.settings.group = Some(name.into());
        self
    }

    /// Switches the delivery off: events are written, and wait for a node that delivers. Default: on.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.settings.enabled = enabled;
        self
    }

    /// Checks the settings, prepares the tables, joins and starts to deliver.
    pub async fn start(mut self) -> Result<Outbox<S>, OutboxError> {
        let routes = std::mem::take(&mut self.routes).build(&self.codecs, &self.settings)?;
        let enabled = self.settings.enabled;
        let Parts { store, shared, writer, desk } = self.prepare(routes).await?;
        if !enabled {
            let node = Node::writer_only(shared.clone());
            return Ok(Outbox::assemble(store, writer, shared, node));
        }
        let node = Node::start(shared.clone(), desk).await?;
        Ok(Outbox::assemble(store, writer, shared, node))
    }

    /// Checks the settings and prepares the tables, and delivers nothing: what the tasks would do, the second value does
    /// when it is told. `pillarbox::testing` is the way to use it.
    #[doc(hidden)]
    pub async fn start_by_hand(mut self) -> Result<(Outbox<S>, ByHand), OutboxError> {
        let routes = match std::mem::take(&mut self.routes).build(&self.codecs, &self.settings) {
            // Code that only writes is tested as well.
            Err(OutboxError::NoHandler) => Routes::default(),
            routes => routes?,
        };
        let Parts { store, shared, writer, desk } = self.prepare(routes).await?;
        let node = Node::writer_only(shared.clone());
        Ok((Outbox::assemble(store, writer, shared.clone(), node), ByHand::new(shared, desk)))
    }
}

impl<S: Store + SettleStore, M: Delivers> Builder<S, M> {
    /// Delivers events of a type to a handler that works in a transaction of the outbox's own database: an async function or
    /// closure over [`Work`](super::Work) and the event, alone or with [`Metadata`](super::Metadata).
    /// [`in_tx`](super::in_tx()) gives it settings of its own.
    ///
    /// Its work commits together with the outcome of the event, and behind the fence, or neither does: **its effect in this
    /// database happens exactly once**, whatever dies when. What it does elsewhere may be repeated. For projections, read
    /// models, and events that follow from events.
    ///
    /// Several events share a transaction where several wait ([`events_per_transaction`](Self::events_per_transaction)), for
    /// a quarter of a second at the most. One that fails is undone alone; a panic or a timeout rolls back the others too,
    /// which then begin again without a failure being counted. It must be the only handler of its events.
    ///
    /// ```
    /// # use pillarbox_core::{domain::OutboxEvent, engine::{Builder, Work, mode::SingleNode}, port::{SettleStore, Store}};
    /// # fn of<E: OutboxEvent, S: Store + SettleStore>(builder: Builder<S, SingleNode>) {
    /// # async fn count<C: ?Sized, E>(_: &mut C, _: E) -> Result<(), String> { Ok(()) }
    /// builder.handle_in_tx(|mut work: Work<S>, placed: E| async move { count(&mut *work, placed).await });
    /// # }
    /// ```
    pub fn handle_in_tx<K>(mut self, handler: impl IntoInTx<S, K>) -> Self {
        self.desk = Some(work::desk);
        self.routes.add(handler.into_registration());
        self
    }
}

impl<S, M> std::fmt::Debug for Builder<S, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("settings", &self.settings)
            .field("routes", &self.routes)
            .finish_non_exhaustive()
    }
}
