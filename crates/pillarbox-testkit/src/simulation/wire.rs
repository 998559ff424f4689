//! The wire between a process and its store: calls fail, are late, or lose their answers, and everything stops with
//! the process.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use pillarbox_core::{
    domain::{EventId, Key, Lease, NodeId, Partition, PartitionSet, Payload, Seq},
    port::{
        ActionQuery, ActionStore, Actions, Actor, AdminStore, Batch, BoxFuture, Due, Fleet, Joining, Listing, NewKey,
        NewRow, OwnStore, Page, Pick, PurgeRequest, Purged, Query, ReadStore, Recall, Released, Renewal, Row, Scan,
        Settled, Stats, StoreError, StoreErrorKind, Taken, TransactStore, UpkeepStore, WakeStore, WriteStore,
    },
};
use tokio::{
    task::yield_now,
    time::{Duration, sleep},
};

use super::{life::Life, node::LEASE, weather::Sky};

type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// A store as one process reaches it.
#[derive(Debug)]
pub(super) struct Wire<S> {
    store: Arc<S>,
    life: Arc<Life>,
    sky: Arc<Sky>,
    /// Whether its node waits for less than its handlers may take.
    hasty: bool,
    joined: AtomicBool,
}

impl<S: Send + Sync> Wire<S> {
    pub(super) fn new(store: S, life: Arc<Life>, sky: Arc<Sky>, hasty: bool) -> Self {
        Self { store: Arc::new(store), life, sky, hasty, joined: AtomicBool::new(false) }
    }

    fn around<'a, T: Send + 'a>(&'a self, run: Answer<'a, T>) -> Answer<'a, T> {
        Box::pin(async move {
            self.life.runs().await;
            self.late().await;
            self.fail_before().await?;
            self.answer(run.await).await
        })
    }

    async fn late(&self) {
        if let Some(late) = self.sky.delay("late calls", self.sky.weather().delay) {
            sleep(late).await;
            self.life.runs().await;
        }
    }

    async fn fail_before(&self) -> Result<(), StoreError> {
        if self.sky.strikes("failed calls", self.sky.weather().fail) {
            yield_now().await;
            // The caller can't know which of the two it is, and the engine must not care.
            let unknown = fastrand::bool();
            let kind = if unknown { StoreErrorKind::OutcomeUnknown } else { StoreErrorKind::Unavailable };
            return Err(StoreError::new(kind, "the call was lost"));
        }
        Ok(())
    }

    /// The way back.
    async fn answer<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        self.life.runs().await;
        if let Some(late) = self.sky.delay("late answers", self.sky.weather().delay) {
            sleep(late).await;
            self.life.runs().await;
        }
        if self.sky.strikes("lost answers", self.sky.weather().lose) {
            return Err(StoreError::new(StoreErrorKind::OutcomeUnknown, "the answer was lost"));
        }
        answer
    }

    /// A call that keeps the lease: if it is given up, the lease has run out by the node's own count.
    fn tend<'a, T: Send + 'a>(&'a self, run: Answer<'a, T>) -> Answer<'a, T> {
        Box::pin(async move {
            let mut given_up = GivenUp(Some(&self.life));
            let answer = self.around(run).await;
            given_up.0 = None;
            answer
        })
    }

    /// The node has had a lease before: whatever it did under that may be done again by others.
    fn lapsed(&self) {
        if let Some(pen) = self.life.pen().filter(|_| self.joined.load(Ordering::Relaxed)) {
            pen.word("lapsed");
        }
    }

    /// Nothing runs here any more, or soon: what the next owner does again is because of that.
    fn leaves(&self) {
        // It gives up what it has under way without waiting for it, and others may do it again.
        if let Some(pen) = self.life.pen().filter(|_| self.hasty) {
            pen.word("slow");
        }
        if let Some(pen) = self.life.pen().filter(|_| self.life.is_leaving()) {
            pen.word("left");
        }
    }
}

struct GivenUp<'a>(Option<&'a Life>);

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        if let Some(pen) = self.0.and_then(Life::pen) {
            pen.word("lapsed");
        }
    }
}

