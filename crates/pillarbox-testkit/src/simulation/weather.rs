//! How often something goes wrong, and how badly.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use tokio::time::Duration;

/// The chances of a schedule. Those of calls are for each call, those of nodes for each step of the schedule.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// How long it lasts, in virtual time, until nothing goes wrong any more; `None` leaves it to the seed.
    pub lasts: Option<Duration>,
    /// A call fails, and nothing has happened.
    pub fail: f64,
    /// A call takes effect, and its answer is lost.
    pub lose: f64,
    /// A call, or its answer, is late.
    pub delay: f64,
    /// By this much at the most.
    pub longest_delay: Duration,
    /// A settle is on its way for as long as that, and arrives also when nobody waits for it any more.
    pub slow_settle: f64,
    /// A handler fails, panics, asks for a later delivery, or hangs.
    pub bad_handler: f64,
    /// A transaction stays open for longer than others.
    pub long_transaction: f64,
    /// A node dies.
    pub crash: f64,
    /// A node stands still.
    pub pause: f64,
    /// A node is shut down.
    pub stop: f64,
    /// A node that is shut down takes its time between giving up its partitions and leaving.
    pub slow_leave: f64,
}

impl Weather {
    /// Handlers fail and transactions stay open; nothing else is wrong.
    pub fn calm() -> Self {
        Self {
            lasts: None,
            fail: 0.0,
            lose: 0.0,
            delay: 0.0,
            longest_delay: Duration::from_millis(1),
            slow_settle: 0.0,
            bad_handler: 0.1,
            long_transaction: 0.2,
            crash: 0.0,
            pause: 0.0,
            stop: 0.0,
            slow_leave: 0.0,
        }
    }

    /// As the seed wants it: one schedule in six is calm, the others have some of everything.
    pub(super) fn drawn() -> Self {
        if fastrand::u8(..6) == 0 {
            return Self::calm();
        }
        let up_to = |most: f64| if fastrand::bool() { most * fastrand::f64() } else { 0.0 };
        Self {
            lasts: None,
            fail: up_to(0.05),
            lose: up_to(0.05),
            delay: up_to(0.1),
            longest_delay: Duration::from_millis(fastrand::u64(2..1_200)),
            slow_settle: up_to(0.2),
            bad_handler: up_to(0.3),
            long_transaction: up_to(0.5),
            crash: up_to(0.3),
            pause: up_to(0.2),
            stop: up_to(0.2),
            slow_leave: 0.3,
        }
    }
}

/// The weather over all processes of a schedule, until it clears up.
#[derive(Debug)]
pub(super) struct Sky {
    weather: Weather,
    clear: AtomicBool,
    struck: Mutex<BTreeMap<&'static str, usize>>,
}

impl Sky {
    pub(super) fn new(weather: Weather) -> Self {
        Self { weather, clear: AtomicBool::new(false), struck: Mutex::default() }
    }

    pub(super) fn weather(&self) -> &Weather {
        &self.weather
    }

    /// Nothing goes wrong from now on.
    pub(super) fn clear_up(&self) {
        self.clear.store(true, Ordering::Relaxed);
    }

    /// Whether it strikes, with this chance; what strikes is counted by its name.
    pub(super) fn strikes(&self, name: &'static str, chance: f64) -> bool {
        let strikes = !self.clear.load(Ordering::Relaxed) && chance > 0.0 && fastrand::f64() < chance;
        if strikes {
            self.count(name);
        }
        strikes
    }

    /// How long a delay is, if there is one.
    pub(super) fn delay(&self, name: &'static str, chance: f64) -> Option<Duration> {
        self.strikes(name, chance).then(|| self.weather.longest_delay.mul_f64(fastrand::f64()))
    }

    pub(super) fn count(&self, name: &'static str) {
        *self.struck.lock().entry(name).or_default() += 1;
    }

    /// What has struck, and how often.
    pub(super) fn struck(&self) -> BTreeMap<&'static str, usize> {
        self.struck.lock().clone()
    }
}
