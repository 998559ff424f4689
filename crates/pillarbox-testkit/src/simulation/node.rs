//! A process with an outbox: how it starts, and the ways it ends.

use std::sync::Arc;

use pillarbox_core::{
    Delivery, Outbox, RetryPolicy,
    engine::{Heartbeat, OnSuccess},
};
use tokio::{
    task::JoinHandle,
    time::{Duration, sleep},
};

use super::{
    handler,
    ledger::{Ledger, Pen, now},
    life::Life,
    weather::Sky,
    wire::Wire,
    writer::{Desk, ROUTE, Writer},
};
use crate::{
    MemoryStore,
    clock::TimerClock,
    proof::{Layer, Layered, Witness, Witnessed},
};

/// Leases are short, so that a schedule is.
pub(super) const HEARTBEAT: Duration = Duration::from_millis(200);
pub(super) const LEASE: Duration = Duration::from_millis(700);

/// Longer than a handler, and the settle after it, can take.
const PATIENT: Duration = Duration::from_secs(10);

/// The store of one node: what tells of it, on a layer that may be a mutant, at the end of a wire.
pub(super) type NodeStore<L> = Wire<Layered<Layered<MemoryStore, L>, Witness<Told>>>;
type Told = Box<dyn Fn(Witnessed) + Send + Sync>;

/// What every process of a schedule is given.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) store: MemoryStore,
    pub(super) ledger: Ledger,
    pub(super) sky: Arc<Sky>,
    pub(super) desk: Arc<Desk>,
}

impl Site {
    fn wire<L: Layer<MemoryStore>>(&self, life: &Arc<Life>, layer: L, hasty: bool) -> NodeStore<L> {
        let store = Layered::new(self.store.another_process(), layer);
        let (pen, ledger) = (Pen::new(&self.ledger, life.name()), self.ledger.clone());
        let tell: Told = Box::new(move |seen| match seen {
            Witnessed::Took(partition, epoch) => pen.partition("took", partition.0, epoch.0, 0),
            // The store itself says when they took effect: see `Ledger::watch`.
            Witnessed::Settled(..) => {}
            Witnessed::Renewed(begun) => pen.call("renewed", begun),
            Witnessed::Lapsed => pen.word("lapsed"),
            Witnessed::Expelled(node) => ledger.word("lapsed", node.as_str()),
        });
        let witnessed = Layered::new(store, Witness::new(now, tell));
        Wire::new(witnessed, life.clone(), self.sky.clone(), hasty)
    }
}

/// One process.
#[derive(Debug)]
pub(super) struct Node<L: Layer<MemoryStore>> {
    life: Arc<Life>,
    ledger: Ledger,
    outbox: Option<Outbox<NodeStore<L>>>,
    writers: Vec<JoinHandle<()>>,
    leaving: Option<JoinHandle<()>>,
}

impl<L: Layer<MemoryStore>> Node<L> {
    /// Starts a node that delivers and writes. `None` if the store was in the way.
    pub(super) async fn start(site: &Site, name: String, layer: L) -> Option<Self> {
        let life = Arc::new(Life::new(name, &site.ledger));
        let (of, sky) = (life.clone(), site.sky.clone());
        let handle = move |delivery: Delivery| handler::handle(of.clone(), sky.clone(), delivery);
        let millis = Duration::from_millis;
        let hasty = fastrand::bool();
        let graceful = if hasty { millis(fastrand::u64(..300)) } else { PATIENT };
        let outbox = Outbox::multi_node(site.wire(&life, layer, hasty))
            .route(ROUTE, handle)
            .node_name(life.name())
            .clock(Arc::new(TimerClock::new()))
            .heartbeat_on(Heartbeat::SharedRuntime)
            .heartbeat(HEARTBEAT)
            .stale_after(LEASE)
            .rebalance_every(millis(fastrand::u64(200..600)))
            .handler_timeout(handler::TIMEOUT)
            // Nothing dies: what a seed does to an event must not be able to use up its attempts.
            .retry(RetryPolicy::fixed(millis(fastrand::u64(1..80))).max_attempts(100_000))
            .max_starts(1_000)
            .workers(fastrand::usize(1..5))
            .hot_capacity(fastrand::usize(1..12))
            .cold_capacity(fastrand::usize(2..40))
            .page_size(fastrand::usize(1..20))
            .lane_capacity(fastrand::usize(1..5))
            .poll_interval(millis(20), millis(fastrand::u64(20..400)))
            .settle_batch(fastrand::usize(1..12))
            .settle_linger(millis(fastrand::u64(..12)))
            .reservation_ttl(millis(fastrand::u64(10..500)))
            .drain_timeout(graceful)
            .on_success(if fastrand::bool() { OnSuccess::Delete } else { OnSuccess::Keep })
            .sample_every(Duration::from_hours(1))
            .no_purge()
            .start()
            .await;
        let Ok(outbox) = outbox else {
            life.end();
            return None;
        };
        let mut node =
            Self { life, ledger: site.ledger.clone(), outbox: Some(outbox), writers: Vec::new(), leaving: None };
        node.write(site, fastrand::usize(..2));
        Some(node)
    }

