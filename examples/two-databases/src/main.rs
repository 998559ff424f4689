//! Orders in PostgreSQL, the inventory in SQLite, and an outbox in each:
//! `DATABASE_URL=postgres://user:password@localhost/shop cargo run -p two-databases`.
//!
//! No transaction spans both. Each side changes its own data and tells of it in one transaction of its own; what the
//! other side tells it does once, however often it hears it:
//!
//! ```text
//!  orders (PostgreSQL)                                   inventory (SQLite)
//!  place:   order `placed`      + OrderPlaced   ──────>  reserve: reservation, stock + StockReserved
//!  confirm: order `confirmed`                   <──────                        or    + StockRejected
//!  reject:  order `rejected`
//! ```
//!
//! `orders` and `inventory` have a file each, as the two services would.

mod inventory;
mod orders;
#[cfg(test)]
mod tests;

use std::{env, error::Error, path::Path, time::Duration};

use inventory::{Inventory, Site};
use orders::Orders;

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url =
        env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL, such as postgres://user:password@localhost/shop")?;
    let folder = tempfile::tempdir()?;
    run(&url, &folder.path().join("inventory.db")).await
}

/// Two good orders and one that is too large, then the inventory's side stops, and starts again.
async fn run(postgres: &str, sqlite: &Path) -> Result<(), Failure> {
    let site = Site::default();
    let orders = Orders::start(postgres, site.clone()).await?;
    site.open(Inventory::start(sqlite, orders.pool().clone()).await?).await;

    let first = orders.place("tea", 4).await?;
    let too_large = orders.place("tea", 1_000).await?;
    expect("the first order", &orders.settled(first).await?, &"confirmed".into())?;
    expect("the order that is too large", &orders.settled(too_large).await?, &"rejected".into())?;

    site.close().await;
    println!("the inventory is down");
    let meanwhile = orders.place("tea", 3).await?;
    orders.tried(meanwhile).await?;
    expect("the order of meanwhile", &orders.status(meanwhile).await?, &"placed".into())?;

    site.open(Inventory::start(sqlite, orders.pool().clone()).await?).await;
    println!("the inventory is back");
    expect("the order of meanwhile", &orders.settled(meanwhile).await?, &"confirmed".into())?;

    let left = site.left("tea").await?;
    println!("{left} tea left");
    expect("what is left of 10 tea", &left, &3)?;

    // Whoever writes to the other stops first.
    orders.stop().await;
    site.close().await;
    Ok(())
}

/// Shows it, and fails unless it is as it should be.
fn expect<T: PartialEq + std::fmt::Display>(what: &str, is: &T, should: &T) -> Result<(), Failure> {
    println!("{what}: {is}");
    if is == should { Ok(()) } else { Err(format!("{what} should be {should}, and is {is}").into()) }
}

/// How long to wait between two looks at a row.
const A_MOMENT: Duration = Duration::from_millis(10);

/// How long to wait for the other side.
const LONGEST: Duration = Duration::from_secs(20);
