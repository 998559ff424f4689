//! The workers' side: drawing jobs and ending deliveries.

use tokio::time::Instant;

use super::{Entry, Flight, Job, Signals, State, Then};
use crate::{
    domain::{Delivery, Load, Seq},
    port::{Change, Settlement},
};

/// How a delivery ended, for the table and for the key.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) change: Change,
    pub(crate) then: Then,
}

impl Flight {
    /// The next job of a worker. Jobs of partitions that are gone are dropped on the way.
    pub(crate) fn draw(&mut self, now: Instant) -> (Option<Job>, Signals) {
        let mut signals = Signals::default();
        if self.outcomes.len() >= self.unsettled_limit || !self.owned.may_deliver(now) {
            return (None, signals);
        }
        let job = loop {
            let Some(job) = self.queues.draw() else { break None };
            if self.begin(&job) {
                break Some(job);
            }
        };
        signals.reader = self.has_room_again();
        (job, signals)
    }

    /// What a worker that has drawn a job takes along, up to `most` where `takes` says so. With `share`, it leaves as much
    /// to each worker that has nothing to do.
    pub(crate) fn draw_along(
        &mut self,
        most: usize,
        share: bool,
        now: Instant,
        takes: impl FnMut(&Job) -> bool,
    ) -> (Vec<Job>, Signals) {
        let mut signals = Signals::default();
        if self.outcomes.len() >= self.unsettled_limit || !self.owned.may_deliver(now) {
            return (Vec::new(), signals);
        }
        let fair = self.queues.waiting().div_ceil(if share { self.idle_workers + 1 } else { 1 });
        let mut along = self.queues.draw_along(most.min(fair), takes);
        along.retain(|job| self.begin(job));
        signals.reader = self.has_room_again();
        (along, signals)
    }

    /// Takes a job back that its worker has not begun: any other may draw it.
    pub(crate) fn take_back(&mut self, job: Job, signals: &mut Signals) {
        if !self.is_running(&job.delivery) {
            return;
        }
        let (seq, partition) = (job.delivery.seq(), job.delivery.record().partition);
        if let Some(entry) = self.entries.get_mut(&seq) {
            entry.state = State::Waiting;
            self.busy[usize::from(partition.0)] -= 1;
            self.queues.take_back(job);
            signals.workers += 1;
        }
    }

    /// The next suspect.
    pub(crate) fn draw_solo(&mut self, now: Instant) -> Option<Job> {
        if !self.owned.may_deliver(now) {
            return None;
        }
        loop {
            let job = self.queues.draw_solo()?;
            if self.begin(&job) {
                return Some(job);
            }
        }
    }

    fn begin(&mut self, job: &Job) -> bool {
        let (seq, partition, epoch) =
            (job.delivery.seq(), job.delivery.record().partition, job.delivery.fencing_token());
        let Some(entry) = self.entries.get_mut(&seq).filter(|entry| entry.epoch == epoch) else {
            return false;
        };
        if entry.state != State::Waiting || self.owned.active_epoch(partition) != Some(epoch) {
            return false;
        }
        entry.state = State::Running;
        self.busy[usize::from(partition.0)] += 1;
        true
    }

    /// A delivery has ended. `None` if the node has lost the partition meanwhile: the outcome is stale.
    pub(crate) fn answer(&mut self, delivery: &Delivery, end: End, now: Instant) -> Option<Signals> {
        let (seq, partition, epoch) = (delivery.seq(), delivery.record().partition, delivery.fencing_token());
        let entry = self.entries.get_mut(&seq).filter(|entry| entry.epoch == epoch)?;
        if entry.state != State::Running {
            return None;
        }
        entry.state = State::Unsettled;
        self.suspects.remove(&seq);
        let key = delivery.event().key();
        self.outcomes.push(Settlement { seq, partition, epoch, key: key.cloned(), change: end.change });
        let mut signals = Signals {
            settler: self.outcomes.len() == 1,
            full_batch: self.outcomes.len() == self.settle_batch,
            ..Signals::default()
        };
        self.finish(delivery, end.then, now, &mut signals);
        Some(signals)
    }

    /// What the end of a delivery means for its key.
    pub(super) fn finish(&mut self, delivery: &Delivery, then: Then, now: Instant, signals: &mut Signals) {
        if let Some(key) = delivery.event().key() {
            let finished = self.lanes.finish(key, delivery.seq(), then, now);
            for spilled in finished.spilled {
                self.entries.remove(&spilled);
            }
            if let Some(next) = finished.next {
                self.enqueue(next, signals);
            }
            signals.reader |= self.lanes.is_waiting();
        }
        signals.workers = signals.workers.min(self.idle_workers);
    }

    /// Whether a delivery is still with its worker, and its partition with this node.
    pub(crate) fn is_running(&self, delivery: &Delivery) -> bool {
        let entry = self.entries.get(&delivery.seq());
        entry.is_some_and(|entry| entry.epoch == delivery.fencing_token() && entry.state == State::Running)
    }

    /// An event whose start could not be counted is a suspect still, when it is due again.
    pub(crate) fn suspect(&mut self, seq: Seq) {
        if self.entries.contains_key(&seq) {
            self.suspects.insert(seq);
        }
    }

    /// A worker goes to sleep, or wakes.
    pub(crate) fn set_idle(&mut self, idle: bool) {
        if idle {
            self.paused = true;
            self.idle_workers += 1;
        } else {
            self.idle_workers -= 1;
        }
    }

    pub(crate) fn has_idle_workers(&self) -> bool {
        self.idle_workers > self.queues.waiting()
    }

    /// How busy the workers were since the last call.
    pub(crate) fn take_load(&mut self, workers: usize) -> Load {
        let paused = std::mem::take(&mut self.paused) || self.idle_workers > 0;
        let waiting = self.queues.waiting();
        if !paused && waiting > 0 {
            Load::Saturated
        } else if waiting == 0 && self.idle_workers * 2 >= workers {
            Load::Idle
        } else {
            Load::Busy
        }
    }

    /// Interrupts what a worker did not finish: no attempt counts.
    pub(crate) fn interrupted(&mut self, delivery: &Delivery, started: bool) {
        let (seq, epoch) = (delivery.seq(), delivery.fencing_token());
        let Some(entry) = self.entries.get(&seq).filter(|entry| entry.epoch == epoch) else {
            return;
        };
        if entry.state != State::Running {
            return;
        }
        let partition = entry.partition;
        self.busy[usize::from(partition.0)] -= 1;
        // It still waits for its delivery, and the position that is handed on must not pass it.
        self.entries.insert(seq, Entry { partition, epoch, state: State::Waiting });
        if started {
            // It was counted as a suspect's start, and must not look like a crash.
            let key = delivery.event().key().cloned();
            self.outcomes.push(Settlement { seq, partition, epoch, key, change: Change::Interrupted });
        }
    }
}
