use pillarbox_macros::OutboxEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct OrderId(u64);

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, key = id)]
struct OrderPlaced {
    id: OrderId,
}

fn main() {}
