//! A sink and a source of Pillarbox: RabbitMQ with publisher confirms and manual acknowledgements.
//!
//! ```
//! # fn example() -> Result<(), pillarbox_core::port::SinkError> {
//! use pillarbox_rabbitmq::Options;
//!
//! let sink = Options::new("amqp://shop:secret@broker/shop").exchange("events").open()?;
//! # Ok(()) }
//! # example().expect("a sink");
//! ```
//!
//! # What a "yes" means
//! The server has acknowledged the message (`basic.ack`) after every queue took it that the exchange had for it: a durable
//! queue has it on its disk, a quorum queue on most of its members. Confirms, `mandatory` and persistent messages are always
//! on. Whether the queue is durable is the business of who declares it: a queue that is not loses confirmed messages when
//! the server restarts.
//!
//! | the server's word | means |
//! |---|---|
//! | `basic.ack` | sent |
//! | `basic.return` (312 NO_ROUTE), whatever follows | [failed, or rejected](Unroutable) |
//! | `basic.nack`: a queue is full (`reject-publish`), or could not store it | failed |
//! | the channel is closed by 406 (too large, a header that RabbitMQ knows and can't read) or by 403 for the topic | rejected |
//! | the channel is closed by 404 or 403 for the exchange | unavailable: no message would get through |
//! | the connection is closed, refused or silent | unavailable |
//!
//! AMQP closes the whole channel for one bad message, and does not say for which. Then those that have no answer yet are
//! sent again, one by one: the bad one is found, and its neighbours go through. A neighbour that the server had already taken
//! arrives twice.
//!
//! The client logs what came back as a warning, its payload and headers included, under `lapin::returned_messages`: filter
//! that where payloads must not be in logs.
//!
//! # How a message travels
//! | of the message | in AMQP |
//! |---|---|
//! | topic | routing key, or the name of a queue on the default exchange ([`Options::exchange`], [`Routing`]) |
//! | id | the property `message-id`, as in the header `cloudEvents:id` |
//! | key | the header `cloudEvents:partitionkey` |
//! | content type | the property `content-type` |
//! | CloudEvents attributes | headers with the prefix `cloudEvents:`; `type` and `time` also as properties |
//! | headers | headers, as texts of UTF-8 |
//!
//! Consumers take a header whose name begins with `cloudEvents:` or `cloudEvents_` for an attribute. One of the message's own that
//! does has `header-` before its name; the source takes it off again. RabbitMQ reads the headers `CC` and `BCC` itself, and
//! refuses texts in them.
//!
//! # When something dies
//! | what | when | then |
//! |---|---|---|
//! | the process | before the message was written to the socket | it is not there; the relay sends it again |
//! | the process | before the answer was read, or recorded | it may be there; the relay sends it again, and it may be there twice |
//! | the server | before it acknowledged | the same; a durable queue has it or not |
//! | the server | after it acknowledged | a durable queue has it |
//! | the connection | at any time | the next batch connects anew |
//!
//! RabbitMQ drops no second message of the same id: consumers do, by `message-id`.
//!
//! # The source
//! ```
//! # fn example() -> Result<(), pillarbox_core::port::SinkError> {
//! use pillarbox_rabbitmq::{Options, Subscription};
//!
//! let source = Options::new("amqp://shop:secret@broker/shop").subscribe(Subscription::new("billing"))?;
//! # Ok(()) }
//! # example().expect("a source");
//! ```
//!
//! | it promises | how |
//! |---|---|
//! | a message comes until it is acknowledged | `basic.consume` with manual acknowledgements, of a durable queue; one that is not durable, exclusive or auto-delete is refused with the reason |
//! | an acknowledgement that is `Ok` is the server's | `basic.ack` has no answer: after a batch of them the server is asked for the queue on the same channel, and its answer says that it has taken them before |
//! | order | that of the queue, for one consumer alone; what comes again stands at its old place if it can |
//! | when it comes again | when its channel or connection is lost, or it is given back (`basic.nack` with `requeue`). The server has a time for that too, `consumer_timeout`, 30 minutes: it ends the channel of who needs longer for one message |
//! | deliveries | a quorum queue counts them (`x-delivery-count`); of a classic queue it is 1, or 2 for all that come again |
//! | tickets | are void when their connection is lost |
//! | lag | messages in the queue, and those that this source has; not those that others have |
//! | id of a message without CloudEvents | `message-id`, if it has one |
//!
//! The topic is the routing key. What a server has on its disk of an acknowledgement is its own affair: after its end some
//! messages may come again that were acknowledged.
//!
//! A quorum queue with a `delivery-limit` (in RabbitMQ 4 it is 20 unless told otherwise) drops a message that came so often,
//! or sends it to its dead letter exchange. AMQP does not tell: set it to -1, and let the consumer give up, which keeps what it
//! has given up.

mod connection;
mod error;
mod message;
mod options;
mod sink;
mod source;
mod subscription;

pub use message::PREFIX;
pub use options::{LARGEST, Options, Routing, Unroutable};
pub use sink::RabbitMqSink;
pub use source::RabbitMqSource;
pub use subscription::Subscription;
