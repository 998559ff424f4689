//! A store behind a layer that may see, or change, what the proof is about.

use std::time::Duration;

use pillarbox_core::{
    domain::{EventId, Key, Lease, NodeId, Partition, PartitionSet, Payload, Seq},
    port::{
        ActionQuery, ActionStore, Actions, Actor, AdminStore, Batch, BoxFuture, Due, Fleet, Joining, Listing, NewKey,
        NewRow, OwnStore, Page, Pick, PurgeRequest, Purged, Query, ReadStore, Recall, Released, Renewal, Row, Scan,
        Settled, Stats, StoreError, Taken, TransactStore, UpkeepStore, WakeStore, WriteStore,
    },
};

/// What a call to a store gives.
pub(crate) type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// The calls that a layer may stand in front of. By itself it lets everything through.
pub trait Layer<S: ReadStore + OwnStore>: Send + Sync + 'static {
    /// In front of `WriteStore::insert`.
    fn insert<'a, Tx: ?Sized + Send>(&'a self, store: &'a S, tx: &'a mut Tx, rows: &'a [NewRow]) -> Answer<'a, Vec<Seq>>
    where
        S: WriteStore<Tx>,
    {
        store.insert(tx, rows)
    }

    /// In front of `OwnStore::join`.
    fn join<'a>(&'a self, store: &'a S, joining: &'a Joining) -> Answer<'a, Lease> {
        store.join(joining)
    }

    /// In front of `OwnStore::renew`.
    fn renew<'a>(&'a self, store: &'a S, lease: &'a Lease, ttl: Duration) -> Answer<'a, Option<Renewal>> {
        store.renew(lease, ttl)
    }

    /// In front of `OwnStore::expel`.
    fn expel<'a>(&'a self, store: &'a S, lease: &'a Lease) -> Answer<'a, Option<Vec<NodeId>>> {
        store.expel(lease)
    }

    /// In front of `OwnStore::take`.
    fn take<'a>(&'a self, store: &'a S, lease: &'a Lease, wanted: PartitionSet) -> Answer<'a, Option<Vec<Taken>>> {
        store.take(lease, wanted)
    }

    /// In front of `ReadStore::page`.
    fn page<'a>(&'a self, store: &'a S, scan: Scan<'a>, pick: &'a mut dyn Pick) -> Answer<'a, Page> {
        store.page(scan, pick)
    }

    /// In front of `ReadStore::settle`.
    fn settle<'a>(&'a self, store: &'a S, lease: &'a Lease, batch: &'a Batch) -> Answer<'a, Settled> {
        store.settle(lease, batch)
    }
}

/// A store behind a layer.
#[derive(Clone, Debug)]
pub struct Layered<S, L> {
    store: S,
    layer: L,
}

impl<S, L> Layered<S, L> {
    /// Puts the layer in front of the store.
    pub fn new(store: S, layer: L) -> Self {
        Self { store, layer }
    }

    /// The store itself.
    pub fn inner(&self) -> &S {
        &self.store
    }
}

impl<Tx, S, L> WriteStore<Tx> for Layered<S, L>
where
    Tx: ?Sized + Send,
    S: WriteStore<Tx> + ReadStore + OwnStore,
    L: Layer<S>,
{
    fn insert<'a>(&'a self, tx: &'a mut Tx, rows: &'a [NewRow]) -> Answer<'a, Vec<Seq>> {
        self.layer.insert(&self.store, tx, rows)
    }

    fn enter_keys<'a>(&'a self, tx: &'a mut Tx, keys: &'a [NewKey<'a>]) -> Answer<'a, Vec<Option<EventId>>> {
        self.store.enter_keys(tx, keys)
    }
}

impl<S: TransactStore + ReadStore + OwnStore, L: Layer<S>> TransactStore for Layered<S, L> {
    type Connection = S::Connection;
    type Tx = S::Tx;

    fn begin(&self) -> Answer<'_, S::Tx> {
        self.store.begin()
    }

    fn commit(&self, tx: S::Tx) -> Answer<'_, ()> {
        self.store.commit(tx)
    }

    fn rollback(&self, tx: S::Tx) -> Answer<'_, ()> {
        self.store.rollback(tx)
    }
}

impl<S: ReadStore + OwnStore, L: Layer<S>> OwnStore for Layered<S, L> {
    fn join<'a>(&'a self, joining: &'a Joining) -> Answer<'a, Lease> {
        self.layer.join(&self.store, joining)
    }

