//! The orders' side: PostgreSQL.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use pillarbox::prelude::*;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

use crate::{A_MOMENT, Failure, LONGEST, inventory::Site};

const TABLE: &str = "create table if not exists customer_order (
    id bigint generated always as identity primary key, item text not null, quantity bigint not null,
    status text not null default 'placed')";

#[derive(Clone, Debug, Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "Order", aggregate_id = order, key = order)]
pub(crate) struct OrderPlaced {
    pub(crate) order: i64,
    pub(crate) item: String,
    pub(crate) quantity: i64,
}

#[derive(Debug)]
pub(crate) struct Orders {
    outbox: Outbox<PostgresStore>,
    tried: Tried,
}

/// The orders that the inventory was asked about.
type Tried = Arc<Mutex<HashSet<i64>>>;

impl Orders {
    /// Delivers to the inventory, wherever that is: here, in the same process; else by a request or a broker.
    pub(crate) async fn start(url: &str, inventory: Site) -> Result<Self, Failure> {
        let store = PostgresStore::open(url)?;
        sqlx::query(TABLE).execute(store.pool()).await?;
        let tried = Tried::default();
        let told = tried.clone();
        let ask = move |placed: OrderPlaced| {
            let (inventory, told) = (inventory.clone(), told.clone());
            async move {
                let order = placed.order;
                let answer = inventory.reserve(placed).await;
                told.lock().unwrap_or_else(PoisonError::into_inner).insert(order);
                answer
            }
        };
        // The inventory may be away for long, and that is no fault of an order.
        let patient = RetryPolicy::exponential(Duration::from_millis(50)).max_delay(Duration::from_secs(1));
        let ask = handler(ask).id("ask the inventory").retry(patient.max_attempts(1_000));
        Ok(Self { outbox: Outbox::single_node(store).handle(ask).start().await?, tried })
    }

    pub(crate) fn pool(&self) -> &PgPool {
        self.outbox.store().pool()
    }

    /// The order, and the event that tells of it.
    pub(crate) async fn place(&self, item: &str, quantity: i64) -> Result<i64, Failure> {
        let mut tx = self.outbox.begin().await?;
        let insert = "insert into customer_order (item, quantity) values ($1, $2) returning id";
        let order = sqlx::query_scalar(insert).bind(item).bind(quantity).fetch_one(&mut *tx).await?;
        tx.write(&OrderPlaced { order, item: item.into(), quantity }).await?;
        tx.commit().await?;
        Ok(order)
    }

    pub(crate) async fn status(&self, order: i64) -> Result<String, Failure> {
        let status = sqlx::query_scalar("select status from customer_order where id = $1").bind(order);
        Ok(status.fetch_one(self.pool()).await?)
    }

    /// Waits until the inventory has answered; what it answered.
    pub(crate) async fn settled(&self, order: i64) -> Result<String, Failure> {
        let begin = Instant::now();
        loop {
            let status = self.status(order).await?;
            if status != "placed" {
                return Ok(status);
            }
            wait(begin, "the inventory has answered").await?;
        }
    }

    /// Waits until the inventory was asked, in vain or not.
    pub(crate) async fn tried(&self, order: i64) -> Result<(), Failure> {
        let begin = Instant::now();
        while !self.tried.lock().unwrap_or_else(PoisonError::into_inner).contains(&order) {
            wait(begin, "the inventory was asked").await?;
        }
        Ok(())
    }

    pub(crate) async fn stop(&self) {
        self.outbox.shutdown().await;
    }
}

async fn wait(begin: Instant, until: &str) -> Result<(), Failure> {
    if begin.elapsed() > LONGEST {
        return Err(format!("waited {LONGEST:?} until {until}").into());
    }
    tokio::time::sleep(A_MOMENT).await;
    Ok(())
}

/// What the orders do with the inventory's answer. Done twice, it changes nothing more.
pub(crate) async fn answered(pool: &PgPool, order: i64, status: &str) -> sqlx::Result<()> {
    let update = "update customer_order set status = $2 where id = $1 and status = 'placed'";
    sqlx::query(update).bind(order).bind(status).execute(pool).await.map(|_| ())
}
