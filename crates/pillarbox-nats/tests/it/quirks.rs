//! Streams, duplicates and subjects, on the shared server.

use std::{
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::jetstream::{
    consumer::pull,
    stream::{self, Config, DiscardPolicy, RetentionPolicy, StorageType},
};
use pillarbox_core::port::{Sink, SinkErrorKind};
use pillarbox_nats::{LARGEST, Options, Stream};
use pillarbox_testkit::{
    servers::Shared,
    sinks::{ANSWER_WITHIN, Place, message, run},
};
use tokio::runtime::Handle;

use crate::place::{Nats, connect, id, read, send_one};

/// Of the shared server.
const MAX_PAYLOAD: usize = 1024 * 1024;

#[test]
fn a_subject_without_a_stream_fails_alone_and_works_once_there_is_one() {
    run(async {
        let place = Nats::fresh().await;
        let sink = place.sink();
        let mut batch = [message(&place, Some("a"), b"1"), message(&place, Some("b"), b"2")];
        batch[0].topic = format!("{}-later", place.name).into();
        let answers = sink.send(&batch).await;
        let error = answers[0].as_ref().expect_err("no stream");
        assert_eq!(error.kind(), SinkErrorKind::Failed);
        assert!(
            error.to_string().contains("no stream takes the subject") && error.to_string().contains("-later"),
            "{error}"
        );
        assert_eq!(answers[1], Ok(()));
        let later = Stream::named(format!("{}-later", place.name)).subjects([batch[0].topic.to_string()]);
        let sink = place.options().stream(later).open().expect("a sink");
        assert_eq!(sink.check().await, Ok(()));
        assert_eq!(send_one(&sink, batch[0].clone()).await, Ok(()));
        connect(&Shared::Nats.url()).await.delete_stream(&*batch[0].topic).await.expect("to delete");
    });
}

#[test]
fn a_second_message_of_an_event_is_dropped_and_confirmed() {
    run(async {
        let place = Nats::fresh().await;
        let twice = message(&place, Some("a"), b"1");
        assert_eq!(send_one(&place.sink(), twice.clone()).await, Ok(()));
        assert_eq!(send_one(&place.sink(), twice).await, Ok(()));
        assert_eq!(place.received().await.len(), 1);
    });
}

#[test]
fn an_event_for_two_subjects_of_one_stream_is_in_both() {
    run(async {
        let place = Nats::fresh().await;
        let sink = place.sink();
        let first = message(&place, Some("a"), b"1");
        let mut second = first.clone();
        second.topic = format!("{}.grün", place.name).into();
        // The second time is after a fault, say.
        for _ in 0..2 {
            assert_eq!(sink.send(slice::from_ref(&first)).await, [Ok(())]);
            assert_eq!(sink.send(slice::from_ref(&second)).await, [Ok(())]);
        }
        let found = read(&Shared::Nats.url(), &place.name).await;
        let subjects: Vec<_> = found.iter().map(|message| message.subject.as_str()).collect();
        assert_eq!(subjects, [&*first.topic, &*second.topic]);
        assert_eq!(id(&found[0]), first.id.to_string());
        assert_eq!(id(&found[1]), format!("{}:{}.gr%C3%BCn", first.id, place.name));
        assert_eq!(found[1].headers.get("ce-id").expect("an id").as_str(), first.id.to_string());
    });
}

#[test]
fn a_full_stream_is_unavailable_and_a_sealed_one_rejects() {
    run(async {
        let place = Nats::fresh().await;
        let jetstream = connect(&Shared::Nats.url()).await;
        let name = format!("{}-full", place.name);
        let config = Config {
            name: name.clone(),
            subjects: vec![name.clone()],
            max_messages: 1,
            discard: DiscardPolicy::New,
            ..Config::default()
        };
        jetstream.create_stream(config.clone()).await.expect("a stream");
        let sink = place.sink();
        let fill = || {
            let mut message = message(&place, None, b"1");
            message.topic = name.as_str().into();
            message
        };
        assert_eq!(send_one(&sink, fill()).await, Ok(()));
        let error = send_one(&sink, fill()).await.expect_err("it is full");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("maximum messages exceeded"), "{error}");
        jetstream.update_stream(Config { sealed: true, ..config }).await.expect("to seal");
        let error = send_one(&sink, fill()).await.expect_err("it is sealed");
        assert_eq!(error.kind(), SinkErrorKind::Rejected, "{error}");
        assert!(error.to_string().contains("sealed"), "{error}");
        jetstream.delete_stream(&name).await.expect("to delete");
    });
}

