//! The exam of a sink: what every adapter to a broker has to pass, on the real broker, with a proxy between that breaks the
//! connection. An adapter runs it with one line, [`sinks!`](crate::sinks!), for a type that implements [`Place`].

use std::{collections::BTreeMap, future::Future, slice, sync::Arc, time::Duration};

use bytes::Bytes;
use pillarbox_core::{
    Event,
    domain::Key,
    port::{Message, Sent, Sink, SinkErrorKind},
};

use crate::servers::Proxy;

/// After this time a sink under examination gives up waiting for an answer.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// More than enough for anything that is not a fault.
const PATIENCE: Duration = Duration::from_secs(30);

/// A place on a broker that no other test has.
pub trait Place: Sized + Send + Sync + 'static {
    /// The adapter.
    type Sink: Sink;

    /// A new place.
    fn fresh() -> impl Future<Output = Self> + Send;

    /// A sink that reaches the broker by way of the proxy, gives up after [`ANSWER_WITHIN`], and has not been used. Makes no
    /// use of the connection yet, which may be down.
    fn sink(&self) -> Self::Sink;

    /// What stands between the sink and the broker.
    fn proxy(&self) -> &Proxy;

    /// A topic that takes messages.
    fn topic(&self) -> Arc<str>;

    /// A topic whose messages the broker refuses for good.
    fn refused(&self) -> Arc<str>;

    /// A new place whose topic takes no messages, for a reason that passes: a queue is full, memory is out, nobody listens. It
    /// takes them when the broker [relents](Self::relent). Or why this broker can't be brought to that.
    fn failing() -> impl Future<Output = Result<Self, &'static str>> + Send;

    /// The topic of a [failing](Self::failing) place takes messages from now on.
    fn relent(&self) -> impl Future<Output = ()> + Send;

    /// A sink that leaves it to the broker what is too large, and the bytes of a payload that are. Or why there is none.
    fn unlimited(&self) -> Result<(Self::Sink, usize), &'static str>;

    /// Everything that has arrived at the topic, oldest first, as another client sees it that does not come by the proxy.
    fn received(&self) -> impl Future<Output = Vec<Received>> + Send;
}

/// A message as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The event's id, from where the broker would look for it, or from the attributes.
    pub id: String,
    /// The key, if the message has one: every protocol has a place for it, and be it an attribute.
    pub key: Option<String>,
    /// As the protocol's own field or header has it.
    pub content_type: Option<String>,
    /// CloudEvents attributes under their bare names.
    pub attributes: BTreeMap<String, String>,
    /// All other headers.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub payload: Bytes,
}

/// Runs a case to its end; what the tests that [`sinks!`](crate::sinks!) makes are made of.
pub fn run(case: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async { tokio::time::timeout(PATIENCE * 3, case).await.expect("an end") });
}

/// Makes a test of every case, for a type that implements [`Place`](trait@crate::sinks::Place).
#[macro_export]
macro_rules! sinks {
    ($place:ty) => {
        $crate::sinks!(@cases $place:
            what_is_confirmed_has_arrived_whole,
            every_message_of_a_batch_has_its_own_answer,
            what_fails_this_time_goes_through_later_and_once,
            what_is_too_large_is_refused_alone,
            what_is_too_large_for_the_broker_is_refused_alone,
            messages_of_a_key_arrive_in_order,
            messages_of_a_key_arrive_in_order_whatever_is_cut,
            without_a_fault_nothing_arrives_twice,
            a_broker_that_does_not_answer_is_unavailable,
            a_connection_lost_before_the_message_arrived_loses_nothing,
            a_connection_lost_after_the_message_arrived_loses_nothing,
            nobody_there_at_the_start_is_no_end,
            a_check_tells_what_is_there,
            what_was_closed_opens_again,
        );
    };
    (@cases $place:ty: $($case:ident),+ $(,)?) => {
        $(
            #[test]
            fn $case() {
                $crate::sinks::run($crate::sinks::$case::<$place>());
            }
        )+
    };
}

