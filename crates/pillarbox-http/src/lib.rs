//! A sink of Pillarbox: web hooks, signed.
//!
//! ```no_run
//! # fn example() -> Result<(), pillarbox_core::port::SinkError> {
//! use pillarbox_http::Options;
//!
//! let sink = Options::new("https://shop.example/hooks").secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").open()?;
//! # Ok(()) }
//! ```
//!
//! Each message is a POST of its own; those of a batch are under way at once, [`Options::at_once`] of them at most.
//!
//! # What it confirms
//! An answer of 2xx: the receiver has it, and whether it keeps it is its own affair
//! ([`Confirms::Received`](pillarbox_core::port::Confirms::Received)). HTTP itself drops no second message of the same id:
//! receivers look at `idempotency-key`.
//!
//! | answer | means |
//! |---|---|
//! | 2xx | confirmed; the answer's body says nothing more |
//! | 3xx | failed: redirects are not followed, because a web hook that moves without a word may be anybody's |
//! | 429 | unavailable: the receiver has enough for now, whatever the message. It uses up no attempts, and all messages wait for as long as `retry-after` says, a second at the least |
//! | 502, 503, 504 | unavailable: a gateway, or the receiver itself, says that nobody is there. It uses up no attempts |
//! | 408, 425 | unavailable if the receiver says when to come back, or else failed this time |
//! | any other 5xx | failed this time, and not tried before `retry-after` (at most a day) |
//! | any other 4xx | rejected for good, with the status and the beginning of the body as the words |
//! | none: no connection, no name, a broken connection, not in time | unavailable |
//!
//! Once one message of a batch finds nobody there, those that are not under way yet are not tried.
//!
//! # How a message travels
//! As the HTTP binding of CloudEvents 1.0 says, in binary mode: the payload is the body, `content-type` is the payload's,
//! and each attribute is a header `ce-...`, percent-encoded as the binding says. Besides:
//!
//! | header | is |
//! |---|---|
//! | `idempotency-key` | the event's id, the same at every attempt |
//! | `ce-partitionkey` | the key, where the message has one, and attributes travel as headers |
//! | `webhook-id`, `webhook-timestamp`, `webhook-signature` | the event's id, the time of this attempt and the signatures, as [Standard Webhooks](https://www.standardwebhooks.com) has it; only with [a secret](Options::secret). Receivers use [`verify`], or any library of that standard |
//! | the message's own headers | as they are, but for what HTTP can't carry: see below |
//!
//! The message's own headers are percent-encoded where HTTP can't carry them, and only there: control characters, whatever
//! is not ASCII, spaces at the ends, and `%` itself, so that decoding gives what was sent; in names, whatever no name may
//! have. `traceparent`, `tracestate` and `baggage` have a grammar of their own and are not touched. Names are in lower case,
//! as HTTP does not tell the cases apart. A header that would replace one of the sink's (`host`, `content-type`, `ce-...`,
//! `webhook-...` and their like, and those of [`Options::header`]) is no header that can be sent: the message is rejected.
//!
//! The topic is a path below the URL of the sink: `orders/placed` under `https://shop.example/hooks` is
//! `https://shop.example/hooks/orders/placed`, and the empty topic is the URL itself. It is percent-encoded, and no topic
//! leads out of that URL: `..` is rejected.
//!
//! # Connections
//! They are kept and used again, HTTP/2 where the receiver speaks it over TLS. Certificates are checked against the machine's
//! authorities and [`Options::root_certificates`]; the cryptography is ring's, for this client alone, whatever provider the
//! process has. Proxies are those of the environment (`HTTPS_PROXY` and its like), but not to this machine itself.
//!
//! # When something dies
//! | when | then |
//! |---|---|
//! | the receiver, before it read the request | unavailable; sent again later |
//! | the receiver or the connection, after it worked, before its answer arrived | unavailable; sent again with the same `idempotency-key` |
//! | the process, after the request | the event was not settled: it is sent again, with the same key |
//! | the process, after the answer, before it was settled | the same |
//!
//! So receivers see a message at least once, and tell a second one by its key. Messages of one key arrive in their order,
//! because the next one is sent after the answer to the one before; a request whose answer was lost may still be at work at
//! the receiver when it is sent again.

mod connection;
mod error;
mod message;
mod options;
mod signature;
mod sink;
mod target;

pub use options::Options;
pub use signature::{Secret, SignatureError, verify};
pub use sink::HttpSink;
