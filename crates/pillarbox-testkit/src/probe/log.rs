//! What a probe has seen, and what can be said about it.

use std::fmt;

use pillarbox_core::domain::{Delivery, Epoch, Event, EventId, Key, Seq};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Probe;

/// One delivery.
#[derive(Clone, Debug)]
pub struct Delivered {
    /// The event's id.
    pub id: EventId,
    /// Its number.
    pub seq: Seq,
    /// The event.
    pub event: Event,
    /// Which attempt it was.
    pub attempt: u32,
    /// The fencing token.
    pub epoch: Epoch,
    /// How many deliveries of its key were running once it had begun, itself included; 0 without a key.
    pub of_key: usize,
    /// How many deliveries of this event were running once it had begun, itself included.
    pub of_event: usize,
    /// How it ended, if it has.
    pub end: Option<End>,
}

impl Delivered {
    /// The ordering key.
    pub fn key(&self) -> Option<&Key> {
        self.event.key()
    }
}

/// How a delivery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Well.
    Done,
    /// With an error.
    Failed,
    /// It asked for a later one.
    Deferred,
    /// With a panic.
    Panicked,
    /// The handler's future was dropped before it was through.
    Dropped,
}

/// The deliveries, in the order in which they began.
#[derive(Clone, Debug, Default)]
pub struct Log {
    deliveries: Vec<Delivered>,
    done: usize,
    running_keys: FxHashMap<Key, usize>,
    running_events: FxHashMap<EventId, usize>,
}

impl Log {
    /// All deliveries.
    pub fn deliveries(&self) -> &[Delivered] {
        &self.deliveries
    }

    /// How many have begun.
    pub fn begun(&self) -> usize {
        self.deliveries.len()
    }

    /// How many have ended well.
    pub fn done(&self) -> usize {
        self.done
    }

    /// How many are running.
    pub fn running(&self) -> usize {
        self.running_events.values().sum()
    }

    /// How often this event was delivered.
    pub fn times(&self, id: EventId) -> usize {
        self.deliveries.iter().filter(|delivered| delivered.id == id).count()
    }

    /// The event of an id, as it was first delivered. Panics if it was not.
    pub fn event(&self, id: EventId) -> &Event {
        let delivered = self.deliveries.iter().find(|delivered| delivered.id == id);
        &delivered.unwrap_or_else(|| panic!("{id} was not delivered")).event
    }

    /// Whether a delivery of an event has ended well.
    pub fn is_done(&self, id: EventId) -> bool {
        self.deliveries.iter().any(|delivered| delivered.id == id && delivered.end == Some(End::Done))
    }

    /// The ids in the order of the deliveries.
    pub fn ids(&self) -> Vec<EventId> {
        self.deliveries.iter().map(|delivered| delivered.id).collect()
    }

    /// The numbers in the order of the deliveries, of one key.
    pub fn seqs_of_key(&self, key: &str) -> Vec<Seq> {
        let of_key = |delivered: &&Delivered| delivered.key().is_some_and(|own| own.as_str() == key);
        self.deliveries.iter().filter(of_key).map(|delivered| delivered.seq).collect()
    }

    pub(super) fn assert_each_once(&self, written: &[EventId]) {
        let mut times: FxHashMap<EventId, usize> = FxHashMap::default();
        for delivered in &self.deliveries {
            *times.entry(delivered.id).or_default() += 1;
        }
        let mut wrong: Vec<String> = Vec::new();
        for id in written {
            match times.remove(id) {
                Some(1) => {}
                other => wrong.push(format!("{id} was delivered {} times", other.unwrap_or(0))),
            }
        }
        wrong.extend(times.keys().map(|id| format!("{id} was delivered and never written")));
        assert!(wrong.is_empty(), "{}\nin:\n{self}", wrong.join("\n"));
    }

    pub(super) fn assert_in_order_per_key(&self) {
        let mut seen = FxHashSet::default();
        let mut last: FxHashMap<&Key, Seq> = FxHashMap::default();
        for delivered in self.deliveries.iter().filter(|delivered| seen.insert(delivered.id)) {
            let Some(key) = delivered.key() else {
                continue;
            };
            let before = last.insert(key, delivered.seq);
            assert!(
                before.is_none_or(|before| before < delivered.seq),
                "key {key}: {} was first delivered after {}\nin:\n{self}",
                delivered.seq,
                before.unwrap_or(delivered.seq)
            );
        }
    }

    pub(super) fn assert_no_overlap(&self) {
        let overlap = self.deliveries.iter().find(|delivered| delivered.of_key > 1 || delivered.of_event > 1);
        assert!(overlap.is_none(), "at the same time as another: {overlap:?}\nin:\n{self}");
    }

    fn begin(&mut self, delivery: &Delivery) -> usize {
        let event = delivery.event();
        let of_key = event.key().map_or(0, |key| {
            let running = self.running_keys.entry(key.clone()).or_default();
            *running += 1;
            *running
        });
        let of_event = self.running_events.entry(event.id()).or_default();
        *of_event += 1;
        self.deliveries.push(Delivered {
            id: event.id(),
            seq: delivery.seq(),
            event: event.clone(),
            attempt: delivery.attempt(),
            epoch: delivery.fencing_token(),
            of_key,
            of_event: *of_event,
            end: None,
        });
        self.deliveries.len() - 1
    }

    fn end(&mut self, index: usize, end: End) {
        let delivered = &mut self.deliveries[index];
        delivered.end = Some(end);
        self.done += usize::from(end == End::Done);
        if let Some(key) = delivered.event.key() {
            count_down(&mut self.running_keys, key);
        }
        count_down(&mut self.running_events, &delivered.id);
    }
}

fn count_down<K: Eq + std::hash::Hash>(running: &mut FxHashMap<K, usize>, name: &K) {
    if let Some(count) = running.get_mut(name) {
        *count -= 1;
        if *count == 0 {
            running.remove(name);
        }
    }
}

/// As a table, at most the last 200.
impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 200;
        let left_out = self.deliveries.len().saturating_sub(SHOWN);
        writeln!(f, "{} deliveries, {} ended well, {} running", self.begun(), self.done, self.running())?;
        if left_out > 0 {
            writeln!(f, "  ... {left_out} more")?;
        }
        for delivered in &self.deliveries[left_out..] {
            let end = delivered.end.map_or_else(|| "running".to_owned(), |end| format!("{end:?}"));
            writeln!(
                f,
                "  seq {:>6} {} {} key {:?} attempt {} epoch {} {end}",
                delivered.seq,
                delivered.id,
                delivered.event.event_type(),
                delivered.key().map(Key::as_str),
                delivered.attempt,
                delivered.epoch,
            )?;
        }
        Ok(())
    }
}

/// A delivery under way; if it is dropped before its end is known, that is its end.
pub(super) struct Running<'a> {
    probe: &'a Probe,
    index: usize,
    end: End,
}

impl<'a> Running<'a> {
    pub(super) fn start(probe: &'a Probe, delivery: &Delivery) -> Self {
        Self { probe, index: probe.change(|log| log.begin(delivery)), end: End::Dropped }
    }

    pub(super) fn ends(&mut self, end: End) {
        self.end = end;
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.probe.change(|log| log.end(self.index, self.end));
    }
}
