//! On a database of each test's own.

use std::time::Instant;

use pillarbox_servers::{Database, Shared};
use sqlx::PgPool;
use tempfile::TempDir;

use crate::{
    A_MOMENT, Failure, LONGEST,
    inventory::{Inventory, Site},
    orders::{OrderPlaced, Orders},
    run,
};

/// Both sides, running.
struct Shop {
    orders: Orders,
    site: Site,
    folder: TempDir,
    // Dropped after the orders, which have connections to it.
    _database: Database,
}

impl Shop {
    async fn open() -> Result<Self, Failure> {
        let (database, folder, site) = (Shared::Postgres.database(), TempDir::new()?, Site::default());
        let orders = Orders::start(&database.url(), site.clone()).await?;
        let shop = Self { orders, site, folder, _database: database };
        shop.open_inventory().await?;
        Ok(shop)
    }

    async fn open_inventory(&self) -> Result<(), Failure> {
        let file = self.folder.path().join("inventory.db");
        self.site.open(Inventory::start(&file, self.orders.pool().clone()).await?).await;
        Ok(())
    }

    async fn close(self) {
        self.orders.stop().await;
        self.site.close().await;
    }
}

async fn pending(pool: &PgPool) -> Result<i64, Failure> {
    let count = "select count(*) from outbox_event where status in ('NEW', 'RETRY')";
    Ok(sqlx::query_scalar(count).fetch_one(pool).await?)
}

#[tokio::test]
async fn the_example_runs_to_its_end() -> Result<(), Failure> {
    let (database, folder) = (Shared::Postgres.database(), TempDir::new()?);
    run(&database.url(), &folder.path().join("inventory.db")).await
}

#[tokio::test]
async fn an_order_that_is_delivered_twice_is_reserved_once() -> Result<(), Failure> {
    let shop = Shop::open().await?;
    let order = shop.orders.place("tea", 4).await?;
    assert_eq!(shop.orders.settled(order).await?, "confirmed");
    for _ in 0..3 {
        shop.site.reserve(OrderPlaced { order, item: "tea".into(), quantity: 4 }).await?;
    }
    assert_eq!(shop.site.left("tea").await?, 6);
    shop.close().await;
    Ok(())
}

#[tokio::test]
async fn a_refused_order_takes_nothing_and_is_told_so() -> Result<(), Failure> {
    let shop = Shop::open().await?;
    let (too_many, unknown) = (shop.orders.place("tea", 11).await?, shop.orders.place("gold", 1).await?);
    assert_eq!(shop.orders.settled(too_many).await?, "rejected");
    assert_eq!(shop.orders.settled(unknown).await?, "rejected");
    assert_eq!(shop.site.left("tea").await?, 10);
    shop.close().await;
    Ok(())
}

#[tokio::test]
async fn orders_of_the_time_without_an_inventory_wait_for_it() -> Result<(), Failure> {
    let shop = Shop::open().await?;
    shop.site.close().await;
    let mut orders = Vec::new();
    for _ in 0..5 {
        orders.push(shop.orders.place("tea", 2).await?);
    }
    for order in &orders {
        shop.orders.tried(*order).await?;
        assert_eq!(shop.orders.status(*order).await?, "placed");
    }
    assert_eq!(pending(shop.orders.pool()).await?, 5);
    shop.open_inventory().await?;
    for order in &orders {
        assert_eq!(shop.orders.settled(*order).await?, "confirmed");
    }
    assert_eq!(shop.site.left("tea").await?, 0);
    shop.close().await;
    Ok(())
}

/// The answers are in the inventory's own database: they are told after its restart.
#[tokio::test]
async fn answers_that_the_orders_did_not_hear_are_told_again() -> Result<(), Failure> {
    let shop = Shop::open().await?;
    shop.site.close().await;
    let order = shop.orders.place("tea", 4).await?;
    // Without its table, the orders' side can take no answer.
    sqlx::query("alter table customer_order rename to mislaid").execute(shop.orders.pool()).await?;
    shop.open_inventory().await?;
    let begin = Instant::now();
    while shop.site.left("tea").await? != 6 {
        assert!(begin.elapsed() < LONGEST, "nothing was reserved");
        tokio::time::sleep(A_MOMENT).await;
    }
    shop.site.close().await;
    sqlx::query("alter table mislaid rename to customer_order").execute(shop.orders.pool()).await?;
    assert_eq!(shop.orders.status(order).await?, "placed");
    shop.open_inventory().await?;
    assert_eq!(shop.orders.settled(order).await?, "confirmed");
    assert_eq!(shop.site.left("tea").await?, 6);
    shop.close().await;
    Ok(())
}
