//! A sink as a handler: deliveries go in one by one or a few together, and out in batches.
//!
//! A worker that hands over deliveries waits for the receiver's word on them. One task takes what is ready, without waiting
//! for more, and sends it as a batch while the next one gathers; so a batch is as large as the sink is slow. A second one
//! is sent beside it when it is half full: then the sink has work while the first one's answers make room for more. Events
//! of one key are never under way together: the next is delivered when the one before it is settled.
//!
//! A sink that wants one message at a time has no use for that task: the worker itself sends, when there is a place.
//!
//! Where the sink is the only handler, a worker hands over what waits together, and gets one answer for all of it:
//! a worker for each message costs more than the message.
//!
//! A message may wait long for its turn, where the receiver is slow and a backlog large. That is nobody's failure: the time
//! that a delivery may take begins with its batch.
//!
//! When the process dies:
//! - before the batch was sent, or while it is under way: the events are not settled, and the next owner sends them; what had
//!   arrived arrives a second time, with the same id;
//! - after the receiver's word, before the settle: the same.
//!
//! When deliveries are dropped, because the lease is lost or their time is over, and their messages still wait here, they are
//! not sent. One that its worker is sending is given up: it may have arrived.

use std::{collections::VecDeque, fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use pillarbox_core::{
    Delivery, Event, HandlerError, Outcome, RetryPolicy,
    domain::Answer,
    engine::Handler,
    port::{BoxFuture, Message, Sent, Sink, SinkError, SinkErrorKind},
};
use tokio::sync::{Semaphore, mpsc, oneshot};

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
    at_once: usize,
    retry: Option<RetryPolicy>,
    timeout: Duration,
    queue: tokio::sync::OnceCell<mpsc::Sender<Waiting>>,
    /// Of messages that are sent one by one.
    places: Semaphore,
}

/// Messages that were handed over together, and who waits for the word on them.
struct Waiting {
    messages: Vec<Message>,
    answer: oneshot::Sender<Vec<Sent>>,
}