    fn write(&mut self, site: &Site, writers: usize) {
        let Some(outbox) = &self.outbox else { return };
        for _ in 0..writers {
            let (desk, life, sky) = (site.desk.clone(), self.life.clone(), site.sky.clone());
            let writer = Writer { desk, life, sky, outbox: outbox.clone() };
            self.writers.push(tokio::spawn(writer.run()));
        }
    }

    /// Everything of it stops at once, and says nothing more.
    pub(super) fn crash(mut self) {
        self.ledger.word("killed", self.life.name());
        self.life.end();
        self.writers.drain(..).chain(self.leaving.take()).for_each(|task| task.abort());
    }

    /// It stands still, and goes on later.
    pub(super) fn pause(&self, span: Duration) {
        self.ledger.word("paused", self.life.name());
        self.life.pause(span);
        let life = self.life.clone();
        tokio::spawn(async move {
            sleep(span).await;
            if let Some(pen) = life.pen().filter(|_| !life.stands_still()) {
                pen.word("resumed");
            }
        });
    }

    /// Begins its shutdown.
    pub(super) fn stop(&mut self) {
        let Some(outbox) = self.outbox.take() else { return };
        self.life.leave();
        let life = self.life.clone();
        // It keeps them itself, too: it may crash on its way out.
        let writers: Vec<_> = self.writers.iter().map(JoinHandle::abort_handle).collect();
        self.leaving = Some(tokio::spawn(async move {
            outbox.shutdown().await;
            writers.into_iter().for_each(|writer| writer.abort());
            life.end();
        }));
    }

    /// Waits until it has stopped.
    pub(super) async fn stopped(mut self) {
        if let Some(leaving) = self.leaving.take() {
            let _ = leaving.await;
        }
    }

    pub(super) fn name(&self) -> &str {
        self.life.name()
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    pub(super) fn is_over(&self) -> bool {
        self.life.is_over()
    }

    /// It stands still no longer.
    pub(super) fn wake(&self) {
        if self.life.stands_still() {
            self.ledger.word("resumed", self.life.name());
            self.life.pause(Duration::ZERO);
        }
    }

    /// Waits until its writers are done.
    pub(super) async fn written(&mut self) {
        for writer in self.writers.drain(..) {
            let _ = writer.await;
        }
    }
}

/// A process that only writes: it outlives all others.
pub(super) async fn write_only<L: Layer<MemoryStore>>(site: &Site, layer: L) -> Option<JoinHandle<()>> {
    let life = Arc::new(Life::new("writer".into(), &site.ledger));
    let outbox =
        Outbox::writer_only(site.wire(&life, layer, false)).clock(Arc::new(TimerClock::new())).start().await.ok()?;
    let (desk, sky) = (site.desk.clone(), site.sky.clone());
    Some(tokio::spawn(Writer { desk, life, sky, outbox }.run()))
}
