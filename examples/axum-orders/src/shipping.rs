//! What happens after the commit.

use std::time::Duration;

use pillarbox::prelude::*;
use serde_json::json;

use crate::{
    Failure,
    api::{OrderCancelled, OrderPlaced},
    database::Database,
};

pub(crate) struct Shipping {
    database: Database,
    warehouse: Option<String>,
    client: reqwest::Client,
}

impl Shipping {
    pub(crate) fn new(database: Database, warehouse: Option<String>) -> Self {
        Self { database, warehouse, client: reqwest::Client::new() }
    }
}

#[handlers]
impl Shipping {
    /// Asks the warehouse, as often as it takes. It may be asked twice for one order, if the process dies before the
    /// outcome is stored, and recognises that by the event's id.
    #[handler(id = "ship", timeout = "10s")]
    #[retry(exponential = "100ms", max_delay = "5s", max_attempts = 50)]
    async fn ship(&self, placed: OrderPlaced, meta: Metadata) -> Result<(), Failure> {
        let order = self.database.find(&placed.order_id).await?;
        if order.is_none_or(|order| order.status == "cancelled") {
            return Ok(());
        }
        match &self.warehouse {
            Some(url) => {
                let shipment = json!({ "order_id": placed.order_id, "item": placed.item, "quantity": placed.quantity });
                let request = self.client.post(format!("{url}/shipments")).json(&shipment);
                let request = request.header("idempotency-key", meta.id().to_string()).timeout(Duration::from_secs(5));
                request.send().await?.error_for_status()?;
            }
            None => println!("shipping {} {} for order {}", placed.quantity, placed.item, placed.order_id),
        }
        self.database.mark_shipped(&placed.order_id).await?;
        Ok(())
    }

    /// Comes after `ship` has ended for the same order, since both have its key.
    #[handler(id = "apologise")]
    async fn apologise(&self, cancelled: OrderCancelled) -> Result<(), sqlx::Error> {
        if let Some(order) = self.database.find(&cancelled.order_id).await? {
            println!("sorry that you don't want the {} of order {}", order.item, order.id);
        }
        Ok(())
    }
}
