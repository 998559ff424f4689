use pillarbox_core::Metadata;
use pillarbox_macros::{OutboxEvent, handlers};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core)]
struct Placed {
    number: u32,
}

struct NotAsync;

#[handlers(crate = pillarbox_core)]
impl NotAsync {
    #[handler]
    fn ship(&self, placed: Placed) {}
}

struct ByReference;

#[handlers(crate = pillarbox_core)]
impl ByReference {
    #[handler]
    async fn ship(&self, placed: Placed, metadata: &Metadata) {}
}

struct Mutable;

#[handlers(crate = pillarbox_core)]
impl Mutable {
    #[handler]
    async fn ship(&mut self, placed: Placed) {}
}

struct NoEvent;

#[handlers(crate = pillarbox_core)]
impl NoEvent {
    #[handler]
    async fn ship(&self) {}
}

struct Generic;

#[handlers(crate = pillarbox_core)]
impl Generic {
    #[handler]
    async fn ship<E>(&self, event: E) {}
}

struct NoHandler;

#[handlers(crate = pillarbox_core)]
impl NoHandler {
    async fn ship(&self, placed: Placed) {}
}

fn main() {}
