//! The exam of a source: what every adapter to a broker has to pass that a consumer receives from, on the real broker, with a
//! proxy between that breaks the connection. An adapter runs it with one line, [`sources!`](crate::sources!), for a type that
//! implements [`Place`]. Messages are sent by the project's own sink of that broker.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    time::Duration,
};

use pillarbox_core::port::{Incoming, Message, Received, Sink, SinkError, SinkErrorKind, Source, Ticket};
use tokio::time::{Instant, timeout};

use crate::sinks;

/// More than enough for anything that is not a fault.
const PATIENCE: Duration = Duration::from_secs(30);

/// After this time a message that was not acknowledged comes again, where a case waits for that.
pub const SOON: Duration = Duration::from_secs(2);

/// The same, where a case must not see it.
pub const LATE: Duration = Duration::from_mins(5);

/// For how long a source under examination waits for messages.
pub const WAIT: Duration = Duration::from_millis(500);

/// A place on a broker that no other test has.
pub trait Place: sinks::Place {
    /// Why the exam can't be held here, if so: a server that is not there. It is left out then, with these words.
    fn missing() -> Option<String> {
        None
    }

    /// The adapter.
    type Source: Source;

    /// A new place on a server of its own, which may be restarted.
    fn private() -> impl Future<Output = Self> + Send;

    /// Kills that server as `kill -9` does, and starts it again.
    fn restart(&mut self);

    /// A source of this group for the place's topic that reaches the broker by way of the proxy, waits for messages for
    /// [`WAIT`], gives up after [`sinks::ANSWER_WITHIN`], and has not been used. What is not acknowledged comes again after the
    /// given time, where the broker has such a time.
    fn source(&self, group: &str, again_after: Duration) -> Self::Source;

    /// A second source of the group that is there at the same time as the first, where the broker has to tell them apart.
    fn another(&self, group: &str, again_after: Duration) -> Self::Source {
        self.source(group, again_after)
    }

    /// Whether a source has its messages still after its connection was lost and made again, so that they need not come again.
    fn keeps_messages() -> bool {
        false
    }

    /// Makes sure that messages for a group are kept from now on, where the broker has to be told; not by way of the proxy.
    fn prepare(&self, group: &str) -> impl Future<Output = ()> + Send {
        let _ = group;
        async {}
    }

    /// Sends a bare payload to the topic, as a program does that knows nothing of CloudEvents; not by way of the proxy.
    fn send_plain(&self, payload: &[u8]) -> impl Future<Output = ()> + Send;
}

/// Makes a test of every case, for a type that implements [`Place`](trait@crate::sources::Place).
#[macro_export]
macro_rules! sources {
    ($place:ty) => {
        $crate::exam!(sources, $place:
            what_was_sent_comes_in_whole,
            a_message_that_is_no_cloud_event_comes_in,
            what_is_acknowledged_does_not_come_again,
            what_is_not_acknowledged_comes_again_after_the_connection_is_lost,
            what_is_not_acknowledged_comes_again_after_its_consumer_is_gone,
            what_is_not_acknowledged_comes_again_after_its_time,
            what_is_held_stays_where_it_is,
            what_is_given_back_comes_again,
            acknowledgements_come_in_any_order_and_have_one_answer_each,
            a_ticket_of_a_lost_connection_is_told_the_truth,
            messages_of_a_key_come_in_order,
            sources_of_one_group_share_the_messages,
            no_more_come_than_were_asked_for,
            a_receive_that_is_dropped_loses_nothing,
            nobody_there_at_the_start_is_no_end,
            a_broker_that_does_not_answer_is_unavailable,
            an_acknowledgement_without_an_answer_is_an_error,
            a_restart_of_the_broker_loses_nothing,
            the_lag_counts_what_waits,
            a_check_tells_what_is_there,
            what_was_closed_opens_again,
        );
    };
}

const GROUP: &str = "billing";

/// X1, I8: topic, key, content type, attributes, headers and every byte.
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

/// I8: it has the id that the broker gave it, the same every time, or none.
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

