//! A message as JetStream takes it, and gives it: a subject, headers and a payload.

use std::{borrow::Cow, fmt::Write, time::SystemTime};

use async_nats::{
    HeaderMap, HeaderName, HeaderValue, Subject, header::NATS_MESSAGE_ID, jetstream::message::PublishMessage,
};
use pillarbox_core::{
    domain::Key,
    port::{Incoming, Message, SinkError},
};

/// The extension of CloudEvents that says what has to stay in order.
pub(crate) const KEY: &str = "partitionkey";

/// The message with its headers; an error if NATS can't take it.
pub(crate) fn publish(message: &Message, largest: usize) -> Result<PublishMessage, SinkError> {
    subject(&message.topic)?;
    if message.payload.len() > largest {
        let size = message.payload.len();
        return Err(SinkError::unfit(format_args!("the payload has {size} bytes, and {largest} are the most")));
    }
    Ok(PublishMessage::build().payload(message.payload.clone()).headers(headers(message)?))
}

/// The id under which a stream knows one of several messages of an event.
pub(crate) fn id_for_subject(message: &Message) -> String {
    // Subjects have no spaces, but may have other things that headers have not.
    encode(&format!("{}:{}", message.id, message.topic), is_plain).into_owned()
}

/// The id of a message whose other ids a stream knows, and whose message it has not.
pub(crate) fn id_for_now(message: &Message, now: SystemTime) -> String {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{}:{}", id_for_subject(message), since.as_nanos())
}

/// What JetStream tells of a message that it gives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct About {
    /// Where the acknowledgement goes.
    pub(crate) reply: Subject,
    /// In the stream.
    pub(crate) sequence: u64,
    pub(crate) deliveries: u32,
}

/// A message as it came in; nothing if it is not of JetStream.
pub(crate) fn incoming(message: async_nats::Message) -> Option<(Incoming, About)> {
    let reply = message.reply?;
    let place = Place::of(&reply)?;
    let (sequence, deliveries) = (place.sequence, place.deliveries);
    let mut incoming =
        Incoming { topic: message.subject.as_str().to_owned(), payload: message.payload, ..Incoming::default() };
    // Most of them are attributes.
    incoming.attributes.reserve_exact(message.headers.as_ref().map_or(0, HeaderMap::len));
    for (name, values) in message.headers.iter().flat_map(HeaderMap::iter) {
        let name: &str = name.as_ref();
        let mut values = values.iter().map(|value| decode(value.as_str()));
        let starts_with = |prefix: &str| name.get(..prefix.len()).is_some_and(|it| it.eq_ignore_ascii_case(prefix));
        if starts_with("ce-") {
            let Some(value) = values.next() else { continue };
            let name = &name[3..];
            if name.eq_ignore_ascii_case(KEY) {
                incoming.key = Some(Key::from(value));
            } else {
                incoming.attributes.push((name.to_ascii_lowercase(), value.into_owned()));
            }
        } else if name.eq_ignore_ascii_case("content-type") {
            incoming.content_type = values.next().unwrap_or_default().into_owned();
        } else if name.eq_ignore_ascii_case("nats-msg-id") {
            incoming.id = values.next().map(Cow::into_owned).or(incoming.id);
        } else if !starts_with("nats-") {
            // Those are between a server and its clients, and not to be sent again.
            incoming.headers.extend(values.map(|value| (name.to_owned(), value.into_owned())));
        }
    }
    // A stream that was deleted and created again counts from 1: only with the time it is a number of its own.
    let of_place = || format!("{}:{}:{}", place.stream, place.sequence, place.nanos);
    incoming.id = Some(incoming.id.unwrap_or_else(of_place));
    Some((incoming, About { reply, sequence, deliveries }))
}

/// What stands in the subject of an acknowledgement:
/// `$JS.ACK.[domain.account.]stream.consumer.deliveries.sequence.of-consumer.nanoseconds.pending[.more]`.
struct Place<'a> {
    stream: &'a str,
    sequence: u64,
    deliveries: u32,
    nanos: &'a str,
}

impl<'a> Place<'a> {
    fn of(reply: &'a str) -> Option<Self> {
        let words = reply.strip_prefix("$JS.ACK.")?;
        let before = match words.bytes().filter(|byte| *byte == b'.').count() + 1 {
            7 => 0,
            9.. => 2,
            _ => return None,
        };
        let mut words = words.split('.').skip(before);
        let (stream, _consumer, deliveries) = (words.next()?, words.next()?, words.next()?);
        let (sequence, _of_consumer, nanos) = (words.next()?, words.next()?, words.next()?);
        Some(Self { stream, sequence: sequence.parse().ok()?, deliveries: deliveries.parse().ok()?, nanos })
    }
}

