//! Writes down what the handlers answered.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use pillarbox_core::{
    Delivery, HandlerError, Outcome,
    domain::Failure,
    engine::{Interceptor, Report},
    port::BoxFuture,
};

/// One run of an event's handlers.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) delivery: Delivery,
    pub(super) result: Result<Outcome, Failure>,
}

/// The outermost interceptor of a test's outbox.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorder(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    runs: Mutex<Vec<Run>>,
    one_at_a_time: AtomicBool,
    halt: AtomicBool,
}

impl Recorder {
    /// From now on, each delivery stops the work.
    pub(super) fn one_at_a_time(&self) {
        self.0.one_at_a_time.store(true, Ordering::Relaxed);
    }

    /// What stops the work; not set yet.
    pub(super) fn halt(&self) -> &AtomicBool {
        self.0.halt.store(false, Ordering::Relaxed);
        &self.0.halt
    }

    /// What ran since the last call.
    pub(super) fn take(&self) -> Vec<Run> {
        std::mem::take(&mut self.0.runs.lock())
    }
}

impl Interceptor for Recorder {
    fn after<'a>(&'a self, delivery: &'a Delivery, report: &'a Report) -> BoxFuture<'a, Result<(), HandlerError>> {
        self.0.runs.lock().push(Run { delivery: delivery.clone(), result: report.result.clone() });
        Box::pin(async {
            if self.0.one_at_a_time.load(Ordering::Relaxed) {
                self.0.halt.store(true, Ordering::Relaxed);
                // The work is told to stop while this waits: a worker whose handlers never wait would go on.
                tokio::task::yield_now().await;
            }
            Ok(())
        })
    }
}