/// I8: not to this one, not after a reconnect, not to the next of its group.
pub async fn what_is_acknowledged_does_not_come_again<P: Place>() {
    let place = fresh::<P>().await;
    let source = place.source(GROUP, SOON);
    let mut done = BTreeSet::new();
    for round in 0..3 {
        let sent = send_some(&place, 5).await;
        let mut fresh = BTreeSet::new();
        while fresh.len() < sent.len() {
            for came in receive(&source, 1).await {
                assert!(!done.contains(&id(&came)), "round {round}: {came:?} was acknowledged");
                assert_eq!(source.acknowledge(&[came.ticket]).await, [Ok(())]);
                fresh.insert(id(&came));
            }
        }
        assert_eq!(fresh, sent);
        done.extend(fresh);
        if round == 1 {
            place.proxy().cut();
        }
    }
    assert_eq!(seen_within(&source, SOON * 2).await, BTreeSet::new());
    source.close().await;
    drop(source);
    let next = place.source(GROUP, SOON);
    assert_eq!(seen_within(&next, SOON).await, BTreeSet::new());
    let sent = send_some(&place, 2).await;
    assert_eq!(ids(&receive(&next, 2).await), sent);
}

/// I8
pub async fn what_is_not_acknowledged_comes_again_after_the_connection_is_lost<P: Place>() {
    let place = fresh::<P>().await;
    let sent = send_some(&place, 4).await;
    let source = place.source(GROUP, SOON);
    let first = receive(&source, 4).await;
    assert_eq!(ids(&first), sent);
    place.proxy().cut();
    if P::keeps_messages() {
        until_acknowledged(&source, &first).await;
        return;
    }
    come_again(&source, &sent).await;
}

/// I8: the process has died, say.
pub async fn what_is_not_acknowledged_comes_again_after_its_consumer_is_gone<P: Place>() {
    let place = fresh::<P>().await;
    let sent = send_some(&place, 4).await;
    let source = place.source(GROUP, SOON);
    assert_eq!(ids(&receive(&source, 4).await), sent);
    drop(source);
    come_again(&place.source(GROUP, SOON), &sent).await;
}

/// I8: a handler that has hung, say.
pub async fn what_is_not_acknowledged_comes_again_after_its_time<P: Place>() {
    let place = fresh::<P>().await;
    let (source, other) = (place.source(GROUP, SOON), place.another(GROUP, SOON));
    if source.gives().again_after.is_none() {
        return;
    }
    let sent = send_some(&place, 4).await;
    assert_eq!(ids(&receive(&source, 4).await), sent);
    come_again(&other, &sent).await;
}

/// I8: a handler that needs longer.
pub async fn what_is_held_stays_where_it_is<P: Place>() {
    let place = fresh::<P>().await;
    let span = SOON * 2;
    let (source, other) = (place.source(GROUP, span), place.another(GROUP, span));
    if source.gives().again_after.is_none() {
        return;
    }
    send_some(&place, 3).await;
    let held = tickets(&receive(&source, 3).await);
    let holding = async {
        loop {
            source.hold(&held).await;
            tokio::time::sleep(span / 10).await;
        }
    };
    let seen = tokio::select! {
        () = holding => unreachable!("it holds for ever"),
        seen = seen_within(&other, span * 2) => seen,
    };
    assert_eq!(seen, BTreeSet::new());
    assert_eq!(source.acknowledge(&held).await, [Ok(()), Ok(()), Ok(())]);
    // What was held and is let go comes again.
    let sent = send_some(&place, 2).await;
    let held = tickets(&receive(&source, 2).await);
    source.hold(&held).await;
    come_again(&other, &sent).await;
}

/// I8: soon, and not only when everything else has gone wrong.
pub async fn what_is_given_back_comes_again<P: Place>() {
    let place = fresh::<P>().await;
    let sent = send_some(&place, 3).await;
    let source = place.source(GROUP, LATE);
    let first = receive(&source, 3).await;
    assert_eq!(source.acknowledge(&[first[1].ticket]).await, [Ok(())]);
    source.give_back(&[first[0].ticket, first[2].ticket]).await;
    let mut again = BTreeMap::new();
    while again.len() < 2 {
        for came in receive(&source, 1).await {
            assert!(came.deliveries > 1 || !source.gives().counts, "{came:?}");
            again.insert(id(&came), came.ticket);
        }
    }
    assert!(!again.contains_key(&id(&first[1])) && again.keys().all(|id| sent.contains(id)), "{again:?}");
    // Twice is no harm, nor is nothing.
    source.give_back(&[first[0].ticket]).await;
    source.give_back(&[]).await;
    for ticket in again.into_values() {
        assert_eq!(source.acknowledge(&[ticket]).await, [Ok(())]);
    }
    // Unless the second give-back brought it, and it is there once more.
    for came in receive_within(&source, WAIT * 2).await {
        assert_eq!(id(&came), id(&first[0]));
    }
}

