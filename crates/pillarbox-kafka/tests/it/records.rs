//! What records look like.

use bytes::Bytes;
use pillarbox_core::{domain::Key, port::Sink};
use rdkafka::Message as _;

use crate::cluster::{Cluster, header, send};

#[tokio::test]
async fn keys_lie_where_clients_in_java_put_them() {
    let cluster = Cluster::start(1, 7);
    let sink = cluster.sink();
    // MurmurHash2 of Apache Kafka's client, without the sign, modulo 7.
    let places = [("21", -973_932_308_i32), ("foobar", -790_332_482), ("a-little-bit-long-string", -985_981_536)];
    for (key, _) in places {
        let mut message = cluster.message();
        message.key = Some(Key::from(key));
        send(&sink, &message).await.unwrap();
    }
    let records = cluster.records();
    for (key, hash) in places {
        let record = records.iter().find(|record| record.key() == Some(key.as_bytes())).unwrap();
        assert_eq!(record.partition(), (hash & 0x7fff_ffff) % 7, "{key}");
    }
}

#[tokio::test]
async fn an_empty_payload_is_no_tombstone() {
    let cluster = Cluster::start(1, 1);
    let mut message = cluster.message();
    message.payload = Bytes::new();
    message.key = None;
    message.attributes.clear();
    send(&cluster.sink(), &message).await.unwrap();
    let records = cluster.records();
    assert_eq!(records[0].payload(), Some(&b""[..]));
    assert_eq!(records[0].key(), None);
    assert_eq!(header(&records[0], "event-id"), Some(message.id.to_string()));
    assert_eq!(header(&records[0], "ce_id"), None, "the payload has it");
}

#[tokio::test]
async fn a_record_is_as_old_as_its_sending() {
    let cluster = Cluster::start(1, 1);
    let mut message = cluster.message();
    message.attributes.push(("time".into(), "2001-02-03T04:05:06Z".into()));
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    send(&cluster.sink(), &message).await.unwrap();
    let at = u128::try_from(cluster.records()[0].timestamp().to_millis().unwrap()).unwrap();
    assert!((before - 1000..before + 60_000).contains(&at), "{at}");
}

#[tokio::test]
async fn what_can_never_be_sent_is_rejected_alone() {
    use pillarbox_core::port::SinkErrorKind::Rejected;
    let cluster = Cluster::start(1, 1);
    let mut batch = cluster.messages(4);
    batch[0].topic = "no topic".into();
    batch[1].headers.push(("ce_id".into(), "forged".into()));
    // With its headers it is too large, and not by its payload.
    batch[2].headers.push(("x-note".into(), "x".repeat(1_000_000)));
    let answers = cluster.sink().send(&batch).await;
    for answer in &answers[..3] {
        assert_eq!(answer.as_ref().unwrap_err().kind(), Rejected, "{answer:?}");
    }
    assert_eq!(answers[3], Ok(()));
    assert_eq!(cluster.ids(), [batch[3].id.to_string()]);
}
