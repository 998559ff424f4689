//! A fleet on a virtual clock: nodes join, leave, die and pause at random, answers are lost, and each node looks around,
//! expels, takes and gives up as `engine::ownership` does. The database is a table with leases.

use std::collections::{BTreeMap, BTreeSet};

use super::{NodeId, Owners, Partition, PartitionSet, Plan, Sharer, Standing, share_out, tests::node};

/// Seeds that once failed.
const REGRESSIONS: [u64; 0] = [];

/// No fleet has more nodes, and that of one seed always may have as many.
const MOST: usize = 200;
const FULL: u64 = 3;

// Milliseconds.
const HEARTBEAT: u64 = 5_000;
const GLANCE: u64 = 1_000;
const STALE: u64 = 30_000;
const REBALANCE: u64 = 10_000;
const GRACEFUL: u64 = 15_000;
const STEP: u64 = 500;

/// What a node should take beside its own share: see `engine::ownership`.
const LEFT_LYING: u64 = 2 * HEARTBEAT;

struct Row {
    incarnation: u64,
    until: u64,
    weight: u8,
}

struct Member {
    incarnation: u64,
    deadline: u64,
    look_at: u64,
    rebalance_at: u64,
    /// Until then it gives up nothing: somebody leaves lying what is his.
    keep_until: u64,
    awake_at: u64,
    awake_since: u64,
    leaving: bool,
    hands: BTreeMap<u8, u64>,
    /// When the deliveries of a partition that is given up will have settled.
    quiet_at: BTreeMap<u8, u64>,
    /// Since when it sees a partition without an owner.
    free_since: [Option<u64>; Partition::COUNT],
}

