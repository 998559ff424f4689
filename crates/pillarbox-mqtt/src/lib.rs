//! A sink of Pillarbox: MQTT with quality of service 1, and a [source](#the-source).
//!
//! ```
//! # fn example() -> Result<(), pillarbox_core::port::SinkError> {
//! use pillarbox_mqtt::Options;
//!
//! let sink = Options::new("mqtt://broker").user("shop", "secret").open()?;
//! # Ok(()) }
//! # example().expect("a sink");
//! ```
//!
//! It speaks MQTT 5: version 3.1.1 has no place for headers, and no way to say no.
//!
//! # What a "yes" means
//! The server has the message (PUBACK). It does not mean that anybody else has, or will. With no subscription that matches,
//! the server drops it; if it says so, the message has failed, unless [`Options::unroutable`] says otherwise. Subscribers that
//! must miss nothing have persistent sessions, which count as subscriptions while their client is away, and which the server keeps
//! as safely as it is set up to.
//!
//! | the server's word | means |
//! |---|---|
//! | success (0x00) | sent |
//! | no matching subscribers (0x10) | failed; or rejected, or sent, as [`Options::unroutable`] has it |
//! | not authorized, topic name invalid, payload format invalid (0x87, 0x90, 0x99) | rejected |
//! | unspecified, implementation specific, quota exceeded (0x80, 0x83, 0x97) | failed |
//! | larger than its Maximum Packet Size | rejected, without being sent |
//! | a goodbye for what was said: not authorized, packet too large, malformed packet, and the like | rejected, see below |
//! | the connection is cut whenever this message is sent, and not at others | failed, see below |
//! | any other goodbye, a refused connection, silence | unavailable |
//!
//! A server that ends the connection for one bad message does not say for which. When it ends for a message, or without a
//! word, those that have no answer yet are sent again at once, one by one: the bad one is found, and its neighbours go
//! through. It is blamed if the connection ends twice while it is alone on it. A neighbour that the server had already
//! taken arrives twice.
//!
//! # How a message travels
//! By the CloudEvents binding for MQTT 5, in binary mode:
//!
//! | of the message | in MQTT |
//! |---|---|
//! | topic | topic |
//! | id and all other CloudEvents attributes | user properties under their bare names |
//! | key | the user property `partitionkey` |
//! | content type | the property Content Type |
//! | headers | user properties; `header-` stands before a name that could be an attribute's |
//!
//! The binding gives attributes no prefix, so a name has to tell: one of lower-case letters and digits alone is an attribute, as
//! CloudEvents want them, and any other is a header. `traceparent`, `tracestate` and `baggage` are headers, which tracers look for
//! under just these names. A header such as `tenant` is therefore called `header-tenant`, and one that begins with `header-` gets
//! another: who takes one `header-` off has what was sent.
//!
//! MQTT's texts are UTF-8 without control characters, of at most 65,535 bytes: a header that is not is rejected.
//!
//! # When something dies
//! | what | when | then |
//! |---|---|---|
//! | the process | before the message was written to the socket | it is not there; the relay sends it again |
//! | the process | before the answer was read, or recorded | it may have arrived; the relay sends it again, and it may arrive twice |
//! | the server | before it answered | the same |
//! | the server | after it answered | it has it, as far as it keeps anything over a restart |
//! | the connection | at any time | the next batch connects anew |
//!
//! Each connection is a session of its own (Clean Start): nothing is sent again but by the relay, which knows what became of
//! it. MQTT drops no second message of the same id: consumers do, by the attribute `id`.
//!
//! # The source
//! ```
//! # fn example() -> Result<(), pillarbox_core::port::SinkError> {
//! use pillarbox_mqtt::{Options, Subscription};
//!
//! let subscription = Subscription::new("shop/orders", "billing-0").group("billing");
//! let source = Options::new("mqtt://broker").user("shop", "secret").subscribe(subscription)?;
//! # Ok(()) }
//! # example().expect("a source");
//! ```
//!
//! | it promises | how |
//! |---|---|
//! | a message comes until it is acknowledged | a session that the server keeps under the client's id (no Clean Start, and a Session Expiry), a subscription of quality of service 1, and acknowledgements by hand. A server that keeps no sessions, or grants less, is refused with the reason |
//! | an acknowledgement that is `Ok` is the server's | PUBACK has no answer: after a batch of them the server is asked for the same subscription again, which changes nothing, and its answer says that it has taken them before |
//! | order | that of the server, for one consumer alone |
//! | when it comes again | when the connection is lost and made again by the same client id, and never before: MQTT has no word for "not done". What is given back is received again from this source's own memory, and after its end by who connects next with its id |
//! | deliveries | 1, or 2 for all that come again (DUP) |
//! | tickets | are void when their connection is lost |
//! | how much is under way | at most [`Subscription::most_out`] messages (Receive Maximum) |
//! | lag | MQTT does not tell |
//! | id of a message without CloudEvents | none: two of the same topic and content are one to guard and inbox |
//!
//! A message is taken for a CloudEvent if it has the user property `specversion`, or a content type that begins with
//! `application/cloudevents`; its attributes and headers are told apart as above, and a message of the sink comes in as it was
//! sent. Of any other message all user properties are headers: an `id` there may be a device's. `partitionkey` is the key in
//! either.
//!
//! What the server has to do for it:
//! - **A session begins with the first connection.** What was sent before is not for it. [`Source::check`] is enough, say when a
//!   service is set up.
//! - **It is found by the client's id alone.** With another id after a restart, what was kept for the old one is lost to it. A
//!   subscription stays in its session: who changes the topic or the group takes another id, too, and ends the old session by
//!   connecting once with Clean Start.
//! - **In a group** the server gives a message to one member, and it may pick one that is away. What a member has, or has waiting,
//!   stays with it until it is back: MQTT 5 lets a server give it to others, and Mosquitto does not. So a member that goes for
//!   good takes its messages along. Have a fixed number of them, with ids that stay, such as `billing-0` and `billing-1`.
//! - **Mosquitto** keeps sessions over a restart only with `persistence true`, and then writes them every `autosave_interval`
//!   (30 minutes) and when it ends: with `autosave_interval 1` and `autosave_on_changes true` it writes at every change. It
//!   **drops** what is more than `max_queued_messages` (1,000) for one client: set it to 0, or as high as a consumer may be away
//!   for. After a restart, and until the client is back, it (seen with 2.0.11) has forgotten the subscriptions of **groups**, and
//!   judges the client without the `topic` rules of its `acl_file`, for which it knows no user yet: what is sent in that time is
//!   dropped. Where a restart must lose nothing, take no group (one consumer has many workers), and `pattern` rules.
//! - A message sent with quality of service 0 has no acknowledgement, and is lost with its connection.
//!
//! MQTT asks clients to acknowledge in the order of arrival; this source does so as messages are dealt with, so that a slow one
//! holds up no other. Servers go by the number: Mosquitto is what it is tested with.
//!
//! | what dies | when | then |
//! |---|---|---|
//! | the process | before the acknowledgement was written to the socket | the message comes again, to who connects with its client id |
//! | the process | after that, before the answer | it may come again |
//! | the connection | at any time | all tickets are void, and what was not acknowledged comes again after the next connect; a number of the old connection is never used on the new one |
//! | the server | at any time | as far as it keeps sessions, nothing is lost; what it had not written of an acknowledgement comes again |
//! | the session (it expired, or the server lost it) | while nobody was there | its messages are lost: the source says so in the log when it comes back |
//!
//! [`Source::check`]: pillarbox_core::port::Source::check

mod connection;
mod error;
mod message;
mod options;
mod session;
mod sink;
mod source;
mod subscription;

pub use message::PREFIX;
pub use options::{Options, Unroutable};
pub use sink::MqttSink;
pub use source::MqttSource;
pub use subscription::Subscription;
