//! What an outbox is about, without a database, a clock or a runtime.
//!
//! Everything here is synchronous and pure: the same input gives the same answer. The engine brings the
//! time and the randomness, the ports bring the data.

pub mod bucket;
mod circuit;
mod codec;
mod delivery;
mod event;
mod headers;
mod id;
mod key;
mod node;
mod partition;
mod payload;
pub mod recollection;
mod retry;
mod share;
mod status;
mod time;
mod typed;
mod verdict;

pub use circuit::{Circuit, CircuitPolicy, Gate};
#[cfg(feature = "messagepack")]
pub use codec::MessagePack;
#[cfg(feature = "protobuf")]
pub use codec::protobuf;
pub use codec::{Codec, CodecError, Codecs, Json, Reads};
pub use delivery::{Delivery, Record};
pub use event::{Dedup, Event, EventBuilder, EventError, limit};
pub use headers::Headers;
pub use id::{EventId, InvalidEventId};
pub use key::{AggregateType, EventType, Key, Route};
pub use node::{Epoch, Incarnation, Lease, NodeId};
pub use partition::{Partition, PartitionSet, murmur3_x86_32};
pub use payload::{JSON, Payload};
pub use retry::{Backoff, Policy, RetryPolicy};
pub use share::{Load, Owners, Plan, Scales, Share, Sharer, Standing, share_out};
pub use status::{Status, UnknownStatus};
pub use time::{InvalidTimestamp, Timestamp};
pub use typed::{Former, OutboxEvent, SCHEMA_VERSION, text};
pub use verdict::{
    Answer, BoxError, ERROR_LIMIT, Failure, HandlerError, IntoAnswer, Outcome, Verdict, both, combine, decide,
};

/// The number that the database gave an event's row: the order of everything.
///
/// Numbers are positive, and may have gaps where a transaction rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub i64);

impl std::fmt::Display for Seq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
