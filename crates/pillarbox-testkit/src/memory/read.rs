//! Reading.

use std::collections::BTreeSet;

use pillarbox_core::{
    domain::{Key, Lease, Partition, PartitionSet, Seq, Status, Timestamp},
    port::{
        Batch, BoxFuture, Candidate, Due, Hold, HoldKind, Page, Pick, Position, ReadStore, Recall, Row, Scan, Settled,
        StoreError, Taken,
    },
};
use rustc_hash::FxHashSet;

use super::{
    MemoryStore,
    settle::Guards,
    tables::{Stored, Tables},
};

fn candidate(row: &Stored) -> Candidate<'_> {
    Candidate { seq: row.seq, partition: row.partition, key: row.key().map(Key::as_str) }
}

impl Tables {
    fn page(&self, scan: &Scan<'_>, pick: &mut dyn Pick, now: Timestamp) -> Page {
        let start = scan.after.seq;
        let mut mark = self.low_water();
        let mut rows = Vec::new();
        let mut more = false;
        for row in self.fresh_after(start) {
            if rows.len() >= scan.limit {
                more = true;
                mark = mark.min(Seq(row.seq.0 - 1));
                break;
            }
            if !scan.partitions.contains(row.partition) {
                continue;
            }
            if now.since(row.created_at) < scan.skip_recent {
                // It is to be found later, so the mark stays below it.
                mark = mark.min(Seq(row.seq.0 - 1));
                continue;
            }
            if pick.pick(candidate(row)) {
                rows.push(row.row());
            }
        }
        Page { rows, position: Position::at(mark.max(start)), more, now }
    }

    fn due(&self, partitions: PartitionSet, limit: usize, pick: &mut dyn Pick, now: Timestamp) -> Due {
        let mut rows = Vec::new();
        let mut next = None;
        for (due, row) in self.by_due_time() {
            if !partitions.contains(row.partition) {
                continue;
            }
            if due > now || rows.len() >= limit {
                next = Some(due.since(now));
                break;
            }
            if pick.pick(candidate(row)) {
                rows.push(row.row());
            }
        }
        let freed = self.holds_in(|partition| partitions.contains(partition));
        Due { rows, freed: freed.filter(|hold| hold.kind == HoldKind::Overflow).collect(), next, now }
    }

    fn recall(&self, taken: &[Taken], now: Timestamp) -> Recall {
        let partitions: PartitionSet = taken.iter().map(|taken| taken.partition).collect();
        let mut recall =
            Recall { holds: self.holds_in(|partition| partitions.contains(partition)).collect(), ..Recall::default() };
        for partition in partitions.iter() {
            for row in self.pending(partition).filter(|row| row.status == Status::Retry) {
                if let Some(key) = row.key() {
                    recall.failing.push((partition, key.clone(), row.seq));
                }
            }
        }
        for taken in taken.iter().filter(|taken| taken.suspects > 0) {
            recall.suspects.extend(self.suspects(taken, now));
        }
        recall
    }

    /// The oldest and the newest rows that may have been running; what is not yet due was not.
    fn suspects(&self, taken: &Taken, now: Timestamp) -> BTreeSet<Seq> {
        let many = usize::try_from(taken.suspects).unwrap_or(usize::MAX);
        let due = |row: &&Stored| row.is_due(now);
        let mut keys = FxHashSet::default();
        let heads = self.pending(taken.partition).filter(due);
        let heads = heads.filter(|row| row.key().is_none_or(|key| keys.insert(key)));
        let newest = self.pending(taken.partition).rev().filter(due);
        heads.take(many).chain(newest.take(many)).map(|row| row.seq).collect()
    }

    fn holds_in(&self, wanted: impl Fn(Partition) -> bool) -> impl Iterator<Item = Hold> {
        let holds = self.holds.iter().filter(move |((partition, _), _)| wanted(*partition));
        holds.map(|((partition, key), (kind, from))| Hold {
            partition: *partition,
            key: key.clone(),
            kind: *kind,
            from: *from,
        })
    }
}

// The owner's word is asked under the lock of the tables: it must not call the store.
impl ReadStore for MemoryStore {
    fn page<'a>(&'a self, scan: Scan<'a>, pick: &'a mut dyn Pick) -> BoxFuture<'a, Result<Page, StoreError>> {
        Box::pin(async move { Ok(self.run(|tables, now| tables.page(&scan, pick, now)).await) })
    }

    fn due<'a>(
        &'a self,
        partitions: PartitionSet,
        limit: usize,
        pick: &'a mut dyn Pick,
    ) -> BoxFuture<'a, Result<Due, StoreError>> {
        Box::pin(async move { Ok(self.run(|tables, now| tables.due(partitions, limit, pick, now)).await) })
    }

    fn lane<'a>(
        &'a self,
        partition: Partition,
        key: &'a Key,
        from: Seq,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Row>, StoreError>> {
        Box::pin(async move {
            let lane = self.run(|tables, now| {
                let due = tables.lane(partition, key, from).filter(|row| row.is_due(now));
                due.take(limit).map(Stored::row).collect()
            });
            Ok(lane.await)
        })
    }

    fn rows<'a>(&'a self, seqs: &'a [Seq]) -> BoxFuture<'a, Result<Vec<Row>, StoreError>> {
        Box::pin(async move {
            let wanted: BTreeSet<Seq> = seqs.iter().copied().collect();
            let rows = self.run(|tables, now| {
                let rows = wanted.into_iter().filter_map(|seq| tables.row(seq));
                rows.filter(|row| row.is_due(now)).map(Stored::row).collect()
            });
            Ok(rows.await)
        })
    }

    fn recall<'a>(&'a self, taken: &'a [Taken]) -> BoxFuture<'a, Result<Recall, StoreError>> {
        Box::pin(async move { Ok(self.run(|tables, now| tables.recall(taken, now)).await) })
    }

    fn start<'a>(&'a self, lease: &'a Lease, seq: Seq) -> BoxFuture<'a, Result<Option<u32>, StoreError>> {
        Box::pin(async move { Ok(self.run(|tables, now| tables.start(lease, seq, now)).await) })
    }

    fn settle<'a>(&'a self, lease: &'a Lease, batch: &'a Batch) -> BoxFuture<'a, Result<Settled, StoreError>> {
        Box::pin(async move { Ok(self.run(|tables, now| tables.settle(lease, batch, Guards::ALL, now)).await) })
    }
}
