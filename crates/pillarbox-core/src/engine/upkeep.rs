//! What is done now and then: purging finished rows, and taking the outbox's measure.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{settings::PurgeOptions, shared::Shared};
use crate::{
    domain::{Partition, Status},
    port::{PurgeCursor, PurgeRequest, PurgeScope, Purged, StoreError},
};

/// Removes finished rows. Of the nodes that deliver, the owner of partition 0 does it, so one at a time.
#[derive(Debug)]
pub(crate) struct Purge {
    shared: Arc<Shared>,
    options: PurgeOptions,
}

impl Purge {
    pub(crate) fn new(shared: Arc<Shared>, options: PurgeOptions) -> Self {
        Self { shared, options }
    }

    /// Purges on schedule until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = sleep(self.options.every) => {}
                () = stop.cancelled() => return,
            }
            tokio::select! {
                done = self.run_once() => match done {
                    Ok(0) => {}
                    Ok(rows) => tracing::info!(rows, "finished rows were purged"),
                    Err(error) => {
                        self.shared.meters.loop_errors.increment(1);
                        tracing::error!(error = &error as &dyn std::error::Error, "purging failed; the next run goes on");
                    }
                },
                () = stop.cancelled() => return,
            }
        }
    }

    /// One run, batch by batch. Each batch is a transaction of its own: a crash leaves the rest to the next run.
    pub(crate) async fn run_once(&self) -> Result<u64, StoreError> {
        let mut removed = 0;
        let mut cursor: Option<PurgeCursor> = None;
        loop {
            let lease = {
                let flight = self.shared.flight.lock();
                if flight.owned.is_active(Partition(0)) { flight.owned.lease().cloned() } else { None }
            };
            // By age is for processes that own nothing, and does no harm twice.
            if lease.is_none() && !matches!(self.options.scope, PurgeScope::ByAge(_)) {
                return Ok(removed);
            }
            let request =
                PurgeRequest { scope: self.options.scope, batch: self.options.batch, cursor, lease: lease.as_ref() };
            match self.shared.store.purge(request).await? {
                Purged::Removed { rows, next } => {
                    removed += rows;
                    self.shared.meters.purged.increment(rows);
                    match next {
                        Some(next) => cursor = Some(next),
                        None => break,
                    }
                }
                Purged::Fenced => return Ok(removed),
            }
        }
        self.forget_actions().await?;
        Ok(removed)
    }

    /// What operators did long ago.
    async fn forget_actions(&self) -> Result<(), StoreError> {
        let Some(older_than) = self.options.actions else { return Ok(()) };
        while self.shared.store.purge_actions(older_than, self.options.batch).await? >= u64::from(self.options.batch) {}
        Ok(())
    }
}

/// Sets the gauges that need a look at the table.
#[derive(Debug)]
pub(crate) struct Sampler {
    shared: Arc<Shared>,
    /// Whether this node read the table last time.
    reads: AtomicBool,
}

impl Sampler {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        // Before its first look it may be the only one that can tell: if it is stopped by then, it does.
        Self { shared, reads: AtomicBool::new(true) }
    }

    /// Samples on schedule until `stop`. Not at once: a node that has just joined has events to deliver, which is more urgent than
    /// to count them.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut wait = self.shared.settings.sample_every / 10;
        loop {
            tokio::select! {
                () = sleep(wait) => {}
                () = stop.cancelled() => return,
            }
            if let Err(error) = self.run_once().await {
                self.shared.meters.loop_errors.increment(1);
                tracing::warn!(error = &error as &dyn std::error::Error, "the outbox could not be measured");
            }
            wait = self.shared.settings.sample_every;
        }
    }

    /// One look. Only the owner of partition 0 reads the table: the numbers are the outbox's, not the node's. While
    /// it hands its partitions over, it goes on: there may be no other.
    #[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
    pub(crate) async fn run_once(&self) -> Result<(), StoreError> {
        let meters = &self.shared.meters;
        let ((hot, cold), blocked, first) = {
            let flight = self.shared.flight.lock();
            (flight.queues.depths(), flight.blocked_keys(), flight.owned.is_active(Partition(0)))
        };
        meters.blocked_keys.set(blocked as f64);
        meters.hot_depth.set(hot as f64);
        meters.cold_depth.set(cold as f64);
        let reads = first || self.shared.is_departing() && self.reads.load(Ordering::Relaxed);
        let read_before = self.reads.swap(reads, Ordering::Relaxed);
        if !reads {
            if read_before {
                // The next owner of partition 0 tells of it now: what this node has seen last must not stand beside it.
                let gauges = [&meters.pending, &meters.worst_partition, &meters.oldest_lag];
                Status::ALL.iter().map(|status| meters.records(*status)).chain(gauges).for_each(|gauge| gauge.set(0.0));
            }
            return Ok(());
        }
        let begun = Instant::now();
        let stats = self.shared.store.stats().await?;
        for status in Status::ALL {
            meters.records(status).set(stats.count(status) as f64);
        }
        meters.pending.set(stats.pending() as f64);
        meters.worst_partition.set(stats.worst_partition.map_or(0.0, |(_, pending)| pending as f64));
        let oldest = [Status::New, Status::Retry].into_iter().filter_map(|status| stats.oldest(status)).min();
        meters.oldest_lag.set(oldest.map_or(0.0, |oldest| stats.now.since(oldest).as_secs_f64()));
        tracing::debug!(pending = stats.pending(), took = ?begun.elapsed(), "the outbox was measured");
        Ok(())
    }
}
