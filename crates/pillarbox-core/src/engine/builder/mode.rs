//! The modes: what each presets, and the settings that it alone has. They only choose settings: one mechanism serves them
//! all.

use std::time::Duration;

use super::{Builder, Parts};
use crate::{
    domain::Key,
    engine::{
        error::OutboxError, handler::Routes, node::Node, outbox::Outbox, settings::PurgeOptions, writer::KeyRule,
    },
    port::{PurgeScope, Store},
};

/// One process on the database; a short lease, so that a restart after a crash delivers within seconds.
/// A second process started by mistake is harmless: the two share the partitions.
#[derive(Debug)]
pub enum SingleNode {}
/// Several processes that share the partitions.
#[derive(Debug)]
pub enum MultiNode {}
/// Several processes, and every event has a key.
#[derive(Debug)]
pub enum Ordered {}
/// A process that writes and delivers nothing.
#[derive(Debug)]
pub enum WriterOnly {}

/// Modes that deliver.
pub trait Delivers: sealed::Sealed {}
impl Delivers for SingleNode {}
impl Delivers for MultiNode {}
impl Delivers for Ordered {}

/// Modes for several nodes.
pub trait SharesPartitions: Delivers {}
impl SharesPartitions for MultiNode {}
impl SharesPartitions for Ordered {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::SingleNode {}
    impl Sealed for super::MultiNode {}
    impl Sealed for super::Ordered {}
}

impl<S: Store> Outbox<S> {
    /// One process on its database, as with an embedded SQLite.
    pub fn single_node(store: S) -> Builder<S, SingleNode> {
        let seconds = Duration::from_secs;
        let mut builder = Builder::new(store);
        builder.settings.heartbeat = seconds(1);
        builder.settings.stale_after = seconds(3);
        builder.settings.rebalance_every = seconds(1);
        builder
    }

    /// Several processes on one database.
    pub fn multi_node(store: S) -> Builder<S, MultiNode> {
        Builder::new(store)
    }

    /// Several processes on one database, and every event in the order of its key. Events without a key
    /// are refused, unless [`default_key`](Builder::default_key) gives them one.
    pub fn ordered(store: S) -> Builder<S, Ordered> {
        let mut builder = Builder::new(store);
        builder.key_rule = KeyRule::Required;
        builder
    }

    /// A process that only writes; others deliver, or change data capture does.
    pub fn writer_only(store: S) -> Builder<S, WriterOnly> {
        let mut builder = Builder::new(store);
        builder.settings.purge = None;
        builder
    }
}

impl<S: Store> Builder<S, SingleNode> {
    /// How long after a crash another process may take over. Default: 3 s. A third of it is the heartbeat.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = Some(lease);
        self.settings.stale_after = lease;
        self.settings.heartbeat = lease / 3;
        self.settings.rebalance_every = lease / 3;
        self
    }
}

impl<S: Store, M: SharesPartitions> Builder<S, M> {
    /// How often the lease is renewed, at the least: in company, nodes look around every second. Default: 5 s.
    pub fn heartbeat(mut self, every: Duration) -> Self {
        self.settings.heartbeat = every;
        self
    }

    /// How long after its last renewal a node is taken for dead. Default: 30 s; at least three heartbeats.
    pub fn stale_after(mut self, span: Duration) -> Self {
        self.settings.stale_after = span;
        self
    }

    /// How often a node looks whether it has more than its share, or more than it can do while others idle.
    /// Default: 10 s.
    pub fn rebalance_every(mut self, every: Duration) -> Self {
        self.settings.rebalance_every = every;
        self
    }
}

impl<S: Store> Builder<S, Ordered> {
    /// Gives every event without a key this one, instead of refusing it.
    pub fn default_key(mut self, key: impl Into<Key>) -> Self {
        self.key_rule = KeyRule::Default(key.into());
        self
    }
}

impl<S: Store> Builder<S, WriterOnly> {
    /// Removes every row that was inserted longer ago than this, delivered or not: for tables that are read
    /// by change data capture.
    pub fn purge_by_age(mut self, age: Duration) -> Self {
        self.settings.purge = Some(PurgeOptions { scope: PurgeScope::ByAge(age), ..PurgeOptions::default() });
        self
    }

    /// How often, and how many rows at a time.
    pub fn purge_schedule(mut self, every: Duration, batch: u32) -> Self {
        let options = self.settings.purge.get_or_insert_default();
        options.every = every;
        options.batch = batch;
        self
    }

    /// Checks the settings and prepares the tables.
    pub async fn start(self) -> Result<Outbox<S>, OutboxError> {
        let Parts { store, shared, writer, .. } = self.prepare(Routes::default()).await?;
        let node = Node::writer_only(shared.clone());
        Ok(Outbox::assemble(store, writer, shared, node))
    }
}
