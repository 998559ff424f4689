//! Purging; there is nothing to migrate.

use pillarbox_core::{
    domain::{Seq, Status, Timestamp},
    port::{BoxFuture, PurgeCursor, PurgeRequest, PurgeScope, Purged, StoreError, UpkeepStore},
};

use super::{
    MemoryStore,
    tables::{Stored, Tables},
};

impl Tables {
    fn purge(&mut self, request: &PurgeRequest<'_>, now: Timestamp) -> Purged {
        if request.lease.is_some_and(|lease| self.fence(lease, now).is_none()) {
            return Purged::Fenced;
        }
        let after = request.cursor.map_or(Seq(0), |PurgeCursor(seq)| seq);
        let batch = usize::try_from(request.batch).unwrap_or(usize::MAX);
        let old: Vec<Seq> = match request.scope {
            PurgeScope::Finished { done, dead } => {
                let is_old = |row: &&Stored| {
                    let keep = match row.status {
                        Status::Done => Some(done),
                        Status::Dead if self.holds_key(row) => None,
                        Status::Dead => dead,
                        Status::New | Status::Retry => None,
                    };
                    let age = now.since(row.done_at.unwrap_or(row.created_at));
                    keep.is_some_and(|keep| age > keep)
                };
                let old = self.finished_after(after).filter(is_old);
                old.take(batch).map(|row| row.seq).collect()
            }
            PurgeScope::ByAge(keep) => {
                let rows = self.rows_from(Seq(after.0.saturating_add(1)));
                let old = rows.filter(|row| now.since(row.created_at) > keep);
                old.take(batch).map(|row| row.seq).collect()
            }
        };
        for seq in &old {
            self.remove(*seq);
        }
        Purged::Removed {
            rows: old.len() as u64,
            next: old.last().filter(|_| old.len() == batch).map(|seq| PurgeCursor(*seq)),
        }
    }
}

impl UpkeepStore for MemoryStore {
    fn migrate(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn purge<'a>(&'a self, request: PurgeRequest<'a>) -> BoxFuture<'a, Result<Purged, StoreError>> {
        Box::pin(async move { Ok(self.run(|tables, now| tables.purge(&request, now)).await) })
    }
}
