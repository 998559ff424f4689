use pillarbox_core::domain::{CodecError, Former};
use pillarbox_macros::OutboxEvent;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, upcast = upcast)]
struct First {
    order_id: String,
}

fn upcast(_: Former<'_>) -> Result<First, CodecError> {
    unreachable!()
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, protobuf, codec = pillarbox_core::domain::Json)]
struct TwoFormats {
    order_id: String,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, version_in = "type")]
struct NoVersion {
    order_id: String,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, type = "Order")]
enum TypeOfAll {
    Placed,
}

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core)]
enum VersionOfOne {
    #[outbox(version = 2)]
    Placed,
}

fn main() {}
