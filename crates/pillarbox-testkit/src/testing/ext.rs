//! What tests want of any outbox.

use std::{collections::HashSet, future::Future, time::Duration};

use pillarbox_core::{
    Outbox, OutboxEvent,
    domain::{Key, Status},
    port::{Found, Store},
};

use super::{
    assert::of_type,
    report::{DrainError, describe, in_status},
};
use crate::patience::within;

/// How often a running outbox is looked at.
const GLANCE: Duration = Duration::from_millis(5);

/// For tests of code that starts its outbox itself, on any store.
///
/// ```
/// # use std::time::Duration;
/// # use pillarbox_core::{Delivery, Event, Outbox};
/// use pillarbox_testkit::{MemoryStore, testing::OutboxExt as _};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = Outbox::single_node(MemoryStore::new()).route("Happened", |_: Delivery| async {}).start().await?;
/// # let mut tx = outbox.begin().await?;
/// # tx.write(Event::builder("Happened").json(&7)).await?;
/// # tx.commit().await?;
/// outbox.drain_within(Duration::from_secs(10)).await?;
/// # outbox.shutdown().await;
/// # Ok(()) }
/// ```
pub trait OutboxExt: sealed::Sealed {
    /// Waits until every event is done or dead, but for those with a delay of their own that is not over, and those behind
    /// a dead one of their key. When the limit of real time is over first, the error names what is left, and why.
    fn drain_within(&self, limit: Duration) -> impl Future<Output = Result<(), DrainError>> + Send;

    /// The events of a type that are written and committed, in order, whatever has become of them; without those that
    /// can't be read as this type.
    fn written<E: OutboxEvent>(&self) -> impl Future<Output = Result<Vec<E>, DrainError>> + Send;
}

impl<S: Store> OutboxExt for Outbox<S> {
    async fn drain_within(&self, limit: Duration) -> Result<(), DrainError> {
        let drained = async {
            while !waiting(self).await?.is_empty() {
                tokio::time::sleep(GLANCE).await;
            }
            Ok(())
        };
        if let Some(drained) = within(limit, drained).await {
            return drained;
        }
        let left = waiting(self).await?;
        if left.is_empty() {
            return Ok(());
        }
        let now = self.store().stats().await?.now;
        let why = format!("not everything was delivered within {limit:?}");
        Err(DrainError::Stuck { why, events: left.iter().map(|found| describe(found, now)).collect() })
    }

    async fn written<E: OutboxEvent>(&self) -> Result<Vec<E>, DrainError> {
        let events = of_type::<S, E>(self).await?;
        Ok(events.iter().filter_map(|event| E::decode(event, self.codecs()).ok()).collect())
    }
}

/// What is to be waited for.
async fn waiting<S: Store>(outbox: &Outbox<S>) -> Result<Vec<Found>, DrainError> {
    let store = outbox.store();
    let mut pending = in_status(store, &[Status::New, Status::Retry]).await?;
    if pending.is_empty() {
        return Ok(pending);
    }
    let now = store.stats().await?.now;
    let key = |found: &Found| found.record.as_ref().ok().and_then(|record| record.key().cloned());
    let heads = in_status(store, &[Status::Dead]).await?;
    let held: HashSet<Key> = heads.iter().filter(|head| head.holds_key).filter_map(key).collect();
    pending.retain(|found| {
        let delayed = found.status == Status::New && found.available_at.is_some_and(|due| due > now);
        !delayed && !key(found).is_some_and(|key| held.contains(&key))
    });
    Ok(pending)
}

mod sealed {
    pub trait Sealed: Sync {}
    impl<S: pillarbox_core::port::Store> Sealed for pillarbox_core::Outbox<S> {}
}
