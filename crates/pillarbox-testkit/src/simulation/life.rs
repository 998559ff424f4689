//! The life of one process: it runs, stands still, or is gone.

use std::future::pending;

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Duration, Instant, sleep_until},
};

use super::ledger::{Ledger, Pen};

/// Whether a process runs. Everything it does asks here: its calls to the store, its handlers, its writers.
#[derive(Debug)]
pub(super) struct Life {
    name: String,
    pen: Pen,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    gone: bool,
    leaving: bool,
    stands_until: Option<Instant>,
}

impl Life {
    pub(super) fn new(name: String, ledger: &Ledger) -> Self {
        Self { pen: Pen::new(ledger, &name), name, state: Mutex::default(), changed: Notify::new() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// From now on it does nothing, and says nothing.
    pub(super) fn end(&self) {
        self.state.lock().gone = true;
    }

    pub(super) fn is_over(&self) -> bool {
        self.state.lock().gone
    }

    /// It is being shut down.
    pub(super) fn leave(&self) {
        self.state.lock().leaving = true;
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.state.lock().leaving
    }

    /// It stands still for this long.
    pub(super) fn pause(&self, span: Duration) {
        self.state.lock().stands_until = Some(Instant::now() + span);
        self.changed.notify_waiters();
    }

    pub(super) fn stands_still(&self) -> bool {
        self.state.lock().stands_until.is_some_and(|until| until > Instant::now())
    }

    /// Its pen, as long as it lives.
    pub(super) fn pen(&self) -> Option<&Pen> {
        (!self.is_over()).then_some(&self.pen)
    }

    /// Comes back when the process runs; never, once it is gone.
    pub(super) async fn runs(&self) {
        if !self.goes_on().await {
            pending::<()>().await;
        }
    }

    /// Comes back when the process runs, or is gone, and says which.
    pub(super) async fn goes_on(&self) -> bool {
        loop {
            let stands_until = {
                let state = self.state.lock();
                if state.gone {
                    return false;
                }
                state.stands_until
            };
            let Some(until) = stands_until.filter(|until| *until > Instant::now()) else { return true };
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = sleep_until(until) => {}
            }
        }
    }
}