/// I8
pub async fn acknowledgements_come_in_any_order_and_have_one_answer_each<P: Place>() {
    let place = fresh::<P>().await;
    send_some(&place, 10).await;
    let source = place.source(GROUP, LATE);
    assert_eq!(source.acknowledge(&[]).await, []);
    let mut came = receive(&source, 10).await;
    let first = came.remove(0);
    came.reverse();
    came.swap(1, 5);
    let mut mixed = tickets(&came);
    mixed.insert(4, Ticket(u64::MAX));
    let answers = source.acknowledge(&mixed).await;
    assert_eq!(answers.len(), mixed.len());
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(answer.is_err(), n == 4, "{n}: {answer:?}");
    }
    assert_eq!(source.acknowledge(&[first.ticket]).await, [Ok(())]);
    assert_eq!(seen_within(&source, WAIT).await, BTreeSet::new());
    drop(source);
    assert_eq!(seen_within(&place.source(GROUP, LATE), WAIT * 2).await, BTreeSet::new());
}

/// I8: an error, or it is true that the message does not come again; and nothing else suffers.
pub async fn a_ticket_of_a_lost_connection_is_told_the_truth<P: Place>() {
    let place = fresh::<P>().await;
    let mut sent = send_some(&place, 3).await;
    let source = place.source(GROUP, SOON);
    let old = receive(&source, 3).await;
    place.proxy().cut();
    sent.extend(send_some(&place, 3).await);
    let mut seen = BTreeMap::new();
    while seen.len() < 3 {
        for came in receive(&source, 1).await {
            seen.insert(id(&came), came.ticket);
        }
    }
    let answers = source.acknowledge(&tickets(&old)).await;
    assert_eq!(answers.len(), old.len());
    let done: BTreeSet<_> =
        old.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()).map(|(old, _)| id(old)).collect();
    source.give_back(&tickets(&old)).await;
    source.hold(&tickets(&old)).await;
    // What was under way before the acknowledgement may have come; what comes now was not acknowledged.
    let mut left: BTreeSet<_> = sent.difference(&done).cloned().collect();
    for (id, ticket) in seen {
        if source.acknowledge(&[ticket]).await == [Ok(())] {
            left.remove(&id);
        }
    }
    while !left.is_empty() {
        for came in receive(&source, 1).await {
            if source.acknowledge(&[came.ticket]).await == [Ok(())] {
                left.remove(&id(&came));
            }
        }
    }
    assert_eq!(seen_within(&source, SOON * 2).await, BTreeSet::new());
}

/// I8: each key in its order, whatever lies between.
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

/// I8: without a fault each message comes once, to one of them, and nobody goes without.
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

/// I8
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

/// I8: it is given by the next call, or comes again.
pub async fn a_receive_that_is_dropped_loses_nothing<P: Place>() {
    let place = fresh::<P>().await;
    let source = place.source(GROUP, SOON);
    let mut left = BTreeSet::new();
    for round in 0..30 {
        if round % 3 == 0 {
            left.extend(send_some(&place, 3).await);
        }
        let span = Duration::from_micros(300 * round);
        if let Ok(came) = timeout(span, source.receive(2)).await {
            for came in unless_unavailable(came) {
                assert_eq!(source.acknowledge(&[came.ticket]).await, [Ok(())]);
                left.remove(&id(&came));
            }
        }
    }
    while !left.is_empty() {
        for came in receive(&source, 1).await {
            assert_eq!(source.acknowledge(&[came.ticket]).await, [Ok(())]);
            left.remove(&id(&came));
        }
    }
}

/// X5: it is told, and it comes back by itself.
pub async fn nobody_there_at_the_start_is_no_end<P: Place>() {
    let place = fresh::<P>().await;
    let sent = send_some(&place, 2).await;
    place.proxy().refuse();
    let source = place.source(GROUP, LATE);
    let error = source.receive(1).await.expect_err("nobody");
    assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
    assert!(error.to_string().len() > 3, "{error:?} says nothing");
    place.proxy().accept().expect("to accept");
    assert_eq!(ids(&receive(&source, 2).await), sent);
}

/// X5: it does not wait for ever.
pub async fn a_broker_that_does_not_answer_is_unavailable<P: Place>() {
    let place = fresh::<P>().await;
    let source = place.source(GROUP, SOON);
    let sent = send_some(&place, 1).await;
    let first = receive(&source, 1).await;
    assert_eq!(source.acknowledge(&tickets(&first)).await, [Ok(())]);
    assert_eq!(ids(&first), sent);
    place.proxy().stall();
    unavailable(&source).await;
    let told = timeout(PATIENCE, source.lag()).await.expect("an answer");
    assert!(told.is_err() || told == Ok(None), "{told:?}");
    place.proxy().resume();
    place.proxy().cut();
    let sent = send_some(&place, 1).await;
    assert_eq!(ids(&receive(&source, 1).await), sent);
}

