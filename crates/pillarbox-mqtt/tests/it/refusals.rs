//! What Mosquitto refuses, and what is refused in its place.

use std::time::Duration;

use pillarbox_core::port::{
    Sink,
    SinkErrorKind::{Failed, Rejected, Unavailable},
    Source as _,
};
use pillarbox_mqtt::{Options, Subscription, Unroutable};
use pillarbox_testkit::{
    servers::Shared,
    sinks::{Place, run},
};

use crate::support::{Observer, Topic, assert_error, message, name};

#[test]
fn who_may_not_write_is_told_so_in_the_servers_words() {
    run(async {
        let place = Topic::fresh().await;
        let sink = place.options().open().unwrap();
        assert_error(&sink.send(&[message(&place.refused(), "1")]).await[0], Rejected, "not authorized (0x87)");
    });
}

#[test]
fn what_mqtt_cant_carry_is_refused_alone() {
    run(async {
        let place = Topic::fresh().await;
        let sink = place.options().open().unwrap();
        let mut batch: Vec<_> = (0..5).map(|_| message(&place.topic(), "1")).collect();
        batch[1].headers.push(("x-note".into(), "two\nlines".into()));
        batch[3].topic = "shop/#".into();
        let answers = sink.send(&batch).await;
        assert_error(&answers[1], Rejected, "U+000A");
        assert_error(&answers[3], Rejected, "subscriptions");
        for n in [0, 2, 4] {
            assert_eq!(answers[n], Ok(()), "message {n}");
        }
        assert_eq!(place.received().await.len(), 3);
    });
}

#[test]
fn what_nobody_has_subscribed_to_is_a_failure_unless_it_is_said_otherwise() {
    run(async {
        let place = Topic::fresh().await;
        let nowhere = name();
        let send = async |options: Options| {
            let sink = options.open().unwrap();
            let answers = sink.send(&[message(&nowhere, "1"), message(&place.topic(), "1")]).await;
            assert_eq!(answers[1], Ok(()));
            answers[0].clone()
        };
        assert_error(&send(place.options()).await, Failed, "no matching subscribers (0x10)");
        assert_error(&send(place.options().unroutable(Unroutable::Reject)).await, Rejected, "nobody has subscribed");
        assert_eq!(send(place.options().unroutable(Unroutable::Accept)).await, Ok(()));
        // Who subscribes later has it.
        assert_eq!(send(place.options().retain(true)).await, Ok(()));
        assert_eq!(Observer::new(&Shared::Mosquitto.url(), &nowhere).await.received().await.len(), 1);
        let strict = place.options().retain(true).unroutable(Unroutable::Retry);
        let sink = strict.open().unwrap();
        assert_error(&sink.send(&[message(&name(), "1")]).await[0], Failed, "0x10");
    });
}

/// A session that is kept is a subscription, whether its client is there or not.
#[test]
fn a_subscriber_that_is_away_misses_nothing() {
    run(async {
        let place = Topic::fresh().await;
        let topic = name();
        let subscription = || Subscription::new(&*topic, &*topic).keep_for(Duration::from_mins(10));
        let source = place.options().subscribe(subscription()).unwrap();
        assert_eq!(source.check().await, Ok(()));
        source.close().await;
        assert_eq!(place.options().open().unwrap().send(&[message(&topic, "1")]).await, [Ok(())]);
    });
}

#[test]
fn a_header_that_has_an_attributes_name_is_kept() {
    run(async {
        let place = Topic::fresh().await;
        let sink = place.options().open().unwrap();
        let mut both = message(&place.topic(), "1");
        both.headers.push(("id".into(), "mine".into()));
        assert_eq!(sink.send(std::slice::from_ref(&both)).await, [Ok(())]);
        let received = place.received().await;
        assert_eq!(received[0].id, both.id.to_string());
        assert_eq!(received[0].headers["header-id"], "mine");
    });
}

#[test]
fn who_is_not_there_is_told_without_the_password() {
    run(async {
        for (url, words) in [("mqtt://shop:hush@127.0.0.1:1", "refused"), ("mqtt://shop:hush@nowhere.invalid", "")] {
            let sink = Options::new(url).open().unwrap();
            let error = sink.check().await;
            assert_error(&error, Unavailable, words);
            let shown = format!("{error:?} {sink:?}");
            assert!(!shown.contains("hush"), "{shown}");
        }
    });
}

#[test]
fn of_two_with_the_same_id_one_goes() {
    run(async {
        let url = Shared::Mosquitto.url();
        let id = format!("twins{}", letters());
        let options = || Options::new(&url).client_id(&id).unroutable(Unroutable::Accept);
        let (first, second) = (options().open().unwrap(), options().open().unwrap());
        assert_eq!(first.check().await, Ok(()));
        assert_eq!(second.check().await, Ok(()));
        // The first comes back by itself.
        let topic = name();
        loop {
            match &first.send(&[message(&topic, "1")]).await[0] {
                Ok(()) => break,
                Err(error) => assert_eq!(error.kind(), Unavailable, "{error}"),
            }
        }
    });
}

fn letters() -> String {
    name().rsplit_once('/').unwrap().1.replace('-', "")
}

#[test]
fn a_batch_that_is_dropped_leaves_a_sink_that_works() {
    run(async {
        let place = Topic::fresh().await;
        let sink = place.options().open().unwrap();
        let nobodys = name();
        for delay in (0..30).map(|n| Duration::from_micros(n * 150)) {
            let batch: Vec<_> = (0..50).map(|_| message(&nobodys, "1")).collect();
            let _ = tokio::time::timeout(delay, sink.send(&batch)).await;
            assert_eq!(sink.send(&[message(&place.topic(), "1")]).await, [Ok(())]);
        }
        assert_eq!(place.received().await.len(), 30);
    });
}

/// More than may be under way at once, from several sides.
#[test]
fn batches_at_once_share_a_connection() {
    run(async {
        let place = Topic::fresh().await;
        let options = place.options().answer_within(Duration::from_secs(30));
        let sink = options.unroutable(Unroutable::Accept).open().unwrap();
        let tasks: Vec<_> = (0..4)
            .map(|n| {
                let (sink, topic) = (sink.clone(), if n % 2 == 0 { place.topic() } else { name() });
                tokio::spawn(async move {
                    for count in [1, 20, 1500] {
                        let batch: Vec<_> = (0..count).map(|_| message(&topic, "1")).collect();
                        let answers = sink.send(&batch).await;
                        assert_eq!(answers.len(), count);
                        assert!(answers.iter().all(Result::is_ok), "{:?}", answers[0]);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(place.received().await.len(), 2 * 1521);
        assert_eq!(place.proxy().connections(), 1);
    });
}
