//! A sink as a handler: deliveries go in one by one, and out in batches.
//!
//! A worker that hands over a delivery waits for the receiver's word on it. One task takes what is ready, without waiting
//! for more, and sends it as a batch while the next one gathers; so a batch is as large as the sink is slow. A second one
//! is sent beside it when it is half full: then the sink has work while the first one's answers make room for more. Events
//! of one key are never under way together: the next is delivered when the one before it is settled.
//!
//! A message may wait long for its turn, where the receiver is slow and a backlog large. That is nobody's failure: the time
//! that a delivery may take begins with its batch.
//!
//! When the process dies:
//! - before the batch was sent, or while it is under way: the events are not settled, and the next owner sends them; what had
//!   arrived arrives a second time, with the same id;
//! - after the receiver's word, before the settle: the same.
//!
//! When a delivery is dropped, because the lease is lost or its time is over, and its message still waits here, it is
//! not sent.

use std::{fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use pillarbox_core::{
    Delivery, Event, HandlerError, Outcome, RetryPolicy,
    domain::Answer,
    engine::Handler,
    port::{BoxFuture, Message, Pace, Sent, Sink, SinkError, SinkErrorKind},
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    message::{Mode, traced},
    rules::Rules,
};

/// How long a batch may be under way. Sinks give up by themselves before.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A sink under a name, with the rules that lead to it: a handler of every event.
///
/// A relay has one for each sink. A service that delivers its own events to handlers, too, registers it beside them:
///
/// ```no_run
/// # use std::sync::Arc;
/// # use pillarbox_core::{Outbox, port::{Sink, Store}};
/// use pillarbox_relay::{Outlet, Rules};
///
/// # async fn on(store: impl Store, sink: impl Sink) -> Result<(), Box<dyn std::error::Error>> {
/// let rules = Arc::new(Rules::new([], ["broker".into()]));
/// let outbox = Outbox::multi_node(store)
///     .handle_every(Outlet::new("broker", Arc::new(sink), rules).source("/orders"))
///     .workers(500)
///     .start()
///     .await?;
/// # Ok(()) }
/// ```
pub struct Outlet {
    name: String,
    id: String,
    sink: Arc<dyn Sink>,
    rules: Arc<Rules>,
    mode: Mode,
    source: Arc<str>,
    batch: usize,
    retry: Option<RetryPolicy>,
    timeout: Duration,
    queue: tokio::sync::OnceCell<mpsc::Sender<Waiting>>,
}

/// A message, and who waits for the word on it.
struct Waiting {
    message: Message,
    answer: oneshot::Sender<Sent>,
}

impl Outlet {
    /// A sink of this name. Its circuit has the same name, and its part in an event is kept under it: after a change of the
    /// name, events that failed elsewhere are sent to it again.
    pub fn new(name: impl Into<String>, sink: Arc<dyn Sink>, rules: Arc<Rules>) -> Self {
        let name = name.into();
        Self {
            id: format!("sink:{name}"),
            name,
            sink,
            rules,
            mode: Mode::default(),
            source: "/pillarbox".into(),
            batch: 500,
            retry: None,
            timeout: TIMEOUT,
            queue: tokio::sync::OnceCell::new(),
        }
    }

    /// Who sends the events: the CloudEvents attribute of this name, a URI reference. Default: `/pillarbox`.
    #[must_use]
    pub fn source(mut self, source: impl Into<Arc<str>>) -> Self {
        self.source = source.into();
        self
    }

    /// How the attributes travel. Default: beside the payload.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// How many messages one batch has at the most. Default: 500.
    #[must_use]
    pub fn batch(mut self, messages: usize) -> Self {
        self.batch = messages.max(1);
        self
    }

    /// Retries by this policy, whatever the outbox's is.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// How long a batch may be under way, whatever the outbox allows a handler. Default: 30 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    async fn pass_on(&self, delivery: Delivery) -> Answer {
        let event = delivery.event();
        let target = self
            .rules
            .target(event)
            .map_err(|unfit| HandlerError::msg(format!("{}: {unfit}", self.name)).permanent())?;
        let message = traced(event, delivery.trace(), target, self.mode, &self.source);
        if let Some(largest) = self.sink.abilities().largest
            && message.payload.len() > largest
        {
            let size = message.payload.len();
            let words = format!("{}: the payload has {size} bytes, and {largest} is the most that it takes", self.name);
            return Err(HandlerError::msg(words).permanent());
        }
        let (answer, word) = oneshot::channel();
        let queue = self.queue.get_or_init(async || self.open()).await;
        let sent = match queue.send(Waiting { message, answer }).await {
            Ok(()) => word.await.unwrap_or_else(|_| Err(closed())),
            Err(_) => Err(closed()),
        };
        sent.map_err(|error| self.failure(&error))?;
        Ok(Outcome::Done)
    }

    fn failure(&self, error: &SinkError) -> HandlerError {
        let failure = HandlerError::msg(format!("{}: {error}", self.name));
        match (error.kind(), error.retry_after()) {
            (SinkErrorKind::Rejected, _) => failure.permanent(),
            (SinkErrorKind::Unavailable, _) => failure.unavailable(),
            (SinkErrorKind::Failed, Some(after)) => failure.retry_after(after),
            (SinkErrorKind::Failed, None) => failure,
        }
    }

    /// Starts the task that sends. It ends with the outlet.
    fn open(&self) -> mpsc::Sender<Waiting> {
        let (queue, waiting) = mpsc::channel(self.batch * 2);
        tokio::spawn(send(self.sink.clone(), waiting, self.batch, self.timeout));
        queue
    }
}

