//! The MQTT source passes the exam, and the quirks of sessions.

use std::collections::BTreeSet;

use pillarbox_core::port::{Received, Sink as _, SinkErrorKind, Source, Ticket};
use pillarbox_mqtt::{MqttSource, Subscription};
use pillarbox_testkit::{
    exam::run,
    sinks::{Place as _, message},
    sources::{Place as _, SOON, WAIT},
};
use rumqttc::v5::mqttbytes::QoS;

use crate::support::Topic;

pillarbox_testkit::sources!(Topic);

async fn receive(source: &impl Source, count: usize) -> Vec<Received> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(source.receive(count - all.len()).await.unwrap());
    }
    all
}

async fn send(place: &Topic, count: usize) {
    let messages: Vec<_> = (0..count).map(|n| message(place, None, n.to_string().as_bytes())).collect();
    assert!(place.sink().send(&messages).await.iter().all(Result::is_ok));
}

fn tickets(received: &[Received]) -> Vec<Ticket> {
    received.iter().map(|received| received.ticket).collect()
}

fn bodies(received: &[Received]) -> BTreeSet<String> {
    received.iter().map(|received| String::from_utf8(received.message.payload.to_vec()).unwrap()).collect()
}

/// Subscribed from now on.
async fn alone(place: &Topic, client_id: &str) -> MqttSource {
    let subscription = Subscription::new(&*place.topic(), format!("{}-{client_id}", place.topic())).wait(WAIT);
    let source = place.options().subscribe(subscription).unwrap();
    source.check().await.unwrap();
    source
}

#[test]
fn without_a_group_each_client_has_every_message() {
    run(async {
        let place = Topic::fresh().await;
        let sources = [alone(&place, "a").await, alone(&place, "b").await];
        send(&place, 5).await;
        for source in &sources {
            let received = receive(source, 5).await;
            assert_eq!(bodies(&received), (0..5).map(|n| n.to_string()).collect());
            assert!(source.acknowledge(&tickets(&received)).await.iter().all(Result::is_ok));
        }
    });
}

#[test]
fn of_two_with_one_client_id_the_first_is_told() {
    run(async {
        let place = Topic::fresh().await;
        let first = alone(&place, "a").await;
        let _second = alone(&place, "a").await;
        // Mosquitto may cut the connection without a word.
        let error = first.receive(1).await.unwrap_err();
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
    });
}

#[test]
fn no_more_are_under_way_than_most_out() {
    run(async {
        let place = Topic::fresh().await;
        place.prepare("billing").await;
        send(&place, 8).await;
        let source = place.options().subscribe(place.member("billing", 0).most_out(3)).unwrap();
        let first = receive(&source, 3).await;
        assert_eq!(source.receive(8).await.unwrap(), [], "the server waits for an acknowledgement");
        assert!(source.acknowledge(&tickets(&first)).await.iter().all(Result::is_ok));
        let mut left: BTreeSet<_> = (3..8).map(|n| n.to_string()).collect();
        while !left.is_empty() {
            let received = receive(&source, 1).await;
            assert!(source.acknowledge(&tickets(&received)).await.iter().all(Result::is_ok));
            left.retain(|body| !bodies(&received).contains(body));
        }
    });
}

#[test]
fn what_is_given_back_at_the_end_comes_to_who_has_its_client_id() {
    run(async {
        let place = Topic::fresh().await;
        let source = alone(&place, "a").await;
        send(&place, 4).await;
        let received = receive(&source, 4).await;
        assert_eq!(source.acknowledge(&tickets(&received)[..1]).await, [Ok(())]);
        source.give_back(&tickets(&received)[1..]).await;
        source.close().await;
        for answer in source.acknowledge(&tickets(&received)).await {
            assert!(answer.is_err(), "a ticket of a connection that is over");
        }
        let next = alone(&place, "a").await;
        let again = receive(&next, 3).await;
        assert_eq!(bodies(&again), bodies(&received[1..]));
        assert!(again.iter().all(|again| again.deliveries == 2), "{again:?}");
    });
}

