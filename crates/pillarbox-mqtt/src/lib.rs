//! A sink of Pillarbox: MQTT with quality of service 1.
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
//! The server has the message (PUBACK). It does not mean that anybody else has, or will: with no subscription that matches,
//! the server says yes and drops it. Subscribers that must miss nothing have persistent sessions, which the server keeps as
//! safely as it is set up to.
//!
//! | the server's word | means |
//! |---|---|
//! | success, or no matching subscribers (0x00, 0x10) | sent |
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
//! | headers | user properties; one that has an attribute's name is called `header-` and that name |
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

mod connection;
mod error;
mod message;
mod options;
mod sink;

pub use message::PREFIX;
pub use options::Options;
pub use sink::MqttSink;
