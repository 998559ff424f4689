//! One schedule, from the first node to the last row.

use std::sync::Arc;

use pillarbox_core::{
    domain::{Epoch, Partition, PartitionSet, Seq, Status},
    port::{AdminStore, ReadStore, Taken},
};
use tokio::time::{Duration, Instant, sleep};

use super::{
    handler::Told,
    ledger::Ledger,
    node::{self, LEASE, Node, Site},
    weather::{Sky, Weather},
    writer::{Desk, ORDERS},
};
use crate::{
    MemoryStore,
    proof::{Layer, Order, Story, Violation, check},
    simulation::Outcome,
};

/// How long, in virtual time, what is committed may take until it is delivered, once nothing goes wrong any more.
const PATIENCE: Duration = Duration::from_secs(40);

/// A schedule under way.
pub(super) struct Schedule<L: Layer<MemoryStore>, F> {
    site: Site,
    mutate: F,
    nodes: Vec<Node<L>>,
    started: usize,
}

impl<L: Layer<MemoryStore>, F: Fn() -> L> Schedule<L, F> {
    pub(super) fn new(weather: Weather, mutate: F) -> Self {
        let site = Site {
            store: MemoryStore::virtual_time(),
            ledger: Ledger::default(),
            sky: Arc::new(Sky::new(weather)),
            desk: Arc::new(Desk::drawn()),
        };
        site.ledger.watch(&site.store);
        Self { site, mutate, nodes: Vec::new(), started: 0 }
    }

    /// Plays it to its end, and asks the checker.
    pub(super) async fn play(mut self, seed: u64) -> Outcome {
        let writer = node::write_only(&self.site, (self.mutate)()).await;
        for _ in 0..fastrand::usize(2..5) {
            self.start().await;
        }
        let lasts = self.site.sky.weather().lasts;
        let end = Instant::now() + lasts.unwrap_or_else(|| Duration::from_millis(fastrand::u64(600..2_400)));
        while Instant::now() < end {
            sleep(Duration::from_millis(fastrand::u64(20..400))).await;
            self.step().await;
        }
        self.site.desk.close();
        self.site.sky.clear_up();
        if let Some(writer) = writer {
            let _ = writer.await;
        }
        for node in &mut self.nodes {
            node.wake();
            node.written().await;
        }
        let mut violations = self.drain().await;
        // The healthy one, which came last, goes last: it takes what the others could not give up.
        while self.nodes.len() > 1 {
            let mut node = self.nodes.remove(0);
            node.stop();
            node.stopped().await;
        }
        violations.extend(self.settle_down().await);
        // It looks at what it has just taken, and at the holds that lie there, before it goes.
        sleep(Duration::from_secs(1)).await;
        if let Some(mut node) = self.nodes.pop() {
            node.stop();
            node.stopped().await;
        }
        violations.extend(self.leftovers().await);
        self.outcome(seed, violations)
    }

    async fn start(&mut self) {
        self.started += 1;
        let name = format!("n{}", self.started);
        self.nodes.extend(Node::start(&self.site, name, (self.mutate)()).await);
    }

    /// Something happens to a node, or nothing.
    async fn step(&mut self) {
        self.nodes.retain(|node| !node.is_over());
        let sky = self.site.sky.clone();
        let weather = *sky.weather();
        let running = self.nodes.len();
        if running > 0 {
            let any = fastrand::usize(..running);
            if sky.strikes("crashes", weather.crash) {
                self.nodes.swap_remove(any).crash();
            } else if sky.strikes("pauses", weather.pause) {
                self.nodes[any].pause((LEASE * 3).mul_f64(fastrand::f64()));
            } else if !self.nodes[any].is_leaving() && sky.strikes("stops", weather.stop) {
                self.nodes[any].stop();
            }
        }
        if self.nodes.len() < 4 && (self.nodes.len() < 2 || fastrand::u8(..8) == 0) && fastrand::bool() {
            self.start().await;
        }
    }

    /// A healthy node delivers what is left, and takes what the dead had.
    async fn drain(&mut self) -> Vec<Violation> {
        let end = Instant::now() + PATIENCE;
        // Its predecessors' calls may still be late.
        while self.started_healthy().await.is_none() && Instant::now() < end {}
        self.settle_down().await
    }

    /// Waits until nothing is pending and the dead own nothing; says what is in the way of that for too long.
    async fn settle_down(&self) -> Vec<Violation> {
        let end = Instant::now() + PATIENCE;
        loop {
            let Ok(stats) = self.site.store.stats().await else { continue };
            let Ok(fleet) = self.site.store.fleet().await else { continue };
            let is_alive = |name: &str| self.nodes.iter().any(|node| node.name() == name && !node.is_over());
            let dead = fleet.nodes.iter().filter(|node| !is_alive(node.node.as_str()) && !node.partitions.is_empty());
            let dead: Vec<_> = dead
                .map(|node| Violation::Unclean(format!("{} is dead and owns {}", node.node, node.partitions.len())))
                .collect();
            if stats.pending() == 0 && dead.is_empty() {
                return Vec::new();
            }
            if Instant::now() >= end {
                let pending = (stats.pending() > 0).then(|| format!("{} events are pending", stats.pending()));
                return dead.into_iter().chain(pending.map(Violation::Unclean)).collect();
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn started_healthy(&mut self) -> Option<()> {
        let before = self.nodes.len();
        self.start().await;
        (self.nodes.len() > before).then_some(())
    }

    /// What is left in the database when everybody has gone, and should not be.
    async fn leftovers(&self) -> Vec<Violation> {
        let store = &self.site.store;
        let mut left = Vec::new();
        if let Ok(stats) = store.stats().await
            && stats.count(Status::Dead) > 0
        {
            left.push(format!("{} events are dead", stats.count(Status::Dead)));
        }
        let taken = |partition| Taken { partition, epoch: Epoch(0), mark: Seq(0), suspects: 0 };
        let all: Vec<Taken> = Partition::all().map(taken).collect();
        if let Ok(recall) = store.recall(&all).await {
            left.extend(recall.holds.iter().map(|hold| format!("{hold:?} is left")));
        }
        if let Ok(fleet) = store.fleet().await
            && fleet.free != PartitionSet::ALL
        {
            let names: Vec<&str> = fleet.nodes.iter().map(|node| node.node.as_str()).collect();
            left.push(format!("{names:?} own {} partitions, and all have left", Partition::COUNT - fleet.free.len()));
        }
        left.into_iter().map(Violation::Unclean).collect()
    }

    fn outcome(&self, seed: u64, violations: Vec<Violation>) -> Outcome {
        let orders = self.site.store.table(ORDERS);
        let order = |text: &String| {
            let Told { order: number, key } = Told::read(text)?;
            Some(Order { number, id: format!("e{number}"), key })
        };
        let mut orders: Vec<Order> = orders.iter().filter_map(order).collect();
        orders.sort_by_key(|order| order.number);
        let lines = self.site.ledger.lines();
        let mut report = check(Story { orders, lines: lines.clone(), ..Story::default() });
        report.violations.extend(violations);
        Outcome { seed, lines, report, struck: self.site.sky.struck() }
    }
}
