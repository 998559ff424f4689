//! A shop that knows nothing of tests.

use std::{collections::BTreeSet, error::Error, sync::Arc};

use pillarbox::{
    Builder,
    mode::Delivers,
    port::{Store, TransactStore},
    prelude::*,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

#[derive(Debug, Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "Order", key = order_id)]
pub(crate) struct OrderPlaced {
    pub(crate) order_id: String,
    pub(crate) total_cents: i64,
}

/// Places an order. Generic over the store, so that a test can do without a database.
pub(crate) async fn place<S: TransactStore>(
    outbox: &Outbox<S>,
    order_id: &str,
    total_cents: i64,
) -> Result<(), Box<dyn Error>> {
    let mut tx = outbox.begin().await?;
    tx.write(&OrderPlaced { order_id: order_id.into(), total_cents }).await?;
    if total_cents <= 0 {
        // Too late for the event: it vanishes with the transaction.
        return Err("an order costs something".into());
    }
    tx.commit().await?;
    Ok(())
}

/// Registers all handlers: in `main`, and in every test.
pub(crate) fn handlers<S: Store, M: Delivers>(outbox: Builder<S, M>, warehouse: &Arc<Warehouse>) -> Builder<S, M> {
    outbox.handlers(warehouse.clone())
}

#[derive(Debug, Default)]
pub(crate) struct Warehouse {
    shipped: Mutex<BTreeSet<String>>,
}

#[handlers]
impl Warehouse {
    /// A set: a second delivery ships nothing.
    #[handler]
    #[retry(exponential = "200ms", max_attempts = 3)]
    async fn ship(&self, placed: OrderPlaced, meta: Metadata) -> Result<(), &'static str> {
        // The carrier of large orders is never there at the first call.
        if placed.total_cents >= 100_000 && !meta.is_retry() {
            return Err("the carrier does not answer");
        }
        self.shipped.lock().await.insert(placed.order_id);
        Ok(())
    }
}

impl Warehouse {
    pub(crate) async fn shipped(&self) -> Vec<String> {
        self.shipped.lock().await.iter().cloned().collect()
    }
}
