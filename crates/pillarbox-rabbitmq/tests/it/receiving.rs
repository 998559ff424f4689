//! The RabbitMQ source passes the exam, and refuses queues that could lose messages.

use lapin::{
    options::QueueDeclareOptions,
    types::{AMQPValue, FieldTable},
};
use pillarbox_core::port::{SinkErrorKind, Source as _};
use pillarbox_rabbitmq::Subscription;
use pillarbox_testkit::{exam::run, sinks::Place as _, sources::WAIT};

use crate::support::{Queue, name};

pillarbox_testkit::sources!(Queue);

#[test]
fn a_queue_that_could_lose_messages_is_refused_with_the_reason() {
    run(async {
        let place = Queue::fresh().await;
        let channel = place.channel().await;
        let options = |durable, exclusive, auto_delete| QueueDeclareOptions {
            durable,
            exclusive,
            auto_delete,
            ..Default::default()
        };
        for (options, reason) in [
            (options(false, false, false), "not durable"),
            (options(true, false, true), "auto-delete"),
            (options(true, true, false), "RESOURCE_LOCKED"),
        ] {
            let name = name();
            channel.queue_declare((&*name).into(), options, FieldTable::default()).await.unwrap();
            let source = place.options().subscribe(Subscription::new(&*name).wait(WAIT)).unwrap();
            for error in [source.check().await.unwrap_err(), source.receive(1).await.unwrap_err()] {
                assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
                assert!(error.to_string().contains(reason), "{error}");
            }
            channel.queue_delete((&*name).into(), lapin::options::QueueDeleteOptions::default()).await.unwrap();
        }
        let source = place.options().subscribe(Subscription::new("nobody-has-declared-it")).unwrap();
        let error = source.check().await.unwrap_err();
        assert!(error.to_string().contains("NOT_FOUND"), "{error}");
    });
}

#[test]
fn a_quorum_queue_counts_the_deliveries() {
    run(async {
        let place = Queue::fresh().await;
        let channel = place.channel().await;
        let name = name();
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        channel.queue_declare((&*name).into(), QueueDeclareOptions::durable(), arguments).await.unwrap();
        let options = lapin::options::BasicPublishOptions::default();
        let properties = lapin::BasicProperties::default();
        let sent = channel.basic_publish("".into(), (&*name).into(), options, b"1", properties).await.unwrap();
        sent.await.unwrap();
        let source = place.options().subscribe(Subscription::new(&*name).wait(WAIT)).unwrap();
        for expected in 1..=4 {
            let received = loop {
                if let Some(received) = source.receive(1).await.unwrap().pop() {
                    break received;
                }
            };
            assert_eq!(received.deliveries, expected);
            source.give_back(&[received.ticket]).await;
        }
        channel.queue_delete((&*name).into(), lapin::options::QueueDeleteOptions::default()).await.unwrap();
    });
}
