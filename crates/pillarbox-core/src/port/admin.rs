//! What operators see and do.

use super::{BoxFuture, StoreError};
use crate::domain::{EventId, Incarnation, NodeId, Partition, PartitionSet, Record, Seq, Status, Timestamp};

/// Picks events; unset fields match everything.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// In one of these statuses; empty means any.
    pub statuses: Vec<Status>,
    /// Of this id.
    pub id: Option<EventId>,
    /// Of this event type.
    pub event_type: Option<String>,
    /// Of this aggregate type.
    pub aggregate_type: Option<String>,
    /// Of this aggregate.
    pub aggregate_id: Option<String>,
    /// Of this tenant.
    pub tenant_id: Option<String>,
    /// With this ordering key.
    pub key: Option<String>,
    /// Inserted at this time or later.
    pub from: Option<Timestamp>,
    /// Inserted before this time.
    pub until: Option<Timestamp>,
    /// With this text in the last error or the payload, letter case apart.
    pub text: Option<String>,
    /// From the highest number down, instead of from the lowest up.
    pub newest_first: bool,
}

/// An event as an operator sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The event as stored. `Err` holds the reason where the row can't be decoded.
    pub record: Result<Record, String>,
    /// Its number.
    pub seq: Seq,
    /// The id as it stands in the table.
    pub id: String,
    /// Where it stands.
    pub status: Status,
    /// Failed attempts.
    pub attempts: u32,
    /// When it is due, if it has a time of its own.
    pub available_at: Option<Timestamp>,
    /// When it was finished.
    pub done_at: Option<Timestamp>,
    /// The last error.
    pub last_error: Option<String>,
    /// Whether its key is held because of it.
    pub holds_key: bool,
}

/// A page of found events, by sequence.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The events.
    pub events: Vec<Found>,
    /// Where the next page begins, if there is one.
    pub next: Option<Seq>,
}

/// Who acts, and why; kept with the action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// Who.
    pub who: String,
    /// Why.
    pub why: Option<String>,
}

impl Actor {
    /// An actor without a reason.
    pub fn new(who: impl Into<String>) -> Self {
        Self { who: who.into(), why: None }
    }

    /// Adds the reason.
    #[must_use]
    pub fn because(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }
}

/// The outbox in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Rows by status.
    pub by_status: [(u64, Option<Timestamp>); 4],
    /// The pending events of the fullest partition, with its number.
    pub worst_partition: Option<(Partition, u64)>,
    /// The nodes whose lease is in force.
    pub live_nodes: u64,
    /// The database's time.
    pub now: Timestamp,
}

impl Stats {
    /// How many rows have this status.
    pub fn count(&self, status: Status) -> u64 {
        self.by_status[status as usize].0
    }

    /// When the oldest row of this status was inserted.
    pub fn oldest(&self, status: Status) -> Option<Timestamp> {
        self.by_status[status as usize].1
    }

    /// Events that wait for their delivery.
    pub fn pending(&self) -> u64 {
        self.count(Status::New) + self.count(Status::Retry)
    }
}

/// The nodes, and what they own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// By name.
    pub nodes: Vec<NodeStatus>,
    /// The partitions without an owner.
    pub free: PartitionSet,
    /// The database's time.
    pub now: Timestamp,
}

/// A node as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its name.
    pub node: NodeId,
    /// Which of its lives this is.
    pub incarnation: Incarnation,
    /// When it joined.
    pub started_at: Timestamp,
    /// When its lease ends, unless it is renewed.
    pub until: Timestamp,
    /// The routes it can deliver.
    pub routes: Vec<String>,
    /// How far it had come at its last settle.
    pub mark: Option<Seq>,
    /// What it owns.
    pub partitions: PartitionSet,
}

impl NodeStatus {
    /// Whether its lease is in force at a time of the database's.
    pub fn is_live(&self, now: Timestamp) -> bool {
        now < self.until
    }
}

/// The operators' port. Actions are compare-and-set on the row's status and recorded with the actor in the
/// same transaction; each returns the numbers it changed, so of two concurrent calls one gets each row.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store of an outbox",
    note = "open one by its URL, as in `SqliteStore::open(\"shop.db\")`, `PostgresStore::open(url)` or `AnyStore::open(url)`",
    note = "or on a pool of your own: `PostgresStore::from_pool(pool)`"
)]
pub trait AdminStore: Send + Sync {
    /// The events that match, in sequence order, from a number on; with `newest_first` against that order, from a
    /// number down.
    fn list<'a>(&'a self, query: &'a Query, from: Seq, limit: u32) -> BoxFuture<'a, Result<Listing, StoreError>>;

    /// How many events match.
    fn count<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<u64, StoreError>>;

    /// Makes DEAD events due now: NEW, attempts 0, starts 0, the error cleared and the progress kept. A key that one of
    /// them holds stays held until it is settled. Others are left alone.
    fn replay<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>>;

    /// Removes DEAD events; a key that one of them holds is freed. Others are left alone.
    fn discard<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>>;

    /// Frees the keys that these DEAD events hold; the events stay DEAD. Others are left alone.
    fn skip<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> BoxFuture<'a, Result<Vec<Seq>, StoreError>>;

    /// The outbox in numbers. Reads the whole table where the database keeps no count.
    fn stats(&self) -> BoxFuture<'_, Result<Stats, StoreError>>;

    /// The nodes, those whose lease has lapsed among them, and who owns what.
    fn fleet(&self) -> BoxFuture<'_, Result<Fleet, StoreError>>;
}
