//! The tasks of an outbox: how they start, and in which order they stop.

use std::sync::{Arc, atomic::Ordering};

use parking_lot::Mutex;
use tokio::{
    sync::Mutex as AsyncMutex,
    task::JoinHandle,
    time::{Duration, Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    apart::Apart,
    dispatcher::{Serves, Worker},
    error::OutboxError,
    handler::Routes,
    ownership::Ownership,
    reader::Reader,
    scout::Scout,
    settings::LONGEST,
    settler::Settler,
    shared::Shared,
    upkeep::{Purge, Sampler},
    watch::{Works, watched},
    work::Desk,
};
use crate::port::StoreError;

/// At most one hint to other processes in this time.
const HINT_EVERY: Duration = Duration::from_millis(5);

/// The background of one outbox.
#[derive(Debug)]
pub(crate) struct Node {
    shared: Arc<Shared>,
    purge: Option<Arc<Purge>>,
    stops: Stops,
    tasks: Mutex<Tasks>,
    shutting_down: AsyncMutex<bool>,
}

/// Each group of tasks has its own stop, because they stop one after another.
#[derive(Debug, Default)]
struct Stops {
    upkeep: CancellationToken,
    reader: CancellationToken,
    workers: CancellationToken,
    abort: CancellationToken,
    settler: CancellationToken,
    ownership: CancellationToken,
    sampler: CancellationToken,
}

#[derive(Debug, Default)]
struct Tasks {
    upkeep: Vec<JoinHandle<()>>,
    reader: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    settler: Vec<JoinHandle<()>>,
    ownership: Vec<JoinHandle<()>>,
    sampler: Vec<JoinHandle<()>>,
}

impl Node {
    /// Joins, takes its first share of the partitions, and starts the tasks, unless nodes of another group are there.
    pub(crate) async fn start(shared: Arc<Shared>, desk: Option<Arc<dyn Desk>>) -> Result<Self, OutboxError> {
        // Who comes later leaves no trace.
        refuse_other_groups(&shared).await?;
        let mut ownership = Ownership::new(shared.clone());
        ownership.run_once().await?;
        let node = Self::idle(shared.clone());
        // Of those that start in the same moment nobody is seen by that first look. Now this node can be seen: of two, the
        // one whose entry was the later to commit finds the other, if not both do. Nothing was delivered yet.
        if let Err(refusal) = refuse_other_groups(&shared).await {
            node.leave().await;
            return Err(refusal);
        }
        let mut reader = Reader::new(shared.clone());
        reader.run_once().await?;
        let apart = Apart::start(shared.settings.heartbeat_on, node.stops.ownership.clone())?;
        if apart.is_a_thread() {
            *shared.apart.lock() = Some(apart.clone());
        }
        node.start_tasks(&apart, ownership, reader, desk.as_ref());
        node.start_upkeep();
        Ok(node)
    }

    fn start_tasks(&self, apart: &Apart, ownership: Ownership, reader: Reader, desk: Option<&Arc<dyn Desk>>) {
        use Works::{Beside, OnMemory};
        let (shared, tasks, stops) = (&self.shared, &mut *self.tasks.lock(), &self.stops);

        let mut first = Some(ownership);
        let own = move |shared, stop| first.take().unwrap_or_else(|| Ownership::new(shared)).run(stop);
        tasks.ownership.push(apart.spawn(watched(shared, "ownership", OnMemory, &stops.ownership, own)));
        let settle = |shared, stop| Settler::new(shared).run(stop);
        tasks.settler.push(apart.spawn(watched(shared, "settler", OnMemory, &stops.settler, settle)));

        let one_for_suspects = std::iter::once(Serves::Suspects);
        for serves in one_for_suspects.chain(std::iter::repeat_n(Serves::Queues, shared.settings.workers)) {
            let (desk, abort) = (desk.cloned(), stops.abort.clone());
            let work = move |shared, stop| Worker::new(shared, serves, desk.clone()).run(stop, abort.clone());
            tasks.workers.push(tokio::spawn(watched(shared, "worker", OnMemory, &stops.workers, work)));
        }

        let mut first = Some(reader);
        let read = move |shared, stop| first.take().unwrap_or_else(|| Reader::new(shared)).run(stop);
        tasks.reader.push(tokio::spawn(watched(shared, "reader", OnMemory, &stops.reader, read)));
        let scout = |shared, stop| Scout::new(shared).run(stop);
        tasks.reader.push(tokio::spawn(watched(shared, "scout", OnMemory, &stops.reader, scout)));
        tasks.reader.push(tokio::spawn(watched(shared, "wait for news", Beside, &stops.reader, hear_news)));
        tasks.reader.push(tokio::spawn(watched(shared, "wait for nodes", Beside, &stops.reader, hear_of_fleet)));
        let sample = |shared, stop| Sampler::new(shared).run(stop);
        tasks.sampler.push(tokio::spawn(watched(shared, "sampler", Beside, &stops.sampler, sample)));
    }

    /// The background of an outbox that only writes: no lease, no partitions.
    pub(crate) fn writer_only(shared: Arc<Shared>) -> Self {
        let node = Self::idle(shared);
        node.start_upkeep();
        node
    }

    /// A background without tasks.
    pub(crate) fn idle(shared: Arc<Shared>) -> Self {
        let purge = shared.settings.purge.map(|options| Arc::new(Purge::new(shared.clone(), options)));
        Self { shared, purge, stops: Stops::default(), tasks: Mutex::default(), shutting_down: AsyncMutex::new(false) }
    }

    fn start_upkeep(&self) {
        let (shared, tasks, stop) = (&self.shared, &mut *self.tasks.lock(), &self.stops.upkeep);
        if let Some(options) = shared.settings.purge {
            let purge = move |shared, stop| Purge::new(shared, options).run(stop);
            let purge = watched(shared, "purge", Works::Beside, stop, purge);
            tasks.upkeep.push(match &*shared.apart.lock() {
                Some(apart) => apart.spawn(purge),
                None => tokio::spawn(purge),
            });
        }
        tasks.upkeep.push(tokio::spawn(watched(shared, "hints", Works::Beside, stop, send_hints)));
    }

    pub(crate) async fn purge_now(&self) -> Result<u64, OutboxError> {
        let Some(purge) = self.purge.clone() else { return Ok(0) };
        Ok(self.shared.apart(async move { purge.run_once().await }).await?)
    }

    /// Stops in this order: purge, reader, workers, settler, lease, metrics.
    pub(crate) async fn shutdown(&self) {
        let mut done = self.shutting_down.lock().await;
        if *done {
            return;
        }
        let limit = self.shared.settings.drain_timeout;
        // Farther than any instant is for ever.
        let begun = Instant::now();
        let end = begun.checked_add(limit).unwrap_or_else(|| begun + LONGEST);
        self.shared.flight.lock().owned.close();
        // From now on the ownership hands over whatever has settled: one slow handler keeps back its partition alone.
        self.shared.departing.store(true, Ordering::Release);
        self.shared.own.notify_one();
        let mut tasks = std::mem::take(&mut *self.tasks.lock());

        self.stops.upkeep.cancel();
        join(tasks.upkeep, Duration::from_secs(1)).await;
        self.stops.reader.cancel();
        join(tasks.reader, Duration::from_secs(1)).await;

        self.stops.workers.cancel();
        let mut workers = tasks.workers;
        drain(&mut workers, end.saturating_duration_since(Instant::now())).await;
        if !workers.is_empty() {
            tracing::warn!(
                running = self.shared.running.load(Ordering::Relaxed),
                ?limit,
                "handlers still run at the end of the drain: they are dropped, and no attempt counts"
            );
            self.stops.abort.cancel();
            join(workers, Duration::from_millis(500)).await;
        }

        self.stops.settler.cancel();
        // At least a moment, even if the handlers used up the whole limit.
        let settling = end.saturating_duration_since(Instant::now()).max(Duration::from_secs(2));
        join(tasks.settler, settling).await;

        self.stops.ownership.cancel();
        // One that waits for the database is left to it: it may be in the midst of a release.
        drain(&mut tasks.ownership, Duration::from_secs(2)).await;
        *self.shared.apart.lock() = None;
        self.leave().await;
        self.stops.sampler.cancel();
        join(tasks.sampler, Duration::from_secs(1)).await;
        *done = true;
    }

    /// Gives the partitions that are left to whoever wants them next.
    pub(crate) async fn leave(&self) {
        let (lease, released, mark) = {
            let mut flight = self.shared.flight.lock();
            let Some(lease) = flight.owned.lease().cloned() else {
                return;
            };
            let known = flight.owned.known();
            let (released, mark) = flight.give_up(known, self.shared.settings.in_flight_bound());
            flight.lose_everything();
            (lease, released, mark)
        };
        let store = &self.shared.store;
        let unreleased = std::mem::take(&mut *self.shared.unreleased.lock());
        let leaving = async {
            for (released, mark) in
                unreleased.iter().map(|(released, mark)| (released, *mark)).chain([(&released, mark)])
            {
                if !released.is_empty() {
                    store.release(&lease, released, mark).await?;
                }
            }
            let left = store.leave(&lease, None).await?;
            // A hint: whoever does not hear it looks by itself.
            let _ = store.hint_fleet().await;
            Ok::<_, StoreError>(left)
        };
        match timeout(Duration::from_secs(5), leaving).await {
            Ok(Ok(_)) => tracing::info!(node = %lease.node, "the node has left"),
            Ok(Err(error)) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the node could not leave: its partitions are free when its lease lapses"
            ),
            Err(_) => tracing::warn!("the database did not answer: the partitions are free when the lease lapses"),
        }
    }
}

