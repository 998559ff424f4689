//! What RabbitMQ refuses, and how it says so.

use lapin::{
    ExchangeKind,
    options::{ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions},
    types::{AMQPValue, FieldTable},
};
use pillarbox_core::port::{
    Sink,
    SinkErrorKind::{Failed, Rejected, Unavailable},
};
use pillarbox_rabbitmq::{Options, Routing};
use pillarbox_testkit::{
    servers::Shared,
    sinks::{Place, run},
};

use crate::support::{Queue, assert_error, declare, message, name};

#[test]
fn what_nobody_reads_may_be_read_yet() {
    run(async {
        let place = Queue::fresh().await;
        let sink = place.options().open().unwrap();
        let topic = name();
        let early = message(&topic, "1");
        let answers = sink.send(std::slice::from_ref(&early)).await;
        assert_error(&answers[0], Failed, "312 NO_ROUTE");
        assert_error(&answers[0], Failed, &topic);
        declare(&place.channel().await, &topic, &[]).await;
        assert_eq!(sink.send(&[early]).await, [Ok(())]);
    });
}

/// The client hands what came back to the next acknowledgement, which is another message's as often as not.
#[test]
fn what_came_back_is_told_from_its_neighbours() {
    run(async {
        let place = Queue::fresh().await;
        let sink = place.options().open().unwrap();
        let (there, nowhere) = (place.topic(), name());
        let mut lost = 0;
        let mut sent = Vec::new();
        for round in 0..20 {
            let is_lost = |n: usize| (n * 7 + round).is_multiple_of(3);
            let batch: Vec<_> = (0..100).map(|n| message(if is_lost(n) { &nowhere } else { &there }, "1")).collect();
            for (n, answer) in sink.send(&batch).await.iter().enumerate() {
                if is_lost(n) {
                    assert_error(answer, Failed, "312 NO_ROUTE");
                    lost += 1;
                } else {
                    assert_eq!(*answer, Ok(()));
                    sent.push(batch[n].id.to_string());
                }
            }
        }
        assert!(lost > 500);
        let mut received: Vec<_> = place.received().await.into_iter().map(|received| received.id).collect();
        received.sort();
        sent.sort();
        assert_eq!(received, sent);
    });
}

/// RabbitMQ closes the channel at a `CC` that is a text, and does not say whose it was.
#[test]
fn a_message_that_closes_the_channel_takes_no_neighbour_with_it() {
    run(async {
        let place = Queue::fresh().await;
        let sink = place.options().open().unwrap();
        let mut batch: Vec<_> = (0..10).map(|_| message(&place.topic(), "1")).collect();
        for bad in [3, 4, 8] {
            batch[bad].headers.push(("CC".into(), "somebody".into()));
        }
        let answers = sink.send(&batch).await;
        for (n, answer) in answers.iter().enumerate() {
            if [3, 4, 8].contains(&n) {
                assert_error(answer, Rejected, "406 PRECONDITION_FAILED");
            } else {
                assert_eq!(*answer, Ok(()), "message {n}");
            }
        }
        let received: Vec<_> = place.received().await.into_iter().map(|received| received.id).collect();
        for (n, message) in batch.iter().enumerate() {
            assert_eq!(received.contains(&message.id.to_string()), answers[n].is_ok(), "message {n}");
        }
        assert_eq!(place.proxy().connections(), 1, "the connection lives on");
    });
}

#[test]
fn headers_that_are_larger_than_a_frame_are_refused_alone() {
    run(async {
        let place = Queue::fresh().await;
        let sink = place.options().open().unwrap();
        let mut large = message(&place.topic(), "1");
        large.headers.push(("x".into(), "y".repeat(131_072)));
        // What just fits is taken: the size is counted to the byte.
        let mut fits = message(&place.topic(), "1");
        fits.headers.push(("x".into(), String::new()));
        let mut by = 131_072 - 400;
        let answers = sink.send(&[large, message(&place.topic(), "2")]).await;
        assert_error(&answers[0], Rejected, "frame_max");
        assert_eq!(answers[1], Ok(()));
        let mut taken = 0;
        let refused = loop {
            fits.headers[0].1 = "y".repeat(by);
            match &sink.send(std::slice::from_ref(&fits)).await[0] {
                Ok(()) => (by, taken) = (by + 16, taken + 1),
                Err(error) => break error.clone(),
            }
        };
        assert_error(&Err(refused), Rejected, "frame_max");
        assert!(taken > 5, "{taken}");
        assert_eq!(sink.send(&[message(&place.topic(), "3")]).await, [Ok(())]);
    });
}