fn headers(message: &Message) -> Result<HeaderMap, SinkError> {
    let mut headers = HeaderMap::new();
    headers.insert(NATS_MESSAGE_ID, message.id.to_string());
    add(&mut headers, "content-type", &encode(&message.content_type, is_plain))?;
    for (name, value) in &message.attributes {
        add(&mut headers, &format!("ce-{name}"), &encode(value, is_attribute))?;
    }
    let has_key = message.attributes.iter().any(|(name, _)| *name == KEY);
    if let Some(key) = message.key.as_ref().filter(|_| !has_key) {
        add(&mut headers, &format!("ce-{KEY}"), &encode(key.as_str(), is_attribute))?;
    }
    for (name, value) in &message.headers {
        let is_order = name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-"));
        let is_taken = headers.iter().any(|(taken, _)| AsRef::<str>::as_ref(taken).eq_ignore_ascii_case(name));
        if is_order || is_taken {
            return Err(SinkError::unfit(format_args!(
                "the header {name:?} would take the place of one of the broker's"
            )));
        }
        add(&mut headers, name, &encode(value, is_plain))?;
    }
    Ok(headers)
}

fn add(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), SinkError> {
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
    let parsed = (HeaderName::try_from(name), value.parse::<HeaderValue>());
    let (true, (Ok(name), Ok(value))) = (is_name, parsed) else {
        return Err(SinkError::unfit(format_args!(
            "the header {name:?} can't be sent: names have visible ASCII letters, and no colon"
        )));
    };
    headers.insert(name, value);
    Ok(())
}

/// Refuses what is no subject, and the server's own: a message to those would be an order.
fn subject(subject: &str) -> Result<(), SinkError> {
    let is_token = |token: &str| {
        !token.is_empty()
            && token != "*"
            && token != ">"
            && !token.contains(|c: char| c.is_whitespace() || c.is_control())
    };
    if !subject.split('.').all(is_token) {
        return Err(SinkError::unfit(format_args!(
            "{subject:?} is no subject to publish to: it has an empty part, a space or a wildcard"
        )));
    }
    if matches!(subject.split('.').next(), Some("$JS" | "$SYS" | "_INBOX")) {
        return Err(SinkError::unfit(format_args!("{subject:?} is a subject of the server's own")));
    }
    Ok(())
}

/// Percent-encodes the bytes that may not stand for themselves.
fn encode(text: &str, may_stand: fn(byte: u8, is_end: bool) -> bool) -> Cow<'_, str> {
    let ends = |place: usize| place == 0 || place + 1 == text.len();
    if text.bytes().enumerate().all(|(place, byte)| may_stand(byte, ends(place))) {
        return text.into();
    }
    let mut encoded = String::with_capacity(text.len());
    for (place, byte) in text.bytes().enumerate() {
        if may_stand(byte, ends(place)) {
            encoded.push(char::from(byte));
        } else {
            // A string takes everything.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded.into()
}

/// As the CloudEvents bindings say.
fn is_attribute(byte: u8, _: bool) -> bool {
    byte.is_ascii_graphic() && byte != b'"' && byte != b'%'
}

/// What people would still like to read in their headers may stay.
fn is_plain(byte: u8, is_end: bool) -> bool {
    (byte.is_ascii_graphic() && byte != b'%') || (byte == b' ' && !is_end)
}

/// Undoes percent-encoding; what is none stays as it is.
pub(crate) fn decode(text: &str) -> Cow<'_, str> {
    if !text.as_bytes().contains(&b'%') {
        return text.into();
    }
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut place = 0;
    while let Some(&byte) = bytes.get(place) {
        let digits =
            text.get(place + 1..place + 3).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let value = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| byte == b'%');
        decoded.push(value.unwrap_or(byte));
        place += if value.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&decoded).into_owned().into()
}

#[cfg(test)]
mod tests {
    use pillarbox_core::{Event, domain::Key, port::SinkErrorKind};

    use super::*;

    fn message() -> Message {
        Message {
            topic: "orders.placed".into(),
            key: Some(Key::from("order 7")),
            id: Event::builder("OrderPlaced").json(&()).build().expect("an event").id(),
            content_type: "application/json; charset=utf-8".into(),
            attributes: vec![("source".into(), "/grüße 100%".into())],
            headers: vec![("x-note".into(), " a \"b\"\r\nNats-Rollup: all ".into())],
            payload: vec![0, 255].into(),
        }
    }

