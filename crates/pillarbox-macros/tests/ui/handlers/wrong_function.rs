use std::rc::Rc;

use pillarbox_core::{Outbox, engine::handler, port::Store};
use pillarbox_macros::OutboxEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core)]
struct OrderPlaced {
    order_id: String,
}

#[derive(Serialize, Deserialize)]
struct NotDerived {
    order_id: String,
}

fn not_async(_placed: OrderPlaced) {}

async fn not_an_event(_placed: NotDerived) {}

async fn wrong_argument(_placed: OrderPlaced, _attempt: u32) {}

async fn not_send(_placed: OrderPlaced) {
    let shared = Rc::new(7);
    std::future::ready(()).await;
    drop(shared);
}

async fn no_error(_placed: OrderPlaced) -> Result<(), u32> {
    Ok(())
}

fn register<S: Store + Clone>(store: S) {
    let _ = Outbox::single_node(store.clone()).handle(not_async);
    let _ = Outbox::single_node(store.clone()).handle(not_an_event);
    let _ = Outbox::single_node(store.clone()).handle(wrong_argument);
    let _ = Outbox::single_node(store.clone()).handle(not_send);
    let _ = Outbox::single_node(store.clone()).handle(no_error);
    let _ = Outbox::single_node(store).handle(handler(no_error));
}

fn main() {}
