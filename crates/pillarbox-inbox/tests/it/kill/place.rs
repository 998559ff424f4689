//! The brokers, each with a topic that no other test has.

use std::{
    any::Any,
    sync::{Arc, mpsc},
};

use lapin::{
    Connection, ConnectionProperties,
    options::QueueDeclareOptions,
    types::{AMQPValue, FieldTable},
};
use pillarbox_core::port::{Sink, Source};
use pillarbox_testkit::servers::{Mosquitto, Nats, RabbitMq, Redis, Shared};
use rdkafka::mocking::MockCluster;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::support::until;

const KILLS: usize = 6;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Broker {
    Kafka,
    Mqtt,
    Nats,
    RabbitMq,
    Redis,
}

pub(crate) struct Place {
    pub(crate) broker: Broker,
    pub(crate) options: Value,
    pub(crate) subscription: Value,
    pub(crate) topic: Arc<str>,
    /// How often the consumer is killed.
    pub(crate) kills: usize,
    /// The server ends with it.
    server: Box<dyn Any + Send>,
}

/// A sink or a source of a broker's crate by its settings.
macro_rules! source {
    ($broker:ident, $place:expr) => {{
        let options: $broker::Options = serde_json::from_value($place.options.clone()).unwrap();
        options.subscribe(serde_json::from_value($place.subscription.clone()).unwrap()).unwrap()
    }};
}
macro_rules! sink {
    ($broker:ident, $place:expr) => {{
        let options: $broker::Options = serde_json::from_value($place.options.clone()).unwrap();
        Arc::new(options.open().unwrap())
    }};
}
/// What only a server of the test's own can be told.
macro_rules! on_private {
    ($place:expr, $server:ident => $call:expr) => {
        match $place.broker {
            Broker::Mqtt => on_private!($place, Mosquitto, $server => $call),
            Broker::Nats => on_private!($place, Nats, $server => $call),
            Broker::RabbitMq => on_private!($place, RabbitMq, $server => $call),
            Broker::Redis => on_private!($place, Redis, $server => $call),
            Broker::Kafka => on_private!($place, Mock, $server => $call),
        }
    };
    ($place:expr, $type:ty, $server:ident => $call:expr) => {{
        let $server = $place.server.downcast_mut::<$type>().expect("a private server");
        $call
    }};
}
pub(crate) use source;

impl Place {
    pub(crate) fn sink(&self) -> Arc<dyn Sink> {
        match self.broker {
            Broker::Kafka => sink!(pillarbox_kafka, self),
            Broker::Mqtt => sink!(pillarbox_mqtt, self),
            Broker::Nats => sink!(pillarbox_nats, self),
            Broker::RabbitMq => sink!(pillarbox_rabbitmq, self),
            Broker::Redis => sink!(pillarbox_redis, self),
        }
    }

    pub(crate) fn source(&self) -> Box<dyn Source> {
        match self.broker {
            Broker::Kafka => Box::new(source!(pillarbox_kafka, self)),
            Broker::Mqtt => Box::new(source!(pillarbox_mqtt, self)),
            Broker::Nats => Box::new(source!(pillarbox_nats, self)),
            Broker::RabbitMq => Box::new(source!(pillarbox_rabbitmq, self)),
            Broker::Redis => Box::new(source!(pillarbox_redis, self)),
        }
    }

    /// Ends a private server in an orderly way. The mock only breaks all connections, and takes no new ones.
    pub(crate) fn stop(&mut self) {
        on_private!(self, server => server.stop());
    }

    /// On the same port, with what it has kept.
    pub(crate) fn start_again(&mut self) {
        on_private!(self, server => server.start_again().unwrap());
    }

    /// Waits until nothing is left that comes again by the clock. Elsewhere it has come when a consumer connects.
    pub(crate) async fn until_all_is_acknowledged(&self) {
        if matches!(self.broker, Broker::Kafka | Broker::Mqtt | Broker::RabbitMq) {
            return;
        }
        let source = self.source();
        until("all is acknowledged", || async { source.lag().await.unwrap() == Some(0) }).await;
        source.close().await;
    }
}

