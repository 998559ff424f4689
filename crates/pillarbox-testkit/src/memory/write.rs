//! Inserting events, and transactions.

use std::{
    fmt, mem,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use pillarbox_core::{
    domain::{EventId, Lease, Seq, Status, Timestamp},
    port::{Batch, BoxFuture, NewKey, NewRow, Settled, StoreError, StoreErrorKind, TransactStore, WriteStore},
};

use super::{
    Database, Guards, MemoryStore,
    tables::{Entered, Stored, Tables},
};

/// How many milliseconds a transaction waits for a dedup key that another has entered.
const LOCK_WAITS: u32 = 5_000;

/// A transaction. Its events have their numbers as soon as they are inserted and are seen by others once it
/// has committed; dropping it rolls back and leaves gaps in the numbers.
#[derive(Debug)]
pub struct MemoryTx(MemoryConnection);

/// What a transaction derefs to: takes rows of the user's own, which commit or vanish with the events.
pub struct MemoryConnection {
    database: Arc<Database>,
    // The lowest number it holds; the low-water mark stays below it as long as this is set.
    first: Option<Seq>,
    events: Vec<Stored>,
    user_rows: Vec<(String, String)>,
    keys: Vec<Box<str>>,
    // How many of each there were at the savepoint.
    savepoint: (usize, usize, usize),
    settle: Option<(Lease, Batch)>,
}

impl MemoryConnection {
    /// Puts a value into a table of the user's own; [`MemoryStore::table`] shows it after the commit.
    pub fn put(&mut self, table: impl Into<String>, value: impl Into<String>) {
        self.user_rows.push((table.into(), value.into()));
    }

    fn insert(&mut self, rows: &[NewRow]) -> Vec<Seq> {
        let (first, events) = (&mut self.first, &mut self.events);
        self.database.run(|tables, now| {
            let mut seqs = Vec::with_capacity(rows.len());
            for NewRow { event, partition } in rows {
                let seq = tables.next_seq();
                if first.is_none() {
                    *first = Some(seq);
                    tables.open(seq);
                }
                let delay = event.deliver_after().map(|delay| now.saturating_add(delay));
                events.push(Stored {
                    seq,
                    partition: *partition,
                    event: event.clone(),
                    status: Status::New,
                    attempts: 0,
                    starts: 0,
                    progress: None,
                    available_at: event.available_at().or(delay),
                    created_at: now,
                    done_at: None,
                    last_error: None,
                    broken: None,
                });
                seqs.push(seq);
            }
            seqs
        })
    }

    /// The answers, or `None` while another open transaction has one of the keys.
    fn enter(&mut self, keys: &[NewKey<'_>]) -> Option<Vec<Option<EventId>>> {
        let mine = &mut self.keys;
        self.database.run(|tables, now| {
            if keys.iter().any(|key| tables.is_pending(key.key) && !mine.iter().any(|own| **own == *key.key)) {
                return None;
            }
            let enter = |key: &NewKey<'_>| {
                let standing = tables.enter_key(key, now);
                if standing.is_none() {
                    mine.push(key.key.into());
                }
                standing
            };
            Some(keys.iter().map(enter).collect())
        })
    }

    /// Settles with the commit; says what that would do now.
    pub(super) fn settle(&mut self, lease: &Lease, batch: &Batch) -> Settled {
        let settled = self.database.run(|tables, now| tables.would_settle(lease, batch, now));
        if settled != Settled::Fenced {
            self.settle = Some((lease.clone(), batch.clone()));
        }
        settled
    }

    pub(super) fn set_savepoint(&mut self) {
        self.savepoint = (self.events.len(), self.user_rows.len(), self.keys.len());
    }

    pub(super) fn undo(&mut self) {
        let (events, user_rows, keys) = self.savepoint;
        self.events.truncate(events);
        self.user_rows.truncate(user_rows);
        let keys = self.keys.split_off(keys);
        self.database.run(|tables, _| tables.end_keys(&keys, false));
    }

    /// `false` if it settles, and the fence has come down since: a database would have kept it up by a lock.
    fn commit(&mut self) -> bool {
        let settle = self.settle.take();
        let (keys, events, user_rows, first) = (&mut self.keys, &mut self.events, &mut self.user_rows, &mut self.first);
        self.database.run(|tables, now| {
            if let Some((lease, batch)) = settle {
                if tables.would_settle(&lease, &batch, now) != (Settled::Applied { stale: 0 }) {
                    return false;
                }
                tables.settle(&lease, &batch, Guards::ALL, now);
            }
            for event in mem::take(events) {
                tables.insert(event);
            }
            for (table, value) in mem::take(user_rows) {
                tables.put(table, value);
            }
            if let Some(first) = first.take() {
                tables.close(first);
            }
            tables.end_keys(&mem::take(keys), true);
            true
        })
    }
}

impl Tables {
    fn is_pending(&self, key: &str) -> bool {
        self.keys.get(key).is_some_and(|entered| entered.pending)
    }

    /// Enters a key, unless it stands: then the event that has it.
    fn enter_key(&mut self, key: &NewKey<'_>, now: Timestamp) -> Option<EventId> {
        if let Some(entered) = self.keys.get(key.key)
            && (entered.pending || entered.expires_at > now)
        {
            return Some(entered.id);
        }
        let entered = Entered { id: key.id, expires_at: now.saturating_add(key.window), pending: true };
        self.keys.insert(key.key.into(), entered);
        None
    }

    /// The transaction of these keys has ended.
    fn end_keys(&mut self, keys: &[Box<str>], committed: bool) {
        for key in keys {
            if committed && let Some(entered) = self.keys.get_mut(key) {
                entered.pending = false;
            } else {
                self.keys.remove(key);
            }
        }
    }
}

impl Deref for MemoryTx {
    type Target = MemoryConnection;

    fn deref(&self) -> &MemoryConnection {
        &self.0
    }
}

impl DerefMut for MemoryTx {
    fn deref_mut(&mut self) -> &mut MemoryConnection {
        &mut self.0
    }
}

impl Drop for MemoryConnection {
    fn drop(&mut self) {
        self.database.run(|tables, _| {
            if let Some(first) = self.first {
                tables.close(first);
            }
            tables.end_keys(&self.keys, false);
        });
    }
}

impl fmt::Debug for MemoryConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryConnection")
            .field("events", &self.events.iter().map(|row| row.seq).collect::<Vec<_>>())
            .field("user_rows", &self.user_rows)
            .finish_non_exhaustive()
    }
}

