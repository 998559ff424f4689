//! The settler: outcomes reach the table in batches, behind the fence.
//!
//! Everything that waits goes in one transaction, by size or after a short linger. What happens when the
//! process dies:
//! - before the settle commits: the events of the batch are delivered again by the next owner; no attempt is
//!   counted for them;
//! - after it commits, before its answer is read: nothing, the outcomes are durable;
//! - and when only the answer is lost while the process lives on, the same batch is sent again: it touches
//!   only rows that are still pending, so it changes nothing twice.
//!
//! A node without outcomes settles now and then all the same: what it has read past, and what waits behind a key, must be
//! stored, or whoever takes over would read it all again.
//!
//! A database error is never the handler's failure: the batch is kept and sent again until it is durable or
//! the lease is lost.

use std::sync::Arc;

use tokio::time::{Duration, Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{backoff::Backoff, shared::Shared};
use crate::port::Settled;

/// How often a node without outcomes looks whether it has come far since its last settle.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Settler {
    shared: Arc<Shared>,
}

impl Settler {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Settles until `stop`, and then what is left.
    pub(crate) async fn run(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let shared = &self.shared;
            let waiting = shared.flight.lock().unsettled();
            if waiting == 0 {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    () = shared.outcomes.notified() => {}
                    () = sleep(LOOK_EVERY) => {
                        if !shared.flight.lock().is_far_ahead(Instant::now()) {
                            continue;
                        }
                    }
                }
            }
            if shared.flight.lock().unsettled() < shared.settings.settle_batch {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    () = shared.full_batch.notified() => {}
                    () = sleep(shared.settings.settle_linger) => {}
                }
            }
            self.run_once().await;
        }
        self.run_once().await;
    }

    /// Settles everything that waits now. Comes back when it is durable or when the lease is lost.
    pub(crate) async fn run_once(&self) {
        let shared = &self.shared;
        let (lease, session, batch) = {
            let mut flight = shared.flight.lock();
            let Some(lease) = flight.owned.lease().cloned() else {
                return;
            };
            if flight.unsettled() == 0 && !flight.has_hold_changes() && !flight.is_far_ahead(Instant::now()) {
                return;
            }
            // Behind the same lock as the lease, so that it is the session of this lease.
            (lease, shared.session(), flight.take_batch(Instant::now()))
        };
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        loop {
            // Without the lease it would write nothing, and its answer concerns nobody: the node may have
            // another lease by then.
            let answer = tokio::select! {
                biased;
                () = session.cancelled() => return,
                answer = shared.store.settle(&lease, &batch) => answer,
            };
            match answer {
                Ok(Settled::Applied { stale }) => {
                    shared.meters.stale_settles.increment(stale as u64);
                    let (waiting, put_off) = {
                        let mut flight = shared.flight.lock();
                        // Under another lease the memory is another one, too.
                        let same = flight.owned.lease() == Some(&lease);
                        let put_off = same && flight.settled(&batch, Instant::now());
                        (flight.queues.waiting(), put_off)
                    };
                    // Workers that paused because too much was unsettled go on.
                    if waiting > 0 {
                        shared.work.notify_waiters();
                    }
                    if put_off {
                        shared.read.notify_one();
                    }
                    shared.settled.notify_waiters();
                    shared.own.notify_one();
                    return;
                }
                Ok(Settled::Fenced) => {
                    shared.meters.stale_settles.increment(batch.outcomes.len() as u64);
                    shared.lose_lease(&lease, "a settle was fenced");
                    return;
                }
                Err(error) => {
                    shared.meters.loop_errors.increment(1);
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        outcomes = batch.outcomes.len(),
                        "settling failed and is tried again"
                    );
                    shared.notice(&lease, &error);
                    tokio::select! {
                        biased;
                        () = session.cancelled() => return,
                        () = sleep(backoff.next()) => {}
                    }
                }
            }
        }
    }
}
