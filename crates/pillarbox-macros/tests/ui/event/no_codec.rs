use pillarbox_core::{Outbox, port::Store};
use pillarbox_macros::OutboxEvent;
use serde::{Deserialize, Serialize};

#[derive(Debug)]
struct Yaml;

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, codec = Yaml)]
struct OrderPlaced {
    order_id: String,
}

fn of_the_outbox(store: impl Store) {
    let _ = Outbox::single_node(store).codec(Yaml);
}

fn main() {}
