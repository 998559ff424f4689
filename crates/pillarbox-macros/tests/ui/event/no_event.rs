use pillarbox_macros::OutboxEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core)]
struct Generic<T> {
    value: T,
}

#[derive(Clone, Copy, OutboxEvent)]
#[outbox(crate = pillarbox_core)]
union Union {
    small: u8,
    large: u64,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core)]
enum Never {}

fn main() {}