/// An outbox that is dropped without a shutdown stops its tasks; its lease lapses.
impl Drop for Node {
    fn drop(&mut self) {
        let stops = &self.stops;
        for stop in [
            &stops.upkeep,
            &stops.reader,
            &stops.workers,
            &stops.abort,
            &stops.settler,
            &stops.ownership,
            &stops.sampler,
        ] {
            stop.cancel();
        }
        *self.shared.apart.lock() = None;
    }
}

/// Looks whether live nodes of another group are there: under this node's own name as well, which a process of another
/// group may have been given by mistake.
async fn refuse_other_groups(shared: &Shared) -> Result<(), OutboxError> {
    let fleet = shared.store.fleet().await?;
    let ours = shared.settings.group.as_deref();
    let others = fleet.nodes.iter().filter(|node| node.is_live(fleet.now));
    for node in others {
        let theirs = Routes::group_of(&node.routes);
        if theirs != ours {
            let name =
                |group: Option<&str>| group.map_or("with handlers of its own".into(), |name| format!("as a {name}"));
            return Err(OutboxError::OtherGroup {
                node: node.node.to_string(),
                theirs: name(theirs),
                ours: ours.map_or("no such".into(), |name| format!("a {name}")),
            });
        }
    }
    Ok(())
}

/// Rings the reader's bell when another process has news.
async fn hear_news(shared: Arc<Shared>, stop: CancellationToken) {
    loop {
        let news = tokio::select! {
            news = shared.store.news() => news,
            () = stop.cancelled() => return,
        };
        match news {
            Ok(()) => {
                shared.flight.lock().look_for_due(Instant::now());
                shared.read.notify_one();
            }
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "no news for now; polling goes on");
                tokio::select! {
                    () = sleep(Duration::from_secs(1)) => {}
                    () = stop.cancelled() => return,
                }
            }
        }
    }
}

