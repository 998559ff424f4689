//! A cluster of librdkafka's own mock brokers, which speak the protocol over TCP, and a way to it that a proxy can break.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use pillarbox_core::{
    Event,
    domain::Key,
    port::{Message, Sent, Sink},
};
use pillarbox_kafka::{KafkaSink, Options};
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
    message::OwnedMessage,
    mocking::MockCluster,
    producer::DefaultProducerContext,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};

pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(2);

type Mock = MockCluster<'static, DefaultProducerContext>;
type Order = Box<dyn FnOnce(&Mock) + Send>;

/// A cluster that no other test has, with a topic of some partitions.
pub(crate) struct Cluster {
    pub(crate) brokers: String,
    pub(crate) topic: Arc<str>,
    partitions: i32,
    // The mock may not leave its thread.
    orders: mpsc::Sender<Order>,
}

impl Cluster {
    pub(crate) fn start(brokers: i32, partitions: i32) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (orders, ordered) = mpsc::channel::<Order>();
        thread::spawn(move || {
            let mock = MockCluster::new(brokers).unwrap();
            ordered.iter().for_each(|order| order(&mock));
        });
        let topic = format!("orders-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut cluster = Self { brokers: String::new(), topic: (&*topic).into(), partitions, orders };
        cluster.brokers = cluster.with(move |mock| {
            mock.create_topic(&topic, partitions, brokers.min(3)).unwrap();
            mock.bootstrap_servers()
        });
        cluster
    }

    /// Does something with the mock.
    pub(crate) fn with<T: Send + 'static>(&self, order: impl FnOnce(&Mock) -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        self.orders.send(Box::new(move |mock| done.send(order(mock)).unwrap())).unwrap();
        result.recv().unwrap()
    }

    /// The next requests of this kind have these answers.
    pub(crate) fn answer_with(&self, request: RDKafkaApiKey, errors: &[RDKafkaRespErr]) {
        let errors = errors.to_vec();
        self.with(move |mock| mock.request_errors(request, &errors));
    }

    pub(crate) fn options(&self) -> Options {
        Options::new(&*self.brokers).answer_within(ANSWER_WITHIN)
    }

    pub(crate) fn sink(&self) -> KafkaSink {
        self.options().open().unwrap()
    }

    /// Everything in the topic, partition by partition, by a consumer of its own.
    pub(crate) fn records(&self) -> Vec<OwnedMessage> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &self.brokers)
            .set("group.id", "test")
            .set("enable.auto.commit", "false")
            .create()
            .unwrap();
        let mut records = Vec::new();
        for partition in 0..self.partitions {
            let (low, high) = consumer.fetch_watermarks(&self.topic, partition, Duration::from_secs(10)).unwrap();
            let mut list = TopicPartitionList::new();
            list.add_partition_offset(&self.topic, partition, Offset::Offset(low)).unwrap();
            consumer.assign(&list).unwrap();
            let mut next = low;
            while next < high {
                let record = consumer.poll(Duration::from_secs(20)).expect("a record").unwrap();
                assert_eq!(record.partition(), partition);
                next = record.offset() + 1;
                records.push(record.detach());
            }
        }
        records
    }

    /// The ids of what is in the topic, sorted.
    pub(crate) fn ids(&self) -> Vec<String> {
        let mut ids: Vec<_> = self.records().iter().map(|record| header(record, "event-id").unwrap()).collect();
        ids.sort();
        ids
    }

    /// A message to the topic, of its own key.
    pub(crate) fn message(&self) -> Message {
        let id = Event::builder("OrderPlaced").json(&()).build().unwrap().id();
        Message {
            topic: Arc::clone(&self.topic),
            key: Some(Key::from(id.to_string())),
            id,
            content_type: "application/json".into(),
            attributes: vec![("specversion".into(), "1.0".into()), ("id".into(), id.to_string())],
            headers: Vec::new(),
            payload: Bytes::from_static(b"{}"),
        }
    }

    pub(crate) fn messages(&self, count: usize) -> Vec<Message> {
        (0..count).map(|_| self.message()).collect()
    }
}

pub(crate) fn header(record: &OwnedMessage, name: &str) -> Option<String> {
    use rdkafka::message::Headers;
    let headers = record.headers()?;
    let header = headers.iter().find(|header| header.key == name)?;
    Some(String::from_utf8(header.value?.to_vec()).unwrap())
}

/// Sends one message, and has its answer.
pub(crate) async fn send(sink: &impl Sink, message: &Message) -> Sent {
    let mut answers = sink.send(std::slice::from_ref(message)).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

/// Clients go where brokers say that they are, past any proxy. This stands before the one broker of a cluster and puts
/// another port into what it says.
#[derive(Debug)]
pub(crate) struct Detour {
    addr: SocketAddr,
    port: Arc<OnceLock<u16>>,
}

impl Detour {
    pub(crate) fn to(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let detour = Self { addr: listener.local_addr().unwrap(), port: Arc::default() };
        let port = Arc::clone(&detour.port);
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = TcpStream::connect(broker) else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = io::copy(&mut &from, &mut &to);
                    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                });
                let port = Arc::clone(&port);
                thread::spawn(move || {
                    let _ = answers(&server, &client, broker, &port);
                    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
                });
            }
        });
        detour
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where the broker says that it is.
    pub(crate) fn lead_to(&self, port: u16) {
        self.port.set(port).unwrap();
    }
}

fn answers(mut server: &TcpStream, mut client: &TcpStream, broker: SocketAddr, port: &OnceLock<u16>) -> io::Result<()> {
    let place = |port: u16| [broker.ip().to_string().as_bytes(), &u32::from(port).to_be_bytes()].concat();
    let (real, told) = (place(broker.port()), place(*port.wait()));
    loop {
        // Each answer has its length before it.
        let mut length = [0; 4];
        server.read_exact(&mut length)?;
        let mut answer = vec![0; u32::from_be_bytes(length).try_into().unwrap()];
        server.read_exact(&mut answer)?;
        let found: Vec<_> = (0..answer.len()).filter(|at| answer[*at..].starts_with(&real)).collect();
        for at in found {
            answer[at..at + told.len()].copy_from_slice(&told);
        }
        client.write_all(&[&length[..], &answer].concat())?;
    }
}
