//! Every port of the store, through the script.

use std::time::Duration;

use pillarbox_core::{
    domain::{EventId, Key, Lease, NodeId, Partition, PartitionSet, Payload, Seq},
    port::{
        ActionQuery, ActionStore, Actions, Actor, AdminStore, Batch, BoxFuture, Candidate, Due, Fleet, Joining,
        Listing, NewKey, NewRow, OwnStore, Page, Pick, PurgeRequest, Purged, Query, ReadStore, Recall, Released,
        Renewal, Row, Scan, SettleStore, Settled, Stats, StoreError, Taken, TransactStore, UpkeepStore, WakeStore,
        WriteStore,
    },
};

use super::{Call, Faulty};
use crate::Gate;

type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

impl<Tx: ?Sized, S: WriteStore<Tx>> WriteStore<Tx> for Faulty<S> {
    fn insert<'a>(&'a self, tx: &'a mut Tx, rows: &'a [NewRow]) -> Answer<'a, Vec<Seq>> {
        self.faults.around(Call::Insert, self.store.insert(tx, rows))
    }

    fn enter_keys<'a>(&'a self, tx: &'a mut Tx, keys: &'a [NewKey<'a>]) -> Answer<'a, Vec<Option<EventId>>> {
        self.faults.around(Call::EnterKeys, self.store.enter_keys(tx, keys))
    }
}

impl<S: TransactStore> TransactStore for Faulty<S> {
    type Connection = S::Connection;
    type Tx = S::Tx;

    fn begin(&self) -> Answer<'_, S::Tx> {
        self.faults.around(Call::Begin, self.store.begin())
    }

    fn commit(&self, tx: S::Tx) -> Answer<'_, ()> {
        self.faults.around(Call::Commit, self.store.commit(tx))
    }

    fn rollback(&self, tx: S::Tx) -> Answer<'_, ()> {
        self.faults.around(Call::Rollback, self.store.rollback(tx))
    }
}

impl<S: SettleStore> SettleStore for Faulty<S> {
    fn begin_work(&self) -> Answer<'_, S::Tx> {
        self.faults.around(Call::BeginWork, self.store.begin_work())
    }

    fn keep<'a>(&'a self, tx: &'a mut S::Tx) -> Answer<'a, ()> {
        self.faults.around(Call::Keep, self.store.keep(tx))
    }

    fn undo<'a>(&'a self, tx: &'a mut S::Tx) -> Answer<'a, ()> {
        self.faults.around(Call::Undo, self.store.undo(tx))
    }

    fn settle_in<'a>(&'a self, tx: &'a mut S::Tx, lease: &'a Lease, batch: &'a Batch) -> Answer<'a, Settled> {
        self.faults.around(Call::SettleIn, self.store.settle_in(tx, lease, batch))
    }

    fn unsettled<'a>(&'a self, seqs: &'a [Seq]) -> Answer<'a, Vec<Seq>> {
        self.faults.around(Call::Unsettled, self.store.unsettled(seqs))
    }
}

impl<S: OwnStore> OwnStore for Faulty<S> {
    fn join<'a>(&'a self, joining: &'a Joining) -> Answer<'a, Lease> {
        self.faults.around(Call::Join, self.store.join(joining))
    }

    fn renew<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Answer<'a, Option<Renewal>> {
        self.faults.around(Call::Renew, self.store.renew(lease, ttl))
    }

    fn publish<'a>(&'a self, lease: &'a Lease, routes: &'a [String]) -> Answer<'a, Option<()>> {
        self.faults.around(Call::Publish, self.store.publish(lease, routes))
    }

    fn expel<'a>(&'a self, lease: &'a Lease) -> Answer<'a, Option<Vec<NodeId>>> {
        self.faults.around(Call::Expel, self.store.expel(lease))
    }

    fn take<'a>(&'a self, lease: &'a Lease, partitions: PartitionSet) -> Answer<'a, Option<Vec<Taken>>> {
        self.faults.around(Call::Take, self.store.take(lease, partitions))
    }

    fn release<'a>(&'a self, lease: &'a Lease, partitions: &'a [Released], mark: Seq) -> Answer<'a, Option<()>> {
        self.faults.around(Call::Release, self.store.release(lease, partitions, mark))
    }

    fn leave<'a>(&'a self, lease: &'a Lease, mark: Option<Seq>) -> Answer<'a, Option<()>> {
        self.faults.around(Call::Leave, self.store.leave(lease, mark))
    }
}

