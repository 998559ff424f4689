//! A probe for handlers: writes down what was delivered, and plays the handler that a test needs.

mod log;
mod script;

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use pillarbox_core::{
    domain::{Answer, Delivery, EventId, HandlerError, Outcome},
    port::BoxFuture,
};
use tokio::sync::watch;

use crate::{
    Gate,
    patience::{PATIENCE, within},
};
use log::Running;
use script::{Play, Script};

pub use log::{Delivered, End, Log};
pub use script::Which;

/// Records deliveries. Clones share the record, so one probe may sit in the handlers of several nodes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use pillarbox_core::{Event, domain::{Delivery, Epoch, Partition, Record, Seq, Timestamp}};
/// use pillarbox_testkit::Probe;
///
/// let probe = Probe::new();
/// let event = Event::builder("OrderPlaced").json(&7).build()?;
/// probe.fail(event.id(), 1);
/// let handler = probe.handler();
/// # let record = Record { seq: Seq(1), partition: Partition(0), event: event.clone(), attempts: 0, starts: 0,
/// #     progress: None, created_at: Timestamp::default() };
/// # let delivery = Delivery::new(record, Epoch(1));
/// assert!(handler(delivery.clone()).await.is_err());
/// assert!(handler(delivery).await.is_ok());
/// probe.wait_for(1).await;
/// assert_eq!(probe.log().times(event.id()), 2);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Probe(Arc<Inner>);

struct Inner {
    log: Mutex<Log>,
    script: Mutex<Script>,
    changed: watch::Sender<()>,
    patience: Duration,
}

impl Probe {
    /// A probe that has seen nothing, and whose handler succeeds.
    pub fn new() -> Self {
        Self::with_patience(PATIENCE)
    }

    /// A probe that waits so long, in real time, before it panics; 30 seconds if not said.
    pub fn with_patience(patience: Duration) -> Self {
        Self(Arc::new(Inner {
            log: Mutex::default(),
            script: Mutex::default(),
            changed: watch::Sender::new(()),
            patience,
        }))
    }

    /// The handler: records each delivery and answers by the script.
    pub fn handler(&self) -> impl Fn(Delivery) -> BoxFuture<'static, Answer> + Clone + Send + Sync + 'static {
        let probe = self.clone();
        move |delivery| {
            let probe = probe.clone();
            Box::pin(async move { probe.handle(&delivery).await })
        }
    }

    /// Records a delivery and answers by the script; for handlers that do more than that.
    pub async fn handle(&self, delivery: &Delivery) -> Answer {
        let play = self.0.script.lock().next(delivery);
        let mut running = Running::start(self, delivery);
        match play {
            Play::Succeed => {}
            Play::Stop(gate) => gate.pass().await,
            Play::Answer(answer) => {
                running.ends(match &answer {
                    Ok(_) => End::Deferred,
                    Err(_) => End::Failed,
                });
                return answer;
            }
            Play::Panic => {
                running.ends(End::Panicked);
                panic!("a scripted panic");
            }
        }
        running.ends(End::Done);
        Ok(Outcome::Done)
    }

    /// What was delivered so far.
    pub fn log(&self) -> Log {
        self.0.log.lock().clone()
    }

    /// How many deliveries have ended well so far.
    pub fn done(&self) -> usize {
        self.0.log.lock().done()
    }

    /// Waits until so many deliveries have ended well. Panics with the log after 30 seconds of real time.
    pub async fn wait_for(&self, count: usize) {
        let what = format!("{count} deliveries that end well");
        self.wait(&what, |log| log.done() >= count).await;
    }

    /// Waits until the log is as wanted. Panics with the log after 30 seconds of real time.
    pub async fn wait_until(&self, wanted: impl Fn(&Log) -> bool) {
        self.wait("the log that the test wants", wanted).await;
    }

    async fn wait(&self, what: &str, wanted: impl Fn(&Log) -> bool) {
        let mut changes = self.0.changed.subscribe();
        let wait = async {
            while !wanted(&self.0.log.lock()) {
                // The sender lives as long as `self`.
                let _ = changes.changed().await;
            }
        };
        let came = within(self.0.patience, wait).await.is_some();
        assert!(came, "waited {:?} for {what}, and saw:\n{}", self.0.patience, self.log());
    }

    fn change<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        let changed = change(&mut self.0.log.lock());
        self.0.changed.send_replace(());
        changed
    }

    /// Panics unless every event was delivered exactly once, and nothing else was delivered.
    pub fn assert_each_once(&self, written: &[EventId]) {
        self.log().assert_each_once(written);
    }

    /// Panics unless the first deliveries of each key are in the order of the numbers.
    pub fn assert_in_order_per_key(&self) {
        self.log().assert_in_order_per_key();
    }

    /// Panics if two events of one key, or one event twice, were being delivered at the same time.
    pub fn assert_no_overlap(&self) {
        self.log().assert_no_overlap();
    }

    /// Lets the handler do something else than succeed, the next `times` it is given such an event.
    fn play(&self, which: impl Into<Which>, times: usize, play: Play) {
        self.0.script.lock().add(which.into(), times, play);
    }

    /// Fails the next `times`.
    pub fn fail(&self, which: impl Into<Which>, times: usize) {
        self.answer(which, times, Err(HandlerError::msg("a scripted failure")));
    }

    /// Gives this answer the next `times`.
    pub fn answer(&self, which: impl Into<Which>, times: usize, answer: Answer) {
        self.play(which, times, Play::Answer(answer));
    }

    /// Asks for a later delivery the next `times`, which uses up no attempt.
    pub fn defer(&self, which: impl Into<Which>, times: usize, after: Duration) {
        self.answer(which, times, Ok(Outcome::RetryAfter(after)));
    }

    /// Panics the next `times`.
    pub fn panic(&self, which: impl Into<Which>, times: usize) {
        self.play(which, times, Play::Panic);
    }

    /// Stops the next `times` at a gate, and succeeds once that is opened.
    pub fn stop(&self, which: impl Into<Which>, times: usize) -> Gate {
        let gate = Gate::closed("handler");
        self.play(which, times, Play::Stop(gate.clone()));
        gate
    }
}

impl Default for Probe {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Probe\n{}", self.log())
    }
}
