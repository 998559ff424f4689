//! Gates: where a test stops something, looks around, and lets it go on.

use std::sync::Arc;

use tokio::sync::watch;

use crate::patience::{PATIENCE, within};

/// A closed gate. What comes to it waits until the gate is opened. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    open: watch::Sender<bool>,
    arrived: watch::Sender<usize>,
}

impl Gate {
    pub(crate) fn closed(name: impl Into<String>) -> Self {
        Self(Arc::new(Inner { name: name.into(), open: watch::Sender::new(false), arrived: watch::Sender::new(0) }))
    }

    /// Waits until someone has come to the gate. Panics after 30 seconds of real time.
    pub async fn reached(&self) {
        self.reached_by(1).await;
    }

    /// Waits until so many have come to the gate, those included that have given up since.
    pub async fn reached_by(&self, count: usize) {
        let mut arrived = self.0.arrived.subscribe();
        let wait = async { arrived.wait_for(|arrived| *arrived >= count).await.is_ok() };
        let came = within(PATIENCE, wait).await;
        assert!(
            came == Some(true),
            "{} of {count} reached the gate `{}` within {PATIENCE:?}",
            self.arrivals(),
            self.0.name
        );
    }

    /// How many have come to the gate so far.
    pub fn arrivals(&self) -> usize {
        *self.0.arrived.borrow()
    }

    /// Opens the gate, for good.
    pub fn open(&self) {
        self.0.open.send_replace(true);
    }

    /// Comes to the gate, and passes once it is open.
    pub(crate) async fn pass(&self) {
        let mut open = self.0.open.subscribe();
        self.0.arrived.send_modify(|arrived| *arrived += 1);
        // The sender lives as long as `self`.
        let _ = open.wait_for(|open| *open).await;
    }
}
