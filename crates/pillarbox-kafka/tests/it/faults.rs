//! Brokers that refuse, fail, and come and go.

use std::{collections::BTreeSet, time::Duration};

use pillarbox_core::port::{
    Sink,
    SinkErrorKind::{Failed, Rejected, Unavailable},
};
use pillarbox_kafka::Options;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr::*};

use crate::cluster::{ANSWER_WITHIN, Cluster, send};

#[tokio::test]
async fn each_refusal_has_its_verdict_and_the_brokers_words() {
    let cluster = Cluster::start(1, 1);
    let sink = cluster.sink();
    for (errors, kind, words) in [
        // Twice, since they may be the fault of a neighbour.
        (&[RD_KAFKA_RESP_ERR_INVALID_RECORD; 2][..], Rejected, "record"),
        (&[RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE; 2], Rejected, "large"),
        (&[RD_KAFKA_RESP_ERR_POLICY_VIOLATION], Rejected, "policy"),
        (&[RD_KAFKA_RESP_ERR_UNSUPPORTED_COMPRESSION_TYPE], Failed, "compression"),
        // The last, since the producer remembers it of the topic.
        (&[RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED], Rejected, "authorization"),
    ] {
        send(&sink, &cluster.message()).await.unwrap();
        cluster.answer_with(RDKafkaApiKey::Produce, errors);
        let answer = send(&sink, &cluster.message()).await.unwrap_err();
        assert_eq!(answer.kind(), kind, "{answer}");
        assert!(answer.to_string().to_lowercase().contains(words), "{answer}");
    }
}

#[tokio::test]
async fn a_topic_that_is_not_there_is_rejected_and_holds_up_no_other() {
    let cluster = Cluster::start(1, 1);
    cluster.with(move |mock| mock.topic_error("missing", RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART).unwrap());
    let mut batch = cluster.messages(2);
    batch[0].topic = "missing".into();
    let answers = cluster.sink().send(&batch).await;
    let error = answers[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), Rejected, "{error}");
    assert_eq!(answers[1], Ok(()));
}

#[tokio::test]
async fn what_passes_is_tried_again_by_the_producer_and_arrives_once() {
    let cluster = Cluster::start(1, 1);
    let sink = cluster.sink();
    for error in [
        RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        RD_KAFKA_RESP_ERR__TRANSPORT,
    ] {
        cluster.answer_with(RDKafkaApiKey::Produce, &[error]);
        send(&sink, &cluster.message()).await.unwrap();
    }
    assert_eq!(cluster.ids().len(), 4);
}

#[tokio::test]
async fn messages_that_are_refused_together_are_judged_one_by_one() {
    let cluster = Cluster::start(1, 1);
    let sink = cluster.options().property("linger.ms", "200").open().unwrap();
    send(&sink, &cluster.message()).await.unwrap();
    let batch = cluster.messages(5);
    // All five together, and the third by itself.
    let (bad, good) = (RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, RD_KAFKA_RESP_ERR_NO_ERROR);
    cluster.answer_with(RDKafkaApiKey::Produce, &[bad, good, good, bad]);
    let answers = sink.send(&batch).await;
    for (n, answer) in answers.iter().enumerate() {
        match n {
            2 => assert_eq!(answer.as_ref().unwrap_err().kind(), Rejected, "{answer:?}"),
            _ => assert_eq!(*answer, Ok(()), "message {n}"),
        }
    }
    assert_eq!(cluster.ids().len(), 5);
}

#[tokio::test]
async fn batches_that_travel_together_do_not_pay_for_each_other() {
    let cluster = Cluster::start(1, 1);
    let sink = cluster.options().property("linger.ms", "200").open().unwrap();
    send(&sink, &cluster.message()).await.unwrap();
    let (one, other) = (cluster.message(), cluster.message());
    cluster.answer_with(RDKafkaApiKey::Produce, &[RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]);
    assert_eq!(tokio::join!(send(&sink, &one), send(&sink, &other)), (Ok(()), Ok(())));
}

#[tokio::test]
async fn a_producer_that_gave_up_is_replaced() {
    let cluster = Cluster::start(1, 1);
    let sink = cluster.sink();
    let refused = RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
    cluster.answer_with(RDKafkaApiKey::InitProducerId, &[refused]);
    let error = send(&sink, &cluster.message()).await.unwrap_err();
    assert_eq!(error.kind(), Unavailable, "{error}");
    assert!(error.to_string().contains("authorization"), "{error}");
    send(&sink, &cluster.message()).await.unwrap();
    assert_eq!(cluster.ids().len(), 1);
}

#[tokio::test]
async fn a_full_queue_is_waited_for() {
    let cluster = Cluster::start(1, 1);
    let sink = cluster.options().property("queue.buffering.max.messages", "5").open().unwrap();
    let batch = cluster.messages(100);
    let answers = sink.send(&batch).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(cluster.ids().len(), 100);
}

