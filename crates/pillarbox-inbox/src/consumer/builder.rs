//! Building a consumer.

use std::{fmt, sync::Arc, time::Duration};

use pillarbox_core::{
    Outbox, RetryPolicy,
    domain::{CircuitPolicy, Codec, Route},
    engine::{Calls, CallsBuilder, EventFallback, Handler, IntoHandlers, IntoInTx, IntoRegistration},
    port::{InboxStore, InboxUpkeep, SettleStore, Source, Tracer, TransactStore},
};

use super::{
    Consumer,
    in_tx::{Desk, OfStore},
};
use crate::{ConsumerSettings, DeadLetters, Error, Guard, Inbox, guard::check};

/// What becomes of a message whose type no handler takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnknown {
    /// It goes into the dead letter queue.
    #[default]
    Park,
    /// It is acknowledged and forgotten: for topics that carry more than this consumer wants.
    Skip,
}

/// Gathers the settings of a [`Consumer`]; `start` checks them all.
#[must_use = "a consumer runs when it is started"]
pub struct Builder<S = ()> {
    pub(super) name: String,
    pub(super) source: Arc<dyn Source>,
    pub(super) letters: DeadLetters,
    pub(super) calls: CallsBuilder,
    pub(super) settings: ConsumerSettings,
    guard: Option<Guard>,
    without_guard: bool,
    transactions: S,
}

/// Transactions with an inbox: what [`Builder::inbox`] brings.
pub struct WithInbox<S, I> {
    outbox: Outbox<S>,
    inbox: Inbox<I>,
}

impl Consumer {
    /// A consumer of a name, which its marks and entries go by: two consumers of one message have two names, and the
    /// processes of one consumer have the same.
    pub fn builder(name: impl Into<String>, source: impl Source, dead_letters: DeadLetters) -> Builder {
        Builder {
            name: name.into(),
            source: Arc::new(source),
            letters: dead_letters,
            calls: Calls::builder(),
            settings: ConsumerSettings::default(),
            guard: None,
            without_guard: false,
            transactions: (),
        }
    }
}

impl Builder<()> {
    /// Lets handlers work in a transaction that the message is entered in: see
    /// [`handle_in_tx`](Builder::handle_in_tx). What they write with [`Work::write`](pillarbox_core::engine::Work::write) goes
    /// into this outbox, which may be a [`writer_only`](Outbox::writer_only) one, in the same database.
    pub fn inbox<S, I>(self, inbox: Inbox<I>, outbox: &Outbox<S>) -> Builder<WithInbox<S, I>>
    where
        S: SettleStore + 'static,
        I: InboxStore<<S as TransactStore>::Tx> + InboxUpkeep,
    {
        let Self { name, source, letters, calls, settings, guard, without_guard, transactions: () } = self;
        let transactions = WithInbox { outbox: outbox.clone(), inbox };
        Builder { name, source, letters, calls, settings, guard, without_guard, transactions }
    }

    /// Checks everything, and starts.
    #[expect(clippy::unused_async, reason = "with an inbox it asks the database, and users need not know")]
    pub async fn start(mut self) -> Result<Consumer, Error> {
        let calls = std::mem::replace(&mut self.calls, Calls::builder()).build()?;
        self.start_calls(calls, None)
    }
}

impl<S, I> Builder<WithInbox<S, I>>
where
    S: SettleStore + 'static,
    I: InboxStore<<S as TransactStore>::Tx> + InboxUpkeep,
{
    /// Gives messages of a type to a handler that works in a transaction: an async function or closure over
    /// [`Work`](pillarbox_core::engine::Work) and the event, alone or with [`Metadata`](pillarbox_core::Metadata). The message is
    /// entered in the same transaction, so that the work is done once, whenever the process dies.
    pub fn handle_in_tx<K>(mut self, handler: impl IntoInTx<S, K>) -> Self {
        self.calls = self.calls.handle_in_tx(handler);
        self
    }

    /// Checks everything, and starts.
    pub async fn start(mut self) -> Result<Consumer, Error> {
        let WithInbox { outbox, inbox } = self.transactions;
        let calls = self.calls.build()?;
        let inbox = inbox.for_retries(&calls.horizon(), self.settings.under_way)?.start().await?;
        let desk: Arc<dyn Desk> = Arc::new(OfStore { outbox, inbox });
        // The handlers are built; what is left of the builder needs none.
        self.calls = Calls::builder();
        let Self { name, source, letters, calls: empty, settings, guard, without_guard, .. } = self;
        let rest = Builder { name, source, letters, calls: empty, settings, guard, without_guard, transactions: () };
        rest.start_calls(calls, Some(desk))
    }
}

impl<T> Builder<T> {
    /// Gives messages of a type to a handler: an async function or closure over it, alone or with
    /// [`Metadata`](pillarbox_core::Metadata). As in an outbox.
    pub fn handle<K>(mut self, handler: impl IntoRegistration<K>) -> Self {
        self.calls = self.calls.handle(handler);
        self
    }

    /// Adds the handlers and fallbacks that `#[handlers]` has made of a type's methods.
    pub fn handlers(mut self, handlers: impl IntoHandlers) -> Self {
        self.calls = self.calls.handlers(handlers);
        self
    }

    /// Gives the messages of a route to a handler as they are.
    pub fn route(mut self, route: impl Into<Route>, handler: impl Handler) -> Self {
        self.calls = self.calls.route(route, handler);
        self
    }

