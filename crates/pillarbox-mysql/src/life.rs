//! The life of the server: what its crash undoes, and how a node notices.
//!
//! InnoDB shows a committed row to others before the row's log is on the disk: a moment before, where there is no binary log,
//! and up to a second with `innodb_flush_log_at_trx_commit` 0 or 2. A crashed server comes back without such rows, and gives
//! their numbers out again, since the counter is in the same log. A node that lives on would pass over the rows that have them
//! now, and settle another event in the place of one that it still had in flight.
//!
//! So what a node remembers is void with the crash, and so is its lease: it joins anew, and goes on from the marks in the
//! database. Those are sound: the log loses nothing but its end, where the commit that stored a mark comes after all that the
//! mark rests on. What is known of the server by itself, as in [`crate::water`], begins anew with each life (see [`InLife`]).
//!
//! A life is known by **the server's id, its host, and the second in which it started**. Nothing in the tables could tell it:
//! there are none that a crash empties, but for those in memory, which group replication refuses. The second is the time less
//! `Uptime`, and exact if both are asked for in one statement: each is counted from the statement's start. Two lives of a
//! server begin in the same second only if it crashes in that of its start, or if its clock was set back. Another server that
//! takes its place, and may not have received everything, has another id or another host.
//!
//! There is no recovery in a living process, so **no connection outlives a life**: it is asked for once a connection. What is
//! compared before a statement holds for the statement:
//! - each call under a lease compares its connection's life with that in which the node has joined, and then looks for the
//!   lease: that may be among what was lost;
//! - each read does the same without the lease;
//! - of an operator's, a writer's or an inbox's call nothing is asked.
//!
//! A connection of another life is closed when it is found: it may be one to a server that was replaced and is still there.
//!
//! A restart in good order looks the same as a crash. The leases are void then, too, which costs little: what was in flight
//! is delivered once more.
//!
//! # When the process dies
//! All this is in its memory, and gone with what would have been void. When a join is in effect and its answer is lost, the
//! life of the join before stands: it is too old, and that is noticed.
//!
//! # What is not noticed
//! - A life of which the server does not tell. MySQL and MariaDB do, without the performance schema as well.
//! - What a proxy hides that keeps its clients' connections when it loses the server.
//! - Clones of one store that serve several outboxes know one life. Of two such outboxes the one that joins second after a
//!   crash may read until then; it settles nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pillarbox_core::{
    domain::{Incarnation, Lease},
    port::{StoreError, StoreErrorKind},
};
use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::{
    MySqlStore,
    connection::{Entered, Line},
    error,
};

/// The present life, as an expression. MariaDB reads the first comment as SQL and MySQL the second.
macro_rules! present {
    () => {
        "convert(concat(@@server_id, ' ', @@hostname, ' ', (
            select unix_timestamp() - cast(variable_value as signed)
            from /*M! information_schema.global_status */ /*!80000 performance_schema.global_status */
            where variable_name = 'Uptime')) using utf8mb4)"
    };
}
pub(crate) use present;

/// A life of the server, or that it tells nothing of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Life(Option<Arc<str>>);

impl Life {
    pub(crate) async fn of(connection: &mut MySqlConnection) -> Result<Self, StoreError> {
        let told = sqlx::raw_sql(concat!("select ", present!())).fetch_one(connection).await;
        told.and_then(|row| Self::told(&row)).map_err(error::of)
    }

    /// The life in a row's first column.
    pub(crate) fn told(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        Ok(Self(row.try_get::<Option<&str>, _>(0)?.map(Into::into)))
    }

    fn is_another_than(&self, life: &Self) -> bool {
        self.0.is_some() && life.0.is_some() && self != life
    }
}

/// The life in which this store's node has joined, if it ever has.
#[derive(Debug, Default)]
pub(crate) struct Joined(Mutex<Option<Since>>);

#[derive(Debug)]
struct Since {
    life: Life,
    /// Where it follows another life: the first lease in this one. Those with lower numbers are void. The number of a lease
    /// that was lost may come again, but it is higher than those that were not.
    first: Option<Incarnation>,
}

impl Joined {
    pub(crate) fn in_life(&self, life: Life, incarnation: Incarnation) {
        let mut joined = self.lock();
        match &*joined {
            Some(since) if since.life == life => {}
            before => *joined = Some(Since { first: before.is_some().then_some(incarnation), life }),
        }
    }

    /// A store whose node has never joined remembers nothing that could be void.
    fn never(&self) -> bool {
        self.lock().is_none()
    }

