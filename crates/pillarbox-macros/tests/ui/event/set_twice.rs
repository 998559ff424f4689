use pillarbox_macros::OutboxEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, key = order_id, key = order_id)]
struct Key {
    order_id: String,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, type = "A")]
#[outbox(type = "B")]
struct Type {
    order_id: String,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, context(user = order_id, user = order_id))]
struct Context {
    order_id: String,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core)]
enum Variants {
    Placed,
    #[outbox(type = "Placed")]
    Shipped,
}

fn main() {}