impl<Tx: ?Sized + Send, S: WriteStore<Tx>> WriteStore<Tx> for Wire<S> {
    fn insert<'a>(&'a self, tx: &'a mut Tx, rows: &'a [NewRow]) -> Answer<'a, Vec<Seq>> {
        self.around(self.store.insert(tx, rows))
    }

    fn enter_keys<'a>(&'a self, tx: &'a mut Tx, keys: &'a [NewKey<'a>]) -> Answer<'a, Vec<Option<EventId>>> {
        self.around(self.store.enter_keys(tx, keys))
    }
}

impl<S: TransactStore> TransactStore for Wire<S> {
    type Connection = S::Connection;
    type Tx = S::Tx;

    fn begin(&self) -> Answer<'_, S::Tx> {
        self.around(self.store.begin())
    }

    fn commit(&self, tx: S::Tx) -> Answer<'_, ()> {
        self.around(self.store.commit(tx))
    }

    fn rollback(&self, tx: S::Tx) -> Answer<'_, ()> {
        self.around(self.store.rollback(tx))
    }
}

impl<S: OwnStore> OwnStore for Wire<S> {
    fn join<'a>(&'a self, joining: &'a Joining) -> Answer<'a, Lease> {
        Box::pin(async move {
            self.lapsed();
            let lease = self.around(self.store.join(joining)).await;
            // Once more: what ended while the call was under way ended under the former lease.
            self.lapsed();
            if lease.is_ok() {
                self.joined.store(true, Ordering::Relaxed);
            }
            lease
        })
    }

    fn renew<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Answer<'a, Option<Renewal>> {
        self.tend(self.store.renew(lease, ttl))
    }

    fn publish<'a>(&'a self, lease: &'a Lease, routes: &'a [String]) -> Answer<'a, Option<()>> {
        self.tend(self.store.publish(lease, routes))
    }

    fn expel<'a>(&'a self, lease: &'a Lease) -> Answer<'a, Option<Vec<NodeId>>> {
        self.tend(self.store.expel(lease))
    }

    fn take<'a>(&'a self, lease: &'a Lease, partitions: PartitionSet) -> Answer<'a, Option<Vec<Taken>>> {
        self.tend(self.store.take(lease, partitions))
    }

    fn release<'a>(&'a self, lease: &'a Lease, partitions: &'a [Released], mark: Seq) -> Answer<'a, Option<()>> {
        self.leaves();
        Box::pin(async move {
            let released = self.tend(self.store.release(lease, partitions, mark)).await;
            if self.life.is_leaving() && self.sky.strikes("slow leaves", self.sky.weather().slow_leave) {
                sleep(LEASE.mul_f64(fastrand::f64())).await;
                self.life.runs().await;
            }
            released
        })
    }

    fn leave<'a>(&'a self, lease: &'a Lease, mark: Option<Seq>) -> Answer<'a, Option<()>> {
        self.leaves();
        self.around(self.store.leave(lease, mark))
    }
}

