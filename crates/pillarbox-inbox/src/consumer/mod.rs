//! The consumer loop: receive, drop what is known, handle, acknowledge.
//!
//! ```text
//!  broker ──> pump ──> reader ──> lanes ──> workers ──> handlers ──> acknowledger ──> broker
//!                                   ▲           │ given up: dead letter queue, then ──┘
//!                                   └─ again ───┘
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `builder` | every setting |
//! | `lanes` | what is held, and what may run |
//! | `worker` | one message from its lane to its end |
//! | `in_tx` | many messages in one transaction, with their entries in the inbox |
//!
//! Nothing is acknowledged before its work, or its place in the dead letter queue, is durable. When the process dies:
//! - before a message's handler has run, also while it waits to be read, or while the handler runs: the broker gives the message to
//!   another. With the inbox nothing of the work is there; with a guard the mark may be, if the handler was called (see
//!   [`Guard`]);
//! - between the work and the acknowledgement: it comes again, and inbox or guard know it. Without either, the handler is called
//!   a second time;
//! - between the dead letter queue and the acknowledgement: it comes again, and its handler has another round of attempts; if they
//!   fail, it is the same letter;
//! - while it waits for its next attempt, or for its place in the dead letter queue: it comes again, and attempts are counted
//!   from the start. A guard's mark is taken off before the wait, and made anew after it. Of several handlers of one message, those
//!   that have had their part are called again.
//!
//! Of a message that was delivered too often, and so runs alone:
//! - before its letter is written: it comes again, and nothing has happened;
//! - between the letter and the end of the run: the next delivery finds the letter, parks the message and does not begin it;
//! - between the end of the run and the letter's closing: the same, though the work is done. The letter stays pending, and a replay of
//!   it is known to inbox or guard;
//! - between the closing and the acknowledgement: it comes again, runs alone once more, and inbox or guard know it. Acknowledgements are
//!   sent by the source, so that one may also be out before the closing: then nothing comes again, and the letter stays pending.

mod builder;
mod in_tx;
mod lanes;
mod observe;
mod worker;

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use pillarbox_core::{
    domain::{Delivery, Epoch, Partition, Record, Seq},
    engine::{Calls, Takes},
    port::{Received, Source, Ticket},
};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

pub use self::{
    builder::{Builder, OnUnknown, WithInbox},
    observe::name as metric,
};
use self::{
    in_tx::Desk,
    lanes::{Job, LaneKey, Lanes, Marked, Next},
    observe::Meters,
    worker::Worker,
};
use crate::{ConsumerSettings, DeadLetters, Guard, message};

/// So many are read before they are given to workers: these begin early, and don't wait for the lock for long.
const AT_ONCE: usize = 500;

/// How often the lag is looked at.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);

/// How often finished letters are removed: they are kept for days, and some stores read all letters to find them.
const PURGE_EVERY: Duration = Duration::from_hours(1);

/// A running consumer. Call [`shutdown`](Self::shutdown) before the process ends; one that is dropped stops too, and what it held
/// comes again in the broker's own time.
///
/// ```no_run
/// # async fn example<E: pillarbox_core::OutboxEvent>(
/// #     source: impl pillarbox_core::port::Source,
/// #     queue: pillarbox_inbox::DeadLetters,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// # async fn send_mail<E>(_: E) -> Result<(), std::io::Error> { Ok(()) }
/// use pillarbox_inbox::{Consumer, Guard, MemoryGuard};
///
/// let consumer = Consumer::builder("mailer", source, queue)
///     .guard(Guard::new(MemoryGuard::new()))
///     .handle(|placed: E| async move { send_mail(placed).await })
///     .start()
///     .await?;
/// // ... until the process is told to end:
/// consumer.shutdown().await;
/// # Ok(()) }
/// ```
pub struct Consumer {
    shared: Arc<Shared>,
    workers: Mutex<JoinSet<()>>,
    tasks: Mutex<JoinSet<()>>,
    /// Nothing new is received or started.
    stop: CancellationToken,
    /// What runs is dropped.
    abort: CancellationToken,
    /// The last acknowledgements are out.
    end: CancellationToken,
    _on_drop: tokio_util::sync::DropGuard,
}

/// What the tasks of one consumer share.
struct Shared {
    name: Arc<str>,
    source: Arc<dyn Source>,
    letters: DeadLetters,
    calls: Calls,
    guard: Option<Guard>,
    desk: Option<Arc<dyn Desk>>,
    settings: ConsumerSettings,
    meters: Meters,
    lanes: Mutex<Lanes>,
    /// Dealt with, and to be acknowledged.
    dealt_with: Mutex<Vec<Ticket>>,
    /// There is something to run.
    work: Notify,
    /// There is something to acknowledge.
    done: Notify,
    /// There is room for more.
    room: Notify,
}

