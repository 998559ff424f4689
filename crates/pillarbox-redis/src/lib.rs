//! A sink of Pillarbox: Redis Streams.
//!
//! ```no_run
//! # async fn example() -> Result<(), pillarbox_core::port::SinkError> {
//! use pillarbox_core::port::Sink;
//! use pillarbox_redis::Options;
//!
//! let sink = Options::new("redis://:secret@localhost:6379/0").max_len(1_000_000).open()?;
//! sink.check().await?;
//! # Ok(()) }
//! ```
//!
//! The topic is the stream's name. A batch is one pipeline of `XADD`, so that it costs one round trip, and each command has
//! its own answer. `rediss://` is TLS; the password and the database are part of the URL.
//!
//! # Fields of an entry
//! There is no CloudEvents binding for Redis: attributes have Kafka's prefix. Fields are binary, so nothing is encoded.
//!
//! | field | holds |
//! |---|---|
//! | `id` | the event's id |
//! | `key` | the key, if there is one |
//! | `content-type` | of the payload |
//! | `ce_id`, `ce_source`, `ce_type` ... | CloudEvents attributes, if the payload itself has none |
//! | `header_traceparent`, `header_...` | headers |
//! | `payload` | the body, to the byte |
//!
//! # What it confirms
//! `XADD` is answered when the entry is in the server's memory. What the server has on its disk by then is its setting
//! `appendfsync`, so it is asked for it at every connect, and one that would lose entries is refused:
//!
//! | [`Persistence`] | asks for | a confirmed message survives |
//! |---|---|---|
//! | [`Always`](Persistence::Always) | `appendonly yes`, `appendfsync always` | the end of the machine |
//! | [`EverySecond`](Persistence::EverySecond), the default | `appendonly yes`, and not `appendfsync no` | the end of the process; of the machine but for the last second or two |
//! | [`Unchecked`](Persistence::Unchecked) | nothing | only as the server's operator knows: the sink says [`Received`](pillarbox_core::port::Confirms::Received), not stored |
//!
//! Copies on replicas come later than the answer. When a replica takes over, what had not reached it is lost, unless
//! [`Options::replicas`] waits for that many (`WAIT`).
//!
//! Redis does not drop a second entry of the same event: consumers do, by the field `id`.
//!
//! # What happens when something dies
//! | dies | then |
//! |---|---|
//! | the sender before the pipeline is out | nothing is there; the relay sends it again |
//! | the connection or the sender after that, before the answer | entries may be there; the relay sends all of the batch again, so that some come twice |
//! | the server before the answer | as its persistence has it; the relay sends it again |
//! | the server after the answer | as in the table above |
//!
//! An answer that does not come in time ends the connection, and the next send opens another.
//!
//! # Errors
//! | Redis says | kind |
//! |---|---|
//! | nothing, a lost connection, a wrong password, `LOADING`, `READONLY`, `OOM`, `MISCONF`, `NOREPLICAS`, `CLUSTERDOWN`, `MASTERDOWN`, `TRYAGAIN`, `BUSY` | unavailable |
//! | `WRONGTYPE`: the key holds something else than a stream; an entry that no stream can hold | rejected |
//! | `NOPERM`, `MOVED` and everything else | failed |
//!
//! Redis Cluster is not supported: streams that live on another node answer with `MOVED`.

mod connection;
mod error;
mod message;
mod options;
mod sink;

pub use options::{LARGEST, Options, Persistence};
pub use sink::RedisSink;
