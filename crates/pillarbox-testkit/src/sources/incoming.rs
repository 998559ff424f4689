//! What comes in: whole, in order, to one of a group, and no more than is asked for.

use std::collections::{BTreeMap, BTreeSet};

use pillarbox_core::port::{Incoming, Received, Sink as _, SinkErrorKind, Source as _};

use super::{
    GROUP, LATE, Place, SOON, WAIT,
    steps::{fresh, id, ids, receive, seen_within, send, send_some, sorted, tickets, unless_unavailable, until_lag},
};
use crate::sinks;

/// I4, X3: topic, key, content type, attributes, headers and every byte.
pub async fn what_was_sent_comes_in_whole<P: Place>() {
    let place = fresh::<P>().await;
    let mut text = sinks::message(&place, Some("order 7"), r#"{"order":7,"name":"Grüße"}"#.as_bytes());
    text.headers.push(("traceparent".into(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()));
    text.attributes.push(("subject".into(), "a b/ü%41 \"x\"".into()));
    let mut bytes = sinks::message(&place, None, &[0, 255, 10, 13, 0, 128]);
    bytes.content_type = "application/x-protobuf".into();
    let mut empty = sinks::message(&place, Some("k"), b"");
    empty.headers.clear();
    let sent = [text, bytes, empty];
    send(&place, &sent).await;
    let source = place.source(GROUP, LATE);
    let came = receive(&source, 3).await;
    for sent in &sent {
        let came = came.iter().find(|came| id(came) == sent.id.to_string()).expect("each of them");
        assert_eq!(came.deliveries, 1);
        let Incoming { topic, key, content_type, attributes, headers, payload, .. } = &came.message;
        assert_eq!(**topic, *sent.topic);
        assert_eq!(*key, sent.key);
        assert_eq!(**content_type, *sent.content_type);
        assert_eq!(*payload, sent.payload);
        let expected = sent.attributes.iter().map(|(name, value)| (name.to_string(), value.clone()));
        assert_eq!(sorted(attributes.iter().cloned()), sorted(expected));
        assert_eq!(sorted(headers.iter().cloned()), sorted(sent.headers.iter().cloned()));
    }
    assert!(!source.name().is_empty());
}

/// I4: it has the id that the broker gave it, the same every time, or none.
pub async fn a_message_that_is_no_cloud_event_comes_in<P: Place>() {
    let place = fresh::<P>().await;
    for body in ["one", "two"] {
        place.send_plain(body.as_bytes()).await;
    }
    let source = place.source(GROUP, SOON);
    let first = receive(&source, 2).await;
    for came in &first {
        assert_eq!(came.message.topic, *place.topic());
        assert_eq!((&came.message.key, &came.message.attributes), (&None, &Vec::new()));
        assert!(came.message.id.as_ref().is_none_or(|id| !id.is_empty()), "{came:?}");
    }
    let of = |came: &[Received]| -> BTreeMap<Vec<u8>, Option<String>> {
        came.iter().map(|came| (came.message.payload.to_vec(), came.message.id.clone())).collect()
    };
    let ids = of(&first);
    assert_eq!(ids.keys().map(Vec::as_slice).collect::<Vec<_>>(), [b"one", b"two"]);
    assert!(ids[&b"one"[..]].is_none() || ids[&b"one"[..]] != ids[&b"two"[..]], "{ids:?}");
    source.give_back(&tickets(&first)).await;
    let mut again = BTreeMap::new();
    while again.len() < 2 {
        again.extend(of(&receive(&source, 1).await));
    }
    assert_eq!(again, ids);
}

/// I4: each key in its order, whatever lies between.
pub async fn messages_of_a_key_come_in_order<P: Place>() {
    let place = fresh::<P>().await;
    let source = place.source(GROUP, LATE);
    if !source.gives().order {
        return;
    }
    let sink = place.sink();
    let mut sent: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for _ in 0..20 {
        let batch: Vec<_> = (0..5).map(|n| sinks::message(&place, Some(&format!("k{n}")), b"1")).collect();
        for message in &batch {
            let key = message.key.as_ref().expect("a key").to_string();
            sent.entry(key).or_default().push(message.id.to_string());
        }
        assert!(sink.send(&batch).await.iter().all(Result::is_ok));
    }
    let mut came: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for received in receive(&source, 100).await {
        let key = received.message.key.as_ref().expect("a key").to_string();
        came.entry(key).or_default().push(id(&received));
    }
    assert_eq!(came, sent);
}

/// I4: without a fault each message comes once, to one of them, and nobody goes without.
pub async fn sources_of_one_group_share_the_messages<P: Place>() {
    let place = fresh::<P>().await;
    let sources = [place.source(GROUP, LATE), place.another(GROUP, LATE)];
    // Both are there before anything is sent.
    for source in &sources {
        assert_eq!(seen_within(source, WAIT).await, BTreeSet::new());
    }
    let mut taken = [Vec::new(), Vec::new()];
    let mut sent = BTreeSet::new();
    let all_have = |taken: &[Vec<String>; 2]| taken.iter().all(|taken| !taken.is_empty());
    while !all_have(&taken) || taken[0].len() + taken[1].len() < sent.len() {
        if !all_have(&taken) {
            sent.extend(send_some(&place, 10).await);
        }
        for (source, taken) in sources.iter().zip(&mut taken) {
            for came in unless_unavailable(source.receive(3).await) {
                // One that came before the group had shared out may be another's by now: it comes again, to whom it is.
                if source.acknowledge(&[came.ticket]).await == [Ok(())] {
                    taken.push(id(&came));
                }
            }
        }
    }
    let all = sorted(taken.iter().flatten().cloned());
    assert_eq!(all, sent.into_iter().collect::<Vec<_>>());
}

/// I4
pub async fn no_more_come_than_were_asked_for<P: Place>() {
    let place = fresh::<P>().await;
    let sent = send_some(&place, 20).await;
    let source = place.source(GROUP, LATE);
    let mut came = BTreeSet::new();
    for most in [1, 3, 2, 7].into_iter().cycle() {
        let some = source.receive(most).await.expect("messages");
        assert!(some.len() <= most, "{} of {most}", some.len());
        came.extend(ids(&some));
        if came.len() == sent.len() {
            break;
        }
    }
    assert_eq!(came, sent);
    assert_eq!(source.receive(5).await.expect("nothing"), []);
}

/// I4: received or not, what is not acknowledged waits.
pub async fn the_lag_counts_what_waits<P: Place>() {
    let place = fresh::<P>().await;
    let source = place.source(GROUP, LATE);
    assert_eq!(seen_within(&source, WAIT).await, BTreeSet::new());
    let Some(lag) = source.lag().await.expect("a lag") else { return };
    assert_eq!(lag, 0);
    send_some(&place, 10).await;
    until_lag(&source, |lag| lag == 10).await;
    let came = receive(&source, 10).await;
    // Whether those count that were received is the broker's affair.
    until_lag(&source, |lag| lag <= 10).await;
    assert_eq!(source.acknowledge(&tickets(&came)).await.iter().flatten().count(), 10);
    until_lag(&source, |lag| lag == 0).await;
}

/// I4: before a consumer starts, and while it runs.
pub async fn a_check_tells_what_is_there<P: Place>() {
    let place = fresh::<P>().await;
    assert_eq!(place.source(GROUP, LATE).check().await, Ok(()));
    let source = place.source(GROUP, LATE);
    assert_eq!(seen_within(&source, WAIT).await, BTreeSet::new());
    assert_eq!(source.check().await, Ok(()));
    place.proxy().refuse();
    place.proxy().cut();
    for source in [place.source(GROUP, LATE), source] {
        let error = source.check().await.expect_err("nobody");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
        assert!(error.to_string().len() > 3, "{error:?} says nothing");
    }
}

/// I4: an orderly end, and a new beginning.
pub async fn what_was_closed_opens_again<P: Place>() {
    let place = fresh::<P>().await;
    let source = place.source(GROUP, SOON);
    // Before it was ever open, too.
    source.close().await;
    for _ in 0..2 {
        let sent = send_some(&place, 1).await;
        let came = receive(&source, 1).await;
        assert_eq!(ids(&came), sent);
        assert_eq!(source.acknowledge(&tickets(&came)).await, [Ok(())]);
        source.close().await;
    }
    assert_eq!(seen_within(&source, WAIT).await, BTreeSet::new());
}
