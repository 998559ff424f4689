//! What everybody writes down, in virtual time.

use std::{cell::Cell, fmt, sync::Arc};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{MemoryStore, proof::Line};

thread_local! {
    // A schedule runs on one thread, and a witness takes its clock as a plain function.
    static CLOCK: Cell<Option<(Instant, u128)>> = const { Cell::new(None) };
}

/// Microseconds of virtual time since the schedule began, and never the same twice: what happens within one tick of
/// the timers is told apart by its order.
pub(crate) fn now() -> u128 {
    let now = Instant::now();
    let (began, last) = CLOCK.get().unwrap_or((now, 0));
    let stamp = now.duration_since(began).as_micros().max(last + 1);
    CLOCK.set(Some((began, stamp)));
    stamp
}

/// The clock begins again, with a new schedule.
pub(super) fn reset_clock() {
    CLOCK.set(None);
    now();
}

/// The lines of one schedule. Clones are the same ledger.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Vec<Line>>>);

impl Ledger {
    /// A line with no more than a word, and who says it.
    pub(super) fn word(&self, what: &str, node: &str) {
        self.write(Line { what: what.into(), node: node.into(), ..Self::blank() });
    }

    /// Writes a line, at this time.
    pub(super) fn write(&self, line: Line) {
        let mut lines = self.0.lock();
        lines.push(Line { at: now(), ..line });
    }

    /// From now on the store writes down whose outcomes change its rows, and when. It does so under its own lock, and
    /// below whatever layer: one that lets through what it should not can't keep it a secret.
    pub(super) fn watch(&self, store: &MemoryStore) {
        let ledger = self.clone();
        store.watch_settles(move |node, partition, epoch| {
            Pen::new(&ledger, node.as_str()).partition("settled", partition.0, epoch.0, stamp(now()));
        });
    }

    /// A line that says nothing yet.
    pub(super) fn blank() -> Line {
        let nothing = || String::from("-");
        Line { what: nothing(), node: nothing(), at: 0, epoch: 0, partition: 0, id: nothing(), key: None, order: 0 }
    }

    pub(super) fn lines(&self) -> Vec<Line> {
        self.0.lock().clone()
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.lock().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// The pen of one party.
#[derive(Clone, Debug)]
pub struct Pen {
    ledger: Ledger,
    node: Arc<str>,
}

impl Pen {
    pub(super) fn new(ledger: &Ledger, node: &str) -> Self {
        Self { ledger: ledger.clone(), node: node.into() }
    }

    pub(super) fn word(&self, what: &str) {
        self.ledger.word(what, &self.node);
    }

    pub(super) fn write(&self, line: Line) {
        self.ledger.write(Line { node: self.node.as_ref().into(), ..line });
    }

    /// An event that is written or delivered.
    pub(super) fn event(&self, what: &str, order: i64, key: Option<&str>) {
        self.write(Line { order, key: key.map(Into::into), ..Self::named(what, order) });
    }

    /// A line about a partition under an epoch.
    pub(super) fn partition(&self, what: &str, partition: u8, epoch: i64, order: i64) {
        self.write(Line { what: what.into(), partition, epoch, order, ..Ledger::blank() });
    }

    /// A line about a call, and when it began.
    pub(super) fn call(&self, what: &str, begun: u128) {
        self.write(Line { what: what.into(), order: stamp(begun), ..Ledger::blank() });
    }

    pub(super) fn named(what: &str, order: i64) -> Line {
        Line { what: what.into(), id: format!("e{order}"), order, ..Ledger::blank() }
    }
}

fn stamp(at: u128) -> i64 {
    i64::try_from(at).unwrap_or(i64::MAX)
}
