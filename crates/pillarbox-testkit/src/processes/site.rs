//! What a store's crate tells about its database.

use std::{error::Error, future::Future};

use pillarbox_core::port::{Store, TransactStore};

use super::Task;
use crate::proof::Order;

/// Why a step of the application failed.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The connection inside a transaction of the application's store.
pub(crate) type Connection<A> = <<A as Application>::Store as TransactStore>::Connection;

/// The application whose events are delivered: its store, and tables of its own for what it has committed.
///
/// `orders` has (number, event_id, event_key), `lives` has (name).
pub trait Application: Sized + Send + Sync + 'static {
    /// The store.
    type Store: Store + TransactStore;

    /// The version of the outbox's tables.
    const VERSION: i64;

    /// A query for the highest mark that a live node has stored, or 0.
    const MARK: &'static str;

    /// Opens the store, as a process of its own does. The task may have words on how.
    fn open(url: &str, task: &Task) -> impl Future<Output = Result<Self::Store, Failure>> + Send;

    /// Creates the application's tables.
    fn create(store: &Self::Store) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Inserts an order, and returns its number. Where transactions may overlap, those of one key wait here for each
    /// other: as writers of one aggregate do.
    fn add_order(
        connection: &mut Connection<Self>,
        key: Option<&str>,
    ) -> impl Future<Output = Result<i64, Failure>> + Send;

    /// Notes the event of an order.
    fn name_event(
        connection: &mut Connection<Self>,
        number: i64,
        id: &str,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Enters a name in `lives`; `false` if it is there already.
    fn begin_life(connection: &mut Connection<Self>, name: &str) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// What is committed, by number.
    fn orders(store: &Self::Store) -> impl Future<Output = Result<Vec<Order>, Failure>> + Send;

    /// Runs a query with one number as its answer.
    fn number(store: &Self::Store, sql: &'static str) -> impl Future<Output = Result<i64, Failure>> + Send;

    /// Adds so many events of a key by plain SQL, behind those it has: with rising ids, and the number 0 in each.
    fn crowd(store: &Self::Store, key: &'static str, count: i64) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Whether somebody keeps all others from writing. A process that is paused in such a moment would stop
    /// everything, and not only itself: the cases avoid it.
    fn is_locked(_store: &Self::Store) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// Plays a role that only this application has.
    fn play(task: &Task) -> impl Future<Output = ()> + Send {
        async { panic!("no such role: {}", task.text("role")) }
    }
}

/// Where a test's database is. Dropping it removes the database.
pub trait Site: Sized + Send + Sync + 'static {
    /// The application that lives there.
    type App: Application;

    /// What is missing here, if the cases can't run: they are left out, and say so.
    fn missing() -> Option<String> {
        None
    }

    /// An empty database of the test's own, without tables.
    fn fresh() -> Self;

    /// Where [`open`](Application::open) finds it.
    fn url(&self) -> String;
}

/// A site behind a server, whose connections can be ended from outside.
pub trait Served: Site {
    /// A query for how many connections to the database stand still in a transaction that is behind the fence, and
    /// wait for their process. They hold the lock that others want.
    const STANDING: &'static str;

    /// Ends one connection to the database, any but the asking one.
    fn end_a_connection(
        &self,
        store: &<Self::App as Application>::Store,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Opens a transaction that stays open until the value is dropped.
    fn hold_open(&self, what: Held) -> Box<dyn Send>;
}

/// What a transaction that is held open has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It has read, and keeps its snapshot.
    Snapshot,
    /// It has written in a table of its own, and so has a number of its own.
    Writer,
}

/// A site on a server of the test's own, which can be restarted.
pub trait Private: Site {
    /// The ways in which this server can end.
    const WAYS: &'static [Restart];

    /// Stops the server and starts it again.
    fn restart(&mut self, how: Restart);
}

/// How a server ends before it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// In order, and at once.
    Fast,
    /// At once, with a word to its clients, and without writing anything out.
    Immediate,
    /// By kill -9.
    Killed,
}
