//! The reader: finds what is due in the node's partitions and brings it to the queues.
//!
//! One task brings all the rows that a node reads, one read after another, so that none overlaps another. Each pass:
//! 1. partitions that were just taken: recall their holds, failing heads and suspects, then activate them;
//! 2. numbers to look up: reserved rows that were passed over, and never confirmed;
//! 3. what has come due: retries, delays, replays, keys that an operator freed;
//! 4. lanes that have run dry;
//! 5. a page above the position.
//!
//! A full page is followed by the next at once; an idle reader backs off, and is woken by a commit in this
//! process, by news from another, by the next due time, and by room in the cold queue and the lanes.
//!
//! Nothing is written here, so a crash between any two steps loses nothing: the next owner begins at the
//! stored mark, which the settler keeps below everything that only this memory knows.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::{Duration, Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    backoff::Backoff,
    flight::{Flight, PlacedRows},
    settings::OnDeadHead,
    shared::Shared,
};
use crate::{
    domain::{PartitionSet, Seq, Timestamp},
    port::{Candidate, Pick, Row, Scan, StoreError},
};

/// How many lanes one pass fetches, and how many numbers it looks up.
const LANES_A_PASS: usize = 64;
const LOOKUPS_A_PASS: usize = 500;

#[derive(Debug)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
    /// When to ask for due rows again, at the next pass after that.
    due_at: Instant,
    /// When a row is known to come due: a pass of its own is worth while.
    known_due: Option<Instant>,
}

/// What a pass found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// More may be there at once.
    More,
    /// Something was found, and nothing more is there now. Ask again at this time at the latest, if one is known.
    Found { until: Option<Instant> },
    /// Nothing was there.
    Idle { until: Option<Instant> },
}

