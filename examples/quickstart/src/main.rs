//! Orders and their events in one transaction, on an embedded SQLite: `cargo run -p quickstart`.

use pillarbox::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "Order", aggregate_id = order_id, key = order_id)]
struct OrderPlaced {
    order_id: String,
    total_cents: i64,
}

async fn ship(placed: OrderPlaced, metadata: Metadata) -> Result<(), &'static str> {
    println!("attempt {}: shipping {}", metadata.attempt(), placed.order_id);
    // The carrier is never there at the first call.
    if metadata.is_retry() { Ok(()) } else { Err("the carrier does not answer") }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("shop.db").display().to_string()).await?;
    sqlx::query("create table orders (id text primary key, total_cents integer)").execute(store.pool()).await?;
    let outbox = Outbox::single_node(store).handle(ship).start().await?;

    for (id, total_cents) in [("order-1", 4_200), ("order-2", 700)] {
        let mut tx = outbox.begin().await?;
        let insert = sqlx::query("insert into orders values (?, ?)").bind(id).bind(total_cents);
        insert.execute(&mut *tx).await?;
        tx.write(&OrderPlaced { order_id: id.into(), total_cents }).await?;
        tx.commit().await?;
    }

    while outbox.stats().await?.pending() > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    println!("both are shipped");
    outbox.shutdown().await;
    Ok(())
}
