//! The script: what goes wrong at which call.

use std::{
    collections::VecDeque,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use pillarbox_core::port::{BoxFuture, StoreError, StoreErrorKind};

use super::Call;
use crate::Gate;

/// The handle by which a test scripts the calls to a [`Faulty`](super::Faulty) store. Clones are the same.
///
/// What is scripted for a call is used up in the order in which it was scripted, one entry a call.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Script>);

#[derive(Debug)]
struct Script {
    lines: [Line; Call::COUNT],
    snapshots: Mutex<VecDeque<Gate>>,
}

/// What is known and scripted about one kind of call.
#[derive(Debug, Default)]
struct Line {
    calls: AtomicU64,
    // How many plans there are, so that a call without any takes no lock.
    scripted: AtomicUsize,
    plans: Mutex<VecDeque<Plan>>,
}

#[derive(Debug)]
struct Plan {
    when: When,
    fault: Fault,
    times: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// The store never sees the call, or later.
    Before,
    /// The store has done it, and the caller does not know yet.
    After,
}

#[derive(Clone, Debug)]
enum Fault {
    None,
    Fail(StoreErrorKind),
    Stop(Gate),
    Delay(Duration),
    Hang,
    Panic,
}

impl Faults {
    pub(super) fn new() -> Self {
        Self(Arc::new(Script { lines: std::array::from_fn(|_| Line::default()), snapshots: Mutex::default() }))
    }

    /// Fails the next calls without running them. `usize::MAX` times is until [`clear`](Self::clear).
    pub fn fail(&self, call: Call, times: usize, kind: StoreErrorKind) {
        self.plan(call, When::Before, Fault::Fail(kind), times);
    }

    /// Runs the next calls and loses their answers: the caller sees an error of this kind.
    pub fn lose(&self, call: Call, times: usize, kind: StoreErrorKind) {
        self.plan(call, When::After, Fault::Fail(kind), times);
    }

    /// Lets the next calls pass unharmed, so that what is scripted next hits a later one.
    pub fn pass(&self, call: Call, times: usize) {
        self.plan(call, When::Before, Fault::None, times);
    }

    /// Stops the next call before it runs, until the gate is opened.
    pub fn stop_before(&self, call: Call) -> Gate {
        let gate = Gate::closed(format!("before {call:?}"));
        self.plan(call, When::Before, Fault::Stop(gate.clone()), 1);
        gate
    }

    /// Runs the next call and holds back its answer until the gate is opened.
    pub fn stop_after(&self, call: Call) -> Gate {
        let gate = Gate::closed(format!("after {call:?}"));
        self.plan(call, When::After, Fault::Stop(gate.clone()), 1);
        gate
    }

    /// The next page reads its rows, and asks the owner's word on them only when the gate is open: as from a
    /// database whose snapshot is older than its answer.
    pub fn stop_with_snapshot(&self) -> Gate {
        let gate = Gate::closed("with the snapshot of a page");
        self.0.snapshots.lock().push_back(gate.clone());
        gate
    }

    /// Delays the next calls, by tokio's timers.
    pub fn delay(&self, call: Call, times: usize, span: Duration) {
        self.plan(call, When::Before, Fault::Delay(span), times);
    }

    /// The next call never runs and never returns, as if the process or the network had stopped there.
    pub fn hang(&self, call: Call) {
        self.plan(call, When::Before, Fault::Hang, 1);
    }

    /// Panics at the next calls, as a store with a defect does.
    pub fn panic(&self, call: Call, times: usize) {
        self.plan(call, When::Before, Fault::Panic, times);
    }

    /// The next call runs and never returns.
    pub fn hang_after(&self, call: Call) {
        self.plan(call, When::After, Fault::Hang, 1);
    }

    /// The database is down: every call fails with `Unavailable` until [`clear`](Self::clear).
    pub fn go_down(&self) {
        for call in Call::ALL {
            self.fail(call, usize::MAX, StoreErrorKind::Unavailable);
        }
    }

    /// Forgets what is scripted. Calls that stand at a gate still do.
    pub fn clear(&self) {
        for line in &self.0.lines {
            let mut plans = line.plans.lock();
            plans.clear();
            line.scripted.store(0, Ordering::Release);
        }
    }

    /// How often this was called, whatever became of it.
    pub fn calls(&self, call: Call) -> u64 {
        self.line(call).calls.load(Ordering::Acquire)
    }

    /// Runs a call as the script wants it. Unscripted, it costs a counter and a look.
    pub(super) fn around<'a, T: Send + 'a>(
        &self,
        call: Call,
        run: BoxFuture<'a, Result<T, StoreError>>,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        let line = self.line(call);
        line.calls.fetch_add(1, Ordering::AcqRel);
        if line.scripted.load(Ordering::Acquire) == 0 {
            return run;
        }
        let Some((when, fault)) = line.next() else {
            return run;
        };
        Box::pin(async move {
            match when {
                When::Before => {
                    fault.strike(call).await?;
                    run.await
                }
                When::After => {
                    let answer = run.await;
                    fault.strike(call).await?;
                    answer
                }
            }
        })
    }

    pub(super) fn next_snapshot(&self) -> Option<Gate> {
        self.0.snapshots.lock().pop_front()
    }

    fn plan(&self, call: Call, when: When, fault: Fault, times: usize) {
        if times > 0 {
            let line = self.line(call);
            let mut plans = line.plans.lock();
            plans.push_back(Plan { when, fault, times });
            line.scripted.store(plans.len(), Ordering::Release);
        }
    }

    fn line(&self, call: Call) -> &Line {
        &self.0.lines[call as usize]
    }
}

impl Line {
    fn next(&self) -> Option<(When, Fault)> {
        let mut plans = self.plans.lock();
        let plan = plans.front_mut()?;
        let next = (plan.when, plan.fault.clone());
        if plan.times != usize::MAX {
            plan.times -= 1;
        }
        if plan.times == 0 {
            plans.pop_front();
            self.scripted.store(plans.len(), Ordering::Release);
        }
        Some(next)
    }
}

impl Fault {
    async fn strike(self, call: Call) -> Result<(), StoreError> {
        match self {
            Self::None => {}
            Self::Fail(kind) => return Err(StoreError::new(kind, format!("a scripted fault of {call:?}"))),
            Self::Stop(gate) => gate.pass().await,
            Self::Delay(span) => tokio::time::sleep(span).await,
            Self::Hang => pending().await,
            Self::Panic => panic!("a scripted panic of {call:?}"),
        }
        Ok(())
    }
}