impl<S: ReadStore + 'static> ReadStore for Wire<S> {
    /// A page takes a moment, as on any database: a reader that asks again and again must not make time stand still.
    fn page<'a>(&'a self, scan: Scan<'a>, pick: &'a mut dyn Pick) -> Answer<'a, Page> {
        self.around(self.store.page(scan, pick))
    }

    fn due<'a>(&'a self, partitions: PartitionSet, limit: usize, pick: &'a mut dyn Pick) -> Answer<'a, Due> {
        self.around(self.store.due(partitions, limit, pick))
    }

    fn lane<'a>(&'a self, partition: Partition, key: &'a Key, from: Seq, limit: usize) -> Answer<'a, Vec<Row>> {
        self.around(self.store.lane(partition, key, from, limit))
    }

    fn rows<'a>(&'a self, seqs: &'a [Seq]) -> Answer<'a, Vec<Row>> {
        self.around(self.store.rows(seqs))
    }

    fn recall<'a>(&'a self, taken: &'a [Taken]) -> Answer<'a, Recall> {
        self.around(self.store.recall(taken))
    }

    fn start<'a>(&'a self, lease: &'a Lease, seq: Seq) -> Answer<'a, Option<u32>> {
        self.around(self.store.start(lease, seq))
    }

    /// Once it is sent it arrives, whether or not the caller still waits: a process that lets its lease run out, or
    /// ends, does not call back what is on its way.
    fn settle<'a>(&'a self, lease: &'a Lease, batch: &'a Batch) -> Answer<'a, Settled> {
        Box::pin(async move {
            self.fail_before().await?;
            let weather = self.sky.weather();
            let slow = self.sky.strikes("slow settles", weather.slow_settle).then(|| SLOW.mul_f64(fastrand::f64()));
            let late = self.sky.delay("late calls", weather.delay);
            let (store, life) = (self.store.clone(), self.life.clone());
            let (lease, batch) = (lease.clone(), batch.clone());
            let sent = tokio::spawn(async move {
                // What stands still has not sent it yet, and does so as soon as it goes on.
                if !life.goes_on().await {
                    return None;
                }
                sleep(slow.or(late).unwrap_or_default()).await;
                Some(store.settle(&lease, &batch).await)
            });
            match sent.await {
                Ok(Some(settled)) => self.answer(settled).await,
                // The process is gone, or the schedule is.
                Ok(None) | Err(_) => pending().await,
            }
        })
    }
}

/// Longer than a shutdown waits for it.
const SLOW: Duration = Duration::from_secs(4);

impl<S: UpkeepStore> UpkeepStore for Wire<S> {
    fn migrate(&self) -> Answer<'_, ()> {
        self.around(self.store.migrate())
    }

    fn check(&self) -> Answer<'_, ()> {
        self.around(self.store.check())
    }

    fn purge<'a>(&'a self, request: PurgeRequest<'a>) -> Answer<'a, Purged> {
        self.around(self.store.purge(request))
    }
}

impl<S: AdminStore> AdminStore for Wire<S> {
    fn list<'a>(&'a self, query: &'a Query, from: Seq, limit: u32) -> Answer<'a, Listing> {
        self.around(self.store.list(query, from, limit))
    }

    fn count<'a>(&'a self, query: &'a Query) -> Answer<'a, u64> {
        self.around(self.store.count(query))
    }

    fn replay<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> Answer<'a, Vec<Seq>> {
        self.around(self.store.replay(seqs, actor))
    }

    fn discard<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> Answer<'a, Vec<Seq>> {
        self.around(self.store.discard(seqs, actor))
    }

    fn skip<'a>(&'a self, seqs: &'a [Seq], actor: &'a Actor) -> Answer<'a, Vec<Seq>> {
        self.around(self.store.skip(seqs, actor))
    }

    fn stats(&self) -> Answer<'_, Stats> {
        self.around(self.store.stats())
    }

    fn fleet(&self) -> Answer<'_, Fleet> {
        self.around(self.store.fleet())
    }
}

impl<S: ActionStore> ActionStore for Wire<S> {
    fn edit<'a>(&'a self, seq: Seq, payload: &'a Payload, actor: &'a Actor) -> Answer<'a, bool> {
        self.around(self.store.edit(seq, payload, actor))
    }

    fn actions<'a>(&'a self, query: &'a ActionQuery, from: Option<i64>, limit: u32) -> Answer<'a, Actions> {
        self.around(self.store.actions(query, from, limit))
    }

    fn purge_actions(&self, older_than: Duration, batch: u32) -> Answer<'_, u64> {
        self.around(self.store.purge_actions(older_than, batch))
    }
}

impl<S: WakeStore> WakeStore for Wire<S> {
    fn wants_hints(&self) -> bool {
        self.store.wants_hints()
    }

    fn hint(&self, partitions: PartitionSet) -> Answer<'_, ()> {
        self.around(self.store.hint(partitions))
    }

    /// Waits without harm: hints are lost on their way to it.
    fn news(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let news = self.store.news().await;
            self.life.runs().await;
            news
        })
    }

    fn hint_fleet(&self) -> Answer<'_, ()> {
        self.around(self.store.hint_fleet())
    }

    fn fleet_news(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let news = self.store.fleet_news().await;
            self.life.runs().await;
            news
        })
    }
}