pub(crate) fn redis() -> Place {
    let server = Redis::start().unwrap();
    Place {
        broker: Broker::Redis,
        options: json!({ "url": server.url() }),
        subscription: json!({ "streams": ["orders"], "group": "billing", "again_after": "1s", "wait": "250ms" }),
        topic: "orders".into(),
        kills: KILLS,
        server: Box::new(server),
    }
}

pub(crate) async fn nats() -> Place {
    let server = Nats::start().unwrap();
    let jetstream = async_nats::jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let subjects = vec!["orders.>".to_owned()];
    let stream = async_nats::jetstream::stream::Config { name: "orders".into(), subjects, ..<_>::default() };
    jetstream.create_stream(stream).await.unwrap();
    Place {
        broker: Broker::Nats,
        options: json!({ "url": server.url() }),
        subscription: json!({ "stream": "orders", "group": "billing", "again_after": "1s", "wait": "250ms" }),
        topic: "orders.placed".into(),
        kills: KILLS,
        server: Box::new(server),
    }
}

/// On the shared server: starting one takes long.
pub(crate) async fn rabbitmq() -> Place {
    rabbitmq_at(Shared::RabbitMq.url(), ()).await
}

pub(crate) async fn private_rabbitmq() -> Place {
    let server = RabbitMq::start().unwrap();
    rabbitmq_at(server.url(), server).await
}

/// The server drops the queue when nobody has used it for a while.
async fn rabbitmq_at(url: String, server: impl Any + Send) -> Place {
    let queue = format!("pillarbox-{}", pillarbox_core::new_id());
    let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-expires".into(), AMQPValue::LongInt(120_000));
    let channel = connection.create_channel().await.unwrap();
    channel.queue_declare((&*queue).into(), QueueDeclareOptions::durable(), arguments).await.unwrap();
    Place {
        broker: Broker::RabbitMq,
        options: json!({ "url": url }),
        subscription: json!({ "queue": queue, "wait": "250ms" }),
        topic: queue.into(),
        kills: KILLS,
        server: Box::new(server),
    }
}

/// Tells the mock whether its broker is up. It ends with this.
struct Mock(mpsc::Sender<bool>);

impl Mock {
    fn stop(&self) {
        self.0.send(false).unwrap();
    }

    fn start_again(&self) -> Result<(), mpsc::SendError<bool>> {
        self.0.send(true)
    }
}

/// librdkafka's own mock, in this process: it speaks the protocol over TCP.
pub(crate) fn kafka() -> Place {
    let (told, brokers) = mpsc::channel();
    let (orders, ordered) = mpsc::channel();
    // The mock may not leave its thread.
    std::thread::spawn(move || {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("orders", 3, 1).unwrap();
        told.send(mock.bootstrap_servers()).unwrap();
        for is_up in ordered {
            if is_up { mock.broker_up(1) } else { mock.broker_down(1) }.unwrap();
        }
    });
    Place {
        broker: Broker::Kafka,
        options: json!({ "brokers": brokers.recv().unwrap() }),
        subscription: json!({ "topics": ["orders"], "group": "billing", "session": "4s", "wait": "250ms" }),
        topic: "orders".into(),
        // The group waits for each of the dead.
        kills: 3,
        server: Box::new(Mock(orders)),
    }
}

pub(crate) async fn mqtt() -> Place {
    let server = Mosquitto::start().unwrap();
    let place = Place {
        broker: Broker::Mqtt,
        options: json!({ "url": server.url() }),
        subscription: json!({ "topic": "shop/orders", "client_id": "billing-0", "wait": "250ms" }),
        topic: "shop/orders".into(),
        kills: KILLS,
        server: Box::new(server),
    };
    // The server keeps messages from the first connection on.
    let source = source!(pillarbox_mqtt, place);
    source.check().await.unwrap();
    source.close().await;
    place
}