    /// Gives every message to a handler, after those of its type.
    pub fn handle_every(mut self, handler: impl Handler) -> Self {
        self.calls = self.calls.handle_every(handler);
        self
    }

    /// What runs when a handler of this type has failed for good, before its message goes to the dead letter queue.
    pub fn fallback<K: 'static>(mut self, fallback: impl EventFallback<K>) -> Self {
        self.calls = self.calls.fallback(fallback);
        self
    }

    /// Drops what was dealt with before, for handlers that work in no transaction.
    pub fn guard(mut self, guard: Guard) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Handlers that work in no transaction get a message as often as it comes: they are idempotent by themselves.
    pub fn without_guard(mut self) -> Self {
        self.without_guard = true;
        self
    }

    /// Takes all settings from a file or the environment; what is set after it comes before it.
    pub fn settings(mut self, settings: &ConsumerSettings) -> Self {
        let calls = self.calls.retry(settings.retry.policy()).circuit(settings.circuit.policy());
        self.calls = calls.handler_timeout(settings.handler_timeout).metrics_prefix(settings.metrics_prefix.clone());
        self.settings = settings.clone();
        self
    }

    /// When failed messages are tried again, and how often, unless their handler says otherwise. They are held meanwhile.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.calls = self.calls.retry(policy);
        self
    }

    /// How long a handler may take, unless it says otherwise. Default: 30 s.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.calls = self.calls.handler_timeout(timeout);
        self.settings.handler_timeout = timeout;
        self
    }

    /// When the circuit of a destination opens, and for how long.
    pub fn circuit(mut self, policy: CircuitPolicy) -> Self {
        self.calls = self.calls.circuit(policy);
        self
    }

    /// Reads payloads of this format too. JSON is always read.
    pub fn reads(mut self, codec: impl Codec) -> Self {
        self.calls = self.calls.reads(codec);
        self
    }

    /// Makes each call of a handler a part of the trace that its message belongs to. Default: none.
    pub fn tracer(mut self, tracer: impl Tracer) -> Self {
        self.calls = self.calls.tracer(tracer);
        self
    }

    /// How many handlers run at once. Default: 8.
    pub fn workers(mut self, workers: usize) -> Self {
        self.settings.workers = workers;
        self
    }

    /// How many messages are held at once, those that wait for their next attempt among them. Default: 500.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.settings.prefetch = messages;
        self
    }

    /// How many messages share a transaction at the most. Default: 100.
    pub fn messages_per_transaction(mut self, messages: usize) -> Self {
        self.settings.messages_per_transaction = messages;
        self
    }

    /// A message that was delivered more often than this, each time without an end, may be what ends the process, or was only held
    /// beside it: it runs alone then, and a letter says so while it does. If the process ends all the same, the letter is what is
    /// left of the message; if not, the letter is closed. Where the broker counts. Default: 20.
    pub fn max_deliveries(mut self, deliveries: u32) -> Self {
        self.settings.max_deliveries = deliveries;
        self
    }

    /// What becomes of a message whose type no handler takes. Default: the dead letter queue.
    pub fn on_unknown(mut self, on_unknown: OnUnknown) -> Self {
        self.settings.on_unknown = on_unknown;
        self
    }

    /// How long running handlers may take at a shutdown. Default: 15 s.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.settings.drain_timeout = timeout;
        self
    }

    /// How long the sender and the broker may hold a message back, or deliver it again: the inbox's window must outlast this
    /// and all retries. Default: 1 h.
    pub fn under_way(mut self, span: Duration) -> Self {
        self.settings.under_way = span;
        self
    }

    /// How often marks, entries and finished letters are removed whose time is over. Default: 1 min.
    pub fn upkeep_every(mut self, span: Duration) -> Self {
        self.settings.upkeep_every = span;
        self
    }

    /// What the names of metrics begin with. Default: `pillarbox`.
    pub fn metrics_prefix(mut self, prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        self.calls = self.calls.metrics_prefix(prefix.clone());
        self.settings.metrics_prefix = prefix;
        self
    }
}

impl Builder<()> {
    fn start_calls(self, calls: Calls, desk: Option<Arc<dyn Desk>>) -> Result<Consumer, Error> {
        check("the consumer's name", &self.name)?;
        self.settings.check()?;
        self.guard.as_ref().map_or(Ok(()), Guard::check)?;
        let (_, others) = calls.kinds();
        if others && self.guard.is_none() && !self.without_guard {
            return Err(Error::Setting(
                "handlers that work in no transaction need a guard, or a message that comes twice is dealt with twice: give one with \
                 `guard`, say `without_guard` if they are idempotent by themselves, or work in a transaction with \
                 `inbox` and `handle_in_tx`"
                    .into(),
            ));
        }
        Ok(Consumer::spawn(self.name, self.source, self.letters, calls, self.guard, desk, self.settings))
    }
}

impl<T> fmt::Debug for Builder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The calls have the policies as they are, whoever has set them.
        let (retry, circuit) = <_>::default();
        let settings = ConsumerSettings { retry, circuit, ..self.settings.clone() };
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("settings", &settings)
            .field("calls", &self.calls)
            .finish_non_exhaustive()
    }
}

impl<S, I> fmt::Debug for WithInbox<S, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithInbox").finish_non_exhaustive()
    }
}
