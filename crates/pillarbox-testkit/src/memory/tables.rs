//! The tables, and the indexes that keep reads from touching finished rows.

use std::collections::{BTreeMap, BTreeSet};

use pillarbox_core::{
    domain::{Epoch, Event, EventId, Key, NodeId, Partition, Record, Seq, Status, Timestamp},
    port::{Action, HoldKind, Row},
};
use rustc_hash::FxHashMap;

use super::{own::Node, settle::Watch};

/// A row of the table of events.
#[derive(Clone)]
pub(super) struct Stored {
    pub(super) seq: Seq,
    pub(super) partition: Partition,
    pub(super) event: Event,
    pub(super) status: Status,
    pub(super) attempts: u32,
    pub(super) starts: u32,
    pub(super) progress: Option<Box<str>>,
    pub(super) available_at: Option<Timestamp>,
    pub(super) created_at: Timestamp,
    pub(super) done_at: Option<Timestamp>,
    pub(super) last_error: Option<String>,
    pub(super) broken: Option<String>,
}

impl Stored {
    pub(super) fn key(&self) -> Option<&Key> {
        self.event.key()
    }

    /// Whether it may be delivered at this time, as far as the row tells.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.status.is_pending() && self.available_at.is_none_or(|due| due <= now)
    }

    pub(super) fn record(&self) -> Result<Record, String> {
        match &self.broken {
            Some(reason) => Err(reason.clone()),
            None => Ok(Record {
                seq: self.seq,
                partition: self.partition,
                event: self.event.clone(),
                attempts: self.attempts,
                starts: self.starts,
                progress: self.progress.clone(),
                created_at: self.created_at,
            }),
        }
    }

    pub(super) fn row(&self) -> Row {
        match self.record() {
            Ok(record) => Row::Event(record),
            Err(reason) => Row::Broken { seq: self.seq, partition: self.partition, key: self.key().cloned(), reason },
        }
    }
}

/// A row of the table of partitions.
#[derive(Clone)]
pub(super) struct Owned {
    pub(super) owner: Option<NodeId>,
    pub(super) epoch: Epoch,
    pub(super) mark: Seq,
    pub(super) suspects: u32,
}

/// A row of the table of dedup keys.
pub(super) struct Entered {
    pub(super) id: EventId,
    pub(super) expires_at: Timestamp,
    // Its transaction is open.
    pub(super) pending: bool,
}

/// Everything the database holds.
pub(super) struct Tables {
    // The last number given out, and the lowest of each transaction that is still open.
    last: Seq,
    open: BTreeSet<Seq>,
    rows: BTreeMap<Seq, Stored>,
    // NEW without a due time: what pages read.
    fresh: BTreeSet<Seq>,
    // Pending with a due time.
    due: BTreeSet<(Timestamp, Seq)>,
    // Pending, by partition and by key.
    pending: Vec<BTreeSet<Seq>>,
    lanes: FxHashMap<(Partition, Key), BTreeSet<Seq>>,
    // DONE and DEAD: what a purge reads.
    finished: BTreeSet<Seq>,
    pub(super) holds: BTreeMap<(Partition, Key), (HoldKind, Seq)>,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) incarnations: i64,
    pub(super) partitions: Vec<Owned>,
    pub(super) actions: Vec<Action>,
    pub(super) last_action: i64,
    pub(super) keys: FxHashMap<Box<str>, Entered>,
    user_rows: BTreeMap<String, Vec<String>>,
    pub(super) watch: Option<Watch>,
}

impl Default for Tables {
    fn default() -> Self {
        let free = Owned { owner: None, epoch: Epoch(0), mark: Seq(0), suspects: 0 };
        Self {
            last: Seq(0),
            open: BTreeSet::new(),
            rows: BTreeMap::new(),
            fresh: BTreeSet::new(),
            due: BTreeSet::new(),
            pending: vec![BTreeSet::new(); Partition::COUNT],
            lanes: FxHashMap::default(),
            finished: BTreeSet::new(),
            holds: BTreeMap::new(),
            nodes: BTreeMap::new(),
            incarnations: 0,
            partitions: vec![free; Partition::COUNT],
            actions: Vec::new(),
            last_action: 0,
            keys: FxHashMap::default(),
            user_rows: BTreeMap::new(),
            watch: None,
        }
    }
}

impl Tables {
    /// The next number, as a sequence gives it: for good, whatever becomes of the transaction.
    pub(super) fn next_seq(&mut self) -> Seq {
        self.last.0 += 1;
        self.last
    }

    /// Notes that a transaction is open whose lowest number is this.
    pub(super) fn open(&mut self, first: Seq) {
        self.open.insert(first);
    }