#[tokio::test]
async fn a_full_queue_that_nobody_empties_is_unavailable() {
    let cluster = Cluster::start(1, 1);
    let sink = cluster.options().property("queue.buffering.max.messages", "5").open().unwrap();
    cluster.with(move |mock| mock.broker_down(-1).unwrap());
    let batch = cluster.messages(20);
    let begun = std::time::Instant::now();
    for answer in sink.send(&batch).await {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), Unavailable, "{error}");
    }
    assert!(begun.elapsed() < ANSWER_WITHIN * 5, "{:?}", begun.elapsed());
    cluster.with(move |mock| mock.broker_up(-1).unwrap());
    let message = cluster.message();
    let sending = async { while send(&sink, &message).await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(30), sending).await.expect("the broker is back");
}

#[tokio::test]
async fn a_send_that_was_dropped_leaves_the_sink_usable() {
    let cluster = Cluster::start(1, 1);
    let sink = cluster.sink();
    send(&sink, &cluster.message()).await.unwrap();
    cluster.with(move |mock| mock.broker_round_trip_time(-1, Duration::from_millis(200)).unwrap());
    let batch = cluster.messages(10);
    for _ in 0..3 {
        tokio::time::timeout(Duration::from_millis(50), sink.send(&batch)).await.unwrap_err();
    }
    send(&sink, &cluster.message()).await.unwrap();
}

#[tokio::test]
async fn nobody_there_is_told_with_the_reason() {
    let sink = Options::new("127.0.0.1:1").answer_within(ANSWER_WITHIN).open().unwrap();
    let cluster = Cluster::start(1, 1);
    let error = send(&sink, &cluster.message()).await.unwrap_err();
    assert_eq!(error.kind(), Unavailable, "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    let error = sink.check().await.unwrap_err();
    assert_eq!(error.kind(), Unavailable, "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn a_wrong_password_is_unavailable_and_not_printed() {
    // The brokers of the mock know no SASL: they refuse every login.
    let cluster = Cluster::start(1, 1);
    let options = [
        ("security.protocol", "sasl_plaintext"),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", "shop"),
        ("sasl.password", "pa55word"),
    ];
    let sink = options.into_iter().fold(cluster.options(), |options, (name, value)| options.property(name, value));
    let sink = sink.open().unwrap();
    let error = send(&sink, &cluster.message()).await.unwrap_err();
    assert_eq!(error.kind(), Unavailable, "{error}");
    assert!(!error.to_string().contains("pa55word"), "{error}");
    assert!(error.to_string().contains("SASL"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_confirmed_is_lost_when_brokers_come_and_go() {
    let cluster = Cluster::start(3, 6);
    let sink = cluster.sink();
    let mut confirmed = BTreeSet::new();
    let mut failed = 0;
    for round in 0..20 {
        let batch = cluster.messages(20);
        let broker = 1 + round % 3;
        let faults = async {
            match round % 4 {
                1 => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    cluster.with(move |mock| mock.broker_down(broker).unwrap());
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    cluster.with(move |mock| mock.broker_up(broker).unwrap());
                }
                3 => cluster.answer_with(
                    RDKafkaApiKey::Produce,
                    &[RD_KAFKA_RESP_ERR__TRANSPORT, RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT, RD_KAFKA_RESP_ERR__TRANSPORT],
                ),
                _ => {}
            }
        };
        let (answers, ()) = tokio::join!(sink.send(&batch), faults);
        for (message, answer) in batch.iter().zip(answers) {
            match answer {
                Ok(()) => _ = confirmed.insert(message.id.to_string()),
                Err(error) => {
                    assert_eq!(error.kind(), Unavailable, "{error}");
                    failed += 1;
                }
            }
        }
    }
    assert!(confirmed.len() >= 200, "{} confirmed, {failed} failed", confirmed.len());
    // Some may be there twice: the mock looks at sequence numbers, by which a real broker tells what it has already, in
    // transactions only.
    let arrived: BTreeSet<_> = cluster.ids().into_iter().collect();
    assert!(confirmed.is_subset(&arrived), "{} are lost", confirmed.difference(&arrived).count());
}

/// A stop has its limit, and a broker that says nothing must not use it up.
#[tokio::test(flavor = "multi_thread")]
async fn a_close_does_not_wait_for_brokers_that_say_nothing() {
    let cluster = Cluster::start(1, 1);
    let sink = cluster.options().answer_within(Duration::from_mins(1)).open().unwrap();
    send(&sink, &cluster.message()).await.unwrap();
    cluster.with(|mock| mock.broker_round_trip_time(-1, Duration::from_mins(1)).unwrap());
    let message = cluster.message();
    tokio::time::timeout(Duration::from_millis(200), send(&sink, &message)).await.unwrap_err();
    let begun = std::time::Instant::now();
    sink.close().await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
