//! Ownership: the node's lease, and the partitions it owns.
//!
//! One task, on a thread apart from the handlers' unless a test wants it otherwise, joins, renews, expels nodes whose
//! lease has lapsed, takes what is free and gives up what is too much. It counts its own deadline from
//! before it sent the renewal, and drops everything when that is reached, whatever the database does.
//!
//! # From hand to hand
//! What should be whose is a pure function ([`share_out`]); this loop obeys it. Of its share a node takes at once what is
//! free. What it has above its share it gives up when a rebalance is due, and all of it when the outbox shuts down: it
//! starts nothing more there, and releases each partition as soon as nothing of it runs or waits to be settled. What
//! still runs when the graceful time is over is interrupted, and no attempt counts; a handler that blocks can't be
//! dropped, so its late answer changes nothing, and its effect can be told by its fencing token. A release is hinted to
//! the others; who does not hear of it looks around every second. Before a shutdown hands anything over, the node
//! publishes that it wants nothing any more, so that the others' plans are made without it.
//!
//! Partitions that lie free although they are another's share are left lying by a node that stands still: after two
//! heartbeats whoever sees them takes them, and gives them back when that node is either well or expelled.
//!
//! # When the process dies
//! - after a join or a renewal: the lease lapses, another node expels it and takes its partitions;
//! - after it published something: it is as busy, or as good as gone, as it said; the rest is as before;
//! - after a take whose answer was lost: the database shows partitions of this node that its memory does not
//!   know; they are taken again, with a new epoch. If the process is gone, the expulsion frees them, with a
//!   position that the take has lowered to theirs;
//! - between the interruption of what ran for too long and its settle: as in the midst of any delivery;
//! - between the last settle of a partition and its release: the partition is free when the lease lapses;
//! - after the release, before its hint: the next owner has it, at its next look.
//!
//! # When the lease lapses and the process lives on
//! The node joins again. What others have taken meanwhile came to them with suspects, for they can't know why this node
//! fell silent. What nobody has taken is taken back without: the process is alive, so whatever it was running has not
//! killed it. That this is so can be told by the epoch alone, see `Flight::end_taking`; a namesake, another process that
//! had the partition in between, and a process that was started again all leave another epoch or have no memory of
//! theirs. Suspects that the node had itself inherited, and not yet dealt with, are suspects still. The database keeps
//! the number of suspects until the partition is released, so if the process dies after all, say by a handler that
//! blocks and could not be dropped, its next owner has suspects as ever. What is given up for this: an event that makes
//! its process stand still for longer than the lease, without killing it, is no longer counted by that process
//! itself, only by others that take it over.
//!
//! # When the database's server crashes
//! Of a store that may give numbers out again after a crash, calls under a lease of before fail as
//! [`Rewound`](StoreErrorKind::Rewound), whoever of the node's loops makes the first. The node forgets everything and joins
//! anew, as after a lapse, and goes on from what is stored. What was running is delivered once more, and no attempt counts.
//! If that comes again and again, it waits longer and longer in between.
//!
//! # When the lease is ended before its time
//! Mostly that is a process that has joined under the same name: the same service, started again before this process was
//! gone, or one that was given the name of another by mistake. If the node joined again at once, the two would end each
//! other's lease in turn, and deliver little in between. So it stands back for as long as a lease lasts, and says why. A
//! database whose clock jumps, and a machine that was put to sleep, look the same from here: they cost that time, too.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use tokio::time::{Duration, Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{backoff::Backoff, shared::Shared};
use crate::{
    domain::{Lease, Owners, Partition, PartitionSet, Scales, Sharer, Standing, share_out},
    port::{Joining, Renewal, StoreError, StoreErrorKind},
};

