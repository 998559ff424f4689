//! A message as MQTT 5 has it, by the CloudEvents binding for MQTT.

use pillarbox_core::{
    domain::Key,
    port::{Incoming, Message, SinkError},
};
use rumqttc::v5::mqttbytes::{
    QoS,
    v5::{Publish, PublishProperties},
};

/// The attribute that carries the key, of CloudEvents' partitioning extension.
const KEY: &str = "partitionkey";

/// What stands before the name of a header that could be an attribute's: both have user properties without a prefix.
pub const PREFIX: &str = "header-";

/// Headers that could be attributes by their names, and which everybody who traces looks for under just these.
const TRACE: [&str; 3] = ["traceparent", "tracestate", "baggage"];

/// The header by which a replayed dead letter is known, CloudEvent or not: it has its id among the attributes.
const REPLAY: &str = "pillarbox-replay";

/// What the content type of a CloudEvent in one document begins with.
const STRUCTURED: &str = "application/cloudevents";

/// The most bytes of a text.
const LONGEST: usize = u16::MAX as usize;

/// The packet, but for its number.
pub(crate) fn publish(message: &Message, retain: bool, largest: Option<usize>) -> Result<Publish, SinkError> {
    let size = message.payload.len();
    if let Some(largest) = largest.filter(|largest| size > *largest) {
        return Err(SinkError::unfit(format_args!("the payload has {size} bytes, and at most {largest} are taken")));
    }
    let topic = &*message.topic;
    check("the topic", topic)?;
    if topic.is_empty() || topic.contains(['+', '#']) {
        return Err(SinkError::unfit(format_args!(
            "the topic {topic:?} is empty or has a + or a #, which MQTT has for subscriptions"
        )));
    }
    check("the content type", &message.content_type)?;
    let mut user_properties: Vec<_> =
        message.attributes.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    if let Some(key) = message.key.as_ref().filter(|_| message.attributes.iter().all(|(name, _)| *name != KEY)) {
        user_properties.push((KEY.to_owned(), key.to_string()));
    }
    let attributes = user_properties.len();
    for (name, value) in &message.headers {
        let is_taken = user_properties[..attributes].iter().any(|(attribute, _)| attribute == name);
        let is_prefixed = is_taken || is_attribute(name) || name.starts_with(PREFIX);
        let name = if is_prefixed { format!("{PREFIX}{name}") } else { name.clone() };
        user_properties.push((name, value.clone()));
    }
    for (name, value) in &user_properties {
        check("the name of a header", name)?;
        check(&format!("the header {name:?}"), value)?;
    }
    let properties = PublishProperties {
        user_properties,
        content_type: Some(message.content_type.to_string()),
        ..PublishProperties::default()
    };
    let mut publish = Publish::new(topic, QoS::AtLeastOnce, message.payload.clone(), Some(properties));
    publish.retain = retain;
    Ok(publish)
}

/// A message as it came in.
pub(crate) fn incoming(publish: &Publish) -> Incoming {
    let mut incoming = Incoming {
        topic: String::from_utf8_lossy(&publish.topic).into_owned(),
        payload: publish.payload.clone(),
        ..Incoming::default()
    };
    let Some(properties) = &publish.properties else { return incoming };
    incoming.content_type = properties.content_type.clone().unwrap_or_default();
    let all = &properties.user_properties;
    // What others call `id` or `type` may be anything: of a device, say, and the same in every message.
    let is_event = incoming.content_type.to_ascii_lowercase().starts_with(STRUCTURED)
        || all.iter().any(|(name, _)| name == "specversion" || name == REPLAY);
    for (name, value) in all {
        match name.as_str() {
            KEY => incoming.key = Some(Key::from(value.as_str())),
            name if is_event && is_attribute(name) => incoming.attributes.push((name.to_owned(), value.clone())),
            name => {
                let bare = name.strip_prefix(PREFIX).filter(|_| is_event).unwrap_or(name);
                incoming.headers.push((bare.to_owned(), value.clone()));
            }
        }
    }
    incoming
}

/// Whether a user property of this name is an attribute. CloudEvents have no others.
fn is_attribute(name: &str) -> bool {
    let is_possible = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !name.is_empty() && name.bytes().all(is_possible) && !TRACE.contains(&name)
}

/// Bytes on the wire.
pub(crate) fn size(publish: &Publish) -> usize {
    // The number of the packet is missing yet, which may also make its length one byte longer.
    publish.size() + 2 + 1
}

/// A server ends the connection at a text that is none, with everything on it.
fn check(what: &str, text: &str) -> Result<(), SinkError> {
    let size = text.len();
    if size > LONGEST {
        return Err(SinkError::unfit(format_args!("{what} has {size} bytes, and MQTT has room for {LONGEST}")));
    }
    match text.chars().find(|c| is_refused(*c)) {
        Some(c) => Err(SinkError::unfit(format_args!(
            "{what} has the character U+{:04X}, which MQTT can't carry in a text",
            u32::from(c)
        ))),
        None => Ok(()),
    }
}

