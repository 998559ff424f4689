//! The store's own connections.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::{ConnectOptions as _, PgConnection, postgres::PgConnectOptions};
use tokio::{
    runtime::{Handle, Id},
    sync::{Mutex as AsyncMutex, OwnedMutexGuard},
};

use crate::error;

/// Begins a transaction in which every statement sees what was committed before it, whatever the role's default:
/// a statement behind a lock must see what the lock was waited for.
const BEGIN: &str = "begin isolation level read committed read write";

/// The settings of the store's own sessions. The server must notice soon that a node has vanished, or stands still in
/// the middle of a transaction, since its locks live as long as its session. Each statement has its index: plans are made once, are never compiled, and don't rest on
/// statistics, which are missing or outdated when they matter most. A settle waits for the log even where the database's
/// default is not to: a crash of the server would undo it, and a node that lives on would not read the row again. Set by
/// a statement, since poolers refuse what they don't know at the start of a session.
pub(crate) const SESSION: &str = "set default_transaction_isolation = 'read committed';
    set plan_cache_mode = force_generic_plan; set jit = off; set enable_seqscan = off; set enable_bitmapscan = off;
    set tcp_keepalives_idle = 30; set tcp_keepalives_interval = 5; set tcp_keepalives_count = 3;
    set tcp_user_timeout = 30000; set idle_in_transaction_session_timeout = 10000;
    select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'";

/// The same for one transaction, behind a pooler.
pub(crate) const READ: &str = "begin isolation level read committed read only;
    set local jit = off; set local enable_seqscan = off; set local enable_bitmapscan = off";
const WRITE: &str = "begin isolation level read committed read write;
    set local jit = off; set local enable_seqscan = off; set local enable_bitmapscan = off;
    set local idle_in_transaction_session_timeout = 10000;
    select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'";

/// One connection for one purpose, opened when it is first needed. Callers wait for it in order.
///
/// A socket belongs to the runtime that opened it. Who comes from another runtime gets a connection of its own,
/// so that a blocked runtime starves no other; one that nobody uses goes with the next change of runtimes.
#[derive(Debug)]
pub(crate) struct Line {
    options: PgConnectOptions,
    connect_within: Duration,
    behind_pooler: bool,
    slots: Mutex<Vec<Slot>>,
}

#[derive(Debug)]
struct Slot {
    runtime: Id,
    connection: Arc<AsyncMutex<Option<Session>>>,
}

#[derive(Debug)]
pub(crate) struct Session {
    connection: PgConnection,
    /// The server's life, as far as it was asked for.
    pub(crate) life: Option<Box<str>>,
}

impl Line {
    pub(crate) fn new(options: PgConnectOptions, connect_within: Duration, behind_pooler: bool) -> Self {
        Self { options, connect_within, behind_pooler, slots: Mutex::default() }
    }

    /// Another connection of the same kind.
    pub(crate) fn beside(&self) -> Self {
        Self::new(self.options.clone(), self.connect_within, self.behind_pooler)
    }

    /// Waits for the connection, and opens it if need be.
    pub(crate) async fn enter(&self) -> Result<Entered, StoreError> {
        let slot = self.slot(Handle::current().id());
        let mut slot = slot.lock_owned().await;
        if slot.is_none() {
            *slot = Some(Session { connection: self.connect().await?, life: None });
        }
        Ok(Entered { slot, behind_pooler: self.behind_pooler, clean: false })
    }

    async fn connect(&self) -> Result<PgConnection, StoreError> {
        let connecting = async {
            let mut connection = self.options.connect().await?;
            // Behind a pooler there is no session to set.
            if !self.behind_pooler {
                sqlx::raw_sql(SESSION).execute(&mut connection).await?;
            }
            Ok(connection)
        };
        match tokio::time::timeout(self.connect_within, connecting).await {
            Ok(connected) => connected.map_err(error::of),
            Err(_) => Err(StoreError::new(
                StoreErrorKind::Unavailable,
                "the server did not accept a connection in time: check host, port and firewall",
            )),
        }
    }

    fn slot(&self, runtime: Id) -> Arc<AsyncMutex<Option<Session>>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|slot| slot.runtime == runtime || Arc::strong_count(&slot.connection) > 1);
        if let Some(slot) = slots.iter().find(|slot| slot.runtime == runtime) {
            return slot.connection.clone();
        }
        let connection = Arc::default();
        slots.push(Slot { runtime, connection: Arc::clone(&connection) });
        connection
    }
}

/// A connection in use. It is closed unless its user comes to an end with it: after an error, or when he was cut
/// off in the middle of an answer, nobody knows its state. What was not committed is rolled back by that.
#[derive(Debug)]
pub(crate) struct Entered {
    slot: OwnedMutexGuard<Option<Session>>,
    behind_pooler: bool,
    clean: bool,
}

impl Entered {
    pub(crate) fn connection(&mut self) -> Result<&mut PgConnection, sqlx::Error> {
        self.session().map(|session| &mut session.connection)
    }

    pub(crate) fn session(&mut self) -> Result<&mut Session, sqlx::Error> {
        self.slot.as_mut().ok_or(sqlx::Error::WorkerCrashed)
    }

    /// Begins a transaction that writes.
    pub(crate) async fn begin(&mut self) -> Result<(), StoreError> {
        self.run(if self.behind_pooler { WRITE } else { BEGIN }).await.map_err(error::of)
    }

    /// Commits, and leaves the connection to the next.
    pub(crate) async fn commit(mut self) -> Result<(), StoreError> {
        self.run("commit").await.map_err(error::of_commit)?;
        self.leave();
        Ok(())
    }

    /// Rolls back, and leaves the connection to the next.
    pub(crate) async fn rollback(mut self) -> Result<(), StoreError> {
        self.run("rollback").await.map_err(error::of)?;
        self.leave();
        Ok(())
    }

    /// Readies the connection for one statement that reads. Behind a pooler, what the driver parses and what it then
    /// binds must meet in one session, so there is a transaction around it.
    pub(crate) async fn begin_reading(&mut self) -> Result<&mut PgConnection, sqlx::Error> {
        if self.behind_pooler {
            self.run(READ).await?;
        }
        self.connection()
    }

    pub(crate) async fn end_reading(&mut self) -> Result<(), sqlx::Error> {
        if self.behind_pooler { self.run("commit").await } else { Ok(()) }
    }

    /// Readies the connection for one statement that writes and commits by itself: one round trip. Behind a pooler there
    /// is a transaction around it.
    pub(crate) async fn begin_one(&mut self) -> Result<&mut PgConnection, sqlx::Error> {
        if self.behind_pooler {
            self.run(WRITE).await?;
        }
        self.connection()
    }

    /// The statement of [`Self::begin_one`] has succeeded.
    pub(crate) async fn end_one(mut self) -> Result<(), StoreError> {
        if self.behind_pooler {
            return self.commit().await;
        }
        self.clean = true;
        Ok(())
    }

    /// Leaves the connection to the next, in a sound state.
    pub(crate) fn leave(mut self) {
        self.clean = true;
    }

    async fn run(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(sql).execute(self.connection()?).await.map(drop)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if !self.clean {
            *self.slot = None;
        }
    }
}
