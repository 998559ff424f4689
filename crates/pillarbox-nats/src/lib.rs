//! A sink of Pillarbox: NATS JetStream.
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
//! The event's id goes along as `Nats-Msg-Id`, so that the stream drops a second message of the same event within its
//! `duplicate_window`, two minutes by default. A stream knows ids only, and would drop the same event under another subject,
//! too: so the sink believes that a message was a duplicate if the one that is there has the same subject, and sends it
//! as `{id}:{subject}` otherwise.
//!
//! # Headers
//! As the CloudEvents binding for NATS says.
//!
//! | header | holds |
//! |---|---|
//! | `Nats-Msg-Id` | the event's id |
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
//! | nothing, a lost connection, a wrong login; JetStream is off, has no leader, no resources or no room | unavailable |
//! | larger than the server's `max_payload` or the stream's `max_msg_size`; headers over 64 KiB; a sealed stream | rejected |
//! | no stream takes the subject; no permission for it; a full stream that discards new messages; everything else | failed |
//!
//! A stream that is missing is somebody's oversight, to be mended while messages wait: they are retried, not given up at once.

mod connection;
mod error;
mod message;
mod options;
mod sink;

pub use options::{LARGEST, Options, Stream};
pub use sink::NatsSink;
