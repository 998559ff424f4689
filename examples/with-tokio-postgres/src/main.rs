//! Orders and their events in the same transactions, which are those of tokio-postgres:
//! `DATABASE_URL=postgres://user:password@localhost/shop cargo run -p with-tokio-postgres`.

use pillarbox::prelude::*;
use pillarbox_tokio_postgres::TokioPostgres;
use tokio::sync::mpsc;
use tokio_postgres::NoTls;

const TABLE: &str = "create table if not exists example_order (id bigint generated always as identity primary key, \
     item text not null)";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, such as postgres://user:password@localhost/shop")?;
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(TABLE).await?;

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

    let insert = "insert into example_order (item) values ($1) returning id";
    let tx = client.transaction().await?;
    let order: i64 = tx.query_one(insert, &[&"tea"]).await?.get(0);
    let receipt = outbox.write(&mut TokioPostgres(&tx), placed(order, "tea")).await?;
    tx.commit().await?;
    let id = receipt.ids()[0];
    receipt.confirm();

    let tx = client.transaction().await?;
    let order: i64 = tx.query_one(insert, &[&"nothing"]).await?.get(0);
    outbox.write(&mut TokioPostgres(&tx), placed(order, "nothing")).await?.rolled_back();
    tx.rollback().await?;

    // The reader finds what was committed; what was rolled back is nowhere.
    while shipped.recv().await.ok_or("the handler is gone")? != id {}
    let lost = client.query("select id from example_order where item = 'nothing'", &[]).await?.len();
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
