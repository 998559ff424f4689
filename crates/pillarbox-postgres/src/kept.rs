//! Connections of the application's pool that stay with the store from one transaction to the next.
//!
//! The pool asks each connection for a sign of life when it comes back, and most pools once more when it goes out: one or
//! two round trips beside the three of a small transaction. A connection whose transaction has just ended has given one, so it
//! is kept for the next `begin` for a moment, as long as the pool has others left to give.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use sqlx::{PgPool, Postgres, pool::PoolConnection};

/// How long a connection waits for the next transaction before it goes back: who waits for the pool waits so long.
const IDLE: Duration = Duration::from_millis(50);

/// How long one is kept from the pool altogether, which has its own rules for the age of a connection.
const LONGEST: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct Kept(Arc<Mutex<Slots>>);

#[derive(Debug, Default)]
struct Slots {
    waiting: Vec<Waiting>,
    /// Whether a task looks after those that wait.
    watched: bool,
}

#[derive(Debug)]
struct Waiting {
    lent: Lent,
    since: Instant,
}

/// A connection on its way through transactions.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) connection: PoolConnection<Postgres>,
    acquired: Instant,
}

impl Kept {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    /// The connection that was used last, or one of the pool.
    pub(crate) async fn take(&self, pool: &PgPool) -> Result<Lent, sqlx::Error> {
        if let Some(waiting) = self.slots(|slots| slots.waiting.pop()) {
            return Ok(waiting.lent);
        }
        let connection = pool.acquire().await?;
        Ok(Lent { connection, acquired: Instant::now() })
    }

    /// Keeps a connection whose transaction has just ended, unless others may be waiting for it.
    pub(crate) fn keep(&self, pool: &PgPool, lent: Lent) {
        let exhausted = pool.size() >= pool.options().get_max_connections() && pool.num_idle() == 0;
        if exhausted || pool.is_closed() || lent.acquired.elapsed() >= LONGEST {
            return;
        }
        let now = Instant::now();
        let unwatched = self.slots(|slots| {
            slots.waiting.push(Waiting { lent, since: now });
            !std::mem::replace(&mut slots.watched, true)
        });
        if unwatched {
            tokio::spawn(Watch { kept: self.clone(), ended: false }.run());
        }
    }

    fn slots<T>(&self, work: impl FnOnce(&mut Slots) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Gives back what nobody has asked for. While something is kept, one is at work and holds it: a connection must not be
/// dropped outside of a runtime.
struct Watch {
    kept: Kept,
    ended: bool,
}

impl Watch {
    async fn run(mut self) {
        while !self.ended {
            tokio::time::sleep(IDLE).await;
            // Dropped behind the lock: that is what gives them back.
            let _overdue: Vec<_> = self.kept.slots(|slots| {
                // The one that was used last is taken first, so the first ones have waited longest.
                let young = slots.waiting.iter().position(|waiting| waiting.since.elapsed() < IDLE);
                let overdue = slots.waiting.drain(..young.unwrap_or(slots.waiting.len())).collect();
                slots.watched = !slots.waiting.is_empty();
                self.ended = !slots.watched;
                overdue
            });
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The runtime ends, and the connections that it opened are of no more use.
        if !self.ended {
            drop(self.kept.slots(std::mem::take));
        }
    }
}