impl<S: ReadStore> Faulty<S> {
    async fn old_snapshot(&self, scan: Scan<'_>, pick: &mut dyn Pick, gate: Gate) -> Result<Page, StoreError> {
        let limit = scan.limit;
        let everything = Scan { limit: usize::MAX, ..scan };
        let mut page = self.store.page(everything, &mut |_: Candidate<'_>| true).await?;
        gate.pass().await;
        let mut rows = Vec::new();
        for row in page.rows {
            if rows.len() >= limit {
                page.more = true;
                page.position.lower(Seq(row.seq().0 - 1));
                break;
            }
            let candidate = Candidate { seq: row.seq(), partition: row.partition(), key: row.key().map(Key::as_str) };
            if pick.pick(candidate) {
                rows.push(row);
            }
        }
        Ok(Page { rows, ..page })
    }
}

impl<S: ReadStore> ReadStore for Faulty<S> {
    fn page<'a>(&'a self, scan: Scan<'a>, pick: &'a mut dyn Pick) -> Answer<'a, Page> {
        match self.faults.next_snapshot() {
            Some(gate) => self.faults.around(Call::Page, Box::pin(self.old_snapshot(scan, pick, gate))),
            None => self.faults.around(Call::Page, self.store.page(scan, pick)),
        }
    }

    fn due<'a>(&'a self, partitions: PartitionSet, limit: usize, pick: &'a mut dyn Pick) -> Answer<'a, Due> {
        self.faults.around(Call::Due, self.store.due(partitions, limit, pick))
    }

    fn lane<'a>(&'a self, partition: Partition, key: &'a Key, from: Seq, limit: usize) -> Answer<'a, Vec<Row>> {
        self.faults.around(Call::Lane, self.store.lane(partition, key, from, limit))
    }

    fn rows<'a>(&'a self, seqs: &'a [Seq]) -> Answer<'a, Vec<Row>> {
        self.faults.around(Call::Rows, self.store.rows(seqs))
    }

    fn recall<'a>(&'a self, taken: &'a [Taken]) -> Answer<'a, Recall> {
        self.faults.around(Call::Recall, self.store.recall(taken))
    }

    fn start<'a>(&'a self, lease: &'a Lease, seq: Seq) -> Answer<'a, Option<u32>> {
        self.faults.around(Call::Start, self.store.start(lease, seq))
    }

    fn settle<'a>(&'a self, lease: &'a Lease, batch: &'a Batch) -> Answer<'a, Settled> {
        self.faults.around(Call::Settle, self.store.settle(lease, batch))
    }
}

impl<S: UpkeepStore> UpkeepStore for Faulty<S> {
    fn migrate(&self) -> Answer<'_, ()> {
        self.faults.around(Call::Migrate, self.store.migrate())
    }

    fn check(&self) -> Answer<'_, ()> {
        self.faults.around(Call::Check, self.store.check())
    }

    fn purge<'a>(&'a self, request: PurgeRequest<'a>) -> Answer<'a, Purged> {
        self.faults.around(Call::Purge, self.store.purge(request))
    }
}

impl<S: AdminStore> AdminStore for Faulty<S> {
    fn list<'a>(&'a self, query: &'a Query, from: Seq, limit: u32) -> Answer<'a, Listing> {
        self.faults.around(Call::List, self.store.list(query, from, limit))
    }

    fn count<'a>(&'a self, query: &'a Query) -> Answer<'a, u64> {
        self.faults.around(Call::Count, self.store.count(query))
    }

    fn replay<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> Answer<'a, Vec<Seq>> {
        self.faults.around(Call::Replay, self.store.replay(seqs, actor))
    }

    fn discard<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> Answer<'a, Vec<Seq>> {
        self.faults.around(Call::Discard, self.store.discard(seqs, actor))
    }

    fn skip<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> Answer<'a, Vec<Seq>> {
        self.faults.around(Call::Skip, self.store.skip(seqs, actor))
    }

    fn stats(&self) -> Answer<'_, Stats> {
        self.faults.around(Call::Stats, self.store.stats())
    }

    fn fleet(&self) -> Answer<'_, Fleet> {
        self.faults.around(Call::Fleet, self.store.fleet())
    }
}

impl<S: ActionStore> ActionStore for Faulty<S> {
    fn edit<'a>(&'a self, seq: Seq, payload: &'a Payload, actor: &'a Actor) -> Answer<'a, bool> {
        self.faults.around(Call::Edit, self.store.edit(seq, payload, actor))
    }

    fn actions<'a>(&'a self, query: &'a ActionQuery, from: Option<i64>, limit: u32) -> Answer<'a, Actions> {
        self.faults.around(Call::Actions, self.store.actions(query, from, limit))
    }

    fn purge_actions(&self, older_than: Duration, batch: u32) -> Answer<'_, u64> {
        self.faults.around(Call::PurgeActions, self.store.purge_actions(older_than, batch))
    }
}

impl<S: WakeStore> WakeStore for Faulty<S> {
    fn wants_hints(&self) -> bool {
        self.store.wants_hints()
    }

    fn hint(&self, partitions: PartitionSet) -> Answer<'_, ()> {
        self.faults.around(Call::Hint, self.store.hint(partitions))
    }

    fn news(&self) -> Answer<'_, ()> {
        self.faults.around(Call::News, self.store.news())
    }

    fn hint_fleet(&self) -> Answer<'_, ()> {
        self.faults.around(Call::HintFleet, self.store.hint_fleet())
    }

    fn fleet_news(&self) -> Answer<'_, ()> {
        self.store.fleet_news()
    }
}
