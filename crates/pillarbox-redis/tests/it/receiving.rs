//! The Redis source passes the exam, and the quirks of consumer groups.

use std::{collections::BTreeMap, time::Duration};

use pillarbox_core::port::{Received, Sink as _, Source};
use pillarbox_redis::Subscription;
use pillarbox_testkit::{
    exam::run,
    servers::Shared,
    sinks::{Place as _, message},
    sources::{LATE, Place as _, SOON, WAIT},
};
use redis::{
    FromRedisValue,
    streams::{StreamInfoConsumersReply, StreamPendingReply},
};

use crate::place::{Redis, connect};

pillarbox_testkit::sources!(Redis);

async fn ask<T: FromRedisValue>(words: &[&str]) -> T {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(&mut connect(&Shared::Redis.url()).await).await.expect("an answer")
}

async fn receive(source: &impl Source, count: usize) -> Vec<Received> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(source.receive(count - all.len()).await.expect("messages"));
    }
    all
}

#[test]
fn several_streams_come_by_one_source() {
    run(async {
        let place = Redis::fresh().await;
        let second = format!("{}-second", place.topic());
        let mut messages: Vec<_> = (0..6).map(|n| message(&place, Some(&format!("k{n}")), b"1")).collect();
        for of_second in &mut messages[4..] {
            of_second.topic = second.as_str().into();
        }
        assert!(place.sink().send(&messages).await.iter().all(Result::is_ok));
        let subscription = Subscription::new([&*place.topic(), &second], "billing").wait(WAIT);
        let source = place.options().subscribe(subscription).expect("a source");
        assert_eq!(source.name(), format!("{}+{second}/billing", place.topic()));
        assert_eq!(source.lag().await, Ok(Some(6)));
        // `COUNT` is for each of the streams: what is too many waits for the next call.
        let mut came = source.receive(4).await.expect("messages");
        assert!(came.len() <= 4, "{}", came.len());
        came.extend(receive(&source, 6 - came.len()).await);
        let mut of: BTreeMap<&str, usize> = BTreeMap::new();
        for received in &came {
            *of.entry(&received.message.topic).or_default() += 1;
        }
        assert_eq!(of, BTreeMap::from([(&*place.topic(), 4), (&*second, 2)]));
        let tickets: Vec<_> = came.iter().map(|received| received.ticket).collect();
        assert!(source.acknowledge(&tickets).await.iter().all(Result::is_ok));
        assert_eq!(source.lag().await, Ok(Some(0)));
        let _: u64 = ask(&["DEL", &second]).await;
    });
}

#[test]
fn consumers_of_dead_processes_are_removed_and_their_messages_are_not() {
    run(async {
        let place = Redis::fresh().await;
        let (done, left) = (place.source("billing", SOON), place.source("billing", SOON));
        let messages: Vec<_> = (0..2).map(|_| message(&place, None, b"1")).collect();
        assert!(place.sink().send(&messages).await.iter().all(Result::is_ok));
        let first = receive(&done, 1).await;
        assert_eq!(done.acknowledge(&[first[0].ticket]).await, [Ok(())]);
        let second = receive(&left, 1).await;
        drop((done, left));
        let consumers = async || -> Vec<(String, usize)> {
            let reply: StreamInfoConsumersReply = ask(&["XINFO", "CONSUMERS", &place.topic(), "billing"]).await;
            reply.consumers.into_iter().map(|consumer| (consumer.name, consumer.pending)).collect()
        };
        assert_eq!(consumers().await.len(), 2);
        // The next one takes what was left, and the one after that finds nobody but those who live.
        let next = place.source("billing", SOON);
        let again = receive(&next, 1).await;
        assert_eq!((&again[0].message, again[0].deliveries), (&second[0].message, 2));
        assert_eq!(next.acknowledge(&[again[0].ticket]).await, [Ok(())]);
        while consumers().await.len() > 1 {
            tokio::time::sleep(WAIT).await;
            let last = place.source("billing", SOON);
            assert_eq!(last.receive(1).await, Ok(Vec::new()));
        }
    });
}

