//! A sink and a source of Pillarbox: Redis Streams.
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
//! | both | `maxmemory-policy` none of `allkeys-` | a full memory: then nothing more is taken, and nothing is thrown out |
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
//!
//! # The source
//! ```no_run
//! # async fn example() -> Result<(), pillarbox_core::port::SinkError> {
//! use pillarbox_core::port::Source;
//! use pillarbox_redis::{Options, Subscription};
//!
//! let subscription = Subscription::new(["orders", "payments"], "billing");
//! let source = Options::new("redis://localhost").subscribe(subscription)?;
//! source.check().await?;
//! # Ok(()) }
//! ```
//!
//! | it promises | how |
//! |---|---|
//! | a message comes until it is acknowledged | `XREADGROUP`: Redis keeps what it gave to whom; `XACK` removes it from there |
//! | an acknowledgement that is `Ok` is the server's | `XACK` has answered with 1 for the entry |
//! | order | that of the stream, for one consumer alone, as long as nothing comes again |
//! | when it comes again | after [`Subscription::again_after`] without an acknowledgement: whoever looks then takes it (`XCLAIM`). [Held](pillarbox_core::port::Source::hold) and given back by setting its idle time |
//! | deliveries | Redis counts them, whoever receives |
//! | tickets | are good over reconnects, until the message comes again |
//! | lag | entries that were not delivered yet, and those that are out; nothing on a server before version 7, or where entries were deleted out of the middle of a stream |
//! | id of a message without CloudEvents | the field `id`; else `stream:entry id`, which no other message has |
//!
//! Each source is a consumer of its own name in the group. Those of dead processes are removed once others have taken their
//! entries. A trimmed entry is gone, whoever has not read it yet: see [`Options::max_len`]. Redis 6.2 or later is needed.
//!
//! # Guard and dead letters
//! | | how | what it costs |
//! |---|---|---|
//! | [`RedisGuard`] | a mark is a key: `SET NX PX`, released by a script that compares whose it is | a batch is one round trip |
//! | [`RedisLetters`] | a JSON document a letter, with sorted sets to list by; stored by a script that compares the version | a list reads the letters of its status and time, 100 in one go, and compares the rest itself |
//!
//! Both ask for [`Persistence`] as the sink does: letters are all there is of a message. Letters don't expire, but with
//! [`Unchecked`](Persistence::Unchecked) a server whose `maxmemory-policy` is one of `allkeys-` evicts them when it is full.
//! What is written reaches replicas later than the answer.
//!
//! Redis Cluster is not supported here, either. The keys of letters are ready for it if the prefix has a hash tag, as in
//! `{pillarbox}:`, which keeps them on one node.

mod connection;
mod entry;
mod error;
mod guard;
mod letters;
mod message;
mod options;
mod sink;
mod source;
mod store;
mod subscription;

pub use guard::RedisGuard;
pub use letters::RedisLetters;
pub use options::{LARGEST, Options, Persistence};
pub use sink::RedisSink;
pub use source::RedisSource;
pub use subscription::Subscription;