/// How often a node looks around in company, if renewals are rarer than that.
const GLANCE: Duration = Duration::from_secs(1);
/// The same while others have yet to give up what is its share.
const EXPECTING: Duration = Duration::from_millis(250);
/// Hints lead to no more looks than one in this time.
const HINTED: Duration = Duration::from_millis(50);
/// How soon a taking that found a settle in its way is tried again.
const SOON: Duration = Duration::from_millis(5);
/// How long a hint may take: the lease is more important.
const HINT_WITHIN: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Ownership {
    shared: Arc<Shared>,
    renew_at: Instant,
    rebalance_at: Instant,
    glance_at: Instant,
    looked_at: Instant,
    /// Whether other nodes are there.
    in_company: bool,
    /// What is given up, and since when.
    leaving: BTreeMap<Partition, Instant>,
    /// Since when partitions lie free.
    free_since: Box<[Option<Instant>; Partition::COUNT]>,
    /// Until then nothing is given up for the sake of even shares: somebody does not take what is his.
    keep_until: Instant,
    scales: Scales,
    /// What was published last.
    standing: Standing,
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
            looked_at: now,
            in_company: false,
            leaving: BTreeMap::new(),
            free_since: Box::new([None; Partition::COUNT]),
            keep_until: now,
            scales: Scales::default(),
            standing: Standing::default(),
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
                biased;
                () = stop.cancelled() => return,
                () = shared.own.notified() => {}
                () = sleep_until(deadline.map_or(wake_at, |deadline| wake_at.min(deadline))) => {}
            }
        }
    }

    /// Does whatever is due now, and says when the next thing will be.
    pub(crate) async fn run_once(&mut self) -> Result<Instant, StoreError> {
        let held = self.shared.flight.lock().owned.held();
        if let Some((lease, deadline)) = &held
            && Instant::now() >= *deadline
        {
            self.shared.lose_lease(lease, "the lease was not renewed in time");
        }
        let (lease, deadline) = match held.filter(|(_, deadline)| Instant::now() < *deadline) {
            Some(held) => held,
            None if self.shared.is_departing() => return Ok(Instant::now() + self.shared.settings.stale_after),
            None => match self.stands_back() {
                Some(until) => return Ok(until),
                None => self.join().await?,
            },
        };
        // A call that hangs must not outlive the lease unnoticed.
        if let Ok(done) = timeout_at(deadline, self.tend(&lease)).await {
            return done.inspect_err(|error| self.shared.notice(&lease, error));
        }
        self.shared.lose_lease(&lease, "the database did not answer before the lease ran out");
        Err(StoreError::new(StoreErrorKind::Unavailable, "the database did not answer in time"))
    }

    /// Until when the node must not join, because another of its name has ended its lease.
    fn stands_back(&self) -> Option<Instant> {
        let mut until = self.shared.stand_back_until.lock();
        until.take_if(|until| Instant::now() >= *until);
        *until
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
        self.leaving.clear();
        self.free_since.fill(None);
        self.standing = Standing::default();
        self.renew_at = sent;
        Ok((lease, deadline))
    }

    async fn tend(&mut self, lease: &Lease) -> Result<Instant, StoreError> {
        let departing = self.shared.is_departing();
        if departing {
            self.depart(lease).await?;
        }
        let now = Instant::now();
        let hinted = self.shared.look_around.load(Ordering::Acquire);
        if now >= self.look_at(hinted) {
            self.shared.look_around.store(false, Ordering::Release);
            let Some(renewal) = self.look(lease).await? else {
                return Ok(self.lost(lease, "its lease was gone at a renewal"));
            };
            if !departing && !self.share(lease, &renewal).await? {
                // A settle that stores a mark is under way: look again when it is over.
                self.renew_at = Instant::now() + SOON;
            }
        }
        if !self.leaving.is_empty() {
            self.hand_over(lease, departing).await?;
        }
        let next = self.look_at(self.shared.look_around.load(Ordering::Acquire));
        // With a time of zero, too, there is a moment between two looks at what can't be handed over yet.
        let patience = self.shared.settings.drain_timeout.max(SOON);
        // None for who waits for ever.
        let overdue = self.leaving.values().min().and_then(|since| since.checked_add(patience));
        Ok(overdue.filter(|_| !departing).map_or(next, |overdue| next.min(overdue)))
    }

    /// When to look around next.
    fn look_at(&self, hinted: bool) -> Instant {
        let glance = self.in_company.then_some(self.glance_at);
        let hint = hinted.then_some(self.looked_at + HINTED);
        glance.into_iter().chain(hint).fold(self.renew_at, Instant::min)
    }

    /// Renews the lease, sees who is there, and expels whom it finds lapsed. `None` when the lease is gone.
    async fn look(&mut self, lease: &Lease) -> Result<Option<Renewal>, StoreError> {
        let Some(mut renewal) = self.renew(lease).await? else {
            return Ok(None);
        };
        if renewal.nodes.iter().any(|node| !node.live) {
            let Some(expelled) = self.shared.store.expel(lease).await? else {
                return Ok(None);
            };
            for node in &expelled {
                tracing::warn!(%node, "a node whose lease had lapsed was expelled");
            }
            if !expelled.is_empty() {
                let Some(after) = self.renew(lease).await? else {
                    return Ok(None);
                };
                renewal = after;
            }
        }
        let shared = &self.shared;
        let in_company = renewal.nodes.iter().any(|node| node.node != lease.node);
        let met = in_company && !self.in_company;
        self.in_company = in_company;
        let live: Vec<_> = renewal.nodes.iter().filter(|node| node.live).collect();
        #[expect(clippy::cast_precision_loss, reason = "nobody runs 2^52 nodes")]
        shared.meters.live_nodes.set(live.len() as f64);
        let peers = live.into_iter().filter(|node| node.node != lease.node);
        *shared.peer_routes.lock() = peers.flat_map(|node| node.routes.iter().cloned()).collect();
        if met {
            // Who was alone until now looks around with its heartbeat alone.
            self.hint().await;
        }
        Ok(Some(renewal))
    }

    async fn renew(&mut self, lease: &Lease) -> Result<Option<Renewal>, StoreError> {
        let shared = &self.shared;
        // The deadline counts from before the call: the database's own count begins later.
        let sent = Instant::now();
        let Some(renewal) = shared.store.renew(lease, shared.settings.stale_after).await? else {
            return Ok(None);
        };
        shared.flight.lock().owned.renewed(lease, sent + shared.settings.stale_after);
        self.renew_at = sent + shared.settings.heartbeat;
        self.glance_at = sent + GLANCE.min(shared.settings.heartbeat);
        self.looked_at = sent;
        Ok(Some(renewal))
    }

    /// Takes what is free, and at times gives up what is too much. `false` if the taking must wait.
    async fn share(&mut self, lease: &Lease, renewal: &Renewal) -> Result<bool, StoreError> {
        let shared = self.shared.clone();
        let live = renewal.nodes.iter().filter(|node| node.live);
        let sharers: Vec<Sharer> =
            live.map(|node| Sharer { node: node.node.clone(), weight: Standing::read(&node.routes).weight }).collect();
        let share = share_out(&sharers, &renewal.owners).share_of(&lease.node, &renewal.owners);
        if !share.expect.is_empty() {
            self.glance_at = self.glance_at.min(self.looked_at + EXPECTING);
        }

        let known = shared.flight.lock().owned.known();
        // Ours in the database and unknown here: the answer of a take was lost.
        let is_mine = |p: &Partition| renewal.owners[usize::from(p.0)].as_ref() == Some(&lease.node);
        // A release whose answer was lost.
        shared.flight.lock().handed_over(|partition| is_mine(&partition));
        let forgotten = Partition::all().filter(is_mine).filter(|p| !known.contains(*p));
        let left_lying = self.left_lying(&renewal.owners);
        let wanted: PartitionSet = share.take.iter().chain(forgotten).chain(left_lying.iter()).collect();
        if wanted.is_empty() {
            shared.flight.lock().end_taking(Vec::new());
        } else if !self.take(lease, wanted).await? {
            return Ok(false);
        }
        let now = Instant::now();
        if now >= self.rebalance_at {
            self.rebalance_at = now + shared.settings.rebalance_every;
            if self.in_company {
                self.weigh(lease, renewal).await?;
            }
            if now >= self.keep_until {
                self.give_up(share.release);
            }
        }
        shared.measure_owned();
        Ok(true)
    }

    /// Partitions that have been free for so long that whoever should have them will not take them now.
    fn left_lying(&mut self, owners: &Owners) -> PartitionSet {
        let now = Instant::now();
        let patience = self.shared.settings.heartbeat * 2;
        let mut left = PartitionSet::EMPTY;
        for (partition, since) in Partition::all().zip(self.free_since.iter_mut()) {
            if owners[usize::from(partition.0)].is_some() {
                *since = None;
            } else if now >= *since.get_or_insert(now) + patience {
                left.insert(partition);
            }
        }
        if !left.is_empty() {
            self.keep_until = now + self.shared.settings.stale_after;
        }
        left
    }

    /// Tells the others how busy this node is, and how much of the whole it wants.
    async fn weigh(&mut self, lease: &Lease, renewal: &Renewal) -> Result<(), StoreError> {
        let load = self.shared.flight.lock().take_load(self.shared.settings.workers);
        let others = renewal.nodes.iter().filter(|node| node.live && node.node != lease.node);
        // Who lacks a route would only put off what it is given.
        let routes = self.shared.routes.names();
        let mut able = others.filter(|node| routes.iter().all(|route| node.routes.contains(route)));
        let another_idles = able.any(|node| Standing::read(&node.routes).idle);
        let standing = self.scales.look(load, another_idles);
        if standing.weight < self.standing.weight {
            tracing::info!(node = %lease.node, weight = standing.weight, of = Standing::FULL, "the node stays saturated while others idle, and gives partitions away");
        }
        self.publish(lease, standing).await
    }

    async fn publish(&mut self, lease: &Lease, standing: Standing) -> Result<(), StoreError> {
        if standing == self.standing {
            return Ok(());
        }
        let mut published = self.shared.routes.names();
        published.extend(standing.notes());
        if self.shared.store.publish(lease, &published).await?.is_none() {
            self.lost(lease, "its lease was gone when it published something");
        }
        self.standing = standing;
        Ok(())
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

    /// The outbox shuts down: nothing is wanted any more, and everything is given up.
    async fn depart(&mut self, lease: &Lease) -> Result<(), StoreError> {
        let known = self.shared.flight.lock().owned.known();
        self.give_up(known);
        if self.in_company && self.standing != Standing::LEAVING {
            self.publish(lease, Standing::LEAVING).await?;
            self.hint().await;
        }
        Ok(())
    }

    /// Starts nothing more in these partitions.
    fn give_up(&mut self, partitions: PartitionSet) {
        let now = Instant::now();
        let mut flight = self.shared.flight.lock();
        for partition in partitions.iter() {
            flight.leave(partition);
            self.leaving.entry(partition).or_insert(now);
        }
    }

    /// Hands over the leaving partitions whose deliveries have settled.
    async fn hand_over(&mut self, lease: &Lease, departing: bool) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        if !departing {
            self.evict_overdue();
        }
        let (released, mark, quiet) = {
            let mut flight = shared.flight.lock();
            let quiet: PartitionSet = self.leaving.keys().copied().filter(|p| flight.is_quiet(*p)).collect();
            if quiet.is_empty() {
                // A hold may wait for a settle that nothing else asks for.
                shared.outcomes.notify_one();
                return Ok(());
            }
            let (released, mark) = flight.give_up(quiet, shared.settings.in_flight_bound());
            (released, mark, quiet)
        };
        // Whoever waits for the settle of something that was interrupted.
        shared.settled.notify_waiters();
        // Forgotten here before it is released there. After an error the next renewal shows whether it is still
        // this node's: then it is taken again, from where it began. A second release would not know what was
        // waiting at the first, so a node that leaves, and takes nothing more, keeps what the first one said.
        self.leaving.retain(|partition, _| !quiet.contains(*partition));
        match shared.store.release(lease, &released, mark).await {
            Ok(Some(())) => {}
            Ok(None) => {
                self.lost(lease, "its lease was gone at a release");
                return Ok(());
            }
            Err(error) => {
                if departing {
                    shared.unreleased.lock().push((released, mark));
                }
                return Err(error);
            }
        }
        shared.flight.lock().handed_over(|partition| !quiet.contains(partition));
        shared.measure_owned();
        tracing::info!(node = %lease.node, partitions = quiet.len(), "partitions were handed over");
        if self.in_company {
            self.hint().await;
        }
        Ok(())
    }

    /// Makes the others look around. Whoever does not hear it looks by itself.
    async fn hint(&self) {
        let _ = timeout(HINT_WITHIN, self.shared.store.hint_fleet()).await;
    }

    /// Interrupts what still runs in partitions that should have been handed over by now.
    fn evict_overdue(&mut self) {
        let now = Instant::now();
        let limit = self.shared.settings.drain_timeout;
        let mut flight = self.shared.flight.lock();
        let is_over = |since: &Instant| since.checked_add(limit).is_some_and(|over| now >= over);
        let overdue = self.leaving.iter_mut().filter(|(_, since)| is_over(since));
        let mut evicted = false;
        for (partition, since) in overdue {
            *since = now;
            if flight.evict(*partition) {
                evicted = true;
                tracing::warn!(%partition, ?limit, "a delivery still runs in a partition that is handed over: it is dropped, and no attempt counts");
            }
        }
        drop(flight);
        if evicted {
            self.shared.evicted.notify_waiters();
            self.shared.outcomes.notify_one();
        }
    }

    fn lost(&self, lease: &Lease, why: &str) -> Instant {
        self.shared.lose_lease(lease, why);
        Instant::now()
    }
}
