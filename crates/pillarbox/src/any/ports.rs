//! Every port, by the store that it is.

use std::time::Duration;

use pillarbox_core::{
    domain::{Key, Lease, NodeId, Partition, PartitionSet, Payload, Seq},
    port::{
        ActionQuery, ActionStore, Actions, Actor, AdminStore, Batch, BoxFuture, Due, Fleet, Joining, Listing, OwnStore,
        Page, Pick, PurgeRequest, Purged, Query, ReadStore, Recall, Released, Renewal, Row, Scan, Settled, Stats,
        StoreError, Taken, UpkeepStore, WakeStore,
    },
};

use super::AnyStore;

type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

impl OwnStore for AnyStore {
    fn join<'a>(&'a self, joining: &'a Joining) -> Answer<'a, Lease> {
        self.as_dyn().join(joining)
    }

    fn renew<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Answer<'a, Option<Renewal>> {
        self.as_dyn().renew(lease, ttl)
    }

    fn publish<'a>(&'a self, lease: &'a Lease, routes: &'a [String]) -> Answer<'a, Option<()>> {
        self.as_dyn().publish(lease, routes)
    }

    fn expel<'a>(&'a self, lease: &'a Lease) -> Answer<'a, Option<Vec<NodeId>>> {
        self.as_dyn().expel(lease)
    }

    fn take<'a>(&'a self, lease: &'a Lease, partitions: PartitionSet) -> Answer<'a, Option<Vec<Taken>>> {
        self.as_dyn().take(lease, partitions)
    }

    fn release<'a>(&'a self, lease: &'a Lease, partitions: &'a [Released], mark: Seq) -> Answer<'a, Option<()>> {
        self.as_dyn().release(lease, partitions, mark)
    }

    fn leave<'a>(&'a self, lease: &'a Lease, mark: Option<Seq>) -> Answer<'a, Option<()>> {
        self.as_dyn().leave(lease, mark)
    }
}

impl ReadStore for AnyStore {
    fn page<'a>(&'a self, scan: Scan<'a>, pick: &'a mut dyn Pick) -> Answer<'a, Page> {
        self.as_dyn().page(scan, pick)
    }

    fn due<'a>(&'a self, partitions: PartitionSet, limit: usize, pick: &'a mut dyn Pick) -> Answer<'a, Due> {
        self.as_dyn().due(partitions, limit, pick)
    }

    fn lane<'a>(&'a self, partition: Partition, key: &'a Key, from: Seq, limit: usize) -> Answer<'a, Vec<Row>> {
        self.as_dyn().lane(partition, key, from, limit)
    }

    fn rows<'a>(&'a self, seqs: &'a [Seq]) -> Answer<'a, Vec<Row>> {
        self.as_dyn().rows(seqs)
    }

    fn recall<'a>(&'a self, taken: &'a [Taken]) -> Answer<'a, Recall> {
        self.as_dyn().recall(taken)
    }

    fn start<'a>(&'a self, lease: &'a Lease, seq: Seq) -> Answer<'a, Option<u32>> {
        self.as_dyn().start(lease, seq)
    }

    fn settle<'a>(&'a self, lease: &'a Lease, batch: &'a Batch) -> Answer<'a, Settled> {
        self.as_dyn().settle(lease, batch)
    }
}

impl UpkeepStore for AnyStore {
    fn migrate(&self) -> Answer<'_, ()> {
        self.as_dyn().migrate()
    }

    fn check(&self) -> Answer<'_, ()> {
        self.as_dyn().check()
    }

    fn purge<'a>(&'a self, request: PurgeRequest<'a>) -> Answer<'a, Purged> {
        self.as_dyn().purge(request)
    }
}

impl AdminStore for AnyStore {
    fn list<'a>(&'a self, query: &'a Query, from: Seq, limit: u32) -> Answer<'a, Listing> {
        self.as_dyn().list(query, from, limit)
    }

    fn count<'a>(&'a self, query: &'a Query) -> Answer<'a, u64> {
        self.as_dyn().count(query)
    }

    fn replay<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> Answer<'a, Vec<Seq>> {
        self.as_dyn().replay(seqs, actor)
    }

    fn discard<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> Answer<'a, Vec<Seq>> {
        self.as_dyn().discard(seqs, actor)
    }

    fn skip<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> Answer<'a, Vec<Seq>> {
        self.as_dyn().skip(seqs, actor)
    }

    fn stats(&self) -> Answer<'_, Stats> {
        self.as_dyn().stats()
    }

    fn fleet(&self) -> Answer<'_, Fleet> {
        self.as_dyn().fleet()
    }
}

impl ActionStore for AnyStore {
    fn edit<'a>(&'a self, seq: Seq, payload: &'a Payload, actor: &'a Actor) -> Answer<'a, bool> {
        self.as_dyn().edit(seq, payload, actor)
    }

    fn actions<'a>(&'a self, query: &'a ActionQuery, from: Option<i64>, limit: u32) -> Answer<'a, Actions> {
        self.as_dyn().actions(query, from, limit)
    }

    fn purge_actions(&self, older_than: Duration, batch: u32) -> Answer<'_, u64> {
        self.as_dyn().purge_actions(older_than, batch)
    }
}

impl WakeStore for AnyStore {
    fn wants_hints(&self) -> bool {
        self.as_dyn().wants_hints()
    }

    fn hint(&self, partitions: PartitionSet) -> Answer<'_, ()> {
        self.as_dyn().hint(partitions)
    }

    fn news(&self) -> Answer<'_, ()> {
        self.as_dyn().news()
    }

    fn hint_fleet(&self) -> Answer<'_, ()> {
        self.as_dyn().hint_fleet()
    }

    fn fleet_news(&self) -> Answer<'_, ()> {
        self.as_dyn().fleet_news()
    }
}
