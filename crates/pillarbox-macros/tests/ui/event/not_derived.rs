use pillarbox_core::{Outbox, port::{Store, TransactStore}};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    order_id: String,
}

async fn write<S: Store + TransactStore>(outbox: Outbox<S>) {
    let mut tx = outbox.begin().await.unwrap();
    tx.write(&OrderPlaced { order_id: "7".into() }).await.unwrap();
}

fn main() {}
