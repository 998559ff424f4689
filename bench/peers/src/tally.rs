//! What every handler does: nothing, but count.

use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Notify;

/// Counts deliveries.
#[derive(Debug)]
pub(crate) struct Tally {
    delivered: AtomicU32,
    events: u32,
    full: Notify,
}

impl Tally {
    pub(crate) fn new(events: u32) -> Self {
        Self { delivered: AtomicU32::new(0), events, full: Notify::new() }
    }

    /// So many events were delivered.
    pub(crate) fn add(&self, count: u32) {
        let before = self.delivered.fetch_add(count, Ordering::Relaxed);
        if before < self.events && before + count >= self.events {
            self.full.notify_one();
        }
    }

    /// Waits until as many events were delivered as there are.
    pub(crate) async fn full(&self) {
        self.full.notified().await;
    }

    pub(crate) fn delivered(&self) -> u32 {
        self.delivered.load(Ordering::Relaxed)
    }
}