#[test]
fn what_is_larger_than_the_server_takes_is_rejected_alone() {
    run(async {
        let place = Nats::fresh().await;
        let sink = place.options().largest(10 * LARGEST).open().expect("a sink");
        // The payload would do, but for the headers.
        let batch = [message(&place, None, &vec![b'x'; MAX_PAYLOAD - 100]), message(&place, None, b"1")];
        let answers = sink.send(&batch).await;
        let error = answers[0].as_ref().expect_err("too large");
        assert_eq!(error.kind(), SinkErrorKind::Rejected);
        assert!(error.to_string().contains(&MAX_PAYLOAD.to_string()), "{error}");
        assert_eq!(answers[1], Ok(()));
        let mut headers = message(&place, None, b"1");
        headers.headers.push(("x-long".into(), "x".repeat(70_000)));
        let error = send_one(&sink, headers).await.expect_err("too large");
        assert_eq!(error.kind(), SinkErrorKind::Rejected, "{error}");
    });
}

#[test]
fn the_largest_payload_goes_through() {
    run(async {
        let place = Nats::fresh().await;
        let largest = MAX_PAYLOAD - 10_000;
        let sink = place.options().largest(largest).open().expect("a sink");
        assert_eq!(send_one(&sink, message(&place, None, &vec![b'x'; largest])).await, Ok(()));
        assert_eq!(place.received().await[0].payload.len(), largest);
    });
}

#[test]
fn a_stream_that_could_lose_messages_is_refused() {
    run(async {
        let place = Nats::fresh().await;
        let jetstream = connect(&Shared::Nats.url()).await;
        let name = format!("{}-loses", place.name);
        let config = || Config { name: name.clone(), subjects: vec![name.clone()], ..Config::default() };
        for (config, reason) in [
            (Config { storage: StorageType::Memory, ..config() }, "memory"),
            (Config { no_ack: true, ..config() }, "never confirm"),
            (Config { retention: RetentionPolicy::Interest, ..config() }, "no durable consumer"),
        ] {
            jetstream.create_stream(config).await.expect("a stream");
            for stream in [Stream::named(&name), Stream::named(&name).subjects([&name])] {
                let sink = place.options().stream(stream).open().expect("a sink");
                let error = sink.check().await.expect_err(reason);
                assert_eq!(error.kind(), SinkErrorKind::Unavailable);
                assert!(error.to_string().contains(reason), "{error}");
                let error = send_one(&sink, message(&place, None, b"1")).await.expect_err(reason);
                assert!(error.to_string().contains(reason), "{error}");
            }
            jetstream.delete_stream(&name).await.expect("to delete");
        }
        assert!(place.received().await.is_empty());
        let sink = place.options().stream(Stream::named(&name)).open().expect("a sink");
        let error = sink.check().await.expect_err("no stream");
        assert!(error.to_string().contains(&name) && error.to_string().contains("create it"), "{error}");
    });
}

#[test]
fn a_stream_that_was_not_named_is_looked_at_when_it_first_confirms() {
    run(async {
        let place = Nats::fresh().await;
        let jetstream = connect(&Shared::Nats.url()).await;
        let name = format!("{}-unnamed", place.name);
        let to_it = || {
            let mut message = message(&place, None, b"1");
            message.topic = name.as_str().into();
            message
        };
        let config = || Config { name: name.clone(), subjects: vec![name.clone()], ..Config::default() };
        for (config, reason) in [
            (Config { storage: StorageType::Memory, ..config() }, "memory"),
            (Config { retention: RetentionPolicy::Interest, ..config() }, "no durable consumer"),
        ] {
            let stream = jetstream.create_stream(config).await.expect("a stream");
            // The sink's own names another, and that is none of this one's affair.
            for sink in [place.sink(), place.options().stream(Stream::named(&place.name)).open().expect("a sink")] {
                for _ in 0..2 {
                    let answers = sink.send(&[to_it(), message(&place, None, b"1"), to_it()]).await;
                    assert_eq!(answers[1], Ok(()));
                    for answer in [&answers[0], &answers[2]] {
                        let error = answer.as_ref().expect_err(reason);
                        assert_eq!(error.kind(), SinkErrorKind::Unavailable);
                        assert!(error.to_string().contains(reason) && error.to_string().contains(&name), "{error}");
                    }
                }
            }
            if reason == "no durable consumer" {
                let durable = Some("reader".to_owned());
                stream
                    .create_consumer(pull::Config { durable_name: durable, ..Default::default() })
                    .await
                    .expect("one");
                let sent = to_it();
                assert_eq!(send_one(&place.sink(), sent.clone()).await, Ok(()));
                let kept = read(&Shared::Nats.url(), &name).await;
                assert_eq!(kept.iter().map(id).collect::<Vec<_>>(), [sent.id.to_string()]);
            }
            jetstream.delete_stream(&name).await.expect("to delete");
        }
    });
}

