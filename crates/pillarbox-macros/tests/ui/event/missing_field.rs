use pillarbox_macros::OutboxEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, key = orderid)]
struct OrderPlaced {
    order_id: String,
    total: i64,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, key = order_id)]
enum OrderChanged {
    Placed { order_id: String },
    Shipped { parcel: String },
    Closed,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, tenant = 1)]
struct Pair(String);

fn main() {}
