//! Orders and their events in one transaction, on an embedded SQLite: `cargo run -p quickstart`.

use pillarbox::prelude::*;
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("shop.db").display().to_string()).await?;
    sqlx::query("create table orders (id text primary key, total_cents integer)").execute(store.pool()).await?;

    let (shipped, mut shipments) = mpsc::unbounded_channel();
    let outbox = Outbox::single_node(store)
        .handle(("Order", "OrderPlaced"), move |delivery: Delivery| {
            let shipped = shipped.clone();
            async move {
                let order: serde_json::Value = delivery.event().payload().to()?;
                println!("attempt {}: shipping {}", delivery.attempt(), order["id"]);
                // The carrier is never there at the first call.
                if delivery.attempt() == 1 {
                    return Err(HandlerError::msg("the carrier does not answer"));
                }
                shipped.send(order["id"].to_string()).map_err(HandlerError::from)
            }
        })
        .start()
        .await?;

    for (id, total_cents) in [("order-1", 4_200), ("order-2", 700)] {
        let mut tx = outbox.begin().await?;
        let insert = sqlx::query("insert into orders values (?, ?)").bind(id).bind(total_cents);
        insert.execute(&mut *tx).await?;
        let placed = Event::builder("OrderPlaced").aggregate("Order", id).key(id);
        tx.write(placed.json(&serde_json::json!({ "id": id, "total_cents": total_cents }))).await?;
        tx.commit().await?;
    }

    for _ in 0..2 {
        println!("shipped {}", shipments.recv().await.ok_or("the handler is gone")?);
    }
    outbox.shutdown().await;
    Ok(())
}
