//! A sink and a source of Pillarbox: NATS JetStream.
//!
//! ```no_run
//! # async fn example() -> Result<(), pillarbox_core::port::SinkError> {
//! use pillarbox_core::port::Sink;
//! use pillarbox_nats::{Options, Stream};
//!
//! let stream = Stream::named("ORDERS").subjects(["orders.>"]);
//! let sink = Options::new("nats://localhost:4222").stream(stream).open()?;
//! sink.check().await?;
//! # Ok(()) }
//! ```
//!
//! The topic is the subject. All messages of a batch are published before the first answer is waited for. The scheme
//! `tls://` asks for TLS; several servers of a cluster are separated by commas, and the next is tried when one is down.
//!
//! # What it confirms
//! A message is confirmed when a stream has answered that it has stored it, as safely as the stream is set up to: in its
//! file, and on a majority of its replicas. A subscriber without a stream does not count. A stream without replicas has
//! written to its file before it answers, and syncs the disk every two minutes (`sync_interval`): the end of the server's
//! process loses nothing, the end of its machine may.
//!
//! A stream that does not keep what it confirms is refused: one in memory, with `persist_mode async`, or with retention
//! `interest` and no durable consumer. A stream that [`Options::stream`] names is looked at when the sink connects, and every one
//! when it first confirms something on a connection; what it has confirmed is not believed then, and sent again. One with
//! retention `interest` is looked at again once a second while it confirms, since consumers come and go. A login that may not look
//! (`$JS.API.STREAM.INFO`, `CONSUMER.LIST`) believes, and so does the sink if the server's answer is an error. Limits (`max_age`, `max_msgs`, `max_bytes` with `discard old`) are the stream's own affair: they
//! delete messages, read or not. So does retention `interest` with messages that no consumer's filter asks for.
//!
//! The event's id goes along as `Nats-Msg-Id`, so that the stream drops a second message of the same event within its
//! `duplicate_window`, two minutes by default. A stream knows ids only, and would drop the same event under another subject,
//! too; and it remembers the ids of messages that it has dropped. So the sink believes that a message was a duplicate if the one
//! that is there has the same subject, and sends it as `{id}:{subject}` otherwise, and at last as `{id}:{subject}:{time}`.
//!
//! # Headers
//! As the CloudEvents binding for NATS says.
//!
//! | header | holds |
//! |---|---|
//! | `Nats-Msg-Id` | the event's id, or one of those above |
//! | `content-type` | of the payload |
//! | `ce-id`, `ce-source`, `ce-type` ... | CloudEvents attributes, if the payload itself has none; percent-encoded as the binding says |
//! | `ce-partitionkey` | the key, if there is one: CloudEvents' extension for it |
//! | `traceparent`, ... | headers under their own names; `%`, control characters, what is not ASCII, and spaces at either end are percent-encoded |
//!
//! Percent-decoding gives back what was sent. A header that would take the place of one of the above, or whose name begins
//! with `Nats-`, is rejected: those are orders to the server, and one of them (`Nats-Rollup`) deletes messages.
//!
//! # What happens when something dies
//! | dies | then |
//! |---|---|
//! | the sender or the connection before the message is out | nothing is there; the relay sends it again |
//! | the sender or the connection after that, before the answer | the relay sends it again, and the stream drops the second one within its window |
//! | the server before it has stored it | the relay sends it again |
//! | the server after it has stored it, before the answer | as with the connection: streams remember ids over a restart |
//! | the server after the answer | it is in its file |
//!
//! An answer that does not come in time ends the connection, and the next send opens another.
//!
//! # Errors
//! | NATS says | kind |
//! |---|---|
//! | nothing, a lost connection, a wrong login; JetStream is off, has no leader, no resources or no room; a full stream that discards new messages | unavailable |
//! | larger than the server's `max_payload` or the stream's `max_msg_size`; headers over 64 KiB; a sealed stream | rejected |
//! | no stream takes the subject; no permission for it; a subject that is full (`max_msgs_per_subject`); everything else | failed |
//!
//! A stream that is missing is somebody's oversight, to be mended while messages wait: they are retried, not given up at once.
//!
//! # The source
//! ```no_run
//! # async fn example() -> Result<(), pillarbox_core::port::SinkError> {
//! use pillarbox_core::port::Source;
//! use pillarbox_nats::{Options, Subscription};
//!
//! let source = Options::new("nats://localhost:4222").subscribe(Subscription::new("ORDERS", "billing"))?;
//! source.check().await?;
//! # Ok(()) }
//! ```
//!
//! | it promises | how |
//! |---|---|
//! | a message comes until it is acknowledged | a durable pull consumer with explicit acknowledgements and without `max_deliver`; one that is set up otherwise is refused with the reason |
//! | an acknowledgement that is `Ok` is the server's | each is answered by the server; one without an answer is an error |
//! | order | that of the stream, for one consumer alone, as long as nothing comes again |
//! | when it comes again | after [`Subscription::again_after`] without an acknowledgement, [held](pillarbox_core::port::Source::hold) by `+WPI`; at once when it is given back, by `-NAK` |
//! | deliveries | the server counts them, whoever receives |
//! | tickets | are good over reconnects, until the message comes again |
//! | lag | messages that were not delivered yet, and those that are out |
//! | id of a message without CloudEvents | `Nats-Msg-Id`; else `stream:sequence:time`, which no other message has |
//!
//! What the server knows of acknowledgements is written to its disk a little later than it is answered: after a `kill -9`
//! of the server some messages come again that were acknowledged.
//!
//! All headers are percent-decoded, also those of other senders. Headers that begin with `Nats-` are left out.
//!
//! # Guard and dead letters
//! Both are buckets, as of JetStream's key-value stores, in a file and without a history; they are created if they are not
//! there, and refused with the reason if they could lose something. `nats kv` shows what is in them.
//!
//! | | how | what it costs |
//! |---|---|---|
//! | [`NatsGuard`] | a mark is the first value of its key; it ends with the bucket's `max_age`, so that all marks of a bucket have one time. Released by the number of the value that was seen | a question a mark, 64 at once |
//! | [`NatsLetters`] | a JSON document a letter. It is changed only if it is the one that was seen | a list reads all letters, one question each, for its first page and its last; the pages between come from that reading, for 15 seconds. Counts and purges read all: fine for the thousands of a dead letter queue, not for millions |
//!
//! A letter must fit into a message of the server, 1 MiB unless it was told otherwise; a payload that is no text takes
//! twice its size. The time is that of the bucket's leader: it is asked by storing an empty value under the key `clock`, and
//! reading when the server did so.
//!
//! A letter is confirmed when the server has written it, or most of its replicas have; one alone brings it to its disk every two
//! minutes (`sync_interval`): set `sync_interval: always` in its `jetstream` section, or take three replicas, where a loss of power
//! must not cost letters.

mod bucket;
mod connection;
mod error;
mod guard;
mod letters;
mod message;
mod options;
mod sink;
mod source;
mod subscription;

pub use bucket::Bucket;
pub use guard::NatsGuard;
pub use letters::NatsLetters;
pub use options::{LARGEST, Options, Stream};
pub use sink::NatsSink;
pub use source::NatsSource;
pub use subscription::Subscription;