#[test]
fn an_entry_that_was_deleted_does_not_come_again_and_holds_nothing_up() {
    run(async {
        let place = Redis::fresh().await;
        let messages: Vec<_> = (0..2).map(|_| message(&place, None, b"1")).collect();
        assert!(place.sink().send(&messages).await.iter().all(Result::is_ok));
        let source = place.source("billing", SOON);
        let first = receive(&source, 2).await;
        let entries: Vec<(String, Vec<String>)> = ask(&["XRANGE", &place.topic(), "-", "+", "COUNT", "1"]).await;
        let _: u64 = ask(&["XDEL", &place.topic(), &entries[0].0]).await;
        let again = receive(&source, 1).await;
        assert_eq!(again[0].message, first[1].message);
        assert_eq!(source.acknowledge(&[again[0].ticket]).await, [Ok(())]);
        let pending: StreamPendingReply = ask(&["XPENDING", &place.topic(), "billing"]).await;
        assert_eq!(pending.count(), 0);
    });
}

#[test]
fn a_group_that_was_deleted_is_made_anew() {
    run(async {
        let place = Redis::fresh().await;
        let source = place.source("billing", LATE);
        assert_eq!(source.receive(1).await, Ok(Vec::new()));
        let _: u64 = ask(&["DEL", &place.topic()]).await;
        assert_eq!(place.sink().send(&[message(&place, None, b"1")]).await, [Ok(())]);
        let error = loop {
            // A read that waits is told at once, the next one as soon as it asks.
            if let Err(error) = source.receive(1).await {
                break error;
            }
        };
        assert!(error.to_string().contains("NOGROUP"), "{error}");
        assert_eq!(receive(&source, 1).await.len(), 1);
    });
}

/// Appends entries whose payloads are numbers, in their order.
async fn append_numbers(place: &Redis, count: usize) {
    let mut pipeline = redis::pipe();
    for number in 0..count {
        pipeline.cmd("XADD").arg(&*place.topic()).arg("*").arg("payload").arg(number).ignore();
    }
    pipeline.query_async::<()>(&mut connect(&Shared::Redis.url()).await).await.expect("XADD");
}

fn number(received: &Received) -> usize {
    std::str::from_utf8(&received.message.payload).expect("text").parse().expect("a number")
}

#[test]
fn a_flow_comes_in_order_and_no_more_is_out_than_was_asked_for() {
    const MOST: usize = 1_200;
    run(async {
        let place = Redis::fresh().await;
        append_numbers(&place, 3_300).await;
        let source = place.source("billing", LATE);
        let mut came: Vec<Received> = Vec::new();
        while came.len() < 3_300 {
            let before = came.len();
            came.extend(source.receive(MOST).await.expect("messages"));
            assert!(came.len() <= before + MOST, "{}", came.len() - before);
            let pending: StreamPendingReply = ask(&["XPENDING", &place.topic(), "billing"]).await;
            assert!((came.len()..=before + MOST).contains(&pending.count()), "{} of {before}", pending.count());
        }
        assert!(came.iter().map(number).eq(0..3_300), "not in order");
        assert!(came.iter().all(|received| received.deliveries == 1));
        let tickets: Vec<_> = came.iter().map(|received| received.ticket).collect();
        assert!(source.acknowledge(&tickets).await.iter().all(Result::is_ok));
        assert_eq!(source.lag().await, Ok(Some(0)));
    });
}

#[test]
fn entries_of_an_answer_that_was_lost_come_again_at_once() {
    run(async {
        let place = Redis::fresh().await;
        append_numbers(&place, 3_000).await;
        // Nobody waits for so long: what comes again was known to be lost.
        let source = place.source("billing", LATE);
        let mut came = source.receive(2_000).await.expect("messages");
        place.proxy().lose_answers();
        let dropped = tokio::time::timeout(Duration::ZERO, source.receive(2_000)).await;
        assert!(dropped.is_err(), "{dropped:?}");
        // Redis has answered, and nobody has heard of it.
        let pending = async || -> usize {
            let reply: StreamPendingReply = ask(&["XPENDING", &place.topic(), "billing"]).await;
            reply.count()
        };
        while pending().await < came.len() + 1_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        place.proxy().cut();
        place.proxy().resume();
        let mut failures = 0;
        while came.len() < 3_000 {
            match source.receive(2_000).await {
                Ok(received) => came.extend(received),
                Err(_) => failures += 1,
            }
        }
        assert_eq!(failures, 1, "the connection was lost once");
        let mut numbers: Vec<_> = came.iter().map(number).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..3_000), "not each once");
    });
}