impl MemoryStore {
    fn check_same_database(&self, tx: &MemoryTx) -> Result<(), StoreError> {
        if Arc::ptr_eq(&self.database, &tx.database) {
            return Ok(());
        }
        Err(StoreError::new(
            StoreErrorKind::Rejected,
            "the transaction belongs to another memory store: begin it on this one",
        ))
    }
}

impl WriteStore<MemoryTx> for MemoryStore {
    fn insert<'a>(&'a self, tx: &'a mut MemoryTx, rows: &'a [NewRow]) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>> {
        Box::pin(async move {
            self.check_same_database(tx)?;
            tokio::task::yield_now().await;
            Ok(tx.insert(rows))
        })
    }

    fn enter_keys<'a>(
        &'a self,
        tx: &'a mut MemoryTx,
        keys: &'a [NewKey<'a>],
    ) -> BoxFuture<'a, Result<Vec<Option<EventId>>, StoreError>> {
        Box::pin(async move {
            self.check_same_database(tx)?;
            for _ in 0..LOCK_WAITS {
                if let Some(answers) = tx.enter(keys) {
                    return Ok(answers);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(StoreError::new(StoreErrorKind::Unavailable, "another transaction holds a dedup key for too long"))
        })
    }
}

impl TransactStore for MemoryStore {
    type Connection = MemoryConnection;
    type Tx = MemoryTx;

    fn begin(&self) -> BoxFuture<'_, Result<MemoryTx, StoreError>> {
        Box::pin(async {
            Ok(MemoryTx(MemoryConnection {
                database: Arc::clone(&self.database),
                first: None,
                events: Vec::new(),
                user_rows: Vec::new(),
                keys: Vec::new(),
                savepoint: (0, 0, 0),
                settle: None,
            }))
        })
    }

    fn commit(&self, mut tx: MemoryTx) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.check_same_database(&tx)?;
            tokio::task::yield_now().await;
            if tx.commit() {
                return Ok(());
            }
            Err(StoreError::new(StoreErrorKind::Conflict, "the lease has ended before the commit: it is rolled back"))
        })
    }

    fn rollback(&self, tx: MemoryTx) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            drop(tx);
            Ok(())
        })
    }
}
