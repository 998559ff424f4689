//! The NATS source passes the exam, and the quirks of durable consumers.

use async_nats::jetstream::consumer::{AckPolicy, pull};
use pillarbox_core::port::{Received, Sink as _, SinkErrorKind, Source};
use pillarbox_nats::Subscription;
use pillarbox_testkit::{
    exam::run,
    servers::Shared,
    sinks::{Place as _, message},
    sources::WAIT,
};

use crate::place::{Nats, connect};

pillarbox_testkit::sources!(Nats);

async fn receive(source: &impl Source, count: usize) -> Vec<Received> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(source.receive(count - all.len()).await.expect("messages"));
    }
    all
}

#[test]
fn a_consumer_that_could_lose_messages_is_refused_until_it_is_mended() {
    run(async {
        let place = Nats::fresh().await;
        let stream = connect(&Shared::Nats.url()).await.get_stream(&place.name).await.expect("a stream");
        let config = || pull::Config { durable_name: Some("billing".into()), ..pull::Config::default() };
        assert_eq!(place.sink().send(&[message(&place, None, b"1")]).await, [Ok(())]);
        for (config, reason) in [
            (pull::Config { ack_policy: AckPolicy::None, ..config() }, "ack_policy none"),
            (pull::Config { ack_policy: AckPolicy::All, ..config() }, "other than explicit"),
            (pull::Config { max_deliver: 3, ..config() }, "max_deliver 3"),
            (pull::Config { headers_only: true, ..config() }, "headers_only"),
            (pull::Config { filter_subject: format!("{}.paid", place.name), ..config() }, "all subjects are asked for"),
        ] {
            stream.create_consumer(config).await.expect("a consumer");
            let source =
                place.options().subscribe(Subscription::new(&place.name, "billing").wait(WAIT)).expect("a source");
            for error in [source.check().await.expect_err(reason), source.receive(1).await.expect_err(reason)] {
                assert_eq!(error.kind(), SinkErrorKind::Unavailable);
                assert!(error.to_string().contains(reason) && error.to_string().contains("billing"), "{error}");
            }
            stream.delete_consumer("billing").await.expect("to delete");
            // It is created as it has to be.
            assert_eq!(receive(&source, 1).await.len(), 1);
            stream.delete_consumer("billing").await.expect("to delete");
        }
        let source = place.options().subscribe(Subscription::new("no-such-stream", "billing")).expect("a source");
        let error = source.check().await.expect_err("no stream");
        assert!(error.to_string().contains("no-such-stream") && error.to_string().contains("create it"), "{error}");
    });
}

#[test]
fn a_consumer_that_is_deleted_is_told_and_created_again() {
    run(async {
        let place = Nats::fresh().await;
        let source = place.options().subscribe(Subscription::new(&place.name, "billing").wait(WAIT)).expect("a source");
        assert_eq!(source.receive(1).await, Ok(Vec::new()));
        let stream = connect(&Shared::Nats.url()).await.get_stream(&place.name).await.expect("a stream");
        stream.delete_consumer("billing").await.expect("to delete");
        let error = source.receive(1).await.expect_err("no consumer");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
        assert_eq!(place.sink().send(&[message(&place, None, b"1")]).await, [Ok(())]);
        assert_eq!(receive(&source, 1).await.len(), 1);
    });
}

#[test]
fn no_more_are_out_than_may_be() {
    run(async {
        let place = Nats::fresh().await;
        let messages: Vec<_> = (0..5).map(|_| message(&place, None, b"1")).collect();
        assert!(place.sink().send(&messages).await.iter().all(Result::is_ok));
        let subscription = Subscription::new(&place.name, "billing").wait(WAIT).most_out(2);
        let source = place.options().subscribe(subscription).expect("a source");
        let first = receive(&source, 2).await;
        assert_eq!(source.receive(5).await, Ok(Vec::new()));
        assert_eq!(source.acknowledge(&[first[0].ticket, first[1].ticket]).await, [Ok(()), Ok(())]);
        assert_eq!(receive(&source, 2).await.len(), 2);
        assert_eq!(source.lag().await, Ok(Some(3)));
    });
}

#[test]
fn only_messages_of_the_subjects_come() {
    run(async {
        let place = Nats::fresh().await;
        let mut messages: Vec<_> = (0..3).map(|_| message(&place, None, b"1")).collect();
        messages[1].topic = format!("{}.paid.late", place.name).into();
        assert!(place.sink().send(&messages).await.iter().all(Result::is_ok));
        let subscription = Subscription::new(&place.name, "billing").wait(WAIT);
        let paid = subscription.subjects([format!("{}.paid.>", place.name)]);
        let source = place.options().subscribe(paid).expect("a source");
        let came = receive(&source, 1).await;
        assert_eq!(came[0].message.topic, *messages[1].topic);
        assert_eq!(source.acknowledge(&[came[0].ticket]).await, [Ok(())]);
        assert_eq!((source.receive(1).await, source.lag().await), (Ok(Vec::new()), Ok(Some(0))));
    });
}