#[test]
fn a_message_that_a_stream_dropped_and_remembers_is_stored_once_somebody_reads() {
    run(async {
        let place = Nats::fresh().await;
        let name = format!("{}-dropped", place.name);
        let stream = interest(&name).await;
        let mut dropped = message(&place, None, b"1");
        dropped.topic = name.as_str().into();
        // So often that the stream remembers every id the sink would give it.
        for _ in 0..3 {
            let error = send_one(&place.sink(), dropped.clone()).await.expect_err("no consumer");
            assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
        }
        let durable = pull::Config { durable_name: Some("reader".into()), ..Default::default() };
        stream.create_consumer(durable).await.expect("a consumer");
        assert_eq!(send_one(&place.sink(), dropped.clone()).await, Ok(()));
        let kept = read(&Shared::Nats.url(), &name).await;
        let ids: Vec<_> = kept.iter().map(|message| message.headers.get("ce-id").expect("an id").to_string()).collect();
        assert_eq!(ids, [dropped.id.to_string()]);
        connect(&Shared::Nats.url()).await.delete_stream(&name).await.expect("to delete");
    });
}

#[test]
fn a_stream_that_lives_by_its_readers_is_looked_at_again_and_only_durable_ones_count() {
    run(async {
        let place = Nats::fresh().await;
        let name = format!("{}-readers", place.name);
        let stream = interest(&name).await;
        let sink = place.sink();
        let to_it = || {
            let mut message = message(&place, None, b"1");
            message.topic = name.as_str().into();
            message
        };
        let _ephemeral = stream.create_consumer(pull::Config::default()).await.expect("a consumer");
        let error = send_one(&sink, to_it()).await.expect_err("a consumer that may go");
        assert!(error.to_string().contains("no durable consumer"), "{error}");
        let durable = pull::Config { durable_name: Some("reader".into()), ..Default::default() };
        stream.create_consumer(durable).await.expect("a consumer");
        assert_eq!(send_one(&sink, to_it()).await, Ok(()));
        stream.delete_consumer("reader").await.expect("to delete");
        let start = Instant::now();
        let error = loop {
            match send_one(&sink, to_it()).await {
                // Known from a moment ago.
                Ok(()) => assert!(start.elapsed() < Duration::from_secs(5), "nobody looks again"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), SinkErrorKind::Unavailable);
        assert!(error.to_string().contains("no durable consumer"), "{error}");
        connect(&Shared::Nats.url()).await.delete_stream(&name).await.expect("to delete");
    });
}

#[test]
fn nothing_to_send_asks_nobody() {
    run(async {
        let place = Nats::fresh().await;
        place.proxy().refuse();
        let sink = place.sink();
        assert_eq!(sink.send(&[]).await, []);
        let mut nowhere = message(&place, None, b"1");
        nowhere.topic = "a..b".into();
        let error = send_one(&sink, nowhere.clone()).await.expect_err("no subject");
        assert_eq!(error.kind(), SinkErrorKind::Rejected);
        // It stays rejected beside one that can't be sent.
        let answers = sink.send(&[nowhere, message(&place, None, b"1")]).await;
        let kinds: Vec<_> = answers.iter().map(|answer| answer.as_ref().expect_err("nobody").kind()).collect();
        assert_eq!(kinds, [SinkErrorKind::Rejected, SinkErrorKind::Unavailable]);
    });
}

#[test]
fn a_lost_connection_is_told_at_once() {
    run(async {
        let place = Nats::fresh().await;
        let sink = place.options().answer_within(Duration::from_secs(20)).open().expect("a sink");
        assert_eq!(sink.check().await, Ok(()));
        place.proxy().lose_answers();
        let start = Instant::now();
        let cut = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            place.proxy().cut();
        };
        let (answer, ()) = tokio::join!(send_one(&sink, message(&place, None, b"1")), cut);
        assert_eq!(answer.expect_err("lost").kind(), SinkErrorKind::Unavailable);
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    });
}

#[test]
fn nothing_is_left_of_a_connection_that_was_lost() {
    run(async {
        let place = Nats::fresh().await;
        let sink = place.sink();
        let tasks = || Handle::current().metrics().num_alive_tasks();
        until(|| tasks() == 0).await;
        assert_eq!(send_one(&sink, message(&place, None, b"1")).await, Ok(()));
        assert_ne!(tasks(), 0);
        place.proxy().refuse();
        place.proxy().cut();
        let error = send_one(&sink, message(&place, None, b"2")).await.expect_err("nobody");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
        // The client does not try for ever, behind the sink's back.
        until(|| tasks() == 0).await;
    });
}

