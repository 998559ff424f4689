//! X1, X3, X4, X5, D14: a relay from a table of PostgreSQL to brokers that go down in the midst.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use pillarbox_core::port::UpkeepStore as _;
use pillarbox_postgres::PostgresStore;
use pillarbox_relay::{
    Relay,
    config::{Config, Source},
};
use pillarbox_testkit::servers::{Database, Shared};
use rdkafka::{Message as _, message::OwnedMessage};

use crate::cluster::{Cluster, header};

const PATIENCE: Duration = Duration::from_secs(40);

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

fn count(database: &Database, of: &str) -> u32 {
    let counted = database.run(&format!("select count(*) from outbox_event where {of}")).expect("to count");
    counted.trim().parse().expect("a number")
}

fn wait(what: &str, mut look: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !look() {
        assert!(Instant::now() < end, "waited for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn config(cluster: &Cluster, url: &str) -> Config {
    let (brokers, topic) = (&cluster.brokers, &cluster.topic);
    let text = format!(
        r#"
        outbox.url = "{url}"
        outbox.circuit = {{ failures = 1, shortest = "100ms", longest = "300ms" }}
        messages.source = "/shop"
        [sinks.broker]
        type = "kafka"
        brokers = "{brokers}"
        answer_within = "1s"
        [[rules]]
        topic = "{topic}"
        headers = {{ x-shop = "{{tenant}}" }}
        "#
    );
    Config::read(&Source::new().text(text)).unwrap()
}

/// Every record is its event, whole, and the first ones of each key are in order.
fn assert_whole_and_in_order(database: &Database, records: &[OwnedMessage]) {
    let rows = database.run("select aggregate_id || ' ' || event_id from outbox_event").unwrap();
    let ids: BTreeMap<u32, &str> =
        rows.lines().filter_map(|row| row.trim().split_once(' ')).map(|(n, id)| (n.parse().unwrap(), id)).collect();
    let (mut seen, mut last) = (BTreeSet::new(), BTreeMap::new());
    for record in records {
        let n: u32 = header(record, "ce_subject").unwrap().parse().unwrap();
        let key = format!("k{}", n % 10);
        assert_eq!(record.payload(), Some(format!("{{\"n\": {n}}}").as_bytes()), "to the byte");
        assert_eq!(record.key(), Some(key.as_bytes()));
        let headers = [
            ("content-type", "application/json"),
            ("event-id", ids[&n]),
            ("ce_specversion", "1.0"),
            ("ce_id", ids[&n]),
            ("ce_source", "/shop"),
            ("ce_type", "OrderPlaced"),
            ("ce_partitionkey", &key),
            ("ce_tenantid", "acme"),
            ("ce_aggregatetype", "Order"),
            ("traceparent", &format!("00-{n}")),
            ("x-shop", "acme"),
        ];
        for (name, value) in headers {
            assert_eq!(header(record, name).as_deref(), Some(value), "{name} of {n}");
        }
        if seen.insert(n) {
            // A key lies in one partition, and records come partition by partition.
            let before = last.insert(key, n);
            assert!(before.is_none_or(|before| before < n), "{n} after {before:?}");
        }
    }
    assert_eq!(seen, ids.into_keys().collect(), "each of them");
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_that_go_down_in_the_midst_lose_nothing_of_a_relay() {
    let cluster = Cluster::start(3, 4);
    let database = Shared::Postgres.database();
    let store = PostgresStore::open(database.url()).unwrap();
    store.migrate().await.unwrap();
    write(&database, 0..50);
    let relay = Relay::start(&config(&cluster, &database.url()), store).await.unwrap();
    wait("the outcomes", || count(&database, "status = 'DONE'") == 50);
    assert_eq!(cluster.ids().len(), 50, "without a fault nothing comes twice");

    // Slow enough that they are under way when the brokers go.
    cluster.with(|mock| mock.broker_round_trip_time(-1, Duration::from_millis(500)).unwrap());
    write(&database, 50..100);
    cluster.with(|mock| mock.broker_down(-1).unwrap());
    write(&database, 100..120);
    // Put off, and no attempt counts: the circuit is open.
    wait("events that were put off", || count(&database, "status = 'RETRY' and attempts = 0") > 0);
    let done = count(&database, "status = 'DONE'");
    assert!(done < 120, "all was over before the brokers went");
    assert_eq!(count(&database, "status in ('NEW', 'RETRY') and attempts = 0"), 120 - done);

    cluster.with(|mock| mock.broker_round_trip_time(-1, Duration::ZERO).unwrap());
    cluster.with(|mock| mock.broker_up(-1).unwrap());
    wait("the outcomes", || count(&database, "status = 'DONE'") == 120);
    assert_eq!(count(&database, "attempts > 0"), 0, "nothing was the events' fault");
    assert_whole_and_in_order(&database, &cluster.records());
    relay.shutdown().await;
}