impl Reader {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, due_at: Instant::now(), known_due: None }
    }

    /// Reads until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let settings = &self.shared.settings;
        let mut poll = Backoff::new(settings.poll_min, settings.poll_max);
        let mut trouble = Backoff::new(settings.poll_min, Duration::from_secs(5).max(settings.poll_max));
        let shared = self.shared.clone();
        loop {
            let lease = shared.flight.lock().owned.lease().cloned();
            // Biased, here and below: what runs is then decided by what is ready and by nothing else, and a schedule
            // of the simulation is the same every time.
            let pass = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                pass = self.run_once() => pass,
            };
            let wake_at = match pass {
                Ok(Pass::More) => {
                    poll.reset();
                    trouble.reset();
                    continue;
                }
                Ok(Pass::Found { until }) => {
                    poll.reset();
                    trouble.reset();
                    let at = Instant::now() + poll.next();
                    until.map_or(at, |until| at.min(until))
                }
                Ok(Pass::Idle { until }) => {
                    trouble.reset();
                    let at = Instant::now() + poll.next();
                    until.map_or(at, |until| at.min(until))
                }
                Err(error) => {
                    shared.meters.loop_errors.increment(1);
                    tracing::error!(error = &error as &dyn std::error::Error, "reading failed and is tried again");
                    if let Some(lease) = &lease {
                        shared.notice(lease, &error);
                    }
                    let wait = trouble.next();
                    // A bell would only lead to the next failure.
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(wait) => continue,
                    }
                }
            };
            let is_called = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = shared.read.notified() => true,
                () = sleep_until(wake_at) => false,
            };
            if is_called {
                poll.reset();
            }
        }
    }

    /// One pass. After an error nothing is lost: what was not placed is read again.
    pub(crate) async fn run_once(&mut self) -> Result<Pass, StoreError> {
        self.activate_gained().await?;
        let (active, room) = {
            let mut flight = self.shared.flight.lock();
            (flight.owned.active(), flight.room())
        };
        if active.is_empty() {
            return Ok(Pass::Idle { until: None });
        }
        let reservations_end = self.look_up().await?;
        if room == 0 {
            // Woken by the workers when there is room. The reservations are looked after meanwhile.
            return Ok(Pass::Idle { until: reservations_end });
        }
        let mut found = false;
        if let Some(due) = self.shared.flight.lock().take_next_due() {
            self.due_at = self.due_at.min(due);
            self.known_due = Some(self.known_due.map_or(due, |known| known.min(due)));
        }
        if self.due_at <= Instant::now() {
            found |= self.read_due(active, room).await?;
        }
        found |= self.fetch_lanes().await?;
        let room = self.shared.flight.lock().room();
        let more = if room == 0 { false } else { self.read_page(active, room, &mut found).await? };
        if more || self.shared.flight.lock().has_lanes_to_fetch() {
            return Ok(Pass::More);
        }
        let until = [reservations_end, self.known_due].into_iter().flatten().min();
        Ok(if found { Pass::Found { until } } else { Pass::Idle { until } })
    }

    async fn activate_gained(&mut self) -> Result<(), StoreError> {
        let gained = self.shared.flight.lock().owned.gained().to_vec();
        if gained.is_empty() {
            return Ok(());
        }
        let recall = self.shared.store.recall(&gained).await?;
        if !recall.suspects.is_empty() {
            let suspects = recall.suspects.len();
            tracing::warn!(node = %self.shared.node, suspects, "a node died: what it may have been running is delivered one at a time");
        }
        {
            let mut flight = self.shared.flight.lock();
            // Some may have been lost while the answer was under way.
            let known = flight.owned.gained().to_vec();
            let still: Vec<_> = gained.into_iter().filter(|taken| known.contains(taken)).collect();
            flight.activate(&still, &recall, self.shared.settings.stop_on_first_failure, Instant::now());
            if flight.has_hold_changes() {
                // A settle writes them, whether or not anything is delivered.
                self.shared.outcomes.notify_one();
            }
        }
        self.due_at = Instant::now();
        Ok(())
    }

    async fn look_up(&mut self) -> Result<Option<Instant>, StoreError> {
        let (seqs, reservations_end, signals) = self.shared.flight.lock().lookups(Instant::now(), LOOKUPS_A_PASS);
        self.shared.signal(signals);
        if !seqs.is_empty() {
            let read = Read::begin(&self.shared.flight);
            let rows = self.shared.store.rows(&seqs).await?;
            let found: Vec<_> = rows.iter().map(|row| (row.seq(), row.partition())).collect();
            self.place(rows, self.shared.database_time());
            self.shared.flight.lock().looked_up(&seqs, &found);
            drop(read);
        }
        Ok(reservations_end)
    }

    async fn read_due(&mut self, active: PartitionSet, room: usize) -> Result<bool, StoreError> {
        let shared = self.shared.clone();
        let asked = Instant::now();
        let read = Read::begin_due(&shared.flight);
        let mut sieve = Sieve { flight: &shared.flight, now: None };
        let limit = room.min(shared.settings.page_size);
        let due = shared.store.due(active, limit, &mut sieve).await?;
        let full = due.rows.len() >= limit;
        shared.database_time_is(due.now);
        if !due.freed.is_empty() {
            shared.flight.lock().freed(&due.freed, Instant::now());
        }
        let found = self.place(due.rows, due.now) > 0;
        drop(read);
        // What this node settles is known to come due; what others write or replay is found by polling, with an
        // idle reader's own passes, the shortest of which take three quarters of the longest interval.
        let poll = asked + shared.settings.poll_max.mul_f64(0.75);
        let next = due.next.filter(|next| *next < shared.settings.poll_max).map(|next| asked + next);
        self.due_at = if full { asked } else { next.map_or(poll, |next| next.min(poll)) };
        self.known_due = if full { Some(asked) } else { next };
        Ok(found)
    }

    async fn fetch_lanes(&mut self) -> Result<bool, StoreError> {
        let shared = self.shared.clone();
        let limit = shared.settings.lane_capacity;
        let mut fetches = shared.flight.lock().lanes_to_fetch(LANES_A_PASS).into_iter();
        let mut found = false;
        while let Some(fetch) = fetches.next() {
            let read = Read::begin(&shared.flight);
            let rows = match shared.store.lane(fetch.partition, &fetch.key, fetch.from, limit).await {
                Ok(rows) => rows,
                Err(error) => {
                    let mut flight = shared.flight.lock();
                    flight.lane_fetch_failed(fetch.key);
                    fetches.for_each(|fetch| flight.lane_fetch_failed(fetch.key));
                    return Err(error);
                }
            };
            let beyond = rows.last().filter(|_| rows.len() >= limit).map(|last| Seq(last.seq().0 + 1));
            found |= !rows.is_empty();
            let hold = shared.settings.on_dead_head == OnDeadHead::Hold;
            let now = shared.database_time();
            // Behind one lock: the partition may be given up between any two.
            let placed = shared.flight.lock().place_lane(&fetch, beyond, rows, Instant::now(), now, hold);
            self.placed(placed);
            drop(read);
        }
        Ok(found)
    }

    async fn read_page(&mut self, active: PartitionSet, room: usize, found: &mut bool) -> Result<bool, StoreError> {
        let shared = self.shared.clone();
        let after = {
            let flight = shared.flight.lock();
            // The lease was lost since this pass began. There is no position now, and what a store would make of none
            // must not be kept: the next position would go on from its token.
            if flight.owned.active().is_empty() {
                return Ok(false);
            }
            flight.position().clone()
        };
        let limit = room.min(shared.settings.page_size);
        let scan = Scan { partitions: active, after: &after, limit, skip_recent: shared.settings.skip_recent };
        let read = Read::begin_page(&shared.flight);
        let mut sieve = PageSieve { flight: &shared.flight, now: None };
        let page = shared.store.page(scan, &mut sieve).await?;
        shared.database_time_is(page.now);
        let rows = shared.flight.lock().with_shown(page.rows);
        let ready = self.place(rows, page.now);
        let (confirmed, signals) = {
            let mut flight = shared.flight.lock();
            // Partitions that were activated or lost meanwhile have moved the position.
            if *flight.position() == after {
                flight.advance(page.position);
            }
            flight.page_is_read(!page.more, Instant::now())
        };
        shared.confirmed(confirmed, signals);
        drop(read);
        *found |= ready > 0;
        Ok(page.more)
    }

    /// Brings rows to the queues and lanes; those that can't be decoded go DEAD. Returns how many were found.
    fn place(&self, rows: Vec<Row>, database_now: Timestamp) -> usize {
        if rows.is_empty() {
            return 0;
        }
        let shared = &self.shared;
        let count = rows.len();
        let hold = shared.settings.on_dead_head == OnDeadHead::Hold;
        let placed = shared.flight.lock().place(rows, Instant::now(), database_now, hold);
        self.placed(placed);
        count
    }

    /// Tells of what was placed.
    fn placed(&self, placed: PlacedRows) {
        let shared = &self.shared;
        shared.meters.cold_enqueued.increment(placed.ready);
        for (seq, error) in placed.broken {
            tracing::error!(%seq, error, "the event is dead: its row can't be decoded");
            shared.meters.dead.increment(1);
        }
        shared.signal(placed.signals);
    }
}

