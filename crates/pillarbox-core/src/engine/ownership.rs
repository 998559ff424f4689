//! Ownership: the node's lease, and the partitions it owns.
//!
//! One task, on a thread of its own unless a test wants it otherwise, joins, renews, expels nodes whose
//! lease has lapsed, takes what is free and gives up what is too much. It counts its own deadline from
//! before it sent the renewal, and drops everything when that is reached, whatever the database does.
//!
//! When the process dies:
//! - after a join or a renewal: the lease lapses, another node expels it and takes its partitions;
//! - after a take whose answer was lost: the database shows partitions of this node that its memory does not
//!   know; they are taken again, with a new epoch. If the process is gone, the expulsion frees them, with a
//!   position that the take has lowered to theirs;
//! - between the last settle of a partition and its release: the partition is free when the lease lapses;
//! - after the release: nothing, the next owner has it.

use std::sync::Arc;

use tokio::time::{Duration, Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{backoff::Backoff, shared::Shared};
use crate::{
    domain::{Lease, Partition, PartitionSet, Sharer, share_out},
    port::{Joining, Renewal, StoreError, StoreErrorKind},
};

/// How often lapsed nodes are looked for, if renewals are rarer than that.
const GLANCE: Duration = Duration::from_secs(1);
/// How soon a taking that found a settle in its way is tried again.
const SOON: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Ownership {
    shared: Arc<Shared>,
    renew_at: Instant,
    rebalance_at: Instant,
    glance_at: Instant,
    /// Whether other nodes are there.
    in_company: bool,
    leaving: PartitionSet,
    trouble: Backoff,
}

impl Ownership {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        let rebalance_at = now + shared.settings.rebalance_every;
        Self {
            shared,
            renew_at: now,
            rebalance_at,
            glance_at: now,
            in_company: false,
            leaving: PartitionSet::EMPTY,
            trouble: Backoff::new(Duration::from_millis(50), Duration::from_secs(1)),
        }
    }

    /// Keeps the lease until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let shared = self.shared.clone();
        loop {
            let wake_at = match self.run_once().await {
                Ok(wake_at) => {
                    self.trouble.reset();
                    wake_at
                }
                Err(error) => {
                    shared.meters.loop_errors.increment(1);
                    tracing::error!(node = %shared.node, error = &error as &dyn std::error::Error, "renewing the lease failed and is tried again");
                    Instant::now() + self.trouble.next()
                }
            };
            let deadline = shared.flight.lock().owned.deadline();
            tokio::select! {
                () = sleep_until(deadline.map_or(wake_at, |deadline| wake_at.min(deadline))) => {}
                () = shared.own.notified() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Does whatever is due now, and says when the next thing will be.
    pub(crate) async fn run_once(&mut self) -> Result<Instant, StoreError> {
        let held = self.shared.flight.lock().owned.held();
        let (lease, deadline) = match held {
            Some((lease, deadline)) if Instant::now() < deadline => (lease, deadline),
            Some((lease, _)) => {
                self.shared.lose_lease(&lease, "the lease was not renewed in time");
                self.join().await?
            }
            None => self.join().await?,
        };
        // A call that hangs must not outlive the lease unnoticed.
        if let Ok(done) = timeout_at(deadline, self.tend(&lease)).await {
            return done;
        }
        self.shared.lose_lease(&lease, "the database did not answer before the lease ran out");
        Err(StoreError::new(StoreErrorKind::Unavailable, "the database did not answer in time"))
    }

    async fn join(&mut self) -> Result<(Lease, Instant), StoreError> {
        let shared = &self.shared;
        let sent = Instant::now();
        let joining = Joining {
            node: shared.node.clone(),
            ttl: shared.settings.stale_after,
            routes: shared.routes.names(),
            in_flight: shared.settings.in_flight_bound(),
        };
        let lease = shared.store.join(&joining).await?;
        tracing::info!(node = %lease.node, incarnation = lease.incarnation.0, "the node has joined");
        let deadline = sent + shared.settings.stale_after;
        shared.flight.lock().owned.renewed(&lease, deadline);
        self.leaving = PartitionSet::EMPTY;
        self.renew_at = sent;
        Ok((lease, deadline))
    }

    async fn tend(&mut self, lease: &Lease) -> Result<Instant, StoreError> {
        let now = Instant::now();
        let mut expelled = false;
        if self.in_company && now >= self.glance_at {
            self.glance_at = now + GLANCE.min(self.shared.settings.heartbeat);
            match self.shared.store.expel(lease).await? {
                None => return Ok(self.lost(lease, "its lease was gone at an expulsion")),
                Some(nodes) => {
                    expelled = !nodes.is_empty();
                    for node in nodes {
                        tracing::warn!(%node, "a node whose lease had lapsed was expelled");
                    }
                }
            }
        }
        if expelled || now >= self.renew_at {
            let Some(renewal) = self.renew(lease).await? else {
                return Ok(self.lost(lease, "its lease was gone at a renewal"));
            };
            if !self.share(lease, &renewal).await? {
                // A settle that stores a mark is under way: look again when it is over.
                self.renew_at = Instant::now() + SOON;
            }
        }
        if !self.leaving.is_empty() {
            self.hand_over(lease).await?;
        }
        Ok(if self.in_company { self.renew_at.min(self.glance_at) } else { self.renew_at })
    }

    async fn renew(&mut self, lease: &Lease) -> Result<Option<Renewal>, StoreError> {
        let shared = &self.shared;
        // The deadline counts from before the call: the database's own count begins later.
        let sent = Instant::now();
        let Some(mut renewal) = shared.store.renew(lease, shared.settings.stale_after).await? else {
            return Ok(None);
        };
        shared.flight.lock().owned.renewed(lease, sent + shared.settings.stale_after);
        self.renew_at = sent + shared.settings.heartbeat;
        let alone = renewal.nodes.iter().all(|node| node.node == lease.node);
        if !alone && !self.in_company && renewal.nodes.iter().any(|node| !node.live) {
            // The first look at a table with a dead node in it: what it owned should be free at once.
            if let Some(expelled) = shared.store.expel(lease).await?
                && !expelled.is_empty()
            {
                tracing::warn!(?expelled, "nodes whose lease had lapsed were expelled");
                match shared.store.renew(lease, shared.settings.stale_after).await? {
                    Some(after) => renewal = after,
                    None => return Ok(None),
                }
            }
        }
        self.in_company = !alone;
        let live: Vec<_> = renewal.nodes.iter().filter(|node| node.live).collect();
        #[expect(clippy::cast_precision_loss, reason = "nobody runs 2^52 nodes")]
        shared.meters.live_nodes.set(live.len() as f64);
        let peers = live.into_iter().filter(|node| node.node != lease.node);
        *shared.peer_routes.lock() = peers.flat_map(|node| node.routes.iter().cloned()).collect();
        Ok(Some(renewal))
    }

    /// Takes what is free, and at times gives up what is too much. `false` if the taking must wait.
    async fn share(&mut self, lease: &Lease, renewal: &Renewal) -> Result<bool, StoreError> {
        let shared = self.shared.clone();
        let live: Vec<Sharer> =
            renewal.nodes.iter().filter(|node| node.live).map(|node| Sharer::new(node.node.clone())).collect();
        let share = share_out(&live, &renewal.owners).share_of(&lease.node, &renewal.owners);

        let known = shared.flight.lock().owned.known();
        // Ours in the database and unknown here: the answer of a take was lost.
        let is_mine = |p: &Partition| renewal.owners[usize::from(p.0)].as_ref() == Some(&lease.node);
        // A release whose answer was lost.
        shared.flight.lock().handed_over(|partition| is_mine(&partition));
        let forgotten = Partition::all().filter(is_mine).filter(|p| !known.contains(*p));
        let wanted: PartitionSet = share.take.iter().chain(forgotten).collect();
        if wanted.is_empty() {
            shared.flight.lock().end_taking(Vec::new());
        } else if !self.take(lease, wanted).await? {
            return Ok(false);
        }
        if Instant::now() >= self.rebalance_at {
            self.rebalance_at = Instant::now() + shared.settings.rebalance_every;
            let mut flight = shared.flight.lock();
            for partition in share.release.iter() {
                flight.leave(partition);
                self.leaving.insert(partition);
            }
        }
        let owned = shared.flight.lock().owned.len();
        #[expect(clippy::cast_precision_loss, reason = "there are 256 partitions")]
        shared.meters.partitions_owned.set(owned as f64);
        Ok(true)
    }

    /// `false` if a settle that stores a mark is in the way.
    async fn take(&self, lease: &Lease, wanted: PartitionSet) -> Result<bool, StoreError> {
        let shared = &self.shared;
        if !shared.flight.lock().begin_taking() {
            return Ok(false);
        }
        // After an error the taking goes on: until its outcome is known, no mark may be stored.
        match shared.store.take(lease, wanted).await? {
            Some(taken) => {
                tracing::info!(node = %lease.node, partitions = taken.len(), "partitions were taken");
                shared.flight.lock().end_taking(taken);
                shared.read.notify_one();
            }
            None => {
                self.lost(lease, "its lease was gone at a take");
            }
        }
        Ok(true)
    }

    /// Gives up the leaving partitions whose deliveries have settled.
    async fn hand_over(&mut self, lease: &Lease) -> Result<(), StoreError> {
        let shared = &self.shared;
        let (released, mark, quiet) = {
            let mut flight = shared.flight.lock();
            let quiet: PartitionSet = self.leaving.iter().filter(|p| flight.is_quiet(*p)).collect();
            if quiet.is_empty() {
                // A hold may wait for a settle that nothing else asks for.
                shared.outcomes.notify_one();
                return Ok(());
            }
            let (released, mark) = flight.give_up(quiet, shared.settings.in_flight_bound());
            (released, mark, quiet)
        };
        // Forgotten here before it is released there. After an error the next renewal shows whether it is still
        // this node's: then it is taken again, from where it began. A second release would not know what was
        // waiting at the first.
        for partition in quiet.iter() {
            self.leaving.remove(partition);
        }
        if shared.store.release(lease, &released, mark).await?.is_none() {
            self.lost(lease, "its lease was gone at a release");
            return Ok(());
        }
        shared.flight.lock().handed_over(|partition| !quiet.contains(partition));
        tracing::info!(node = %lease.node, partitions = quiet.len(), "partitions were handed over");
        Ok(())
    }

    fn lost(&self, lease: &Lease, why: &str) -> Instant {
        self.shared.lose_lease(lease, why);
        Instant::now()
    }
}
