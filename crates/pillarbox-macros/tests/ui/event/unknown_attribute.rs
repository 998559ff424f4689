use pillarbox_macros::OutboxEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, kye = order_id)]
struct Slip {
    order_id: String,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, topic = "orders")]
struct Other {
    order_id: String,
}

fn main() {}
