//! The store's own connections.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use pillarbox_core::port::StoreError;
use sqlx::{ConnectOptions as _, Connection as _, Sqlite, SqliteConnection, Transaction, sqlite::SqliteConnectOptions};
use tokio::sync::{Mutex, MutexGuard, OwnedMutexGuard};

use crate::error;

/// Begins a transaction that holds the write lock from the start: one that only asks for it when it first
/// writes can be refused then, because another has written since it began to read.
pub(crate) const BEGIN: &str = "begin immediate";

/// One connection for one purpose, opened when it is first needed. Callers wait for it in order.
///
/// It has no tie to a runtime: its work is done by a thread of its own, so callers of several runtimes may
/// share it.
#[derive(Debug)]
pub(crate) struct Line {
    options: SqliteConnectOptions,
    connection: Arc<Mutex<Option<SqliteConnection>>>,
    broken: AtomicBool,
}

impl Line {
    pub(crate) fn new(options: SqliteConnectOptions) -> Self {
        Self { options, connection: Arc::default(), broken: AtomicBool::new(false) }
    }

    /// Waits for the connection, and opens it if need be.
    pub(crate) async fn enter(&self) -> Result<Entered<'_>, StoreError> {
        let mut slot = self.connection.lock().await;
        self.ready(&mut slot).await?;
        Ok(Entered { line: self, slot })
    }

    /// The same, for a transaction that is handed to the application.
    pub(crate) async fn enter_owned(&self) -> Result<OwnedMutexGuard<Option<SqliteConnection>>, StoreError> {
        let mut slot = self.connection.clone().lock_owned().await;
        self.ready(&mut slot).await?;
        Ok(slot)
    }

    async fn ready(&self, slot: &mut Option<SqliteConnection>) -> Result<(), StoreError> {
        if self.broken.swap(false, Ordering::Relaxed) {
            *slot = None;
        }
        if let Some(connection) = slot.as_mut()
            && connection.is_in_transaction()
        {
            // A dropped future left it open, and its rollback is in the driver's queue: let it pass. SQLite
            // also ends a transaction by itself, as when the disk is full, and the driver does not notice:
            // for it one stays open for ever, and the connection is of no more use.
            if connection.ping().await.is_err() || connection.is_in_transaction() {
                *slot = None;
            }
        }
        if slot.is_none() {
            *slot = Some(self.options.connect().await.map_err(error::of)?);
        }
        Ok(())
    }

    /// Notes what an error says about the connection.
    pub(crate) fn noted(&self, error: sqlx::Error) -> StoreError {
        self.note(&error);
        error::of(error)
    }

    fn note(&self, error: &sqlx::Error) {
        if matches!(error, sqlx::Error::WorkerCrashed) {
            self.broken.store(true, Ordering::Relaxed);
        }
    }
}

/// A connection in use.
pub(crate) struct Entered<'a> {
    line: &'a Line,
    slot: MutexGuard<'a, Option<SqliteConnection>>,
}

impl Entered<'_> {
    /// The connection, for reading, or for one statement that is its own transaction: SQLite begins it with the write lock,
    /// and commits before the driver has its result.
    pub(crate) fn connection(&mut self) -> Result<&mut SqliteConnection, StoreError> {
        self.slot.as_mut().ok_or_else(|| error::of(sqlx::Error::WorkerCrashed))
    }

    /// Begins a transaction that writes. Dropping it rolls back.
    pub(crate) async fn begin(&mut self) -> Result<Transaction<'_, Sqlite>, StoreError> {
        let line = self.line;
        self.connection()?.begin_with(BEGIN).await.map_err(|error| line.noted(error))
    }

    /// The error of a statement that is its own transaction.
    pub(crate) fn failed_commit(&self, error: sqlx::Error) -> StoreError {
        self.line.note(&error);
        error::of_commit(error)
    }

    /// The error of a read.
    pub(crate) fn failed(&self, error: sqlx::Error) -> StoreError {
        self.line.noted(error)
    }
}
