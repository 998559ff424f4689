//! The two bounded queues between those who find events and the workers who deliver them.

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::domain::Delivery;

/// A delivery that waits for a worker.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) delivery: Delivery,
    /// About when its row was inserted, on this process's own clock.
    pub(crate) written: Instant,
}

/// So many jobs are looked at for each that can be taken along.
const LOOKS: usize = 4;

/// Hot: straight from a commit of this process. Cold: read from the table. Solo: suspects, one at a time.
#[derive(Debug)]
pub(crate) struct Queues {
    hot: VecDeque<Job>,
    cold: VecDeque<Job>,
    solo: VecDeque<Job>,
    hot_capacity: usize,
    cold_capacity: usize,
    turn: u8,
}

impl Queues {
    pub(crate) fn new(hot_capacity: usize, cold_capacity: usize) -> Self {
        let empty = VecDeque::new;
        Self { hot: empty(), cold: empty(), solo: empty(), hot_capacity, cold_capacity, turn: 0 }
    }

    /// Takes a hot job, or gives it back when the queue is full.
    pub(crate) fn offer_hot(&mut self, job: Job) -> Result<(), Job> {
        if self.is_hot_full() {
            return Err(job);
        }
        self.hot.push_back(job);
        Ok(())
    }

    pub(crate) fn is_hot_full(&self) -> bool {
        self.hot.len() >= self.hot_capacity
    }

    /// Takes a cold job. The reader asks for room before it reads; a lane's next event needs none, for it
    /// was counted when it was parked.
    pub(crate) fn push_cold(&mut self, job: Job) {
        self.cold.push_back(job);
    }

    pub(crate) fn push_solo(&mut self, job: Job) {
        self.solo.push_back(job);
    }

    /// Two hot, one cold; whichever is empty leaves its turn to the other.
    pub(crate) fn draw(&mut self) -> Option<Job> {
        let hot_first = self.turn < 2;
        self.turn = (self.turn + 1) % 3;
        if hot_first {
            self.hot.pop_front().or_else(|| self.cold.pop_front())
        } else {
            self.cold.pop_front().or_else(|| self.hot.pop_front())
        }
    }

    /// Up to `most` of the jobs that a worker can take along, from the front of both queues, each in its order. It does not
    /// look far: who asks holds the lock.
    pub(crate) fn draw_along(&mut self, most: usize, mut takes: impl FnMut(&Job) -> bool) -> Vec<Job> {
        let mut along = Vec::new();
        for queue in [&mut self.hot, &mut self.cold] {
            let mut others = Vec::new();
            for _ in 0..most.saturating_mul(LOOKS) {
                if along.len() >= most {
                    break;
                }
                let Some(job) = queue.pop_front() else { break };
                if takes(&job) { along.push(job) } else { others.push(job) }
            }
            others.into_iter().rev().for_each(|job| queue.push_front(job));
        }
        along
    }

    /// Takes a job back that a worker has not begun.
    pub(crate) fn take_back(&mut self, job: Job) {
        self.cold.push_front(job);
    }

    pub(crate) fn draw_solo(&mut self) -> Option<Job> {
        self.solo.pop_front()
    }

    /// How many rows the reader may take.
    pub(crate) fn room(&self) -> usize {
        self.cold_capacity.saturating_sub(self.cold.len() + self.solo.len())
    }

    /// Whether the cold queue is worth filling again, with so many that wait behind others.
    pub(crate) fn is_half_empty(&self, behind: usize) -> bool {
        (self.cold.len() + self.solo.len() + behind) * 2 <= self.cold_capacity
    }

    /// Whether nothing that was read waits for a worker.
    pub(crate) fn is_cold_empty(&self) -> bool {
        self.cold.is_empty()
    }

    pub(crate) fn depths(&self) -> (usize, usize) {
        (self.hot.len(), self.cold.len() + self.solo.len())
    }

    pub(crate) fn waiting(&self) -> usize {
        self.hot.len() + self.cold.len()
    }

    pub(crate) fn clear(&mut self) {
        self.hot.clear();
        self.cold.clear();
        self.solo.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Event,
        domain::{Epoch, Partition, Record, Seq, Timestamp},
    };

    fn job(seq: i64) -> Job {
        let record = Record {
            seq: Seq(seq),
            partition: Partition(0),
            event: Event::builder("E").json(&seq).build().unwrap(),
            attempts: 0,
            starts: 0,
            progress: None,
            created_at: Timestamp::default(),
        };
        Job { delivery: Delivery::new(record, Epoch(1)), written: Instant::now() }
    }

    fn drawn(queues: &mut Queues) -> Vec<i64> {
        std::iter::from_fn(|| queues.draw()).map(|job| job.delivery.seq().0).collect()
    }

    #[test]
    fn under_load_two_hot_are_drawn_for_one_cold() {
        let mut queues = Queues::new(100, 100);
        for n in 0..6 {
            queues.offer_hot(job(n)).unwrap();
            queues.push_cold(job(100 + n));
        }
        assert_eq!(drawn(&mut queues), [0, 1, 100, 2, 3, 101, 4, 5, 102, 103, 104, 105]);
    }

    #[test]
    fn what_can_be_taken_along_is_taken_and_the_rest_keeps_its_place() {
        let mut queues = Queues::new(100, 100);
        (0..6).for_each(|n| queues.push_cold(job(n)));
        queues.offer_hot(job(10)).unwrap();
        let along = queues.draw_along(3, |job| job.delivery.seq().0 % 2 == 0);
        assert_eq!(along.iter().map(|job| job.delivery.seq().0).collect::<Vec<_>>(), [10, 0, 2]);
        assert_eq!(drawn(&mut queues), [1, 3, 4, 5]);
        // Not far beyond.
        (0..20).for_each(|n| queues.push_cold(job(n)));
        assert!(queues.draw_along(2, |job| job.delivery.seq().0 > 10).is_empty());
        assert_eq!(drawn(&mut queues).len(), 20);
    }

    #[test]
    fn an_empty_queue_leaves_its_turn_to_the_other() {
        let mut queues = Queues::new(100, 100);
        (0..4).for_each(|n| queues.push_cold(job(n)));
        assert_eq!(drawn(&mut queues), [0, 1, 2, 3]);
        (0..4).for_each(|n| queues.offer_hot(job(n)).unwrap());
        assert_eq!(drawn(&mut queues), [0, 1, 2, 3]);
    }

    #[test]
    fn a_full_hot_queue_gives_the_job_back() {
        let mut queues = Queues::new(1, 1);
        queues.offer_hot(job(1)).unwrap();
        assert_eq!(queues.offer_hot(job(2)).unwrap_err().delivery.seq(), Seq(2));
    }

    #[test]
    fn room_is_what_the_cold_capacity_leaves() {
        let mut queues = Queues::new(1, 3);
        queues.push_cold(job(1));
        queues.push_solo(job(2));
        assert_eq!(queues.room(), 1);
        queues.push_cold(job(3));
        queues.push_cold(job(4));
        assert_eq!(queues.room(), 0);
    }
}
