//! The life of the server: what its crash undoes, and how a node notices.
//!
//! A crashed server comes back with what its log on the disk holds. Two things that nodes have seen need not be there:
//! - **Numbers and transaction ids** that nobody had committed yet. The server gives them out again. A node that had passed
//!   them, by the rules of [`crate::horizon`], would never look at the rows that have them now.
//! - **Rows** whose writers did not wait for the log (`synchronous_commit = off`, or a standby that had not received them
//!   before it took over). Their numbers come again, too, and a node that still had such an event in flight would settle
//!   another one in its place.
//!
//! So what a node remembers is void with the crash, and so is its lease: it joins anew, and goes on from the marks in the
//! database. Those are sound, since a commit that stored a mark has made durable whatever the mark rests on.
//!
//! A life is known by a random id in an **unlogged table**, which PostgreSQL empties at the end of a crash and when a standby
//! takes over, and which a restart leaves alone. It can't be missed as a connection that broke can, of which one hears
//! nothing behind a pooler. Who joins enters an id if there is none, and his lease names it:
//! - each fence and each renewal compares the lease's with the present one, in the statement that looks for the lease. No crash
//!   leaves a transaction open, so what is written behind the fence is written in the life of the lease.
//! - each read compares the one in which this store's node has joined: once a connection, which does not outlive a crash;
//!   behind a pooler, where it may be another session each time, in the round trip that begins the transaction. A pass of the
//!   reader does so each time, in its own snapshot.
//!
//! Whoever **empties the table of events** ends the life as well, by a trigger that also frees all partitions with a raised
//! epoch and sets their marks back: the numbers may come again, as after a crash. He waits for what has written to the table
//! behind the fence; who has passed the fence and writes later finds other epochs, and stores no mark, since the statement that
//! does looks at the owner or at the life as well, behind the locks.
//!
//! # When the process dies
//! - between the id's insert and the join's commit, which are one transaction: neither is there;
//! - and when the server crashes after that: the id is gone and the lease is there, which makes the lease void.
//!
//! What is not noticed: clones of one store that serve several outboxes know one life. Of two such outboxes the one that joins
//! second after a crash may read until then; it settles nothing.

use std::sync::{Mutex, PoisonError};

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::{AssertSqlSafe, PgConnection, Row as _, postgres::PgRow};

use crate::{
    PostgresStore,
    connection::{Entered, READ},
    error,
    tables::statements,
};

statements!(LifeSql {
    begin: "insert into {life} (one) values (true) on conflict do nothing",
    /// By primary key.
    present: "select life::text from {life} where one",
});

/// The life in which this store's node has joined.
#[derive(Debug, Default)]
pub(crate) struct Life(Mutex<Option<Box<str>>>);

impl Life {
    pub(crate) fn joined(&self, life: Box<str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(life);
    }

    pub(crate) fn check(&self, present: Option<&str>) -> Result<(), StoreError> {
        if self.is(present) { Ok(()) } else { Err(rewound()) }
    }

    /// A store whose node has never joined remembers nothing that could be void.
    fn is(&self, present: Option<&str>) -> bool {
        let joined = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        joined.as_deref().is_none_or(|joined| Some(joined) == present)
    }
}

/// What a fence says of the lease in its first column.
pub(crate) fn is_present(fenced: &PgRow) -> Result<(), StoreError> {
    if fenced.try_get(0).map_err(error::of)? { Ok(()) } else { Err(rewound()) }
}

impl PostgresStore {
    /// The present life, which begins here if it has no id yet.
    pub(crate) async fn begin_life(&self, tx: &mut PgConnection) -> Result<Box<str>, sqlx::Error> {
        let LifeSql { begin, present, .. } = &self.0.sql.life;
        loop {
            self.query(begin).execute(&mut *tx).await?;
            // One that is about to end is in the way of the next, and gone a moment later.
            if let Some(row) = self.query(present).fetch_optional(&mut *tx).await? {
                return row.try_get(0);
            }
        }
    }

    /// Readies the connection for one statement that reads, if what the node remembers still holds.
    pub(crate) async fn begin_reading<'a>(&self, entered: &'a mut Entered) -> Result<&'a mut PgConnection, StoreError> {
        let present = &self.0.sql.life.present;
        if self.0.behind_pooler {
            // Two texts of our own.
            let begun = sqlx::raw_sql(AssertSqlSafe(format!("{READ}; {}", present.as_str())));
            let begun = begun.fetch_optional(entered.connection().map_err(error::of)?).await.map_err(error::of)?;
            entered.session().map_err(error::of)?.life = id_of(begun.as_ref())?;
        } else if !self.knows(entered)? {
            let asked = self.query(present).fetch_optional(entered.connection().map_err(error::of)?).await;
            entered.session().map_err(error::of)?.life = id_of(asked.map_err(error::of)?.as_ref())?;
        }
        self.0.life.check(entered.session().map_err(error::of)?.life.as_deref())?;
        entered.connection().map_err(error::of)
    }

    /// Whether the session has asked for the life that the node has joined.
    fn knows(&self, entered: &mut Entered) -> Result<bool, StoreError> {
        let asked = &entered.session().map_err(error::of)?.life;
        Ok(asked.is_some() && self.0.life.is(asked.as_deref()))
    }
}

fn id_of(row: Option<&PgRow>) -> Result<Option<Box<str>>, StoreError> {
    row.map(|row| row.try_get(0)).transpose().map_err(error::of)
}

fn rewound() -> StoreError {
    StoreError::new(
        StoreErrorKind::Rewound,
        "the database server has crashed and come back, or another has taken its place, or the table of events was emptied \
         (`truncate`), since the node joined",
    )
}