struct World {
    seed: u64,
    rng: fastrand::Rng,
    now: u64,
    named: usize,
    incarnations: u64,
    rows: BTreeMap<NodeId, Row>,
    owners: Box<Owners>,
    epochs: [u64; Partition::COUNT],
    free_since: [u64; Partition::COUNT],
    members: BTreeMap<NodeId, Member>,
    steps: usize,
    moves: usize,
    with_faults: bool,
    /// What was planned last, as long as nothing has changed: the same on every node.
    plan: Option<Plan>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            rng: fastrand::Rng::with_seed(seed),
            now: 0,
            named: 0,
            incarnations: 0,
            rows: BTreeMap::new(),
            owners: Box::new([const { None }; Partition::COUNT]),
            epochs: [0; Partition::COUNT],
            free_since: [0; Partition::COUNT],
            members: BTreeMap::new(),
            steps: 0,
            moves: 0,
            with_faults: true,
            plan: None,
        }
    }

    /// How many nodes the fleet may have.
    fn most(&mut self) -> usize {
        if self.seed == FULL { MOST } else { self.rng.usize(1..=MOST) }
    }

    fn fault(&mut self, most: usize) {
        let names: Vec<NodeId> = self.members.keys().cloned().collect();
        let which = self.rng.usize(..names.len().max(1));
        match self.rng.u32(..6) {
            0 | 1 if names.len() < most => {
                self.named += 1;
                let member = Member {
                    incarnation: 0,
                    deadline: 0,
                    look_at: self.now,
                    rebalance_at: self.now + REBALANCE,
                    keep_until: 0,
                    awake_at: 0,
                    awake_since: self.now,
                    leaving: false,
                    hands: BTreeMap::new(),
                    quiet_at: BTreeMap::new(),
                    free_since: [None; Partition::COUNT],
                };
                // Names that come in another order than the nodes.
                self.members.insert(node(self.named * 7 % 1_000), member);
            }
            2 if names.len() > 1 => {
                self.members.get_mut(&names[which]).unwrap().leaving = true;
            }
            3 if names.len() > 1 => {
                self.members.remove(&names[which]);
            }
            4 if !names.is_empty() => {
                let span = self.rng.u64(100..2 * STALE);
                let member = self.members.get_mut(&names[which]).unwrap();
                member.awake_at = self.now + span;
                member.awake_since = member.awake_at;
            }
            _ => {}
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        for name in self.members.keys().cloned().collect::<Vec<_>>() {
            let mut member = self.members.remove(&name).unwrap();
            if self.now < member.awake_at || self.act(&name, &mut member) {
                self.members.insert(name, member);
            }
        }
        self.check();
    }

    /// `false` when the node has left.
    fn act(&mut self, me: &NodeId, member: &mut Member) -> bool {
        if self.now >= member.deadline {
            member.hands.clear();
            member.quiet_at.clear();
            if member.leaving {
                return false;
            }
            self.join(me, member);
        }
        if member.leaving && self.rows[me].weight > 0 {
            self.rows.get_mut(me).unwrap().weight = 0;
            self.plan = None;
            for partition in member.hands.keys() {
                member.quiet_at.entry(*partition).or_insert(self.now + self.rng.u64(..GRACEFUL));
            }
        }
        if self.now >= member.look_at {
            self.steps += 1;
            member.look_at = self.now + GLANCE;
            if !self.look(me, member) {
                // The lease is lost: a new one at the next step.
                member.deadline = 0;
                return true;
            }
        }
        let quiet: Vec<u8> =
            member.quiet_at.iter().filter(|(_, at)| **at <= self.now).map(|(number, _)| *number).collect();
        for number in quiet {
            member.quiet_at.remove(&number);
            if member.hands.remove(&number).is_some() {
                self.free(usize::from(number));
            }
        }
        if member.leaving && member.hands.is_empty() {
            self.end(me);
            return false;
        }
        true
    }

    fn join(&mut self, me: &NodeId, member: &mut Member) {
        self.end(me);
        self.incarnations += 1;
        member.incarnation = self.incarnations;
        member.deadline = self.now + STALE;
        member.look_at = self.now;
        let row = Row { incarnation: self.incarnations, until: self.now + STALE, weight: Standing::FULL };
        self.rows.insert(me.clone(), row);
        self.plan = None;
    }

    /// One look at the tables; `false` when the lease is gone.
    fn look(&mut self, me: &NodeId, member: &mut Member) -> bool {
        let now = self.now;
        let mine = self.rows.get_mut(me).filter(|row| row.incarnation == member.incarnation && now < row.until);
        let Some(row) = mine else { return false };
        row.until = now + STALE;
        member.deadline = now + STALE;
        let lapsed: Vec<NodeId> =
            self.rows.iter().filter(|(_, row)| row.until <= now).map(|(name, _)| name.clone()).collect();
        lapsed.iter().for_each(|name| self.end(name));
        if member.leaving {
            return true;
        }
        let plan = self.plan.get_or_insert_with(|| {
            let sharer = |(node, row): (&NodeId, &Row)| Sharer { node: node.clone(), weight: row.weight };
            share_out(&self.rows.iter().map(sharer).collect::<Vec<_>>(), &self.owners)
        });
        let share = plan.share_of(me, &self.owners);
        let mut wanted: PartitionSet = share.take;
        for partition in Partition::all() {
            let place = usize::from(partition.0);
            let owner = self.owners[place].as_ref();
            if owner.is_some() {
                member.free_since[place] = None;
            } else if now >= *member.free_since[place].get_or_insert(now) + LEFT_LYING {
                wanted.insert(partition);
                member.keep_until = now + STALE;
            }
            // The answer of a take was lost.
            if owner == Some(me) && !member.hands.contains_key(&partition.0) {
                wanted.insert(partition);
            }
        }
        let lost = self.with_faults && self.rng.u32(..50) == 0;
        for partition in wanted.iter() {
            let place = usize::from(partition.0);
            self.owners[place] = Some(me.clone());
            self.epochs[place] += 1;
            self.moves += 1;
            self.plan = None;
            if !lost {
                member.hands.insert(partition.0, self.epochs[place]);
            }
        }
        if now >= member.rebalance_at {
            member.rebalance_at = now + REBALANCE;
            for partition in share.release.iter().filter(|_| now >= member.keep_until) {
                let settles_in = self.rng.u64(..GRACEFUL / 4);
                member.quiet_at.entry(partition.0).or_insert(now + settles_in);
            }
        }
        true
    }

    fn free(&mut self, place: usize) {
        self.owners[place] = None;
        self.plan = None;
        self.free_since[place] = self.now;
    }

    /// Ends a node, as an expulsion, a leave and a join of the same name do.
    fn end(&mut self, name: &NodeId) {
        if self.rows.remove(name).is_none() {
            return;
        }
        self.plan = None;
        for place in 0..Partition::COUNT {
            if self.owners[place].as_ref() == Some(name) {
                self.free(place);
                self.epochs[place] += 1;
            }
        }
    }

    fn check(&self) {
        for (name, member) in self.members.iter().filter(|(_, member)| self.now < member.deadline) {
            for (number, epoch) in &member.hands {
                let place = usize::from(*number);
                assert!(
                    self.owners[place].as_ref() == Some(name) && self.epochs[place] == *epoch,
                    "seed {}: at {} ms {name} delivers {number} under {epoch}, which is {:?}'s under {}",
                    self.seed,
                    self.now,
                    self.owners[place],
                    self.epochs[place],
                );
            }
        }
        let longest = LEFT_LYING + 2 * GLANCE;
        let awake = |member: &Member| !member.leaving && self.now >= member.awake_since + longest;
        if self.members.values().any(awake) {
            for (place, since) in self.free_since.iter().enumerate() {
                let free = self.owners[place].is_none() && self.now > since + longest;
                assert!(!free, "seed {}: at {} ms {place} is free since {since} ms", self.seed, self.now);
            }
        }
    }

    fn check_rest(&self) {
        let counts: Vec<usize> = self.members.values().map(|member| member.hands.len()).collect();
        assert_eq!(counts.iter().sum::<usize>(), Partition::COUNT, "seed {}: {counts:?}", self.seed);
        let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
        assert!(most - least <= 1, "seed {}: {counts:?}", self.seed);
        assert_eq!(self.rows.len(), self.members.len(), "seed {}", self.seed);
    }
}

