use pillarbox_core::{Metadata, Outbox, port::Store};
use pillarbox_macros::OutboxEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core)]
struct Placed {
    number: u32,
}

struct Shop;

fn not_async(store: impl Store) {
    let _ = Outbox::single_node(store).handle(|_placed: Placed| {});
}

fn by_reference(store: impl Store) {
    let _ = Outbox::single_node(store).handle(|_placed: Placed, _metadata: &Metadata| async {});
}

fn returns_a_number(store: impl Store) {
    let _ = Outbox::single_node(store).handle(|placed: Placed| async move { placed.number });
}

fn no_handlers(store: impl Store) {
    let _ = Outbox::single_node(store).handlers(Shop);
}

fn main() {}