#[test]
fn a_number_of_one_connection_acknowledges_nothing_on_the_next() {
    run(async {
        let place = Topic::fresh().await;
        let source = alone(&place, "a").await;
        send(&place, 2).await;
        let old = receive(&source, 2).await;
        place.proxy().cut();
        // The server gives them the same numbers again.
        let mut new = Vec::new();
        while new.len() < 2 {
            new.extend(source.receive(2).await.unwrap_or_default());
        }
        for answer in source.acknowledge(&tickets(&old)).await {
            assert!(answer.is_err());
        }
        source.close().await;
        assert_eq!(bodies(&receive(&source, 2).await), bodies(&old), "nobody has acknowledged them");
    });
}

#[test]
fn a_message_of_quality_0_comes_and_its_acknowledgement_is_no_harm() {
    run(async {
        let place = Topic::fresh().await;
        let source = alone(&place, "a").await;
        place.send_with(QoS::AtMostOnce, b"light".to_vec()).await;
        let received = receive(&source, 1).await;
        assert_eq!(&*received[0].message.payload, b"light");
        assert_eq!(source.acknowledge(&tickets(&received)).await, [Ok(())]);
        assert_eq!(source.receive(1).await.unwrap(), []);
    });
}

#[test]
fn a_large_message_comes_in_whole() {
    run(async {
        let place = Topic::fresh().await;
        let source = alone(&place, "a").await;
        let payload: Vec<u8> = (0..90_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        assert_eq!(place.sink().send(&[message(&place, None, &payload)]).await, [Ok(())]);
        assert_eq!(receive(&source, 1).await[0].message.payload, payload);
    });
}

/// Begins to receive, and is dropped as soon as it has a connection of which the proxy holds back every byte.
async fn drop_while_it_connects(place: &Topic, source: &MqttSource) {
    place.proxy().stall();
    let connected = async {
        while place.proxy().connections() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        came = source.receive(1) => panic!("{came:?} through a proxy that holds everything back"),
        () = connected => {}
    }
}

/// I4: the server can't tell which of two is the newer one, and would throw out either.
#[test]
fn a_receive_that_is_dropped_while_it_connects_leaves_its_connection_to_the_next() {
    run(async {
        let place = Topic::fresh().await;
        place.prepare("billing").await;
        place.send_with(QoS::AtLeastOnce, b"0".to_vec()).await;
        let source = place.source("billing", SOON);
        drop_while_it_connects(&place, &source).await;
        let came = tokio::time::timeout(WAIT, source.receive(1)).await;
        assert!(came.is_err(), "{came:?} through a proxy that holds everything back");
        assert_eq!(place.proxy().connections(), 1);
        place.proxy().resume();
        let received = source.receive(1).await.unwrap();
        assert_eq!(bodies(&received), BTreeSet::from(["0".to_owned()]));
        assert_eq!(source.acknowledge(&tickets(&received)).await, [Ok(())]);
        assert_eq!(place.proxy().connections(), 1);
    });
}

/// I4: nothing connects later that nobody knows of.
#[test]
fn a_source_that_is_closed_or_dropped_while_it_connects_connects_no_more() {
    run(async {
        for closes in [true, false] {
            let place = Topic::fresh().await;
            place.prepare("billing").await;
            let source = place.source("billing", SOON);
            drop_while_it_connects(&place, &source).await;
            if closes {
                place.proxy().resume();
                source.close().await;
            } else {
                drop(source);
                place.proxy().resume();
            }
            while place.proxy().connections() > 0 {
                tokio::task::yield_now().await;
            }
            // The next one of its client id has its connection for itself.
            send(&place, 1).await;
            let next = place.source("billing", SOON);
            let received = receive(&next, 1).await;
            assert_eq!(next.acknowledge(&tickets(&received)).await, [Ok(())]);
        }
    });
}

#[test]
fn a_source_that_nobody_answers_is_shown_without_its_password() {
    run(async {
        let place = Topic::fresh().await;
        place.proxy().refuse();
        let source = place.options().user("shop", "hush").subscribe(place.member("billing", 0)).unwrap();
        let error = source.check().await.unwrap_err();
        assert_eq!(error.kind(), SinkErrorKind::Unavailable);
        let shown = format!("{error} {source:?}");
        assert!(shown.contains("billing-0") && !shown.contains("hush"), "{shown}");
    });
}