fn play(seed: u64) -> usize {
    let mut world = World::new(seed);
    let most = world.most();
    // Some fleets come up at once, others grow.
    let at_once = world.rng.bool();
    let faults = world.rng.usize(1..80);
    while at_once && world.members.len() < most {
        world.fault(most);
    }
    for _ in 0..faults {
        world.fault(most);
        for _ in 0..world.rng.usize(..12) {
            world.step();
        }
    }
    if world.members.values().all(|member| member.leaving) {
        while world.members.values().all(|member| member.leaving) {
            world.fault(most + 1);
        }
    }
    world.with_faults = false;
    // The last one paused wakes, the last one dead is expelled, and what is above a share is handed over.
    for _ in 0..(4 * STALE + 2 * (REBALANCE + GRACEFUL)) / STEP {
        world.step();
    }
    world.check_rest();
    let moves = world.moves;
    for _ in 0..2 * REBALANCE / STEP {
        world.step();
    }
    assert_eq!(world.moves, moves, "seed {seed}: partitions move in a fleet at rest");
    world.steps
}

#[test]
fn a_fleet_that_joins_leaves_dies_and_pauses_never_doubles_and_comes_to_rest_even() {
    let fresh = fastrand::u64(..);
    let mut steps = 0;
    for seed in REGRESSIONS.into_iter().chain([1, FULL, fresh]) {
        steps += play(seed);
    }
    assert!(steps > 1_000, "{steps} steps");
}

#[test]
fn fleets_of_fresh_seeds_have_one_node_to_two_hundred() {
    let sizes: BTreeSet<usize> = (FULL + 1..10_000).map(|seed| World::new(seed).most()).collect();
    assert_eq!(sizes, (1..=200).collect());
}