    /// Notes that it has ended, either way.
    pub(super) fn close(&mut self, first: Seq) {
        self.open.remove(&first);
    }

    /// Nothing at or below this number can still become visible.
    pub(super) fn low_water(&self) -> Seq {
        self.open.first().map_or(self.last, |lowest| Seq(lowest.0 - 1))
    }

    pub(super) fn insert(&mut self, row: Stored) {
        self.index(&row);
        self.rows.insert(row.seq, row);
    }

    pub(super) fn remove(&mut self, seq: Seq) -> Option<Stored> {
        let row = self.rows.remove(&seq)?;
        self.unindex(&row);
        Some(row)
    }

    /// Changes a row; says whether it is there.
    pub(super) fn update(&mut self, seq: Seq, change: impl FnOnce(&mut Stored)) -> bool {
        let Some(mut row) = self.remove(seq) else {
            return false;
        };
        change(&mut row);
        self.insert(row);
        true
    }

    pub(super) fn row(&self, seq: Seq) -> Option<&Stored> {
        self.rows.get(&seq)
    }

    pub(super) fn rows_from(&self, from: Seq) -> impl Iterator<Item = &Stored> {
        self.rows.range(from..).map(|(_, row)| row)
    }

    pub(super) fn rows_down(&self, from: Seq) -> impl Iterator<Item = &Stored> {
        self.rows.range(..=from).rev().map(|(_, row)| row)
    }

    /// The NEW rows without a due time above a number.
    pub(super) fn fresh_after(&self, after: Seq) -> impl Iterator<Item = &Stored> {
        self.fresh.range(Seq(after.0.saturating_add(1))..).map(|seq| &self.rows[seq])
    }

    /// The pending rows with a due time, by that time.
    pub(super) fn by_due_time(&self) -> impl Iterator<Item = (Timestamp, &Stored)> {
        self.due.iter().map(|(due, seq)| (*due, &self.rows[seq]))
    }

    /// The pending rows of a partition.
    pub(super) fn pending(&self, partition: Partition) -> impl DoubleEndedIterator<Item = &Stored> {
        self.pending[usize::from(partition.0)].iter().map(|seq| &self.rows[seq])
    }

    pub(super) fn pending_count(&self, partition: Partition) -> usize {
        self.pending[usize::from(partition.0)].len()
    }

    /// The pending rows of a key from a number on.
    pub(super) fn lane(&self, partition: Partition, key: &Key, from: Seq) -> impl Iterator<Item = &Stored> {
        let lane = self.lanes.get(&(partition, key.clone()));
        lane.into_iter().flat_map(move |lane| lane.range(from..)).map(|seq| &self.rows[seq])
    }

    /// The DONE and DEAD rows above a number.
    pub(super) fn finished_after(&self, after: Seq) -> impl Iterator<Item = &Stored> {
        self.finished.range(Seq(after.0.saturating_add(1))..).map(|seq| &self.rows[seq])
    }

    /// Whether the row's key is held because of it.
    pub(super) fn holds_key(&self, row: &Stored) -> bool {
        row.key()
            .is_some_and(|key| self.holds.get(&(row.partition, key.clone())) == Some(&(HoldKind::DeadHead, row.seq)))
    }

    pub(super) fn partition(&mut self, partition: Partition) -> &mut Owned {
        &mut self.partitions[usize::from(partition.0)]
    }

    pub(super) fn put(&mut self, table: String, value: String) {
        self.user_rows.entry(table).or_default().push(value);
    }

    pub(super) fn user_rows(&self, table: &str) -> Vec<String> {
        self.user_rows.get(table).cloned().unwrap_or_default()
    }

    fn index(&mut self, row: &Stored) {
        if !row.status.is_pending() {
            self.finished.insert(row.seq);
            return;
        }
        match row.available_at {
            Some(due) => {
                self.due.insert((due, row.seq));
            }
            None => {
                self.fresh.insert(row.seq);
            }
        }
        self.pending[usize::from(row.partition.0)].insert(row.seq);
        if let Some(key) = row.key() {
            let lane = self.lanes.entry((row.partition, key.clone())).or_default();
            lane.insert(row.seq);
        }
    }

    fn unindex(&mut self, row: &Stored) {
        if !row.status.is_pending() {
            self.finished.remove(&row.seq);
            return;
        }
        match row.available_at {
            Some(due) => self.due.remove(&(due, row.seq)),
            None => self.fresh.remove(&row.seq),
        };
        self.pending[usize::from(row.partition.0)].remove(&row.seq);
        if let Some(key) = row.key() {
            let name = (row.partition, key.clone());
            if let Some(lane) = self.lanes.get_mut(&name) {
                lane.remove(&row.seq);
                if lane.is_empty() {
                    self.lanes.remove(&name);
                }
            }
        }
    }
}