#[test]
fn a_connection_that_was_lost_meanwhile_is_replaced_without_an_error() {
    run(async {
        let place = Nats::fresh().await;
        let sink = place.sink();
        assert_eq!(send_one(&sink, message(&place, None, b"1")).await, Ok(()));
        assert!(format!("{sink:?}").contains("is_open: true"), "{sink:?}");
        place.proxy().cut();
        until(|| format!("{sink:?}").contains("is_open: false")).await;
        assert_eq!(send_one(&sink, message(&place, None, b"2")).await, Ok(()));
    });
}

#[test]
fn the_second_server_is_tried_when_the_first_is_down() {
    run(async {
        let (down, place) = (Nats::fresh().await, Nats::fresh().await);
        down.proxy().refuse();
        let urls = format!("nats://127.0.0.1:{},nats://127.0.0.1:{}", down.proxy().port(), place.proxy().port());
        for _ in 0..5 {
            let sink = Options::new(&urls).answer_within(ANSWER_WITHIN).open().expect("a sink");
            assert_eq!(send_one(&sink, message(&place, None, b"1")).await, Ok(()));
        }
    });
}

#[test]
fn tls_with_a_server_that_has_none_is_unavailable() {
    run(async {
        let place = Nats::fresh().await;
        let url = format!("tls://127.0.0.1:{}", place.proxy().port());
        let sink = Options::new(url).answer_within(ANSWER_WITHIN).open().expect("a sink");
        let error = send_one(&sink, message(&place, None, b"1")).await.expect_err("no TLS");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
        assert!(place.received().await.is_empty());
    });
}

#[test]
fn a_send_that_is_dropped_leaves_the_sink_usable() {
    run(async {
        let place = Nats::fresh().await;
        let sink = place.sink();
        let batch: Vec<_> = (0..100).map(|_| message(&place, None, b"1")).collect();
        for step in 0..20 {
            let _ = tokio::time::timeout(Duration::from_micros(step * 200), sink.send(&batch)).await;
        }
        let mut mixed = batch;
        mixed[50].topic = place.refused();
        let answers = sink.send(&mixed).await;
        for (n, answer) in answers.iter().enumerate() {
            assert_eq!(answer.is_ok(), n != 50, "{n}: {answer:?}");
        }
    });
}

#[test]
fn many_callers_share_the_sink() {
    run(async {
        let place = Nats::fresh().await;
        let sink = Arc::new(place.sink());
        let callers: Vec<_> = (0..16)
            .map(|_| {
                let (sink, batch) = (sink.clone(), (0..20).map(|_| message(&place, None, b"1")).collect::<Vec<_>>());
                tokio::spawn(async move { sink.send(&batch).await })
            })
            .collect();
        for caller in callers {
            assert!(caller.await.expect("an end").iter().all(Result::is_ok));
        }
        assert_eq!(place.received().await.len(), 320);
        assert_eq!(place.proxy().connections(), 1);
    });
}

#[test]
fn a_batch_may_be_larger_than_what_the_client_lets_wait() {
    run(async {
        let place = Nats::fresh().await;
        let sink = place.options().answer_within(Duration::from_secs(20)).open().expect("a sink");
        let batch: Vec<_> = (0..6000).map(|_| message(&place, None, b"1")).collect();
        assert!(sink.send(&batch).await.iter().all(Result::is_ok));
    });
}

#[test]
fn a_connection_ends_when_it_is_closed_or_its_answers_are_late() {
    run(async {
        let place = Nats::fresh().await;
        let sink = place.sink();
        assert_eq!(send_one(&sink, message(&place, None, b"1")).await, Ok(()));
        assert_eq!(place.proxy().connections(), 1);
        sink.close().await;
        until(|| place.proxy().connections() == 0).await;
        assert_eq!(send_one(&sink, message(&place, None, b"2")).await, Ok(()));
        place.proxy().lose_answers();
        let error = send_one(&sink, message(&place, None, b"3")).await.expect_err("no answer");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
        until(|| place.proxy().connections() == 0).await;
    });
}

/// A stream that keeps what somebody is to read.
async fn interest(name: &str) -> stream::Stream {
    let config = Config {
        name: name.into(),
        subjects: vec![name.into()],
        retention: RetentionPolicy::Interest,
        ..Config::default()
    };
    connect(&Shared::Nats.url()).await.create_stream(config).await.expect("a stream")
}

/// Waits for what happens on other threads.
async fn until(has_happened: impl Fn() -> bool) {
    while !has_happened() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