    fn renew<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Answer<'a, Option<Renewal>> {
        self.layer.renew(&self.store, lease, ttl)
    }

    fn publish<'a>(&'a self, lease: &'a Lease, routes: &'a [String]) -> Answer<'a, Option<()>> {
        self.store.publish(lease, routes)
    }

    fn expel<'a>(&'a self, lease: &'a Lease) -> Answer<'a, Option<Vec<NodeId>>> {
        self.layer.expel(&self.store, lease)
    }

    fn take<'a>(&'a self, lease: &'a Lease, partitions: PartitionSet) -> Answer<'a, Option<Vec<Taken>>> {
        self.layer.take(&self.store, lease, partitions)
    }

    fn release<'a>(&'a self, lease: &'a Lease, partitions: &'a [Released], mark: Seq) -> Answer<'a, Option<()>> {
        self.store.release(lease, partitions, mark)
    }

    fn leave<'a>(&'a self, lease: &'a Lease, mark: Option<Seq>) -> Answer<'a, Option<()>> {
        self.store.leave(lease, mark)
    }
}

impl<S: ReadStore + OwnStore, L: Layer<S>> ReadStore for Layered<S, L> {
    fn page<'a>(&'a self, scan: Scan<'a>, pick: &'a mut dyn Pick) -> Answer<'a, Page> {
        self.layer.page(&self.store, scan, pick)
    }

    fn due<'a>(&'a self, partitions: PartitionSet, limit: usize, pick: &'a mut dyn Pick) -> Answer<'a, Due> {
        self.store.due(partitions, limit, pick)
    }

    fn lane<'a>(&'a self, partition: Partition, key: &'a Key, from: Seq, limit: usize) -> Answer<'a, Vec<Row>> {
        self.store.lane(partition, key, from, limit)
    }

    fn rows<'a>(&'a self, seqs: &'a [Seq]) -> Answer<'a, Vec<Row>> {
        self.store.rows(seqs)
    }

    fn recall<'a>(&'a self, taken: &'a [Taken]) -> Answer<'a, Recall> {
        self.store.recall(taken)
    }

    fn start<'a>(&'a self, lease: &'a Lease, seq: Seq) -> Answer<'a, Option<u32>> {
        self.store.start(lease, seq)
    }

    fn settle<'a>(&'a self, lease: &'a Lease, batch: &'a Batch) -> Answer<'a, Settled> {
        self.layer.settle(&self.store, lease, batch)
    }
}

impl<S: UpkeepStore, L: Send + Sync> UpkeepStore for Layered<S, L> {
    fn migrate(&self) -> Answer<'_, ()> {
        self.store.migrate()
    }

    fn check(&self) -> Answer<'_, ()> {
        self.store.check()
    }

    fn purge<'a>(&'a self, request: PurgeRequest<'a>) -> Answer<'a, Purged> {
        self.store.purge(request)
    }
}

impl<S: AdminStore, L: Send + Sync> AdminStore for Layered<S, L> {
    fn list<'a>(&'a self, query: &'a Query, from: Seq, limit: u32) -> Answer<'a, Listing> {
        self.store.list(query, from, limit)
    }

    fn count<'a>(&'a self, query: &'a Query) -> Answer<'a, u64> {
        self.store.count(query)
    }

    fn replay<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> Answer<'a, Vec<Seq>> {
        self.store.replay(seqs, actor)
    }

    fn discard<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> Answer<'a, Vec<Seq>> {
        self.store.discard(seqs, actor)
    }

    fn skip<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> Answer<'a, Vec<Seq>> {
        self.store.skip(seqs, actor)
    }

    fn stats(&self) -> Answer<'_, Stats> {
        self.store.stats()
    }

    fn fleet(&self) -> Answer<'_, Fleet> {
        self.store.fleet()
    }
}

impl<S: ActionStore, L: Send + Sync> ActionStore for Layered<S, L> {
    fn edit<'a>(&'a self, seq: Seq, payload: &'a Payload, actor: &'a Actor) -> Answer<'a, bool> {
        self.store.edit(seq, payload, actor)
    }

    fn actions<'a>(&'a self, query: &'a ActionQuery, from: Option<i64>, limit: u32) -> Answer<'a, Actions> {
        self.store.actions(query, from, limit)
    }

    fn purge_actions(&self, older_than: Duration, batch: u32) -> Answer<'_, u64> {
        self.store.purge_actions(older_than, batch)
    }
}

impl<S: WakeStore, L: Send + Sync> WakeStore for Layered<S, L> {
    fn wants_hints(&self) -> bool {
        self.store.wants_hints()
    }

    fn hint(&self, partitions: PartitionSet) -> Answer<'_, ()> {
        self.store.hint(partitions)
    }

    fn news(&self) -> Answer<'_, ()> {
        self.store.news()
    }

    fn hint_fleet(&self) -> Answer<'_, ()> {
        self.store.hint_fleet()
    }

    fn fleet_news(&self) -> Answer<'_, ()> {
        self.store.fleet_news()
    }
}