impl Consumer {
    fn spawn(
        name: String,
        source: Arc<dyn Source>,
        letters: DeadLetters,
        calls: Calls,
        guard: Option<Guard>,
        desk: Option<Arc<dyn Desk>>,
        settings: ConsumerSettings,
    ) -> Self {
        let meters = Meters::new(&settings.metrics_prefix, &name);
        let shared = Arc::new(Shared {
            name: name.into(),
            source,
            letters,
            calls,
            guard,
            desk,
            meters,
            lanes: Mutex::default(),
            dealt_with: Mutex::default(),
            work: Notify::new(),
            done: Notify::new(),
            room: Notify::new(),
            settings,
        });
        let (stop, abort, end) = (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let (mut workers, mut tasks) = (JoinSet::new(), JoinSet::new());
        for _ in 0..shared.settings.workers {
            workers.spawn(Worker::new(shared.clone()).run(stop.clone(), abort.clone()));
        }
        let (came, coming) = mpsc::channel(1);
        tasks.spawn(shared.clone().pump(came, stop.clone()));
        tasks.spawn(shared.clone().read(coming));
        tasks.spawn(shared.clone().hold(end.clone()));
        tasks.spawn(shared.clone().upkeep(stop.clone()));
        tasks.spawn(shared.clone().sample(stop.clone()));
        tasks.spawn(shared.clone().acknowledge(end.clone()));
        let all = CancellationToken::new();
        let on_drop = all.clone().drop_guard();
        tasks.spawn({
            let (stop, abort, end) = (stop.clone(), abort.clone(), end.clone());
            async move {
                tokio::select! {
                    () = all.cancelled() => [stop, abort, end].iter().for_each(CancellationToken::cancel),
                    () = end.cancelled() => {}
                }
            }
        });
        Self { shared, workers: Mutex::new(workers), tasks: Mutex::new(tasks), stop, abort, end, _on_drop: on_drop }
    }

    /// How many messages it holds: received, and not acknowledged yet.
    pub fn held(&self) -> usize {
        self.shared.lanes.lock().held()
    }

    /// Receives nothing more, lets running handlers finish within their time, acknowledges what is dealt with, and gives back
    /// the rest.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        let mut workers = std::mem::take(&mut *self.workers.lock());
        let all_end = async { while workers.join_next().await.is_some() {} };
        let in_time = timeout(self.shared.settings.drain_timeout, all_end).await.is_ok();
        self.abort.cancel();
        if !in_time {
            while workers.join_next().await.is_some() {}
        }
        self.end.cancel();
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        while tasks.join_next().await.is_some() {}
        self.shared.give_back().await;
        self.shared.source.close().await;
    }
}

