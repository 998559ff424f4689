//! The store's own connections.
//!
//! A connection whose use was not brought to its end, by an error or because its future was dropped, is closed: what
//! it had begun is rolled back by the server, and nobody reads the rest of another's answer.

use std::{
    future::Future,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, MySqlConnection, mysql::MySqlConnectOptions};
use tokio::{
    runtime::{Handle, Id},
    sync::{Mutex, MutexGuard},
    task::AbortHandle,
    time::{sleep, timeout},
};

use crate::{error, life::Life};

/// How long a connect may take, and an idle connection's sign of life.
const CONNECT: Duration = Duration::from_secs(10);
const PING: Duration = Duration::from_secs(5);
/// After so long without use a connection may be gone: the server, or something on the way, has closed it.
const IDLE: Duration = Duration::from_secs(5);
/// After so long without use a connection is closed, before the server does so by the `wait_timeout` of [`SESSION`].
const REST: Duration = Duration::from_secs(10);
/// How often a transaction that lost against another is run in all.
const TRIES: u32 = 5;

/// What each connection of the store's own begins with. Nobody waits long for a lock behind a lease; and one that is
/// idle in a transaction, because its process was stopped in the middle of it, is ended by the server. MySQL would tell how
/// far a table's numbers have come as they were a day ago.
const SESSION: &str = "set \
     session time_zone = '+00:00', session innodb_lock_wait_timeout = 5, session wait_timeout = 15, \
     session sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', session autocommit = 1 \
     /*M!100600 , session idle_transaction_timeout = 10 */ /*!80000 , session information_schema_stats_expiry = 0 */";

/// One connection for one purpose, opened when it is first needed. Callers wait for it in order.
///
/// Its socket belongs to the runtime that opened it: entered from another, it is opened anew.
#[derive(Debug)]
pub(crate) struct Line {
    options: MySqlConnectOptions,
    isolation: Isolation,
    rest: Duration,
    slot: Slot,
}

type Slot = Arc<Mutex<Option<Idle>>>;

/// What transactions of a line see.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Isolation {
    /// Each statement sees what is committed when it begins, and locks rows alone.
    ReadCommitted,
    /// All statements of a transaction see one snapshot. For lines that only read.
    Snapshot,
}

#[derive(Debug)]
struct Idle {
    session: Session,
    runtime: Id,
    since: Instant,
}

#[derive(Debug)]
struct Session {
    // Taken when it is dropped.
    connection: Option<MySqlConnection>,
    /// The server's life, once it was asked for.
    life: Option<Life>,
    /// What closes it when it has rested.
    watch: AbortHandle,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.watch.abort();
        if let Some(connection) = self.connection.take() {
            // The goodbye is a few bytes, for which there is room on its way: one look sends them, wherever this is called. Where
            // there is none, the server has more to complain of than a client that vanishes.
            let _ = connection.close().now_or_never();
        }
    }
}

impl Line {
    pub(crate) fn new(options: MySqlConnectOptions, isolation: Isolation) -> Self {
        Self { options, isolation, rest: REST, slot: Slot::default() }
    }

    /// Another connection of the same kind.
    pub(crate) fn beside(&self) -> Self {
        Self::new(self.options.clone(), self.isolation)
    }

    /// Waits for the connection, and opens it if need be.
    pub(crate) async fn enter(&self) -> Result<Entered<'_>, StoreError> {
        self.take(self.slot.lock().await).await
    }

    /// The same if nobody has it, without a wait for others.
    pub(crate) async fn try_enter(&self) -> Result<Option<Entered<'_>>, StoreError> {
        match self.slot.try_lock() {
            Ok(slot) => self.take(slot).await.map(Some),
            Err(_) => Ok(None),
        }
    }

    async fn take<'a>(&'a self, mut slot: MutexGuard<'a, Option<Idle>>) -> Result<Entered<'a>, StoreError> {
        let runtime = Handle::current().id();
        let session = match slot.take() {
            Some(idle) if idle.runtime == runtime => alive(idle).await,
            _ => None,
        };
        let session = match session {
            Some(session) => session,
            None => Session { connection: Some(self.open().await?), life: None, watch: self.watch() },
        };
        Ok(Entered { slot, session: Some(session), runtime })
    }

    /// Closes the connection once nobody has used it for a while.
    fn watch(&self) -> AbortHandle {
        let (slot, rest) = (Arc::downgrade(&self.slot), self.rest);
        let watching = tokio::spawn(async move {
            let mut wait = rest;
            loop {
                sleep(wait).await;
                let Some(slot) = slot.upgrade() else { return };
                wait = match slot.try_lock() {
                    Ok(mut idle) => {
                        let rested = idle.as_ref().map_or(rest, |idle| idle.since.elapsed());
                        if rested >= rest {
                            *idle = None;
                            return;
                        }
                        rest.saturating_sub(rested)
                    }
                    // In use.
                    Err(_) => rest,
                };
            }
        });
        watching.abort_handle()
    }

    /// Closes the connection, after whoever has it. The next to enter opens another.
    pub(crate) async fn close(&self) {
        *self.slot.lock().await = None;
    }

    /// Begins a transaction. Dropping it rolls back.
    pub(crate) async fn begin(&self) -> Result<Entered<'_>, StoreError> {
        let mut entered = self.enter().await?;
        entered.execute("start transaction").await.map_err(error::of)?;
        Ok(entered)
    }

    async fn open(&self) -> Result<MySqlConnection, StoreError> {
        let connecting = async {
            let mut connection = self.options.connect().await?;
            connection.execute(SESSION).await?;
            let isolation = match self.isolation {
                Isolation::ReadCommitted => "set session transaction isolation level read committed",
                Isolation::Snapshot => "set session transaction isolation level repeatable read",
            };
            connection.execute(isolation).await?;
            Ok(connection)
        };
        match timeout(CONNECT, connecting).await {
            Ok(connected) => connected.map_err(error::of_connect),
            Err(_) => Err(StoreError::new(StoreErrorKind::Unavailable, "the server did not answer in time")),
        }
    }
}