/// Control characters, and what Unicode has as "noncharacters".
fn is_refused(c: char) -> bool {
    let code = u32::from(c);
    c.is_control() || (0xFDD0..=0xFDEF).contains(&code) || code & 0xFFFE == 0xFFFE
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pillarbox_core::{Event, domain::Key, port::SinkErrorKind};

    use super::*;

    fn message() -> Message {
        let id = Event::builder("OrderPlaced").json(&()).build().expect("an event").id();
        Message {
            topic: "shop/orders".into(),
            key: Some(Key::from("order-7")),
            id,
            content_type: "application/json".into(),
            attributes: vec![("id".into(), "7".into()), ("type".into(), "OrderPlaced".into())],
            headers: vec![("x-note".into(), "grün & 100 %".into()), ("type".into(), "mine".into())],
            payload: Bytes::from_static(b"{}"),
        }
    }

    #[test]
    fn everything_has_its_place() {
        let publish = publish(&message(), false, None).expect("a packet");
        assert_eq!((&*publish.topic, publish.qos, publish.retain), (&b"shop/orders"[..], QoS::AtLeastOnce, false));
        assert_eq!(&*publish.payload, b"{}");
        let properties = publish.properties.expect("properties");
        assert_eq!(properties.content_type.as_deref(), Some("application/json"));
        let expected = [
            ("id", "7"),
            ("type", "OrderPlaced"),
            ("partitionkey", "order-7"),
            ("x-note", "grün & 100 %"),
            ("header-type", "mine"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(properties.user_properties, expected);
    }

    #[test]
    fn what_was_written_is_read_back_whatever_its_names() {
        let mut sent = message();
        sent.attributes.push(("specversion".into(), "1.0".into()));
        sent.attributes.push(("region".into(), "eu".into()));
        for name in ["traceparent", "tenant", "header-tenant", "header-", "Type", "subject", "partitionkey"] {
            sent.headers.push((name.into(), format!("of {name}")));
        }
        let read = incoming(&publish(&sent, false, None).expect("a packet"));
        assert_eq!((&*read.topic, &*read.content_type), (&*sent.topic, &*sent.content_type));
        assert_eq!((&read.key, &read.payload, &read.id), (&sent.key, &sent.payload, &None));
        let attributes: Vec<_> =
            sent.attributes.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        assert_eq!(read.attributes, attributes);
        assert_eq!(read.headers, sent.headers);
        // In one document, and as a replay of what is no CloudEvent.
        sent.attributes.clear();
        sent.content_type = "application/cloudevents+json; charset=utf-8".into();
        assert_eq!(incoming(&publish(&sent, false, None).expect("a packet")).headers, sent.headers);
        sent.attributes.push(("id".into(), "7".into()));
        sent.content_type = "text/plain".into();
        sent.headers.push((REPLAY.into(), "1".into()));
        let read = incoming(&publish(&sent, false, None).expect("a packet"));
        assert_eq!((read.attribute("id"), &read.headers), (Some("7"), &sent.headers));
    }

    #[test]
    fn what_is_no_cloud_event_has_headers_alone() {
        let user_properties: Vec<(String, String)> =
            vec![("id".into(), "thermometer".into()), ("header-x".into(), "y".into())];
        let properties = PublishProperties { user_properties: user_properties.clone(), ..<_>::default() };
        let read = incoming(&Publish::new("t", QoS::AtLeastOnce, "20", Some(properties)));
        assert_eq!((read.attributes, read.headers), (Vec::new(), user_properties));
        let bare = incoming(&Publish::new("t", QoS::AtLeastOnce, "20", None));
        assert_eq!((&*bare.topic, &*bare.payload, bare.headers), ("t", &b"20"[..], Vec::new()));
    }

    #[test]
    fn what_mqtt_cant_carry_is_rejected_with_the_reason() {
        type Change = fn(&mut Message);
        let cases: [(Change, &str); 9] = [
            (|message| message.topic = "".into(), "empty"),
            (|message| message.topic = "shop/+".into(), "subscriptions"),
            (|message| message.topic = "shop/#".into(), "subscriptions"),
            (|message| message.topic = "a\0b".into(), "U+0000"),
            (|message| message.topic = "x".repeat(65_536).into(), "room for 65535"),
            (|message| message.content_type = "a\u{7f}".into(), "U+007F"),
            (|message| message.headers.push(("x-a".into(), "a\nb".into())), "\"x-a\" has the character U+000A"),
            (|message| message.headers.push(("x-b".into(), "\u{ffff}".into())), "U+FFFF"),
            (|message| message.headers.push(("x-c".into(), "y".repeat(65_536))), "\"x-c\" has 65536 bytes"),
        ];
        for (change, words) in cases {
            let mut message = message();
            change(&mut message);
            let error = publish(&message, false, None).expect_err(words);
            assert_eq!(error.kind(), SinkErrorKind::Rejected);
            assert!(error.to_string().contains(words), "{error}");
        }
        assert!(publish(&message(), false, Some(1)).is_err());
        assert!(publish(&message(), true, Some(2)).expect("a packet").retain);
    }
}
