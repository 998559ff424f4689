//! Code around every write.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::calling::panic_text;
use crate::domain::{Event, EventId};

/// Sees every batch of events that is written.
///
/// Only `before_write` can stop anything. The others observe: an error or a panic in one of them is logged,
/// and neither the transaction nor the other hooks notice.
///
/// ```
/// use pillarbox_core::{Event, engine::WriterHook};
///
/// /// No event without a tenant.
/// struct TenantsOnly;
///
/// impl WriterHook for TenantsOnly {
///     fn before_write(&self, batch: &mut Vec<Event>) -> Result<(), String> {
///         match batch.iter().find(|event| event.tenant_id().is_none()) {
///             Some(event) => Err(format!("{} has no tenant", event.event_type())),
///             None => Ok(()),
///         }
///     }
///
///     fn observes_end(&self) -> bool {
///         false
///     }
/// }
/// ```
pub trait WriterHook: Send + Sync + 'static {
    /// Sees the whole batch before it is inserted, and may change it: replace events (see
    /// [`Event::to_builder`]), add some, take some out. An empty batch inserts nothing. An error inserts
    /// nothing and reaches the caller.
    fn before_write(&self, batch: &mut Vec<Event>) -> Result<(), String> {
        let _ = batch;
        Ok(())
    }

    /// The batch is inserted; the transaction is still open.
    fn after_write(&self, batch: &[EventId]) -> Result<(), String> {
        let _ = batch;
        Ok(())
    }

    /// The transaction is committed. Called once for each batch.
    fn after_commit(&self, batch: &[EventId]) -> Result<(), String> {
        let _ = batch;
        Ok(())
    }

    /// The transaction is rolled back. Called once for each batch.
    fn after_rollback(&self, batch: &[EventId]) -> Result<(), String> {
        let _ = batch;
        Ok(())
    }

    /// Whether the hook wants to hear of the end of transactions. One that doesn't costs nothing there.
    fn observes_end(&self) -> bool {
        true
    }
}

/// The hook that does nothing, and registers nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHook;

impl WriterHook for NoHook {
    fn observes_end(&self) -> bool {
        false
    }
}

/// Calls an observing hook; an error or a panic is logged and goes no further.
pub(super) fn observe(name: &'static str, call: impl FnOnce() -> Result<(), String>) {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(hook = name, error, "a writer hook failed"),
        Err(panic) => tracing::error!(hook = name, panic = panic_text(&*panic), "a writer hook panicked"),
    }
}