/// Asks the node's memory about each candidate. To all of a read it is the time of the first one: to look at the clock takes
/// about as long as the rest of the question.
struct Sieve<'a> {
    flight: &'a Mutex<Flight>,
    now: Option<Instant>,
}

impl Pick for Sieve<'_> {
    fn pick(&mut self, candidate: Candidate<'_>) -> bool {
        self.flight.lock().wants(candidate, *self.now.get_or_insert_with(Instant::now))
    }
}

/// The same for the rows of a page, some of which need not be read.
struct PageSieve<'a> {
    flight: &'a Mutex<Flight>,
    now: Option<Instant>,
}

impl Pick for PageSieve<'_> {
    fn pick(&mut self, candidate: Candidate<'_>) -> bool {
        self.flight.lock().wants_of_page(candidate, *self.now.get_or_insert_with(Instant::now))
    }

    fn again(&mut self) {
        self.now = None;
        self.flight.lock().page_begins_again();
    }
}

/// A read under way: as long as it lives, settled numbers stay as tombstones.
struct Read<'a>(&'a Mutex<Flight>);

impl<'a> Read<'a> {
    fn begin(flight: &'a Mutex<Flight>) -> Self {
        flight.lock().begin_read();
        Self(flight)
    }

    fn begin_page(flight: &'a Mutex<Flight>) -> Self {
        flight.lock().begin_page();
        Self(flight)
    }

    fn begin_due(flight: &'a Mutex<Flight>) -> Self {
        flight.lock().begin_read_due();
        Self(flight)
    }
}

impl Drop for Read<'_> {
    fn drop(&mut self) {
        self.0.lock().end_read();
    }
}
