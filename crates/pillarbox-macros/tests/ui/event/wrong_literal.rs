use pillarbox_macros::OutboxEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, aggregate = 7)]
struct Number {
    order_id: String,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, aggregate = "")]
struct Empty {
    order_id: String,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, key = "order_id")]
struct Quoted {
    order_id: String,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, version = 0)]
struct Zero {
    order_id: String,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, version = "2")]
struct Text {
    order_id: String,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, version = 2, version_in = "topic")]
struct Elsewhere {
    order_id: String,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, key)]
struct Nothing {
    order_id: String,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, key = 1 + 2)]
struct Sum {
    order_id: String,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, context = order_id)]
struct Context {
    order_id: String,
}

fn main() {}
