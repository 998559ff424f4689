//! The engine without its tasks: what they do, done when it is asked for. For tests of handlers, which must not wait for
//! anything; `pillarbox::testing` is made of it.
//!
//! A run joins, reads, works, settles and leaves, each with the code that the tasks run. Between two runs the node owns
//! nothing, so nothing lapses while a test is elsewhere, and several such outboxes can take turns on one store.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::{
    dispatcher::{Serves, Worker},
    error::OutboxError,
    flight::Flight,
    node::Node,
    ownership::Ownership,
    reader::{Pass, Reader},
    settler::Settler,
    shared::Shared,
    work::Desk,
};

/// How often a lease that is gone before it was used is asked for again.
const JOINS: usize = 5;

/// The tasks of an outbox that was started with `start_by_hand`.
pub struct ByHand {
    shared: Arc<Shared>,
    desk: Option<Arc<dyn Desk>>,
    node: Node,
    /// Whether a crash is to follow, and whether a transaction was rolled back for it.
    doomed: bool,
    rolled_back: Arc<AtomicBool>,
}

impl ByHand {
    pub(crate) fn new(shared: Arc<Shared>, desk: Option<Arc<dyn Desk>>) -> Self {
        Self { node: Node::idle(shared.clone()), shared, desk, doomed: false, rolled_back: Arc::default() }
    }

    /// Says whether a crash is to follow what is worked next: then transactional handlers run, and their transactions are
    /// rolled back, as if the process had died before their commit.
    pub fn doom(&mut self, doomed: bool) {
        self.doomed = doomed;
        self.rolled_back.store(false, Ordering::Relaxed);
    }

    /// Whether a transaction was rolled back because of that.
    pub fn has_rolled_back(&self) -> bool {
        self.rolled_back.load(Ordering::Relaxed)
    }

    /// Takes the partitions. A node of the same name that has not left is replaced, as one that has died is.
    pub async fn join(&mut self) -> Result<(), OutboxError> {
        if self.shared.is_departing() {
            return Err(OutboxError::setting("the outbox was shut down: it delivers nothing any more"));
        }
        let mut ownership = Ownership::new(self.shared.clone());
        for _ in 0..JOINS {
            ownership.run_once().await?;
            if !self.shared.flight.lock().owned.known().is_empty() {
                return Ok(());
            }
        }
        self.leave().await;
        Err(OutboxError::setting("another outbox that is running owns every partition of this store"))
    }

    /// Reads what is due now, as far as there is room for it.
    pub async fn read(&mut self) -> Result<(), OutboxError> {
        // A new one asks for due rows at once, whenever the last one was told that the next would be.
        let mut reader = Reader::new(self.shared.clone());
        while reader.run_once().await? == Pass::More {}
        Ok(())
    }

    /// Runs the workers until they have nothing to do.
    pub async fn work(&mut self) {
        let one_for_suspects = std::iter::once(Serves::Suspects);
        let each = one_for_suspects.chain(std::iter::repeat_n(Serves::Queues, self.shared.settings.workers));
        self.run_workers(each, &AtomicBool::new(false)).await;
    }

    /// Runs one worker at a time, until `halt` is set while its delivery waits for something: that delivery is finished,
    /// and is the last.
    pub async fn work_until(&mut self, halt: &AtomicBool) {
        for serves in [Serves::Suspects, Serves::Queues] {
            self.run_workers(std::iter::once(serves), halt).await;
            if halt.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    async fn run_workers(&self, each: impl Iterator<Item = Serves>, halt: &AtomicBool) {
        let (stop, abort) = (CancellationToken::new(), CancellationToken::new());
        let run = |serves| {
            let worker = Worker::new(self.shared.clone(), serves, self.desk.clone());
            let worker = if self.doomed { worker.doomed(self.rolled_back.clone()) } else { worker };
            worker.run(stop.clone(), abort.clone())
        };
        let mut workers = pin!(join_all(each.map(run)));
        poll_fn(|context| {
            loop {
                if workers.as_mut().poll(context).is_ready() {
                    return Poll::Ready(());
                }
                // A worker that is not delivering sleeps: it was polled, and found nothing.
                let idle = self.shared.running.load(Ordering::Relaxed) == 0;
                if stop.is_cancelled() || !(idle || halt.load(Ordering::Relaxed)) {
                    return Poll::Pending;
                }
                stop.cancel();
            }
        })
        .await;
    }

    /// Makes the outcomes durable; says how many there were.
    pub async fn settle(&mut self) -> usize {
        let outcomes = self.shared.flight.lock().unsettled();
        Settler::new(self.shared.clone()).run_once().await;
        outcomes
    }

    /// Gives the partitions up.
    pub async fn leave(&mut self) {
        self.node.leave().await;
    }

    /// Forgets everything, as the process would if it died now: what was delivered and not settled is delivered again,
    /// and its next owner suspects it.
    pub fn crash(&mut self) {
        let mut flight = self.shared.flight.lock();
        *flight = Flight::new(&self.shared.settings);
        std::mem::take(&mut *self.shared.session.lock()).cancel();
    }
}

impl std::fmt::Debug for ByHand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByHand").field("shared", &self.shared).finish_non_exhaustive()
    }
}
