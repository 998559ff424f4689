//! What operators see and do.

use pillarbox_core::{
    domain::{Key, Partition, Seq, Status, Timestamp},
    port::{ActionKind, Actor, AdminStore, BoxFuture, Fleet, Found, HoldKind, Listing, Query, Stats, StoreError},
};

use super::{
    MemoryStore,
    tables::{Stored, Tables},
};

fn matches(query: &Query, row: &Stored) -> bool {
    let event = &row.event;
    let is = |wanted: &Option<String>, value: Option<&str>| wanted.is_none() || wanted.as_deref() == value;
    (query.statuses.is_empty() || query.statuses.contains(&row.status))
        && query.id.is_none_or(|id| id == event.id())
        && is(&query.event_type, Some(event.event_type().as_str()))
        && is(&query.aggregate_type, Some(event.aggregate_type().as_str()))
        && is(&query.aggregate_id, event.aggregate_id())
        && is(&query.tenant_id, event.tenant_id())
        && is(&query.key, event.key().map(Key::as_str))
        && query.from.is_none_or(|from| from <= row.created_at)
        && query.until.is_none_or(|until| row.created_at < until)
        && query.text.as_ref().is_none_or(|text| has_text(row, text))
}

fn has_text(row: &Stored, text: &str) -> bool {
    let text = text.to_lowercase();
    let payload = String::from_utf8_lossy(row.event.payload().as_bytes());
    let error = row.last_error.as_deref().unwrap_or_default();
    payload.to_lowercase().contains(&text) || error.to_lowercase().contains(&text)
}

impl Tables {
    fn list(&self, query: &Query, from: Seq, limit: u32) -> Listing {
        let rows: Box<dyn Iterator<Item = &Stored>> =
            if query.newest_first { Box::new(self.rows_down(from)) } else { Box::new(self.rows_from(from)) };
        let mut found = rows.filter(|row| matches(query, row));
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Listing {
            events: found.by_ref().take(limit).map(|row| self.found(row)).collect(),
            next: found.next().map(|row| row.seq),
        }
    }

    fn found(&self, row: &Stored) -> Found {
        Found {
            record: row.record(),
            seq: row.seq,
            id: row.event.id().to_string(),
            status: row.status,
            attempts: row.attempts,
            available_at: row.available_at,
            done_at: row.done_at,
            last_error: row.last_error.clone(),
            holds_key: self.holds_key(row),
        }
    }

    /// Runs an action on those of the events that are DEAD and for which it says that it changed something.
    fn act(
        &mut self,
        kind: ActionKind,
        seqs: &[Seq],
        actor: &Actor,
        now: Timestamp,
        action: impl Fn(&mut Self, Seq) -> bool,
    ) -> Vec<Seq> {
        let mut changed = Vec::new();
        for &seq in seqs {
            let Some(event) = self.row(seq).filter(|row| row.status == Status::Dead).map(|row| row.event.clone())
            else {
                continue;
            };
            if action(self, seq) {
                changed.push(seq);
                self.record(kind, seq, &event, actor, now);
            }
        }
        changed
    }

    /// Frees the key that this event holds: its followers lie below the position, and are found by their key
    /// until the owner has caught up with them.
    fn free_key(&mut self, seq: Seq) -> bool {
        let Some(row) = self.row(seq).filter(|row| self.holds_key(row)) else {
            return false;
        };
        let name = row.key().map(|key| (row.partition, key.clone()));
        if let Some(hold) = name.and_then(|name| self.holds.get_mut(&name)) {
            hold.0 = HoldKind::Overflow;
        }
        true
    }

    fn stats(&self, now: Timestamp) -> Stats {
        let mut stats = Stats {
            live_nodes: self.nodes.values().filter(|node| node.is_live(now)).count() as u64,
            now,
            ..Stats::default()
        };
        for row in self.rows_from(Seq(0)) {
            let (count, oldest) = &mut stats.by_status[row.status as usize];
            *count += 1;
            *oldest = Some(oldest.map_or(row.created_at, |oldest| oldest.min(row.created_at)));
        }
        stats.worst_partition = Partition::all()
            .map(|partition| (partition, self.pending_count(partition) as u64))
            .filter(|(_, count)| *count > 0)
            .max_by_key(|(_, count)| *count);
        stats
    }
}

impl AdminStore for MemoryStore {
    fn list<'a>(&'a self, query: &'a Query, from: Seq, limit: u32) -> BoxFuture<'a, Result<Listing, StoreError>> {
        Box::pin(async move { Ok(self.run(|tables, _| tables.list(query, from, limit)).await) })
    }

    fn count<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let count = self.run(|tables, _| tables.rows_from(Seq(0)).filter(|row| matches(query, row)).count());
            Ok(count.await as u64)
        })
    }

    fn replay<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(async move {
            let replay = self.run(|tables, now| {
                tables.act(ActionKind::Replay, seqs, actor, now, |tables, seq| {
                    tables.update(seq, |row| {
                        row.status = Status::New;
                        row.attempts = 0;
                        row.starts = 0;
                        row.last_error = None;
                        row.done_at = None;
                        row.available_at = Some(now);
                    })
                })
            });
            Ok(replay.await)
        })
    }

    fn discard<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(async move {
            let discard = self.run(|tables, now| {
                tables.act(ActionKind::Discard, seqs, actor, now, |tables, seq| {
                    tables.free_key(seq);
                    tables.remove(seq).is_some()
                })
            });
            Ok(discard.await)
        })
    }

    fn skip<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(async move {
            Ok(self.run(|tables, now| tables.act(ActionKind::Skip, seqs, actor, now, Tables::free_key)).await)
        })
    }

    fn stats(&self) -> BoxFuture<'_, Result<Stats, StoreError>> {
        Box::pin(async { Ok(self.run(|tables, now| tables.stats(now)).await) })
    }

    fn fleet(&self) -> BoxFuture<'_, Result<Fleet, StoreError>> {
        Box::pin(async { Ok(self.run(|tables, now| tables.fleet(now)).await) })
    }
}