#[test]
fn a_full_queue_is_no_end() {
    run(async {
        let place = Queue::fresh().await;
        let topic = name();
        let full =
            [("x-max-length", AMQPValue::LongInt(1)), ("x-overflow", AMQPValue::LongString("reject-publish".into()))];
        declare(&place.channel().await, &topic, &full).await;
        let sink = place.options().open().unwrap();
        assert_eq!(sink.send(&[message(&topic, "1")]).await, [Ok(())]);
        let answers = sink.send(&[message(&topic, "2"), message(&place.topic(), "3")]).await;
        assert_error(&answers[0], Failed, "basic.nack");
        assert_eq!(answers[1], Ok(()));
    });
}

#[test]
fn an_exchange_that_is_not_there_is_nobodys_fault() {
    run(async {
        let place = Queue::fresh().await;
        let exchange = name();
        let sink = place.options().exchange(&*exchange).open().unwrap();
        let batch: Vec<_> = (0..5).map(|_| message(&place.topic(), "1")).collect();
        for answer in sink.send(&batch).await {
            assert_error(&answer, Unavailable, "404 NOT_FOUND - no exchange");
        }
        assert_error(&sink.check().await, Unavailable, "404 NOT_FOUND - no exchange");
        let channel = place.channel().await;
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let (name, queue) = (|| (&*exchange).into(), (&*place.topic()).into());
        channel.exchange_declare(name(), ExchangeKind::Direct, options, FieldTable::default()).await.unwrap();
        channel
            .queue_bind(queue, name(), "order-7".into(), QueueBindOptions::default(), FieldTable::default())
            .await
            .unwrap();
        assert_eq!(sink.check().await, Ok(()));
        assert_error(&sink.send(&batch).await[0], Failed, &exchange);
        let by_key = place.options().exchange(&*exchange).routing(Routing::Key).open().unwrap();
        let mut keyed = message(&crate::support::name(), "1");
        keyed.key = Some("order-7".into());
        assert_eq!(by_key.send(&[keyed.clone()]).await, [Ok(())]);
        let received = place.received().await;
        assert_eq!((received.len(), &received[0].id), (1, &keyed.id.to_string()));
        assert_eq!(received[0].key.as_deref(), Some("order-7"));
        channel.exchange_delete(name(), ExchangeDeleteOptions::default()).await.unwrap();
    });
}

#[test]
fn who_may_not_enter_is_told_so_without_the_password() {
    run(async {
        let url = Shared::RabbitMq.url();
        let place = url.split_once('@').unwrap().1;
        for (url, words) in [
            (format!("amqp://guest:hush@{place}"), "ACCESS_REFUSED"),
            (format!("amqp://guest:guest@{place}/nowhere"), "nowhere"),
            ("amqp://guest:hush@127.0.0.1:1".to_owned(), "refused"),
            ("amqp://guest:hush@nowhere.invalid".to_owned(), ""),
        ] {
            let sink = Options::new(url).open().unwrap();
            let error = sink.check().await;
            assert_error(&error, Unavailable, words);
            let shown = format!("{error:?} {sink:?}");
            assert!(!shown.contains("hush") && !shown.contains("guest:guest"), "{shown}");
        }
    });
}

#[test]
fn a_batch_that_is_dropped_leaves_a_sink_that_works() {
    run(async {
        let place = Queue::fresh().await;
        let sink = place.options().open().unwrap();
        for delay in (0..30).map(|n| std::time::Duration::from_micros(n * 150)) {
            let batch: Vec<_> = (0..50).map(|_| message(&name(), "1")).collect();
            let _ = tokio::time::timeout(delay, sink.send(&batch)).await;
            let good = message(&place.topic(), "1");
            assert_eq!(sink.send(&[good]).await, [Ok(())]);
        }
        assert_eq!(place.received().await.len(), 30);
    });
}

#[test]
fn batches_at_once_get_their_own_answers() {
    run(async {
        let place = Queue::fresh().await;
        let sink = place.options().open().unwrap();
        let tasks: Vec<_> = (0..8)
            .map(|n| {
                let (sink, topic) = (sink.clone(), if n % 2 == 0 { place.topic() } else { name() });
                tokio::spawn(async move {
                    for _ in 0..20 {
                        let batch: Vec<_> = (0..20).map(|_| message(&topic, "1")).collect();
                        let answers = sink.send(&batch).await;
                        assert!(answers.iter().all(|answer| answer.is_ok() == (n % 2 == 0)), "{answers:?}");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(place.received().await.len(), 4 * 20 * 20);
        assert_eq!(place.proxy().connections(), 1);
    });
}
