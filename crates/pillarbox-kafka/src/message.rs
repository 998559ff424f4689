//! From a message to a record's headers and back, as the Kafka binding of CloudEvents 1.0 has it.

use bytes::Bytes;
use pillarbox_core::{
    domain::Key,
    port::{Incoming, Message, SinkError},
};
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message as _, OwnedHeaders};

/// The headers of a message.
pub(crate) fn headers(message: &Message) -> Result<OwnedHeaders, SinkError> {
    let id = message.id.to_string();
    let mut headers = with(OwnedHeaders::new_with_capacity(16), "content-type", &message.content_type);
    headers = with(headers, "event-id", &id);
    for (name, value) in &message.attributes {
        // The binding's place for it is content-type.
        if *name != "datacontenttype" {
            headers = with(headers, &format!("ce_{name}"), value);
        }
    }
    for (name, value) in &message.headers {
        let lower = name.to_ascii_lowercase();
        if lower == "content-type" || lower == "event-id" || lower.starts_with("ce_") {
            return Err(refused(name, "would be taken for one of the sink's own"));
        }
        if name.contains('\0') {
            return Err(refused(name, "has a NUL in its name, which Kafka's clients can't read"));
        }
        headers = with(headers, name, value);
    }
    Ok(headers)
}

/// A record as it came in. Headers that are no text are left out.
pub(crate) fn incoming(record: &BorrowedMessage<'_>) -> Incoming {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let mut incoming = Incoming {
        topic: record.topic().to_owned(),
        key: record.key().and_then(text).map(Key::from),
        payload: record.payload().map(Bytes::copy_from_slice).unwrap_or_default(),
        ..Incoming::default()
    };
    // A topic that was deleted and made again counts from 0: only with the time it is a number of its own.
    let time = record.timestamp().to_millis().unwrap_or_default();
    let mut id = format!("{}:{}:{}:{time}", record.topic(), record.partition(), record.offset());
    for header in record.headers().into_iter().flat_map(|headers| headers.iter()) {
        let Some(value) = text(header.value.unwrap_or_default()) else { continue };
        match header.key {
            "content-type" => incoming.content_type = value,
            "event-id" => id = value,
            name => match name.strip_prefix("ce_") {
                Some(attribute) => incoming.attributes.push((attribute.to_owned(), value)),
                None => incoming.headers.push((name.to_owned(), value)),
            },
        }
    }
    incoming.id = Some(id);
    incoming
}

/// Whether Kafka takes a topic of this name: brokers would answer the same, later.
pub(crate) fn check_topic(topic: &str) -> Result<(), SinkError> {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=249).contains(&topic.len()) && topic.chars().all(is_legal) && !matches!(topic, "." | "..") {
        return Ok(());
    }
    Err(SinkError::unfit(format_args!(
        "{topic:?} is no name of a topic: Kafka takes up to 249 of a-z, A-Z, 0-9, `.`, `_` and `-`"
    )))
}

fn with(headers: OwnedHeaders, key: &str, value: &str) -> OwnedHeaders {
    headers.insert(Header { key, value: Some(value) })
}

fn refused(name: &str, why: &str) -> SinkError {
    SinkError::unfit(format_args!("the header {name:?} {why}"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pillarbox_core::{Event, port::SinkErrorKind};
    use rdkafka::message::Headers;

    use super::*;

    fn message() -> Message {
        Message {
            topic: "orders".into(),
            key: None,
            id: Event::builder("OrderPlaced").json(&()).build().expect("an event").id(),
            content_type: "application/json".into(),
            attributes: vec![
                ("specversion".into(), "1.0".into()),
                ("datacontenttype".into(), "application/json".into()),
            ],
            headers: vec![("x-note".into(), "grün & 100 %\n\0".into()), ("x-empty".into(), String::new())],
            payload: Bytes::from_static(b"{}"),
        }
    }

    #[test]
    fn headers_are_those_of_the_binding_and_the_messages_own() {
        let message = message();
        let headers = headers(&message).expect("headers");
        let headers: Vec<_> =
            headers.iter().map(|header| (header.key, std::str::from_utf8(header.value.unwrap()).unwrap())).collect();
        assert_eq!(
            headers,
            [
                ("content-type", "application/json"),
                ("event-id", &*message.id.to_string()),
                ("ce_specversion", "1.0"),
                ("x-note", "grün & 100 %\n\0"),
                ("x-empty", ""),
            ]
        );
    }

    #[test]
    fn what_would_be_taken_for_the_sinks_own_is_rejected() {
        for name in ["Content-Type", "ce_id", "CE_type", "event-id", "a\0b"] {
            let mut message = message();
            message.headers.push((name.into(), "x".into()));
            assert_eq!(headers(&message).expect_err(name).kind(), SinkErrorKind::Rejected, "{name}");
        }
    }

    #[test]
    fn names_of_topics_are_those_that_kafka_takes() {
        for topic in ["orders", "Orders.placed_v1-eu", "...", &"a".repeat(249)] {
            check_topic(topic).expect(topic);
        }
        for topic in ["", ".", "..", "orders/placed", "grün", "a b", "a\0", &"a".repeat(250)] {
            assert_eq!(check_topic(topic).expect_err(topic).kind(), SinkErrorKind::Rejected, "{topic}");
        }
    }
}
