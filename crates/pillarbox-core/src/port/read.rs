//! Reading and settling: the owner's view of the outbox.
//!
//! Only the owner of a partition may call this port for that partition. Rows are never claimed: what is in
//! flight is known to the owner's memory alone, and every write is behind the fence.
//!
//! An event that waits is found again in one of four ways, and in exactly one of them at a time:
//! - above the **position**, by [`ReadStore::page`]: NEW, no due time of its own;
//! - by its **due time**, by [`ReadStore::due`]: RETRY, delayed or replayed;
//! - behind a **hold**, by [`ReadStore::lane`]: NEW, below the position, its key held or overflowing;
//! - by its **number**, by [`ReadStore::rows`]: what the owner's memory knows that it passed over.

use std::time::Duration;

use super::{BoxFuture, StoreError};
use crate::domain::{Epoch, Key, Lease, Partition, PartitionSet, Record, Seq, Timestamp};

/// How far the reading of one node has come. It lives in that node's memory; what is stored, and handed to
/// the next owner, is its `mark` alone.
///
/// Nothing between `mark` and `seq` can still become visible, except as the store's own `token` tells it to
/// probe; nothing at or below `mark` can at all. A position that was lowered is valid too: it reads more than it
/// must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Pages have been read up to here.
    pub seq: Seq,
    /// The low-water mark: `seq`, or less while transactions are open that may have taken a lower number.
    pub mark: Seq,
    /// Whatever the store wants to be given back with it.
    pub token: Option<Box<str>>,
}

impl Position {
    /// Before the first event.
    pub const START: Self = Self { seq: Seq(0), mark: Seq(0), token: None };

    /// A position below which nothing can become visible.
    pub const fn at(mark: Seq) -> Self {
        Self { seq: mark, mark, token: None }
    }

    /// Lowers the position to the mark of a partition that joins the reading, if it lies above.
    pub fn lower(&mut self, mark: Seq) {
        self.seq = self.seq.min(mark);
        self.mark = self.mark.min(mark);
    }
}

/// Asks for a page.
#[derive(Clone, Debug)]
pub struct Scan<'a> {
    /// The partitions to read, all owned by the caller.
    pub partitions: PartitionSet,
    /// Where to go on.
    pub after: &'a Position,
    /// How many rows to take at the most.
    pub limit: usize,
    /// Leave out rows that are younger than this, by the database's clock.
    pub skip_recent: Duration,
}

/// A row that the store has come upon, before it is decoded.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its number.
    pub seq: Seq,
    /// Its partition.
    pub partition: Partition,
    /// Its ordering key.
    pub key: Option<&'a str>,
}

/// The owner's word on each candidate, asked in the order of the rows.
///
/// What it refuses does not count towards the limit, and the store reads on: rows that are in flight, held
/// or reserved neither fill a page nor stop it.
pub trait Pick: Send {
    /// Whether the row is to be taken.
    fn pick(&mut self, candidate: Candidate<'_>) -> bool;

    /// The page begins again: what was picked is forgotten, and each row is asked for anew.
    fn again(&mut self) {}
}

impl<F: FnMut(Candidate<'_>) -> bool + Send> Pick for F {
    fn pick(&mut self, candidate: Candidate<'_>) -> bool {
        self(candidate)
    }
}

/// A row as read.
#[derive(Clone, Debug, PartialEq)]
pub enum Row {
    /// It was understood.
    Event(Record),
    /// It was not: it goes DEAD with the reason, and the rows around it go on.
    Broken {
        /// Its number.
        seq: Seq,
        /// Its partition.
        partition: Partition,
        /// Its ordering key, if that could be read.
        key: Option<Key>,
        /// What is wrong with it.
        reason: String,
    },
}

impl Row {
    /// The number of the row.
    pub fn seq(&self) -> Seq {
        match self {
            Self::Event(record) => record.seq,
            Self::Broken { seq, .. } => *seq,
        }
    }

    /// The partition of the row.
    pub fn partition(&self) -> Partition {
        match self {
            Self::Event(record) => record.partition,
            Self::Broken { partition, .. } => *partition,
        }
    }

    /// The ordering key of the row.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Event(record) => record.key(),
            Self::Broken { key, .. } => key.as_ref(),
        }
    }
}

/// A page.
#[derive(Clone, Debug)]
pub struct Page {
    /// What was picked, in sequence order.
    pub rows: Vec<Row>,
    /// Where the next page begins. Never before where this one began.
    pub position: Position,
    /// Whether the page ended at its limit, so that more may be there at once.
    pub more: bool,
    /// The database's time of the read.
    pub now: Timestamp,
}

/// What has come due.
#[derive(Clone, Debug, Default)]
pub struct Due {
    /// Rows whose due time has passed (exactly now counts), oldest due time first.
    pub rows: Vec<Row>,
    /// Keys that an operator has freed: holds of kind `Overflow` that the caller may not know yet.
    pub freed: Vec<Hold>,
    /// How long until the next row comes due, if one is waiting.
    pub next: Option<Duration>,
    /// The database's time of the read.
    pub now: Timestamp,
}

/// Why the followers of a key are found by the key, and no longer by the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoldKind {
    /// Its head is DEAD, and the key waits for an operator. `from` is the head's number.
    DeadHead,
    /// More of its events are waiting than memory should hold. `from` is the first of them.
    Overflow,
}

/// A held key. A key has at most one hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The key's partition.
    pub partition: Partition,
    /// The key.
    pub key: Key,
    /// Why it is held.
    pub kind: HoldKind,
    /// From which number on its events are found by [`ReadStore::lane`].
    pub from: Seq,
}