    fn is_void(&self, lease: Option<&Lease>, present: &Life) -> bool {
        self.lock().as_ref().is_some_and(|since| {
            let ended = |lease: &Lease| since.first.is_some_and(|first| lease.incarnation < first);
            since.life.is_another_than(present) || lease.is_some_and(ended)
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Since>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known in one life of the server, and must be learned anew in the next.
#[derive(Debug)]
pub(crate) struct InLife<T> {
    life: Option<Life>,
    known: T,
    nothing: T,
}

impl<T: Clone> InLife<T> {
    pub(crate) fn new(nothing: T) -> Self {
        Self { life: None, known: nothing.clone(), nothing }
    }

    /// For a connection of this life. One of a life before may be late with what it has seen: the next of this life forgets
    /// that again.
    pub(crate) fn of(&mut self, life: &Life) -> &mut T {
        if self.life.as_ref() != Some(life) {
            self.life = Some(life.clone());
            self.known = self.nothing.clone();
        }
        &mut self.known
    }
}

impl MySqlStore {
    /// Waits for the connection, and refuses to read on it if what the node remembers is void.
    pub(crate) async fn enter_reading<'a>(&self, line: &'a Line) -> Result<Entered<'a>, StoreError> {
        let mut entered = line.enter().await?;
        self.check_life(&mut entered, None).await?;
        Ok(entered)
    }

    /// Refuses what is void on this connection: all that the node remembers, or the lease. The connection is then to be dropped.
    pub(crate) async fn check_life(&self, entered: &mut Entered<'_>, lease: Option<&Lease>) -> Result<(), StoreError> {
        if self.0.joined.never() {
            return Ok(());
        }
        let present = entered.life().await?;
        self.compare_life(lease, &present)
    }

    pub(crate) fn compare_life(&self, lease: Option<&Lease>, present: &Life) -> Result<(), StoreError> {
        if !self.0.joined.is_void(lease, present) {
            return Ok(());
        }
        Err(StoreError::new(
            StoreErrorKind::Rewound,
            "the database server has crashed or was restarted, or another has taken its place, since the node joined",
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use pillarbox_core::domain::NodeId;

    use super::*;
    use crate::plans::for_each_server;

    fn life(name: &str) -> Life {
        Life(Some(name.into()))
    }

    fn lease(incarnation: i64) -> Lease {
        Lease { node: NodeId::new("n"), incarnation: Incarnation(incarnation) }
    }

    #[test]
    fn who_has_never_joined_has_nothing_to_lose() {
        assert!(!Joined::default().is_void(None, &life("a")));
    }

    #[test]
    fn a_lease_is_void_in_another_life_and_in_one_that_another_lease_has_begun() {
        let joined = Joined::default();
        joined.in_life(life("a"), Incarnation(3));
        assert!(!joined.is_void(Some(&lease(2)), &life("a")), "that of another store");
        assert!(joined.is_void(Some(&lease(3)), &life("b")) && joined.is_void(None, &life("b")));
        joined.in_life(life("b"), Incarnation(4));
        joined.in_life(life("b"), Incarnation(5));
        assert!(joined.is_void(Some(&lease(3)), &life("b")), "of the first life");
        assert!(!joined.is_void(Some(&lease(4)), &life("b")) && !joined.is_void(Some(&lease(5)), &life("b")));
    }

    #[test]
    fn of_a_server_that_tells_nothing_nothing_is_noticed() {
        let (joined, unknown) = (Joined::default(), Life(None));
        joined.in_life(life("a"), Incarnation(1));
        assert!(!joined.is_void(None, &unknown));
        joined.in_life(unknown, Incarnation(2));
        assert!(!joined.is_void(None, &life("b")));
    }

    #[test]
    fn what_was_known_in_one_life_is_forgotten_in_the_next() {
        let mut known = InLife::new(0);
        *known.of(&life("a")) = 7;
        assert_eq!(*known.of(&life("a")), 7);
        assert_eq!(*known.of(&life("b")), 0);
        assert_eq!(*known.of(&life("a")), 0);
    }

    #[tokio::test]
    async fn a_life_has_one_name_whenever_it_is_asked_for_it() {
        for_each_server(async |server| {
            let database = server.database();
            let store = MySqlStore::open(database.url()).await.unwrap();
            let first = store.0.seeks.enter().await.unwrap().life().await.unwrap();
            assert!(first.0.is_some());
            // Over the end of a second.
            let end = Instant::now() + Duration::from_millis(1_100);
            let mut entered = store.0.pages.enter().await.unwrap();
            while Instant::now() < end {
                assert_eq!(Life::of(&mut entered).await.unwrap(), first);
            }
        })
        .await;
    }
}