impl Outlet {
    /// A sink of this name. Its circuit has the same name, and its part in an event is kept under it: after a change of the
    /// name, events that failed elsewhere are sent to it again.
    pub fn new(name: impl Into<String>, sink: Arc<dyn Sink>, rules: Arc<Rules>) -> Self {
        let name = name.into();
        Self {
            id: format!("sink:{name}"),
            name,
            places: Semaphore::new(sink.pace().batches.clamp(1, Semaphore::MAX_PERMITS)),
            sink,
            rules,
            mode: Mode::default(),
            source: "/pillarbox".into(),
            batch: 500,
            at_once: 1,
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

    /// How many deliveries a worker hands over together at the most, of events that no other handler takes; never more than
    /// the sink takes in one batch. As many are under way at once as there are workers, times this. Default: 1.
    #[must_use]
    pub fn at_once(mut self, deliveries: usize) -> Self {
        self.at_once = deliveries.max(1);
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

    /// The messages of these deliveries go to the sink, where they have one; an answer for each.
    async fn pass_on(&self, deliveries: &[Delivery]) -> Vec<Answer> {
        let mut messages = Vec::with_capacity(deliveries.len());
        let mut answers: Vec<Answer> = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            answers.push(self.message(delivery).map(|message| {
                messages.push(message);
                Outcome::Done
            }));
        }
        if messages.is_empty() {
            return answers;
        }
        let mut sent = self.hand_over(messages).await.into_iter();
        for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
            if let Err(error) = sent.next().unwrap_or_else(|| Err(closed())) {
                *answer = Err(self.failure(&error));
            }
        }
        answers
    }

    fn message(&self, delivery: &Delivery) -> Result<Message, HandlerError> {
        let event = delivery.event();
        let target = self
            .rules
            .target(event)
            .map_err(|unfit| HandlerError::msg(format!("{}: {unfit}", self.name)).permanent().unsent())?;
        let message = traced(event, delivery.trace(), target, self.mode, &self.source);
        if let Some(largest) = self.sink.abilities().largest
            && message.payload.len() > largest
        {
            let size = message.payload.len();
            let words = format!("{}: the payload has {size} bytes, and {largest} is the most that it takes", self.name);
            return Err(HandlerError::msg(words).permanent().unsent());
        }
        Ok(message)
    }

    /// How many deliveries may be with the sink at once, where it wants one message at a time.
    pub(crate) fn places(&self) -> Option<usize> {
        (self.most() == 1).then(|| self.sink.pace().batches.max(1))
    }

    /// Sends the message of one delivery to a sink that wants one at a time.
    async fn send_alone(&self, delivery: &Delivery) -> Answer {
        let message = self.message(delivery)?;
        // Nobody closes it.
        let _place = self.places.acquire().await;
        let sent = word_on(&*self.sink, std::slice::from_ref(&message), self.timeout).await;
        match sent.into_iter().next() {
            Some(Ok(())) => Ok(Outcome::Done),
            Some(Err(error)) => Err(self.failure(&error)),
            None => Err(self.failure(&closed())),
        }
    }

    /// The receiver's word on each message; none at all if the sink is closed.
    async fn hand_over(&self, messages: Vec<Message>) -> Vec<Sent> {
        let (answer, word) = oneshot::channel();
        let queue = self.queue.get_or_init(async || self.open()).await;
        match queue.send(Waiting { messages, answer }).await {
            Ok(()) => word.await.unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// How many messages one batch has at the most.
    fn most(&self) -> usize {
        self.batch.min(self.sink.pace().batch).max(1)
    }

    fn failure(&self, error: &SinkError) -> HandlerError {
        let failure = HandlerError::msg(format!("{}: {error}", self.name));
        match (error.kind(), error.retry_after()) {
            (SinkErrorKind::Rejected, _) if error.is_unsent() => failure.permanent().unsent(),
            (SinkErrorKind::Rejected, _) => failure.permanent(),
            (SinkErrorKind::Unavailable, Some(after)) => failure.unavailable_for(after),
            (SinkErrorKind::Unavailable, None) => failure.unavailable(),
            // "At once" from a receiver is a wish for no attempt to be lost, and not for all of them in a row.
            (SinkErrorKind::Failed, Some(after)) => failure.retry_not_before(after),
            (SinkErrorKind::Failed, None) => failure,
        }
    }

    /// Starts the task that sends. It ends with the outlet.
    fn open(&self) -> mpsc::Sender<Waiting> {
        let (queue, waiting) = mpsc::channel(self.batch * 2);
        tokio::spawn(send(self.sink.clone(), waiting, self.most(), self.timeout));
        queue
    }
}

impl Handler for Outlet {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Answer> {
        Box::pin(async move {
            if self.places().is_some() {
                return self.send_alone(&delivery).await;
            }
            let answers = self.pass_on(std::slice::from_ref(&delivery)).await;
            answers.into_iter().next().unwrap_or_else(|| Err(self.failure(&closed())))
        })
    }

    fn at_once(&self) -> usize {
        self.at_once.min(self.most())
    }

    fn handle_all(&self, deliveries: Vec<Delivery>) -> BoxFuture<'_, Vec<Answer>> {
        Box::pin(async move { self.pass_on(&deliveries).await })
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
    let batches = sink.pace().batches;
    let mut under_way = FuturesUnordered::new();
    let (mut ready, mut is_open) = (Ready::default(), true);
    loop {
        // Beside another, a few messages would take the place of many.
        let is_worth_it = under_way.is_empty() || (under_way.len() < batches && ready.messages >= most.div_ceil(2));
        if !ready.waiting.is_empty() && is_worth_it {
            under_way.push(send_batch(&*sink, ready.take(most), within));
            continue;
        }
        if !is_open && under_way.is_empty() {
            return;
        }
        let room = most.saturating_sub(ready.messages);
        tokio::select! {
            biased;
            Some(()) = under_way.next() => {}
            count = queue.recv_many(&mut ready.incoming, room), if is_open && room > 0 => {
                is_open = count > 0;
                ready.gather();
            }
        }
    }
}

/// What waits to be sent.
#[derive(Default)]
struct Ready {
    incoming: Vec<Waiting>,
    waiting: VecDeque<Waiting>,
    messages: usize,
}

impl Ready {
    fn gather(&mut self) {
        self.messages += self.incoming.iter().map(|waiting| waiting.messages.len()).sum::<usize>();
        self.waiting.extend(self.incoming.drain(..));
    }

    /// The first, and those after it that there is room for: what was handed over together is sent together.
    fn take(&mut self, most: usize) -> Vec<Waiting> {
        let mut room = most;
        let mut taken = Vec::with_capacity(self.waiting.len());
        while let Some(next) = self.waiting.pop_front_if(|next| taken.is_empty() || next.messages.len() <= room) {
            room = room.saturating_sub(next.messages.len());
            self.messages -= next.messages.len();
            taken.push(next);
        }
        taken
    }
}

async fn send_batch(sink: &dyn Sink, waiting: Vec<Waiting>, within: Duration) {
    // Who does not wait any more may have lost its lease, and its events are another's.
    let waiting = waiting.into_iter().filter(|waiting| !waiting.answer.is_closed());
    let (mut batch, mut answers) = (Vec::new(), Vec::new());
    for Waiting { messages, answer } in waiting {
        answers.push((messages.len(), answer));
        // Nearly always there is one: what it has need not be moved.
        if batch.is_empty() { batch = messages } else { batch.extend(messages) }
    }
    if batch.is_empty() {
        return;
    }
    let mut sent = word_on(sink, &batch, within).await.into_iter();
    for (count, answer) in answers {
        // Who does not wait any more is delivered to again.
        let _ = answer.send(sent.by_ref().take(count).collect());
    }
}

/// Sends a batch: a word on each of its messages, whatever the sink does.
async fn word_on(sink: &dyn Sink, batch: &[Message], within: Duration) -> Vec<Sent> {
    let sending = AssertUnwindSafe(sink.send(batch)).catch_unwind();
    let mut sent = match tokio::time::timeout(within, sending).await {
        Ok(Ok(sent)) => sent,
        Ok(Err(_)) => vec![Err(SinkError::failed("the sink panicked")); batch.len()],
        Err(_) => vec![Err(SinkError::unavailable(format!("no answer within {within:?}"))); batch.len()],
    };
    let missing = || SinkError::failed("the sink gave no answer for this message");
    sent.resize_with(batch.len(), || Err(missing()));
    sent
}