impl Session {
    fn in_use(&mut self) -> &mut MySqlConnection {
        self.connection.as_mut().expect("a connection in use")
    }
}

async fn alive(mut idle: Idle) -> Option<Session> {
    if idle.since.elapsed() > IDLE && !matches!(timeout(PING, idle.session.in_use().ping()).await, Ok(Ok(()))) {
        return None;
    }
    Some(idle.session)
}

/// A connection in use.
pub(crate) struct Entered<'a> {
    slot: MutexGuard<'a, Option<Idle>>,
    // Taken only by `done`, which takes the whole.
    session: Option<Session>,
    runtime: Id,
}

impl Entered<'_> {
    /// The life of the server behind this connection.
    pub(crate) async fn life(&mut self) -> Result<Life, StoreError> {
        let session = self.session.as_mut().expect("a connection in use");
        if let Some(life) = &session.life {
            return Ok(life.clone());
        }
        let life = Life::of(session.in_use()).await?;
        Ok(session.life.insert(life).clone())
    }

    /// Commits.
    pub(crate) async fn commit(mut self) -> Result<(), StoreError> {
        self.execute("commit").await.map_err(error::of_commit)?;
        self.done();
        Ok(())
    }

    /// Rolls back.
    pub(crate) async fn rollback(mut self) -> Result<(), StoreError> {
        self.execute("rollback").await.map_err(error::of)?;
        self.done();
        Ok(())
    }

    /// The use is at its end, and the connection is fit for the next.
    pub(crate) fn done(mut self) {
        if let Some(session) = self.session.take() {
            *self.slot = Some(Idle { session, runtime: self.runtime, since: Instant::now() });
        }
    }
}

impl Deref for Entered<'_> {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        self.session.as_ref().and_then(|session| session.connection.as_ref()).expect("a connection in use")
    }
}

impl DerefMut for Entered<'_> {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        self.session.as_mut().expect("a connection in use").in_use()
    }
}

/// Runs a transaction again that lost against another one, a few times.
pub(crate) async fn retried<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut tries = 0;
    loop {
        tries += 1;
        match attempt().await {
            Err(error) if error.kind() == StoreErrorKind::Conflict && tries < TRIES => {
                sleep(Duration::from_millis(fastrand::u64(1..=10) << tries)).await;
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MySqlStore, plans::for_each_server};

    #[tokio::test]
    async fn a_connection_that_rests_is_closed_and_one_in_use_is_not() {
        for_each_server(async |server| {
            let database = server.database();
            let store = MySqlStore::open(database.url()).await.unwrap();
            let line = Line { rest: Duration::from_millis(200), ..store.0.settles.beside() };
            let id = async |entered: &mut Entered<'_>| -> u64 {
                sqlx::query_scalar("select connection_id()").fetch_one(&mut **entered).await.unwrap()
            };
            let mut entered = line.enter().await.unwrap();
            let first = id(&mut entered).await;
            sleep(line.rest * 3).await;
            assert_eq!(id(&mut entered).await, first, "in use");
            entered.done();
            assert_eq!(id(&mut line.enter().await.unwrap()).await, first, "not done, and closed");
            let mut entered = line.enter().await.unwrap();
            assert_ne!(id(&mut entered).await, first);
            entered.done();
            while line.slot.lock().await.is_some() {
                sleep(Duration::from_millis(10)).await;
            }
            assert!(line.enter().await.is_ok(), "opened again");
        })
        .await;
    }
}
