//! Orders and their events in the same transactions, which are those of diesel-async:
//! `DATABASE_URL=postgres://user:password@localhost/shop cargo run -p with-diesel`.

use diesel::prelude::*;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use pillarbox::prelude::*;
use tokio::sync::mpsc;

const TABLE: &str = "create table if not exists example_order (id bigint generated always as identity primary key, \
     item text not null)";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, such as postgres://user:password@localhost/shop")?;
    let mut connection = AsyncPgConnection::establish(&url).await?;
    connection.batch_execute(TABLE).await?;

    let (told, mut shipped) = mpsc::unbounded_channel();
    let outbox = Outbox::single_node(PostgresStore::open(&url)?)
        .route(("Order", "OrderPlaced"), move |delivery: Delivery| {
            let told = told.clone();
            async move {
                let order: serde_json::Value = delivery.event().payload().to()?;
                println!("shipping {order}");
                told.send(delivery.event().id()).map_err(HandlerError::from)
            }
        })
        .start()
        .await?;

    let insert = |item| diesel::insert_into(example_order::table).values(example_order::item.eq(item));
    let receipt = pillarbox_diesel::transaction(&mut connection, async |mut tx| {
        let order = insert("tea").returning(example_order::id).get_result(&mut *tx).await?;
        Ok::<_, Failure>(outbox.write(&mut tx, placed(order, "tea")).await?)
    })
    .await?;
    let id = receipt.ids()[0];
    receipt.confirm();

    let failed = pillarbox_diesel::transaction(&mut connection, async |mut tx| {
        let order = insert("nothing").returning(example_order::id).get_result(&mut *tx).await?;
        outbox.write(&mut tx, placed(order, "nothing")).await?.rolled_back();
        // An error rolls back.
        Err::<(), Failure>("out of stock".into())
    });
    println!("rolled back: {}", failed.await.expect_err("the transaction fails"));

    // The reader finds what was committed; what was rolled back is nowhere.
    while shipped.recv().await.ok_or("the handler is gone")? != id {}
    let lost = example_order::table.filter(example_order::item.eq("nothing"));
    let lost: i64 = lost.count().get_result(&mut connection).await?;
    assert_eq!(lost, 0, "an order that was rolled back is there");
    println!("no order of what was rolled back");

    outbox.shutdown().await;
    Ok(())
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn placed(order: i64, item: &str) -> Event {
    let event = Event::builder("OrderPlaced").aggregate("Order", order.to_string()).key(order.to_string());
    event.json(&serde_json::json!({ "order": order, "item": item })).build().expect("a valid event")
}

diesel::table! {
    /// The orders.
    example_order (id) {
        /// Given by the database.
        id -> BigInt,
        /// What was ordered.
        item -> Text,
    }
}
