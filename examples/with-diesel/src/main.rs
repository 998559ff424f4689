//! Orders and their events in the same transactions, which are those of diesel-async: `cargo run -p with-diesel`.
//!
//! On SQLite, in a temporary file, or where `DATABASE_URL` says: `postgres://user:password@localhost/shop`, or
//! `mysql://...` for MySQL and MariaDB. A file shows each; here is what they share.

mod mysql;
mod postgres;
mod sqlite;

use pillarbox::{EventId, Receipt, port::Store, prelude::*};
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    match std::env::var("DATABASE_URL") {
        Ok(url) if url.starts_with("postgres") => postgres::run(&url).await,
        Ok(url) if url.starts_with("mysql") => mysql::run(&url).await,
        Ok(url) => sqlite::run(url.strip_prefix("sqlite:").unwrap_or(&url)).await,
        Err(_) => {
            let folder = tempfile::tempdir()?;
            sqlite::run(&folder.path().join("shop.db").display().to_string()).await
        }
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

const TABLE: &str =
    "create table if not exists example_order (id varchar(26) not null primary key, item varchar(100) not null)";

diesel::table! {
    /// The orders.
    example_order (id) {
        /// Given by the application.
        id -> Text,
        /// What was ordered.
        item -> Text,
    }
}

fn placed(order: &str, item: &str) -> Event {
    let event = Event::builder("OrderPlaced").aggregate("Order", order).key(order);
    event.json(&serde_json::json!({ "order": order, "item": item })).build().expect("a valid event")
}

/// An outbox, and what its handler has shipped.
struct Shop<S: Store> {
    outbox: Outbox<S>,
    shipped: mpsc::UnboundedReceiver<EventId>,
}

impl<S: Store> Shop<S> {
    async fn open(store: S) -> Result<Self, Failure> {
        let (told, shipped) = mpsc::unbounded_channel();
        let outbox = Outbox::single_node(store)
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
        Ok(Self { outbox, shipped })
    }

    /// Waits for what was committed; what was rolled back is nowhere.
    async fn close(mut self, committed: Receipt, lost: i64) -> Result<(), Failure> {
        let id = committed.ids()[0];
        committed.confirm();
        while self.shipped.recv().await.ok_or("the handler is gone")? != id {}
        assert_eq!(lost, 0, "an order that was rolled back is there");
        println!("no order of what was rolled back");
        self.outbox.shutdown().await;
        Ok(())
    }
}