/// X1, X3, E5: id, key, content type, attributes, headers and every byte.
pub async fn what_is_confirmed_has_arrived_whole<P: Place>() {
    let place = P::fresh().await;
    let sink = place.sink();
    let mut text = message(&place, Some("order-7"), r#"{"order":7,"name":"Grüße"}"#.as_bytes());
    text.headers.push(("traceparent".into(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()));
    let mut bytes = message(&place, None, &[0, 255, 10, 13, 0, 128]);
    bytes.content_type = "application/x-protobuf".into();
    assert_all_sent(&sink.send(&[text.clone(), bytes.clone()]).await);
    let mut received = place.received().await;
    received.sort_by_key(|received| received.content_type != Some("application/json".into()));
    assert_eq!(received.len(), 2, "{received:?}");
    for (received, sent) in received.iter().zip([&text, &bytes]) {
        assert_eq!(received.id, sent.id.to_string());
        assert_eq!(received.payload, sent.payload);
        assert_eq!(received.content_type.as_deref(), Some(&*sent.content_type));
        for (name, value) in &sent.attributes {
            assert_eq!(received.attributes.get(&**name), Some(value), "{received:?}");
        }
        for (name, value) in &sent.headers {
            assert_eq!(received.headers.get(name), Some(value), "{received:?}");
        }
    }
    assert_eq!((received[0].key.as_deref(), &received[1].key), (Some("order-7"), &None));
}

/// X4, X6: what the broker refuses has the broker's words, and its neighbours go through.
pub async fn every_message_of_a_batch_has_its_own_answer<P: Place>() {
    let place = P::fresh().await;
    let sink = place.sink();
    let mut batch: Vec<_> = (0..6).map(|n| message(&place, Some(&format!("k{n}")), b"1")).collect();
    for refused in [1, 4] {
        batch[refused].topic = place.refused();
    }
    let answers = sink.send(&batch).await;
    assert_eq!(answers.len(), batch.len());
    for (n, answer) in answers.iter().enumerate() {
        if batch[n].topic == place.topic() {
            assert_eq!(*answer, Ok(()), "message {n}");
        } else {
            let error = answer.as_ref().expect_err("a refusal");
            assert_eq!(error.kind(), SinkErrorKind::Rejected, "{error}");
            assert!(error.to_string().len() > 3, "{error:?} says nothing");
        }
    }
    // A client may know the second time.
    assert!(answers[1].as_ref().is_err_and(|error| !error.is_unsent()), "it was the broker who refused it");
    assert_eq!(ids(&place.received().await), sorted([0, 2, 3, 5].map(|n| batch[n].id.to_string())));
}

/// X6: a nack is an answer, and not the last one.
pub async fn what_fails_this_time_goes_through_later_and_once<P: Place>() {
    let place = match P::failing().await {
        Ok(place) => place,
        Err(reason) => return left_out(reason),
    };
    let sink = place.sink();
    let failing = message(&place, Some("k"), b"1");
    for _ in 0..2 {
        let answers = sink.send(slice::from_ref(&failing)).await;
        let [Err(error)] = &answers[..] else { panic!("the broker has not taken it: {answers:?}") };
        assert_ne!(error.kind(), SinkErrorKind::Rejected, "{error}");
        assert!(error.to_string().len() > 3, "{error:?} says nothing");
    }
    place.relent().await;
    let sending = async {
        while let [Err(error)] = &sink.send(slice::from_ref(&failing)).await[..] {
            assert_ne!(error.kind(), SinkErrorKind::Rejected, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, sending).await.expect("the broker has relented");
    assert_eq!(ids(&place.received().await), [failing.id.to_string()]);
}

/// X6: it is said so, and nothing else suffers.
pub async fn what_is_too_large_is_refused_alone<P: Place>() {
    let place = P::fresh().await;
    let sink = place.sink();
    let largest = sink.abilities().largest.expect("a sink under examination has a limit of its own");
    let large = message(&place, Some("large"), &vec![b'x'; largest + 1]);
    let small = message(&place, Some("small"), b"1");
    let answers = sink.send(&[large.clone(), small.clone()]).await;
    let error = answers[0].as_ref().expect_err("a refusal");
    assert_eq!(error.kind(), SinkErrorKind::Rejected, "{error}");
    assert!(error.is_unsent(), "the broker was not asked: {error}");
    assert_eq!(answers[1], Ok(()));
    assert_eq!(ids(&place.received().await), [small.id.to_string()]);
    assert_all_sent(&sink.send(&[message(&place, None, b"2")]).await);
}

/// X6: in the broker's words, if it is the broker who says so.
pub async fn what_is_too_large_for_the_broker_is_refused_alone<P: Place>() {
    let place = P::fresh().await;
    let (sink, bytes) = match place.unlimited() {
        Ok(unlimited) => unlimited,
        Err(reason) => return left_out(reason),
    };
    let large = message(&place, Some("large"), &vec![b'x'; bytes]);
    let (one, other) = (message(&place, Some("one"), b"1"), message(&place, Some("other"), b"2"));
    let answers = sink.send(&[one.clone(), large, other.clone()]).await;
    let error = answers[1].as_ref().expect_err("a refusal");
    assert_eq!(error.kind(), SinkErrorKind::Rejected, "{error}");
    assert_eq!((&answers[0], &answers[2]), (&Ok(()), &Ok(())));
    assert_eq!(ids(&place.received().await), sorted([one, other].map(|message| message.id.to_string())));
}

/// X4: each key in its order, whatever lies between.
pub async fn messages_of_a_key_arrive_in_order<P: Place>() {
    let place = P::fresh().await;
    let sink = place.sink();
    let mut sent: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for _ in 0..20 {
        let batch: Vec<_> = (0..5).map(|n| message(&place, Some(&format!("k{n}")), b"1")).collect();
        for message in &batch {
            let key = message.key.as_ref().expect("a key").to_string();
            sent.entry(key).or_default().push(message.id.to_string());
        }
        assert_all_sent(&sink.send(&batch).await);
    }
    let received: Vec<_> = place.received().await.into_iter().map(|received| received.id).collect();
    for (key, ids) in sent {
        let of_key: Vec<_> = received.iter().filter(|id| ids.contains(id)).cloned().collect();
        assert_eq!(of_key, ids, "{key}");
    }
}

/// X4, X5: what comes after a fault comes after what was sent before it; and nothing comes twice but by a fault.
pub async fn messages_of_a_key_arrive_in_order_whatever_is_cut<P: Place>() {
    let place = P::fresh().await;
    let sink = place.sink();
    let mut sent = Vec::new();
    for round in 0..15 {
        let next = message(&place, Some("k"), b"1");
        let loses_answers = round % 3 == 2;
        if loses_answers {
            place.proxy().lose_answers();
        }
        let fault = async {
            match round % 3 {
                // Somewhere on its way, or when nothing is.
                1 => tokio::time::sleep(Duration::from_millis(round)).await,
                2 => tokio::time::sleep(Duration::from_millis(50)).await,
                _ => return,
            }
            place.proxy().resume();
            place.proxy().cut();
        };
        tokio::join!(until_sent(&sink, &next), fault);
        sent.push((next.id.to_string(), round % 3 > 0));
    }
    let received: Vec<_> = place.received().await.into_iter().map(|received| received.id).collect();
    let mut first: Vec<&String> = Vec::new();
    for id in &received {
        if !first.contains(&id) {
            first.push(id);
        }
    }
    assert_eq!(first, sent.iter().map(|(id, _)| id).collect::<Vec<_>>());
    for (id, had_a_fault) in &sent {
        let arrived = received.iter().filter(|other| *other == id).count();
        let most = if *had_a_fault && !sink.abilities().dedupes { 2 } else { 1 };
        assert!(arrived <= most, "{id} is there {arrived} times, {had_a_fault}: {received:?}");
    }
}

/// X1, D5: as many as were sent.
pub async fn without_a_fault_nothing_arrives_twice<P: Place>() {
    let place = P::fresh().await;
    let sink = place.sink();
    let mut sent = Vec::new();
    for _ in 0..5 {
        let batch: Vec<_> = (0..100).map(|_| message(&place, None, b"1")).collect();
        assert_all_sent(&sink.send(&batch).await);
        sent.extend(batch.iter().map(|message| message.id.to_string()));
    }
    assert_eq!(ids(&place.received().await), sorted(sent));
}

/// X6, D14: it does not wait for ever, and it is not the message's fault.
pub async fn a_broker_that_does_not_answer_is_unavailable<P: Place>() {
    let place = P::fresh().await;
    let sink = place.sink();
    assert_all_sent(&sink.send(&[message(&place, None, b"1")]).await);
    place.proxy().stall();
    assert_unavailable(&sink.send(&[message(&place, None, b"2"), message(&place, None, b"3")]).await);
    place.proxy().resume();
    place.proxy().cut();
    until_sent(&sink, &message(&place, None, b"4")).await;
}

/// X5: it was not there, and it comes once.
pub async fn a_connection_lost_before_the_message_arrived_loses_nothing<P: Place>() {
    let place = P::fresh().await;
    let sink = place.sink();
    assert_all_sent(&sink.send(&[message(&place, None, b"1")]).await);
    let lost = message(&place, Some("k"), b"2");
    place.proxy().stall();
    let cut = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        place.proxy().cut();
        place.proxy().resume();
    };
    let batch = [lost.clone()];
    let (answers, ()) = tokio::join!(sink.send(&batch), cut);
    if answers != [Ok(())] {
        // A client that sends it again by itself, on a new connection, has not lost it either.
        assert_unavailable(&answers);
        until_sent(&sink, &lost).await;
    }
    let arrived = place.received().await.into_iter().filter(|received| received.id == lost.id.to_string()).count();
    assert_eq!(arrived, 1);
}

/// X5: it was there, and nobody knows; who asks again has it at least once, and once where the broker drops a second one.
pub async fn a_connection_lost_after_the_message_arrived_loses_nothing<P: Place>() {
    let place = P::fresh().await;
    let sink = place.sink();
    let before = message(&place, None, b"1");
    assert_all_sent(&sink.send(slice::from_ref(&before)).await);
    let doubtful = message(&place, Some("k"), b"2");
    place.proxy().lose_answers();
    assert_unavailable(&sink.send(slice::from_ref(&doubtful)).await);
    place.proxy().resume();
    place.proxy().cut();
    until_sent(&sink, &doubtful).await;
    let received = place.received().await;
    let arrived = |message: &Message| received.iter().filter(|received| received.id == message.id.to_string()).count();
    let most = if sink.abilities().dedupes { 1 } else { 2 };
    assert!((1..=most).contains(&arrived(&doubtful)), "{received:?}");
    assert_eq!(arrived(&before), 1, "it had its answer: {received:?}");
}

/// X5: it is told, and it comes back by itself.
pub async fn nobody_there_at_the_start_is_no_end<P: Place>() {
    let place = P::fresh().await;
    place.proxy().refuse();
    let sink = place.sink();
    assert_unavailable(&sink.send(&[message(&place, None, b"1")]).await);
    place.proxy().accept().expect("to accept");
    until_sent(&sink, &message(&place, None, b"2")).await;
}

/// M4, X5: what `--check` asks.
pub async fn a_check_tells_what_is_there<P: Place>() {
    let place = P::fresh().await;
    let sink = place.sink();
    assert_eq!(sink.check().await, Ok(()));
    place.proxy().refuse();
    place.proxy().cut();
    let error = place.sink().check().await.expect_err("nobody");
    assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
    assert!(error.to_string().len() > 3, "{error:?} says nothing");
}

/// D12: an orderly end, and a new beginning.
pub async fn what_was_closed_opens_again<P: Place>() {
    let place = P::fresh().await;
    let sink = place.sink();
    // Before it was ever open, too.
    sink.close().await;
    for body in [b"1", b"2"] {
        assert_all_sent(&sink.send(&[message(&place, None, body)]).await);
        sink.close().await;
    }
    assert_eq!(place.received().await.len(), 2);
}

/// A message as the relay makes it.
pub fn message<P: Place>(place: &P, key: Option<&str>, payload: &[u8]) -> Message {
    let id = Event::builder("OrderPlaced").json(&()).build().expect("an event").id();
    Message {
        topic: place.topic(),
        key: key.map(Key::from),
        id,
        content_type: "application/json".into(),
        attributes: vec![
            ("specversion".into(), "1.0".into()),
            ("id".into(), id.to_string()),
            ("source".into(), "/orders".into()),
            ("type".into(), "OrderPlaced".into()),
            ("time".into(), "2026-01-02T03:04:05Z".into()),
        ],
        headers: vec![("x-trace-note".into(), "grün & 100 %".into())],
        payload: Bytes::copy_from_slice(payload),
    }
}

/// What a broker can't be brought to is said, and not passed over.
fn left_out(reason: &str) {
    eprintln!("left out: {reason}");
}

fn assert_all_sent(answers: &[Sent]) {
    assert!(!answers.is_empty() && answers.iter().all(Result::is_ok), "{answers:?}");
}

fn assert_unavailable(answers: &[Sent]) {
    assert!(!answers.is_empty());
    for answer in answers {
        let error = answer.as_ref().expect_err("nobody answers");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
    }
}

/// Sends until it is taken: the sink may need a while to see that the broker is back.
async fn until_sent(sink: &impl Sink, message: &Message) {
    let sending = async {
        loop {
            match &sink.send(slice::from_ref(message)).await[..] {
                [Ok(())] => return,
                [Err(error)] => assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}"),
                answers => panic!("one message, and {} answers", answers.len()),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, sending).await.expect("the broker is back");
}

fn ids(received: &[Received]) -> Vec<String> {
    sorted(received.iter().map(|received| received.id.clone()))
}

fn sorted(ids: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut ids: Vec<_> = ids.into_iter().collect();
    ids.sort();
    ids
}
