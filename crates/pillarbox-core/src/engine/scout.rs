//! The scout: sees what comes before events with a key, while their transactions are open (see `flight/keyed`).
//!
//! It is a task of its own, because an event waits for the answer, and must not wait for a pass of the reader as well: where
//! others' commits are found by polling, each commit of one's own leads to a pass too, and a pass takes longer than a commit.
//! A question overlaps whatever the reader does meanwhile, as far as the store's connections allow: on PostgreSQL the two share
//! one, and a question waits for the statement of a page. It brings no rows but an answer, and that is about an event which is here.
//!
//! When the process dies:
//! - before a question is asked, or while it is under way: nothing was written for it, and its event is found as any other;
//! - between the answer and the commit: the database rolls back, and there is no event;
//! - between the commit and the place in the lane, whichever of answer and commit came first: the row is NEW, and the
//!   partition's next owner finds it by reading;
//! - after that: as before, for the lane is memory alone, and the stored mark stays below what is in it.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    flight::{Ask, Before},
    shared::Shared,
};
use crate::port::Row;

#[derive(Debug)]
pub(crate) struct Scout {
    shared: Arc<Shared>,
}

impl Scout {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Asks until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let asking = async {
            loop {
                self.shared.expected.notified().await;
                self.run_once().await;
            }
        };
        // Biased, so that a schedule of the simulation is the same every time.
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = asking => {}
        }
    }

    /// Asks about all that are expected now, the first of them first. What takes a page is left to the reader.
    pub(crate) async fn run_once(&self) {
        loop {
            let before = self.shared.flight.lock().before_expected();
            match before {
                Before::Known => return,
                Before::Page => self.shared.read.notify_one(),
                Before::Ask(ask) => self.ask(&ask).await,
            }
        }
    }

    /// An error is left to the page, which meets it too.
    async fn ask(&self, ask: &Ask) {
        let shared = &self.shared;
        let found = shared.store.lane(ask.partition, &ask.key, ask.from, Ask::ROWS).await;
        let found = found.map(|rows| rows.iter().map(Row::seq).collect::<Vec<_>>()).ok();
        let (confirmed, signals) = shared.flight.lock().asked(ask, found.as_deref(), Instant::now());
        shared.confirmed(confirmed, signals);
    }
}
