//! The steps that the cases take.

use std::{collections::BTreeSet, time::Duration};

use pillarbox_core::port::{Message, Received, Sink as _, SinkError, SinkErrorKind, Source, Ticket};
use tokio::time::{Instant, timeout};

use super::{GROUP, PATIENCE, Place};
use crate::sinks;

pub(super) async fn fresh<P: Place>() -> P {
    let place = P::fresh().await;
    place.prepare(GROUP).await;
    place
}

/// Sends messages, all of them: the sink may need a while to see that the broker is back.
pub(super) async fn send<P: Place>(place: &P, messages: &[Message]) {
    let sink = place.sink();
    for message in messages {
        let start = Instant::now();
        loop {
            match &sink.send(std::slice::from_ref(message)).await[..] {
                [Ok(())] => break,
                [Err(error)] => assert!(start.elapsed() < PATIENCE, "{error}"),
                answers => panic!("one message, and {} answers", answers.len()),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

pub(super) async fn send_some<P: Place>(place: &P, count: usize) -> BTreeSet<String> {
    let messages: Vec<_> = (0..count).map(|n| sinks::message(place, Some(&format!("k{n}")), b"1")).collect();
    send(place, &messages).await;
    messages.iter().map(|message| message.id.to_string()).collect()
}

/// Receives until there are so many.
pub(super) async fn receive(source: &impl Source, count: usize) -> Vec<Received> {
    let mut all = Vec::new();
    let receiving = async {
        while all.len() < count {
            all.extend(unless_unavailable(source.receive(count - all.len()).await));
        }
    };
    timeout(PATIENCE, receiving).await.expect("messages");
    all
}

/// Receives until these have come again, and acknowledges them.
pub(super) async fn come_again(source: &impl Source, sent: &BTreeSet<String>) {
    let mut left = sent.clone();
    while !left.is_empty() {
        for came in receive(source, 1).await {
            assert!(sent.contains(&id(&came)), "{came:?}");
            assert!(came.deliveries > 1 || !source.gives().counts, "{came:?}");
            left.remove(&id(&came));
            assert_eq!(source.acknowledge(&[came.ticket]).await, [Ok(())]);
        }
    }
}

/// Acknowledges messages that a source has kept: it may need a while to see that the broker is back.
pub(super) async fn until_acknowledged(source: &impl Source, kept: &[Received]) {
    let start = Instant::now();
    for came in kept {
        while let [Err(error)] = &source.acknowledge(&[came.ticket]).await[..] {
            assert!(start.elapsed() < PATIENCE, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Everything that comes in this time.
pub(super) async fn receive_within(source: &impl Source, span: Duration) -> Vec<Received> {
    let (start, mut all) = (Instant::now(), Vec::new());
    while start.elapsed() < span {
        all.extend(unless_unavailable(source.receive(10).await));
    }
    all
}

pub(super) async fn seen_within(source: &impl Source, span: Duration) -> BTreeSet<String> {
    ids(&receive_within(source, span).await)
}

/// Receives until there is an error.
pub(super) async fn unavailable(source: &impl Source) {
    let receiving = async {
        loop {
            if let Err(error) = source.receive(1).await {
                assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
                return;
            }
        }
    };
    timeout(PATIENCE, receiving).await.expect("an error");
}

pub(super) fn unless_unavailable(came: Result<Vec<Received>, SinkError>) -> Vec<Received> {
    came.unwrap_or_else(|error| {
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
        Vec::new()
    })
}

pub(super) async fn until_lag(source: &impl Source, is_it: impl Fn(u64) -> bool) {
    let start = Instant::now();
    loop {
        let lag = source.lag().await.expect("an answer").expect("a lag");
        if is_it(lag) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{lag}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(super) fn tickets(came: &[Received]) -> Vec<Ticket> {
    came.iter().map(|came| came.ticket).collect()
}

pub(super) fn id(came: &Received) -> String {
    came.message.attribute("id").expect("an id").to_owned()
}

pub(super) fn ids(came: &[Received]) -> BTreeSet<String> {
    came.iter().map(id).collect()
}

pub(super) fn sorted<T: Ord>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort();
    all
}
