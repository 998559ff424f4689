//! Without the single snapshot, and with one that is too old.

use parking_lot::Mutex;
use pillarbox_core::{
    domain::{Key, PartitionSet, Seq},
    port::{Candidate, Page, Pick, Position, ReadStore, Scan},
};
use tokio::time::{Duration, Instant};

use crate::{
    MemoryStore,
    proof::{Answer, Layer},
};

/// How often late commits are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(300);

/// Pages go on above the highest number that was seen, and what commits late below it is found by a sweep from time to
/// time. In the product every page is one snapshot of all that lies above the low-water mark. Here a transaction holds
/// the lock of k and has written 10; an unrelated 12 is read; 10 commits, and the next one writes k/13 and commits; the
/// page delivers 13 before the sweep finds 10.
#[derive(Debug)]
pub struct Sweep(Mutex<Seen>);

#[derive(Debug)]
struct Seen {
    partitions: PartitionSet,
    highest: Seq,
    position: Seq,
    sweep_at: Instant,
}

impl Sweep {
    /// Has seen nothing.
    pub fn new() -> Self {
        let (partitions, sweep_at) = (PartitionSet::EMPTY, Instant::now());
        Self(Mutex::new(Seen { partitions, highest: Seq(0), position: Seq(0), sweep_at }))
    }
}

impl Default for Sweep {
    fn default() -> Self {
        Self::new()
    }
}

impl Layer<MemoryStore> for Sweep {
    fn page<'a>(&'a self, store: &'a MemoryStore, scan: Scan<'a>, pick: &'a mut dyn Pick) -> Answer<'a, Page> {
        Box::pin(async move {
            let (partitions, from) = (scan.partitions, scan.after.clone());
            let forward = {
                let mut seen = self.0.lock();
                // What other partitions have below is new here, and no late commit.
                let same = seen.partitions == partitions && from.seq >= seen.position;
                let forward = same && Instant::now() < seen.sweep_at;
                if !same {
                    seen.highest = from.seq;
                }
                if !forward {
                    seen.sweep_at = Instant::now() + SWEEP_EVERY;
                }
                seen.partitions = partitions;
                forward.then(|| Position::at(seen.highest.max(from.seq)))
            };
            let mut highest = Seq(0);
            let mut watch = |candidate: Candidate<'_>| {
                highest = highest.max(candidate.seq);
                pick.pick(candidate)
            };
            let after = forward.as_ref().unwrap_or(&from);
            let mut page = store.page(Scan { after, ..scan.clone() }, &mut watch).await?;
            if forward.is_some() {
                page.position = from;
            }
            let mut seen = self.0.lock();
            seen.highest = seen.highest.max(highest);
            seen.position = page.position.seq;
            drop(seen);
            Ok(page)
        })
    }
}

/// Pages come from the snapshot of the page before: what was settled, and known to be, before the read began, is in it
/// all the same. In the product a read sees what was committed before it began, and what is settled while it is under
/// way stays in memory as a tombstone until its rows are placed.
///
/// It stands for tombstones taken out: they are the engine's, which has no switch for it, and are there for one thing, rows that
/// arrive after their settle. These rows arrive when no read of before the settle is left, and so no tombstone: the engine meets
/// them as it would without any.
#[derive(Debug, Default)]
pub struct OldSnapshot(Mutex<Option<(PartitionSet, Page)>>);

impl Layer<MemoryStore> for OldSnapshot {
    fn page<'a>(&'a self, store: &'a MemoryStore, scan: Scan<'a>, pick: &'a mut dyn Pick) -> Answer<'a, Page> {
        Box::pin(async move {
            let (partitions, from, limit) = (scan.partitions, scan.after.seq, scan.limit);
            let everything = Scan { limit: usize::MAX, ..scan };
            let fresh = store.page(everything, &mut |_: Candidate<'_>| true).await?;
            let now = fresh.now;
            let before = self.0.lock().replace((partitions, fresh.clone()));
            let old = before.filter(|(of, _)| *of == partitions).map_or(fresh, |(_, page)| page);
            let mut position = Position::at(old.position.seq.max(from));
            let (mut rows, mut more) = (Vec::new(), false);
            for row in old.rows.into_iter().filter(|row| row.seq() > from) {
                if rows.len() >= limit {
                    more = true;
                    position.lower(Seq(row.seq().0 - 1));
                    break;
                }
                let key = row.key().map(Key::as_str);
                if pick.pick(Candidate { seq: row.seq(), partition: row.partition(), key }) {
                    rows.push(row);
                }
            }
            Ok(Page { rows, position, more, now })
        })
    }
}
