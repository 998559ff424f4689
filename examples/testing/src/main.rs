//! How an application tests its handlers, and the code that writes events: `cargo test -p testing`.
//!
//! The shop is in `shop.rs`, as an application has it; its tests are in `tests.rs`.

mod shop;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use pillarbox::prelude::*;
use shop::Warehouse;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("shop.db").display().to_string()).await?;
    let warehouse = Arc::new(Warehouse::default());
    let outbox = shop::handlers(Outbox::single_node(store), &warehouse).start().await?;

    shop::place(&outbox, "order-7", 4_200).await?;
    while outbox.stats().await?.pending() > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    println!("{:?} are shipped", warehouse.shipped().await);
    outbox.shutdown().await;
    Ok(())
}