impl Handler for Outlet {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Answer> {
        Box::pin(self.pass_on(delivery))
    }

    fn takes(&self, event: &Event) -> bool {
        self.rules.lead_to(&self.name, event)
    }

    fn id(&self) -> Option<&str> {
        Some(&self.id)
    }

    fn passes_on(&self) -> bool {
        true
    }

    fn destination(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn retry(&self) -> Option<&RetryPolicy> {
        self.retry.as_ref()
    }

    /// The clock is with who sends.
    fn timeout(&self) -> Option<Duration> {
        Some(Duration::MAX)
    }
}

impl fmt::Debug for Outlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet").field("name", &self.name).field("rules", &self.rules).finish_non_exhaustive()
    }
}

fn closed() -> SinkError {
    SinkError::unavailable("the sink is closed")
}

/// Sends what is ready, batch after batch, until nobody can hand over more.
async fn send(sink: Arc<dyn Sink>, mut queue: mpsc::Receiver<Waiting>, most: usize, within: Duration) {
    let Pace { batch, batches } = sink.pace();
    let most = most.min(batch).max(1);
    let mut under_way = FuturesUnordered::new();
    let (mut ready, mut is_open) = (Vec::new(), true);
    loop {
        // Beside another, a few messages would take the place of many.
        let is_worth_it = under_way.is_empty() || (under_way.len() < batches && ready.len() >= most.div_ceil(2));
        if !ready.is_empty() && is_worth_it {
            under_way.push(send_batch(&*sink, std::mem::take(&mut ready), within));
            continue;
        }
        if !is_open && under_way.is_empty() {
            return;
        }
        let room = most - ready.len();
        tokio::select! {
            biased;
            Some(()) = under_way.next() => {}
            count = queue.recv_many(&mut ready, room), if is_open && room > 0 => is_open = count > 0,
        }
    }
}

async fn send_batch(sink: &dyn Sink, waiting: Vec<Waiting>, within: Duration) {
    // Who does not wait any more may have lost its lease, and its event is another's.
    let waiting = waiting.into_iter().filter(|waiting| !waiting.answer.is_closed());
    let (batch, answers): (Vec<_>, Vec<_>) = waiting.map(|waiting| (waiting.message, waiting.answer)).unzip();
    if batch.is_empty() {
        return;
    }
    let sending = AssertUnwindSafe(sink.send(&batch)).catch_unwind();
    let mut sent = match tokio::time::timeout(within, sending).await {
        Ok(Ok(sent)) => sent,
        Ok(Err(_)) => vec![Err(SinkError::failed("the sink panicked")); batch.len()],
        Err(_) => vec![Err(SinkError::unavailable(format!("no answer within {within:?}"))); batch.len()],
    };
    let missing = || SinkError::failed("the sink gave no answer for this message");
    sent.resize_with(batch.len(), || Err(missing()));
    for (answer, sent) in answers.into_iter().zip(sent) {
        // Who does not wait any more is delivered to again.
        let _ = answer.send(sent);
    }
}