/// I8: nobody knows whether the broker has it.
pub async fn an_acknowledgement_without_an_answer_is_an_error<P: Place>() {
    let place = fresh::<P>().await;
    let source = place.source(GROUP, SOON);
    let sent = send_some(&place, 2).await;
    let came = receive(&source, 2).await;
    assert_eq!(ids(&came), sent);
    place.proxy().stall();
    let answers = timeout(PATIENCE, source.acknowledge(&tickets(&came))).await.expect("an answer");
    assert_eq!(answers.len(), 2);
    for answer in answers {
        let error = answer.expect_err("nobody has confirmed it");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
    }
    place.proxy().cut();
    place.proxy().resume();
    let (left, source) = (sent, place.source(GROUP, SOON));
    // What was held back may have reached the broker or not.
    let mut done = seen_within(&source, SOON * 3).await;
    let sent = send_some(&place, 1).await;
    while !sent.is_subset(&done) {
        done.extend(ids(&receive(&source, 1).await));
    }
    assert!(done.difference(&sent).all(|id| left.contains(id)), "{done:?}");
}

/// X5, I8: what was sent and not acknowledged comes, however often the broker dies.
pub async fn a_restart_of_the_broker_loses_nothing<P: Place>() {
    let mut place = P::private().await;
    place.prepare(GROUP).await;
    let source = place.source(GROUP, SOON);
    let mut left = send_some(&place, 6).await;
    let before = receive(&source, 3).await;
    assert_eq!(source.acknowledge(&[before[0].ticket]).await, [Ok(())]);
    left.remove(&id(&before[0]));
    place.restart();
    if P::keeps_messages() {
        until_acknowledged(&source, &before[1..]).await;
        left = left.difference(&ids(&before)).cloned().collect();
    }
    left.extend(send_some(&place, 3).await);
    while !left.is_empty() {
        for came in receive(&source, 1).await {
            if source.acknowledge(&[came.ticket]).await == [Ok(())] {
                left.remove(&id(&came));
            }
        }
    }
}

/// O3: received or not, what is not acknowledged waits.
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

/// M4, X5
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

/// D12: an orderly end, and a new beginning.
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

async fn fresh<P: Place>() -> P {
    let place = P::fresh().await;
    place.prepare(GROUP).await;
    place
}

/// Sends messages, all of them: the sink may need a while to see that the broker is back.
async fn send<P: Place>(place: &P, messages: &[Message]) {
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

async fn send_some<P: Place>(place: &P, count: usize) -> BTreeSet<String> {
    let messages: Vec<_> = (0..count).map(|n| sinks::message(place, Some(&format!("k{n}")), b"1")).collect();
    send(place, &messages).await;
    messages.iter().map(|message| message.id.to_string()).collect()
}

/// Receives until there are so many.
async fn receive(source: &impl Source, count: usize) -> Vec<Received> {
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
async fn come_again(source: &impl Source, sent: &BTreeSet<String>) {
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
async fn until_acknowledged(source: &impl Source, kept: &[Received]) {
    let start = Instant::now();
    for came in kept {
        while let [Err(error)] = &source.acknowledge(&[came.ticket]).await[..] {
            assert!(start.elapsed() < PATIENCE, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Everything that comes in this time.
async fn receive_within(source: &impl Source, span: Duration) -> Vec<Received> {
    let (start, mut all) = (Instant::now(), Vec::new());
    while start.elapsed() < span {
        all.extend(unless_unavailable(source.receive(10).await));
    }
    all
}

async fn seen_within(source: &impl Source, span: Duration) -> BTreeSet<String> {
    ids(&receive_within(source, span).await)
}

/// Receives until there is an error.
async fn unavailable(source: &impl Source) {
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

fn unless_unavailable(came: Result<Vec<Received>, SinkError>) -> Vec<Received> {
    came.unwrap_or_else(|error| {
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
        Vec::new()
    })
}

async fn until_lag(source: &impl Source, is_it: impl Fn(u64) -> bool) {
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

fn tickets(came: &[Received]) -> Vec<Ticket> {
    came.iter().map(|came| came.ticket).collect()
}

fn id(came: &Received) -> String {
    came.message.attribute("id").expect("an id").to_owned()
}

fn ids(came: &[Received]) -> BTreeSet<String> {
    came.iter().map(id).collect()
}

fn sorted<T: Ord>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort();
    all
}