/// Rings the ownership's bell when another process has news of the nodes.
async fn hear_of_fleet(shared: Arc<Shared>, stop: CancellationToken) {
    loop {
        let news = tokio::select! {
            news = shared.store.fleet_news() => news,
            () = stop.cancelled() => return,
        };
        if news.is_ok() {
            shared.look_around.store(true, Ordering::Release);
            shared.own.notify_one();
        } else {
            tokio::select! {
                () = sleep(Duration::from_secs(1)) => {}
                () = stop.cancelled() => return,
            }
        }
    }
}

/// Tells other processes of commits in their partitions: coalesced, and outside of every transaction. At the stop,
/// too: a process that writes and ends at once would else be heard of by polling alone.
async fn send_hints(shared: Arc<Shared>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = shared.hints.notified() => {}
            () = stop.cancelled() => {}
        }
        // Seen before the taking: what comes while a hint is under way waits for the next turn, also at the stop.
        let is_last = stop.is_cancelled();
        let partitions = std::mem::take(&mut *shared.hinted.lock());
        if !partitions.is_empty()
            && let Err(error) = shared.store.hint(partitions).await
        {
            tracing::debug!(error = &error as &dyn std::error::Error, "a hint was not sent; its reader polls");
        }
        if is_last {
            return;
        }
        tokio::select! {
            () = sleep(HINT_EVERY) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Waits for tasks to end; those that don't within the limit are aborted.
async fn join(mut tasks: Vec<JoinHandle<()>>, limit: Duration) {
    drain(&mut tasks, limit).await;
    for task in tasks {
        task.abort();
    }
}

/// Waits for tasks to end, and leaves those that have not ended within the limit.
async fn drain(tasks: &mut Vec<JoinHandle<()>>, limit: Duration) {
    let end = Instant::now() + limit;
    let mut left = Vec::new();
    for mut task in tasks.drain(..) {
        match tokio::time::timeout_at(end, &mut task).await {
            Ok(_) => {}
            Err(_) => left.push(task),
        }
    }
    *tasks = left;
}