impl Shared {
    /// Asks for as many as there is room for, again and again: what has come is read by another task meanwhile.
    async fn pump(self: Arc<Self>, came: mpsc::Sender<Vec<Received>>, stop: CancellationToken) {
        let mut pause = Duration::from_millis(50);
        loop {
            let room = self.settings.prefetch.saturating_sub(self.lanes.lock().held());
            if room == 0 {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = self.room.notified() => continue,
                }
            }
            let received = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                received = self.source.receive(room) => received,
            };
            match received {
                Ok(messages) => {
                    pause = Duration::from_millis(50);
                    self.meters.received.increment(messages.len() as u64);
                    // From here on they are held, and go back to the broker at the end if nothing else becomes of them.
                    self.lanes.lock().expect(messages.iter().map(|message| message.ticket));
                    if came.send(messages).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    self.meters.errors.increment(1);
                    tracing::warn!(consumer = %self.name, source = self.source.name(), %error, ?pause, "nothing can be received: the broker is asked again");
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = sleep(pause) => {}
                    }
                    pause = (pause * 2).min(Duration::from_secs(5));
                }
            }
        }
    }

    /// Fills the lanes.
    async fn read(self: Arc<Self>, mut coming: mpsc::Receiver<Vec<Received>>) {
        while let Some(messages) = coming.recv().await {
            let mut messages = messages.into_iter();
            while messages.len() > 0 {
                self.take_on(messages.by_ref().take(AT_ONCE));
            }
        }
    }

    fn take_on(&self, messages: impl Iterator<Item = Received>) {
        // Read before the lock is taken: workers wait for it with their threads.
        let jobs: Vec<_> = messages.map(|received| self.job(received)).collect();
        let count = jobs.len();
        let mut lanes = self.lanes.lock();
        jobs.into_iter().for_each(|(key, job)| lanes.add(key, job));
        self.measure(&lanes);
        drop(lanes);
        // Who finds more than it can take wakes the next.
        (0..count.min(self.settings.workers)).for_each(|_| self.work.notify_one());
    }

    /// What is to be done with a message.
    fn job(&self, received: Received) -> (LaneKey, Job) {
        let Received { ticket, deliveries, message } = received;
        let (id, event) = message::read(&message);
        let next = match event {
            Err(reason) => Next::Park { reason: format!("the message can't be read: {reason}"), attempts: 0 },
            Ok(event) => {
                let takes = self.calls.takes(&event);
                let record = Record {
                    seq: Seq(0),
                    partition: event.key_partition().unwrap_or(Partition(0)),
                    created_at: event.occurred_at(),
                    event,
                    attempts: 0,
                    starts: 0,
                    progress: None,
                };
                let delivery = Delivery::new(record, Epoch(0));
                if takes == Takes::InTx { Next::Work(delivery) } else { Next::Handle(delivery) }
            }
        };
        let is_run = matches!(next, Next::Handle(_) | Next::Work(_));
        let suspect = (is_run && deliveries > self.settings.max_deliveries).then(|| deliveries - 1);
        // Only who works in no transaction asks the guard.
        let by = match &next {
            Next::Work(_) if suspect.is_none() => Box::default(),
            _ => pillarbox_core::new_id().to_string().into(),
        };
        let key = match &message.key {
            Some(key) => LaneKey::Key(key.clone()),
            None => LaneKey::Alone(id.clone()),
        };
        (key, Job { ticket, message, id, next, suspect, marked: Marked::No, by, setbacks: 0 })
    }

    /// Tells the broker what is dealt with, many at a time.
    async fn acknowledge(self: Arc<Self>, end: CancellationToken) {
        loop {
            let tickets = std::mem::take(&mut *self.dealt_with.lock());
            if tickets.is_empty() {
                tokio::select! {
                    biased;
                    () = self.done.notified() => continue,
                    () = end.cancelled() => {
                        if self.dealt_with.lock().is_empty() {
                            return;
                        }
                        continue;
                    }
                }
            }
            let answers = self.source.acknowledge(&tickets).await;
            if let Some(error) = answers.iter().find_map(|answer| answer.as_ref().err()) {
                self.meters.errors.increment(1);
                tracing::warn!(consumer = %self.name, %error, "messages that are dealt with could not be acknowledged: they come again, and are known");
            }
            let mut lanes = self.lanes.lock();
            lanes.forget(&tickets);
            self.measure(&lanes);
            drop(lanes);
            self.room.notify_one();
        }
    }

    /// Keeps the broker from giving to others what is held here.
    async fn hold(self: Arc<Self>, end: CancellationToken) {
        let Some(again_after) = self.source.gives().again_after else { return };
        loop {
            tokio::select! {
                () = end.cancelled() => return,
                () = sleep(again_after / 3) => {}
            }
            let tickets = self.lanes.lock().tickets();
            if !tickets.is_empty() {
                self.source.hold(&tickets).await;
            }
        }
    }

    /// Makes room where the time of something is over. What is under way when it has to stop is dropped, and nothing is lost by that:
    /// each removal stands for itself.
    async fn upkeep(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(self.make_room()).await;
    }

    async fn make_room(&self) {
        let mut letters_at = Instant::now();
        loop {
            sleep(self.settings.upkeep_every).await;
            let failed = |what: &str, error: crate::Error| {
                self.meters.errors.increment(1);
                tracing::error!(consumer = %self.name, error = &error as &dyn std::error::Error, "{what}");
            };
            if let Some(guard) = &self.guard
                && let Err(error) = guard.purge().await
            {
                failed("the guard's old marks could not be removed; it is tried again", error);
            }
            if let Some(desk) = &self.desk
                && let Err(error) = desk.rotate().await
            {
                failed("the inbox could not make room; it is tried again", error);
            }
            if Instant::now() >= letters_at {
                match self.letters.purge().await {
                    Ok(_) => letters_at = Instant::now() + PURGE_EVERY,
                    Err(error) => failed("finished dead letters could not be removed; it is tried again", error),
                }
            }
        }
    }

    async fn sample(self: Arc<Self>, stop: CancellationToken) {
        let mut is_known = true;
        loop {
            let asked = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                asked = self.source.lag() => asked,
            };
            match asked {
                Ok(lag) => {
                    lag.into_iter().for_each(|messages| self.meters.lag(messages));
                    is_known = true;
                }
                Err(error) => {
                    self.meters.lag_is_unknown();
                    // Once: what is wrong with the broker is told by those who receive and acknowledge, too.
                    if std::mem::take(&mut is_known) {
                        tracing::warn!(consumer = %self.name, %error, "the lag is not known until the broker answers: its gauge is NaN");
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(SAMPLE_EVERY) => {}
            }
        }
    }

    /// What is left at the end goes back to the broker, and its marks are taken off.
    async fn give_back(&self) {
        let (jobs, tickets) = {
            let mut lanes = self.lanes.lock();
            (lanes.drain(), lanes.tickets())
        };
        if let Some(guard) = &self.guard {
            for job in jobs.iter().filter(|job| job.marked != Marked::No) {
                if let Err(error) = guard.release_by(&self.name, &job.id, &job.by).await {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        id = &*job.id,
                        "a mark could not be taken off: the message is dropped when it comes again, until the mark's time is over"
                    );
                }
            }
        }
        if !tickets.is_empty() {
            self.source.give_back(&tickets).await;
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a gauge of messages")]
    fn measure(&self, lanes: &Lanes) {
        self.meters.held.set(lanes.held() as f64);
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("name", &self.shared.name).field("held", &self.held()).finish_non_exhaustive()
    }
}