/// What a new owner must know about the partitions it has taken.
#[derive(Clone, Debug, Default)]
pub struct Recall {
    /// The keys that are held.
    pub holds: Vec<Hold>,
    /// Keyed events in status RETRY, due or not: each holds its key back.
    pub failing: Vec<(Partition, Key, Seq)>,
    /// Events that may have been running when the last owner died.
    pub suspects: Vec<Seq>,
}

/// What becomes of one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// DONE, and kept until it is purged.
    Done,
    /// Done, and removed at once.
    Delete,
    /// RETRY: due again after `after` by the database's clock.
    Retry {
        /// Failed attempts from now on.
        attempts: u32,
        /// How long until it is due.
        after: Duration,
        /// The error; `None` keeps the former one (a deferral).
        error: Option<String>,
        /// Handlers that have succeeded; `None` keeps the former value.
        progress: Option<Box<str>>,
    },
    /// DEAD, and its key held if `hold` is set and it has one: a hold of the key is replaced, unless it is that
    /// of a head which is DEAD still.
    Dead {
        /// Failed attempts from now on.
        attempts: u32,
        /// The error.
        error: String,
        /// Handlers that have succeeded, or failed for good; `None` keeps the former value.
        progress: Option<Box<str>>,
        /// Holds the key in the same transaction.
        hold: bool,
    },
    /// The delivery was interrupted: only the `starts` are cleared.
    Interrupted,
}

/// An outcome on its way to the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Which row.
    pub seq: Seq,
    /// Its partition.
    pub partition: Partition,
    /// The epoch under which it was delivered.
    pub epoch: Epoch,
    /// Its ordering key.
    pub key: Option<Key>,
    /// What becomes of it.
    pub change: Change,
}

/// A change to the table of holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldChange {
    /// Enters a hold; one of the same key is replaced, but never an existing hold of kind `DeadHead`.
    Set(Hold),
    /// Removes the hold of a key, of whichever kind.
    Clear {
        /// The key's partition.
        partition: Partition,
        /// The key.
        key: Key,
    },
}

impl HoldChange {
    /// The partition of the key.
    pub fn partition(&self) -> Partition {
        match self {
            Self::Set(hold) => hold.partition,
            Self::Clear { partition, .. } => *partition,
        }
    }
}

/// One settle: everything in it happens, or nothing.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The outcomes, in ascending order of their numbers, each number once.
    pub outcomes: Vec<Settlement>,
    /// Changes to the holds, applied after the outcomes, in order.
    pub holds: Vec<HoldChange>,
    /// How far the node has come: kept with its lease, and handed to whoever takes its partitions.
    pub mark: Option<Seq>,
}

impl Batch {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty() && self.holds.is_empty() && self.mark.is_none()
    }
}

/// What a settle did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is durable. `stale` outcomes carried an epoch that is no longer the partition's, and changed
    /// nothing.
    Applied {
        /// How many were left out.
        stale: usize,
    },
    /// The lease is not in force: nothing was written.
    Fenced,
}

/// The owner's port.
///
/// Settles touch only rows that are NEW or RETRY: a late settle neither revives a finished row nor
/// re-creates a removed one, and a row that is missing is no error. All outcomes clear `starts`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store of an outbox",
    note = "open one by its URL, as in `SqliteStore::open(\"shop.db\")`, `PostgresStore::open(url)` or `AnyStore::open(url)`",
    note = "or on a pool of your own: `PostgresStore::from_pool(pool)`"
)]
pub trait ReadStore: Send + Sync {
    /// One page of NEW rows without a due time above the position, in sequence order, from one snapshot.
    /// An empty page means idle, not an error.
    fn page<'a>(&'a self, scan: Scan<'a>, pick: &'a mut dyn Pick) -> BoxFuture<'a, Result<Page, StoreError>>;

    /// Rows (NEW or RETRY) whose own due time has passed, and when the next one will.
    fn due<'a>(
        &'a self,
        partitions: PartitionSet,
        limit: usize,
        pick: &'a mut dyn Pick,
    ) -> BoxFuture<'a, Result<Due, StoreError>>;

    /// The pending rows of a key from a number on that are due (or have no due time), in sequence order. Also asked for
    /// while another read is under way, and then an event waits for the answer.
    fn lane<'a>(
        &'a self,
        partition: Partition,
        key: &'a Key,
        from: Seq,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Row>, StoreError>>;

    /// Those of the rows that are pending and due, by number, in sequence order.
    fn rows<'a>(&'a self, seqs: &'a [Seq]) -> BoxFuture<'a, Result<Vec<Row>, StoreError>>;

    /// What a new owner must know: holds, failing heads, and for each partition that asks for suspects its
    /// oldest and newest pending rows. Among the oldest, a key counts with its first row alone, since the
    /// others wait behind it.
    fn recall<'a>(&'a self, taken: &'a [super::Taken]) -> BoxFuture<'a, Result<Recall, StoreError>>;

    /// Counts the start of a suspect, durably, before its handler runs; returns the new count. `None` when
    /// the lease is not in force or the row is no longer pending.
    fn start<'a>(&'a self, lease: &'a Lease, seq: Seq) -> BoxFuture<'a, Result<Option<u32>, StoreError>>;

    /// Records a batch behind the fence. `Fenced` is an answer, not an error. After an error nothing or
    /// everything is written, and the same batch may be sent again.
    fn settle<'a>(&'a self, lease: &'a Lease, batch: &'a Batch) -> BoxFuture<'a, Result<Settled, StoreError>>;
}