    fn all(message: &Message) -> Vec<(String, String)> {
        let headers = headers(message).expect("headers");
        let mut all: Vec<_> = headers
            .iter()
            .flat_map(|(name, values)| values.iter().map(|value| (name.to_string(), value.to_string())))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn attributes_and_headers_are_encoded() {
        let message = message();
        let expected = [
            ("Nats-Msg-Id", message.id.to_string()),
            ("ce-partitionkey", "order%207".into()),
            ("ce-source", "/gr%C3%BC%C3%9Fe%20100%25".into()),
            ("content-type", "application/json; charset=utf-8".into()),
            ("x-note", "%20a \"b\"%0D%0ANats-Rollup: all%20".into()),
        ];
        assert_eq!(all(&message), expected.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn a_key_that_is_an_attribute_already_is_not_doubled() {
        let mut message = message();
        message.attributes.push((KEY.into(), "its own".into()));
        assert!(all(&message).contains(&("ce-partitionkey".into(), "its%20own".into())));
    }

    #[test]
    fn decoding_gives_back_what_was_sent() {
        for text in ["", " ", "grün & 100 %", "%41%", "%C3", "a\r\n\tb", "%%%20", "😀"] {
            assert_eq!(decode(&encode(text, is_attribute)), text);
            assert_eq!(decode(&encode(text, is_plain)), text);
        }
        assert_eq!(decode("a%4"), "a%4");
        assert_eq!(decode("%+1é%zz"), "%+1é%zz");
    }

    #[test]
    fn what_is_sent_comes_in_as_it_was() {
        let sent = message();
        let came = async_nats::Message {
            subject: "orders.placed".into(),
            reply: Some("$JS.ACK.ORDERS.billing.3.17.20.1700000000000000000.5".into()),
            payload: sent.payload.clone(),
            headers: Some(headers(&sent).expect("headers")),
            status: None,
            description: None,
            length: 0,
        };
        let (received, about) = incoming(came.clone()).expect("a message");
        assert_eq!((about.sequence, about.deliveries), (17, 3));
        let expected = Incoming {
            topic: "orders.placed".into(),
            key: sent.key,
            id: Some(sent.id.to_string()),
            content_type: sent.content_type.to_string(),
            attributes: vec![("source".into(), "/grüße 100%".into())],
            headers: sent.headers,
            payload: sent.payload,
        };
        assert_eq!(received, expected);
        let bare = async_nats::Message { headers: None, ..came.clone() };
        let (received, _) = incoming(bare).expect("a message");
        assert_eq!(received.id.as_deref(), Some("ORDERS:17:1700000000000000000"));
        let stranger = async_nats::Message { reply: Some("_INBOX.x".into()), ..came };
        assert_eq!(incoming(stranger), None);
    }

    #[test]
    fn both_forms_of_an_acknowledgement_are_read() {
        for reply in ["$JS.ACK.S.c.1.2.3.4.5", "$JS.ACK.hub.hash.S.c.1.2.3.4.5", "$JS.ACK._.hash.S.c.1.2.3.4.5.token"] {
            let place = Place::of(reply).expect(reply);
            assert_eq!((place.stream, place.deliveries, place.sequence, place.nanos), ("S", 1, 2, "4"));
        }
        for reply in ["", "$JS.ACK.S.c.1.2.3.4", "$JS.ACK.S.c.x.2.3.4.5", "$JS.ACK.S.c.1.2.3.4.5.6"] {
            assert!(Place::of(reply).is_none(), "{reply}");
        }
    }

    #[test]
    fn headers_that_are_orders_or_taken_or_none_are_rejected() {
        for name in
            ["Nats-Rollup", "nats-ttl", "Content-Type", "ce-source", "CE-PartitionKey", "", "a:b", "a b", "grün"]
        {
            let mut message = message();
            message.headers = vec![(name.into(), "all".into())];
            let error = publish(&message, 100).expect_err(name);
            assert_eq!(error.kind(), SinkErrorKind::Rejected);
            assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
        }
    }

    #[test]
    fn what_is_no_subject_is_rejected() {
        for topic in
            ["", ".", "a..b", "a.", "a.*", ">", "a b", "a\nb", "$JS.API.STREAM.DELETE.orders", "$SYS.x", "_INBOX.x"]
        {
            let mut message = message();
            message.topic = topic.into();
            let error = publish(&message, 100).expect_err(topic);
            assert_eq!(error.kind(), SinkErrorKind::Rejected, "{topic}");
        }
        for topic in ["a", "a.b*", "$KV.bucket.key", "grün"] {
            assert!(subject(topic).is_ok(), "{topic}");
        }
    }

    #[test]
    fn what_is_too_large_is_rejected() {
        assert!(publish(&message(), 2).is_ok());
        let error = publish(&message(), 1).expect_err("too large");
        assert_eq!(error.kind(), SinkErrorKind::Rejected);
        assert_eq!(error.to_string(), "the payload has 2 bytes, and 1 are the most");
    }
}
