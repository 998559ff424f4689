//! Servers of a test's own: `pillarbox relay` to brokers that die in the midst, and `pillarbox migrate` on servers that are
//! set up otherwise.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use lapin::{
    Connection, ConnectionProperties,
    options::{BasicGetOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use pillarbox_servers::{Database, MariaDb, Mosquitto, Proxy, RabbitMq, mysql};
use rumqttc::v5::{
    AsyncClient, MqttOptions,
    mqttbytes::{QoS, v5::Packet},
};

use super::{
    pillarbox,
    relay::{Relay, count, migrated, wait},
    stderr,
};

/// A message as its consumer has it; attributes and headers together, as they are called there.
#[derive(Clone, Debug)]
struct Arrived {
    id: String,
    content_type: String,
    properties: BTreeMap<String, String>,
    payload: String,
}

/// A broker with a consumer that misses nothing, and a way to it that can be broken.
trait Broker {
    /// What stands before the names of attributes.
    const PREFIX: &str;

    fn proxy(&self) -> &Proxy;

    /// The settings of the sink, by the proxy.
    fn settings(&self) -> Vec<String>;

    fn kill(&mut self);

    fn start_again(&mut self);

    /// All that has come so far, in its order.
    async fn arrived(&mut self) -> Vec<Arrived>;
}

struct Rabbit {
    server: RabbitMq,
    proxy: Proxy,
}

impl Rabbit {
    async fn start() -> Self {
        let server = RabbitMq::start().unwrap();
        let connection = Connection::connect(&server.url(), ConnectionProperties::default()).await.unwrap();
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let channel = connection.create_channel().await.unwrap();
        channel.queue_declare("orders".into(), options, FieldTable::default()).await.unwrap();
        let proxy = Proxy::to_url(&server.url()).unwrap();
        Self { server, proxy }
    }
}

impl Broker for Rabbit {
    const PREFIX: &str = "cloudEvents:";

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn settings(&self) -> Vec<String> {
        let url = self.proxy.url(&self.server.url());
        vec!["sinks.broker.type=rabbitmq".into(), format!("sinks.broker.url={url}")]
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn start_again(&mut self) {
        self.server.start_again().unwrap();
    }

    /// They stay in the queue, in their places.
    async fn arrived(&mut self) -> Vec<Arrived> {
        let connection = Connection::connect(&self.server.url(), ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let mut all = Vec::new();
        while let Some(message) = channel.basic_get("orders".into(), BasicGetOptions::default()).await.unwrap() {
            let properties = &message.delivery.properties;
            let headers = properties.headers().clone().unwrap_or_default();
            let text = |value: &AMQPValue| match value {
                AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).unwrap(),
                other => panic!("{other:?}"),
            };
            all.push(Arrived {
                id: properties.message_id().as_ref().unwrap().to_string(),
                content_type: properties.content_type().as_ref().unwrap().to_string(),
                properties: headers.inner().iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
                payload: String::from_utf8(message.delivery.data.clone()).unwrap(),
            });
        }
        connection.close(200, "OK".into()).await.unwrap();
        all
    }
}

struct Mqtt {
    server: Mosquitto,
    proxy: Proxy,
    arrived: Arc<Mutex<Vec<Arrived>>>,
}

impl Mqtt {
    /// With a consumer whose session outlives the server.
    async fn start() -> Self {
        let server = Mosquitto::start().unwrap();
        let mut options = MqttOptions::new("warehouse", "127.0.0.1", server.port());
        options.set_clean_start(false).set_session_expiry_interval(Some(3600));
        let (client, mut events) = AsyncClient::new(options, 10);
        client.subscribe("orders", QoS::AtLeastOnce).await.unwrap();
        let arrived: Arc<Mutex<Vec<Arrived>>> = Arc::default();
        let (ready, subscribed) = tokio::sync::oneshot::channel();
        let of = arrived.clone();
        tokio::spawn(async move {
            // It ends with this task.
            let _client = client;
            let mut ready = Some(ready);
            loop {
                match events.poll().await {
                    Ok(rumqttc::v5::Event::Incoming(Packet::SubAck(_))) => {
                        ready.take().map(|ready| ready.send(()));
                    }
                    Ok(rumqttc::v5::Event::Incoming(Packet::Publish(publish))) => {
                        let properties = publish.properties.unwrap();
                        let user: BTreeMap<_, _> = properties.user_properties.into_iter().collect();
                        of.lock().unwrap().push(Arrived {
                            id: user["id"].clone(),
                            content_type: properties.content_type.unwrap(),
                            properties: user,
                            payload: String::from_utf8(publish.payload.to_vec()).unwrap(),
                        });
                    }
                    Ok(_) => {}
                    // The server is gone: it comes back, and so does the session.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        });
        subscribed.await.unwrap();
        let proxy = Proxy::to_url(&server.url()).unwrap();
        Self { server, proxy, arrived }
    }
}

impl Broker for Mqtt {
    const PREFIX: &str = "";

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn settings(&self) -> Vec<String> {
        let url = self.proxy.url(&self.server.url());
        vec!["sinks.broker.type=mqtt".into(), format!("sinks.broker.url={url}")]
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn start_again(&mut self) {
        self.server.start_again().unwrap();
    }

    async fn arrived(&mut self) -> Vec<Arrived> {
        self.arrived.lock().unwrap().clone()
    }
}

/// Writes events of ten keys, with all that an event can have.
fn write(database: &Database, events: std::ops::Range<u32>) {
    let of = |n: u32| {
        let key = n % 10;
        format!(
            "select outbox_publish('OrderPlaced', '{{\"n\": {n}}}', key => 'k{key}', aggregate_type => 'Order', \
             aggregate_id => '{n}', tenant_id => 'acme', headers => '{{\"traceparent\": \"00-{n}\"}}');"
        )
    };
    database.run(&events.map(of).collect::<String>()).expect("to write");
}

/// Waits until the consumer has so many different ones.
async fn until_arrived(broker: &mut impl Broker, events: usize) -> Vec<Arrived> {
    let looking = async {
        loop {
            let arrived = broker.arrived().await;
            let ids: BTreeSet<_> = arrived.iter().map(|message| &message.id).collect();
            if ids.len() >= events {
                return arrived;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(40), looking).await.unwrap_or_else(|_| panic!("waited for {events}"))
}

/// Every message is its event, whole, and the first ones of each key are in order.
fn assert_whole_and_in_order<B: Broker>(database: &Database, arrived: &[Arrived]) {
    let rows = database.run("select aggregate_id || ' ' || event_id from outbox_event").unwrap();
    let ids: BTreeMap<u32, &str> =
        rows.lines().filter_map(|row| row.trim().split_once(' ')).map(|(n, id)| (n.parse().unwrap(), id)).collect();
    let (mut seen, mut last) = (BTreeSet::new(), BTreeMap::new());
    for message in arrived {
        let payload: serde_json::Value = serde_json::from_str(&message.payload).unwrap();
        let n = u32::try_from(payload["n"].as_u64().unwrap()).unwrap();
        let key = format!("k{}", n % 10);
        assert_eq!(message.payload, format!("{{\"n\": {n}}}"), "to the byte");
        assert_eq!(message.content_type, "application/json");
        assert_eq!(message.id, ids[&n]);
        let attributes = [
            ("specversion", "1.0"),
            ("id", ids[&n]),
            ("source", "/shop"),
            ("type", "OrderPlaced"),
            ("subject", &n.to_string()),
            ("partitionkey", &key),
            ("tenantid", "acme"),
            ("aggregatetype", "Order"),
        ];
        for (name, value) in attributes {
            let found = message.properties.get(&format!("{}{name}", B::PREFIX));
            assert_eq!(found.map(String::as_str), Some(value), "{name} of {message:?}");
        }
        assert_eq!(message.properties["traceparent"], format!("00-{n}"));
        assert_eq!(message.properties["x-shop"], "acme", "the rule's");
        if seen.insert(n) {
            let before = last.insert(key, n);
            assert!(before.is_none_or(|before| before < n), "{n} after {before:?}");
        }
    }
    assert_eq!(seen, ids.into_keys().collect(), "each of them");
}

/// X1, X3, X4, X5, D14: confirms are lost on the way, then the broker dies, and later it is back.
async fn nothing_is_lost_with<B: Broker>(mut broker: B) {
    let database = migrated();
    let mut settings = broker.settings();
    settings.extend([
        "sinks.broker.answer_within=1s".to_owned(),
        "messages.source=/shop".to_owned(),
        "messages.unmatched=[\"broker\"]".to_owned(),
        "rules=[{ topic = \"orders\", sinks = [\"broker\"], headers = { x-shop = \"{tenant}\" } }]".to_owned(),
        "outbox.circuit={ failures = 2, shortest = \"100ms\", longest = \"300ms\" }".to_owned(),
    ]);
    write(&database, 0..50);
    let relay = Relay::start(&database, &settings.iter().map(String::as_str).collect::<Vec<_>>());
    wait("the outcomes", || (count(&database, "status = 'DONE'") == 50).then_some(()));
    assert_eq!(until_arrived(&mut broker, 50).await.len(), 50, "without a fault nothing comes twice");

    broker.proxy().lose_answers();
    write(&database, 50..100);
    // Of each key one is on its way, and nobody says that it has come.
    until_arrived(&mut broker, 51).await;
    broker.proxy().refuse();
    broker.proxy().cut();
    broker.kill();
    let circuit = || relay.metric("pillarbox_circuit_open{destination=\"broker\"}");
    wait("an open circuit", || (circuit() == Some(1.0)).then_some(()));
    write(&database, 100..120);
    wait("events that were put off", || {
        relay.metric("pillarbox_deferred_total").is_some_and(|put_off| put_off > 20.0).then_some(())
    });
    assert_eq!(count(&database, "status in ('NEW', 'RETRY') and attempts = 0"), 70);
    assert_eq!(count(&database, "status = 'DONE'"), 50);

    broker.start_again();
    broker.proxy().resume();
    broker.proxy().accept().unwrap();
    wait("the outcomes", || (count(&database, "status = 'DONE'") == 120).then_some(()));
    wait("a closed circuit", || (circuit() == Some(0.0)).then_some(()));
    assert_eq!(count(&database, "attempts > 0"), 0, "nothing was the events' fault");
    assert_whole_and_in_order::<B>(&database, &until_arrived(&mut broker, 120).await);
    let (ended, log) = relay.end();
    assert!(ended, "{log}");
    let warnings = log.lines().filter(|line| line.contains("its circuit is open")).count();
    assert_eq!(warnings, 1, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_that_dies_in_the_midst_loses_nothing_of_a_relay() {
    nothing_is_lost_with(Rabbit::start().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mosquitto_that_dies_in_the_midst_loses_nothing_of_a_relay() {
    nothing_is_lost_with(Mqtt::start().await).await;
}

/// As is MySQL's normal case: a binary log, and a user without SUPER.
#[test]
fn what_an_administrator_has_to_add_is_told_and_all_tables_are_there_without_it() {
    let server = MariaDb::start_with(mysql::Options::default().setting("log-bin", "binlog")).unwrap();
    let database = server.database();
    let url = database.url();
    for tables in ["the tables are migrated\n", "the tables were up to date\n"] {
        let migrated = pillarbox(&["migrate", "--db", &url]);
        assert!(migrated.status.success(), "{}", stderr(&migrated));
        assert_eq!(String::from_utf8_lossy(&migrated.stdout), tables);
        let told = stderr(&migrated);
        assert!(told.starts_with("note: the function outbox_partition_of is missing"), "{told}");
        assert!(told.contains("set global log_bin_trust_function_creators = 1"), "{told}");
    }

    let mine = ["migrate", "--db", &url, "--prefix", "mine_"];
    let printed = pillarbox(&[&mine[..], &["--print", "--inbox", "--inbox-prefix", "seen_"]].concat());
    let stopped = database.run(&String::from_utf8(printed.stdout).unwrap()).unwrap_err().to_string();
    assert!(stopped.contains("1419"), "{stopped}");
    let check = pillarbox(&[&mine[..], &["--check"]].concat());
    assert!(check.status.success(), "{}", stderr(&check));
    assert_eq!(database.run("select max(version) from seen_schema").unwrap().trim(), "1");

    server.admin_client("", "set global log_bin_trust_function_creators = 1").unwrap();
    assert_eq!(stderr(&pillarbox(&["migrate", "--db", &url])), "");
    database.run("select outbox_partition_of('k')").unwrap();
}

#[test]
fn tables_of_others_are_named_and_commands_say_goodbye_to_the_server() {
    let server = MariaDb::start().unwrap();
    let aborted = || server.admin_client("", "show global status like 'Aborted_clients'").unwrap();
    let before = aborted();
    let database = server.database();
    database.run("create table outbox_event (id char(36) primary key)").unwrap();
    let run = |arguments: &[&str]| pillarbox(&[arguments, &["--db", &database.url()]].concat());
    let refused = run(&["migrate"]);
    assert_eq!(refused.status.code(), Some(1));
    let told = stderr(&refused);
    assert!(told.contains("a table outbox_event is there that Pillarbox did not make"), "{told}");
    assert!(!told.contains("try:"), "the words have the advice: {told}");

    for command in [&["migrate", "--inbox"][..], &["status"], &["events", "list"], &["migrate", "--check"]] {
        let done = run(&[command, &["--prefix", "mine_"]].concat());
        assert!(done.status.success(), "{command:?}: {}", stderr(&done));
    }
    let sessions = format!("select count(*) from information_schema.processlist where db = '{}'", database.name());
    while server.admin_client("", &sessions).unwrap().trim() != "0" {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(aborted(), before);
}
