//! The inventory's side: SQLite.

use std::{path::Path, sync::Arc};

use pillarbox::prelude::*;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::sync::RwLock;

use crate::{
    Failure,
    orders::{self, OrderPlaced},
};

/// A reservation is kept for every order, also for the refused: it is what tells a second delivery from the first.
const TABLES: &str = "
    create table if not exists stock (item text primary key, quantity integer not null);
    create table if not exists reservation (order_id integer primary key, quantity integer not null);
    insert into stock values ('tea', 10) on conflict do nothing";

/// What the inventory answers: one kind of event for each variant.
#[derive(Clone, Debug, Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "Reservation", aggregate_id = order, key = order)]
pub(crate) enum Answered {
    StockReserved { order: i64 },
    StockRejected { order: i64, left: i64 },
}

#[derive(Debug)]
pub(crate) struct Inventory {
    outbox: Outbox<SqliteStore>,
}

impl Inventory {
    /// Delivers its answers to the orders.
    pub(crate) async fn start(file: &Path, orders: PgPool) -> Result<Self, Failure> {
        let store = SqliteStore::open(file.display().to_string()).await?;
        sqlx::raw_sql(TABLES).execute(store.pool()).await?;
        let tell = move |answered: Answered| {
            let orders = orders.clone();
            async move {
                match answered {
                    Answered::StockReserved { order } => orders::answered(&orders, order, "confirmed").await,
                    Answered::StockRejected { order, .. } => orders::answered(&orders, order, "rejected").await,
                }
            }
        };
        let tell = handler(tell).id("tell the orders");
        Ok(Self { outbox: Outbox::single_node(store).handle(tell).start().await? })
    }

    /// Reserves and answers, in one transaction. What was reserved before is answered already.
    pub(crate) async fn reserve(&self, placed: &OrderPlaced) -> Result<(), Failure> {
        let OrderPlaced { order, item, quantity } = placed;
        let mut tx = self.outbox.begin().await?;
        let reserve = sqlx::query("insert into reservation values (?, ?) on conflict do nothing");
        if reserve.bind(order).bind(quantity).execute(&mut *tx).await?.rows_affected() == 0 {
            return Ok(());
        }
        let take = sqlx::query("update stock set quantity = quantity - ?2 where item = ?1 and quantity >= ?2");
        let is_there = take.bind(item).bind(quantity).execute(&mut *tx).await?.rows_affected() == 1;
        let answer = if is_there {
            Answered::StockReserved { order: *order }
        } else {
            let left = sqlx::query_scalar("select quantity from stock where item = ?").bind(item);
            let left: Option<i64> = left.fetch_optional(&mut *tx).await?;
            Answered::StockRejected { order: *order, left: left.unwrap_or(0) }
        };
        tx.write(&answer).await?;
        tx.commit().await?;
        Ok(())
    }

    pub(crate) async fn left(&self, item: &str) -> Result<i64, Failure> {
        let left = sqlx::query_scalar("select quantity from stock where item = ?").bind(item);
        Ok(left.fetch_one(self.outbox.store().pool()).await?)
    }

    pub(crate) async fn stop(&self) {
        self.outbox.shutdown().await;
    }
}

/// Where the inventory is reached, as long as it is there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Site(Arc<RwLock<Option<Inventory>>>);

impl Site {
    pub(crate) async fn open(&self, inventory: Inventory) {
        *self.0.write().await = Some(inventory);
    }

    pub(crate) async fn close(&self) {
        if let Some(inventory) = self.0.write().await.take() {
            inventory.stop().await;
        }
    }

    pub(crate) async fn reserve(&self, placed: OrderPlaced) -> Result<(), Failure> {
        match &*self.0.read().await {
            Some(inventory) => inventory.reserve(&placed).await,
            None => Err("the inventory is down".into()),
        }
    }

    pub(crate) async fn left(&self, item: &str) -> Result<i64, Failure> {
        match &*self.0.read().await {
            Some(inventory) => inventory.left(item).await,
            None => Err("the inventory is down".into()),
        }
    }
}
