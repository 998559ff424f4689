//! A sink and a source of Pillarbox: Kafka by an idempotent producer and a consumer that commits what is acknowledged.
//!
//! ```no_run
//! # fn example() -> Result<(), pillarbox_core::port::SinkError> {
//! use pillarbox_kafka::Options;
//!
//! let sink = Options::new("kafka-1:9092,kafka-2:9092").property("linger.ms", "20").open()?;
//! # Ok(()) }
//! ```
//!
//! # What it confirms
//! A message is confirmed when all replicas that are in sync have it (`acks=all`), as safely as the topic's
//! `min.insync.replicas` and the brokers' flushes make it. The producer is idempotent: what it sends again by itself, after a
//! lost connection say, arrives once and in order. What the relay sends again, after an answer that never came, may arrive
//! twice: Kafka knows no ids of events. Consumers tell it by the header `event-id`.
//!
//! | the broker's word | means |
//! |---|---|
//! | too large, no valid record, no such topic, a name that is none, no right to write there, against a policy | rejected for good, with the broker's words |
//! | not in time, no connection, no leader, too few replicas, a producer that gave up | unavailable |
//! | anything else | failed this time |
//!
//! A topic that was refused as a whole stays so for up to 30 s after somebody has made it, or given the right to it: replay
//! what is dead after that.
//!
//! Messages to one partition travel together, and brokers refuse them together. When a broker refuses some for their size or
//! their form, each is sent again by itself, so that none pays for another.
//!
//! # How a message travels
//! As the Kafka binding of CloudEvents 1.0 says, in binary mode: the payload is the value, the content type is the header
//! `content-type`, and each attribute is a header `ce_...`. Besides:
//!
//! | where | is |
//! |---|---|
//! | the record's key | the event's key; none if it has none. The partitioner is `murmur2_random`, so that clients in Java choose the same partition for a key |
//! | the header `event-id` | the event's id |
//! | other headers | the message's own, as UTF-8 |
//! | the record's timestamp | the time of sending, since Kafka counts retention from it: an event that waited for a week must not be gone at once. `ce_time` has the event's own |
//!
//! A header with the name of one of the sink's own, or with a NUL in its name, can't be sent: the message is rejected.
//!
//! # When something dies
//! | when | then |
//! |---|---|
//! | a broker, before it has the message | the producer sends it to the new leader, by itself |
//! | a broker, after it has the message, before its answer arrived | the same; the broker knows the producer's number of it, and keeps one |
//! | all brokers, or for longer than [`Options::answer_within`] | unavailable; it may have arrived, and is sent again later: at least once |
//! | the process, before it settled the event | the event is sent again, by a producer with another number: at least once |
//! | the producer itself (an error that librdkafka calls fatal) | unavailable; the next send makes a new producer |
//!
//! Messages of one key arrive in their order, because the next one is sent after the answer to the one before.
//!
//! # Settings
//! [`Options::property`] passes settings to librdkafka. Those that could lose or reorder messages are refused, with the
//! reason. TLS and SCRAM need the feature `tls`, which builds librdkafka with the OpenSSL of the machine (on Debian, the packages
//! `libssl-dev` and `pkg-config`). Without it, `ssl`, `sasl_ssl` and SCRAM are refused by [`Options::open`], too.
//!
//! ```no_run
//! # #[cfg(feature = "tls")]
//! # fn example(password: String) -> Result<(), pillarbox_core::port::SinkError> {
//! use pillarbox_kafka::Options;
//!
//! let sink = Options::new("kafka-1:9093")
//!     .property("security.protocol", "sasl_ssl")
//!     .property("ssl.ca.location", "/etc/kafka/ca.crt")
//!     .property("sasl.mechanism", "SCRAM-SHA-512")
//!     .property("sasl.username", "shop")
//!     .property("sasl.password", password)
//!     .open()?;
//! # Ok(()) }
//! ```
//!
//! # The source
//! ```no_run
//! # fn example() -> Result<(), pillarbox_core::port::SinkError> {
//! use pillarbox_kafka::{Options, Subscription};
//!
//! let source = Options::new("kafka-1:9092").subscribe(Subscription::new(["orders"], "billing"))?;
//! # Ok(()) }
//! ```
//!
//! | it promises | how |
//! |---|---|
//! | a message comes until it is acknowledged | nothing is committed by itself |
//! | an acknowledgement that is `Ok` | is committed by Kafka as far as nothing before it in its partition is missing. What is acknowledged beyond a message that is not, is remembered by this source: it comes again if the source dies, or its partition moves, before that |
//! | order | that of the partition, which is that of the key |
//! | when it comes again | when its partition moves to another consumer, or its consumer has died, after [`Subscription::session`]; when it is given back, to the same source. Not when a connection is lost: librdkafka makes another, and the source keeps its messages |
//! | deliveries | 1, and more when it was given back to the same source: Kafka does not count |
//! | tickets | are good over reconnects, and void when their partition moves |
//! | lag | records after what is committed, of all partitions |
//! | id of a message without CloudEvents | the header `event-id`; else `topic:partition:offset:time`, which no other message has |
//!
//! Proven on the mock cluster of librdkafka, TLS before it, not on Apache Kafka. The mock knows no SASL: that part is
//! librdkafka's word.

mod connection;
mod error;
mod message;
mod options;
mod progress;
mod sink;
mod source;
mod subscription;

pub use options::Options;
pub use sink::KafkaSink;
pub use source::KafkaSource;
pub use subscription::Subscription;
