//! A message as RabbitMQ has it.
//!
//! AMQP 0-9-1 has no binding of CloudEvents of its own; the names are those of the binding for AMQP 1.0, under which RabbitMQ
//! shows these headers to clients of AMQP 1.0, too.

use lapin::{
    BasicProperties,
    message::Delivery,
    types::{AMQPValue, FieldTable, LongString, ShortString},
};
use pillarbox_core::{
    domain::Key,
    port::{Incoming, Message, SinkError},
};

use crate::Routing;

/// What stands before the names of CloudEvents attributes.
pub const PREFIX: &str = "cloudEvents:";

/// What the binding has for clients that can't have a colon in a name.
const OTHER_PREFIX: &str = "cloudEvents_";

/// What stands before the name of a header that would pass for an attribute.
const GUISE: &str = "header-";

/// The attribute that carries the key, of CloudEvents' partitioning extension.
const KEY: &str = "partitionkey";

/// Written to the disk by queues that are durable.
const PERSISTENT: u8 = 2;

/// A message, ready to be published.
#[derive(Debug)]
pub(crate) struct Letter<'a> {
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) payload: &'a [u8],
    /// Bytes of the frame with the properties: frames have a limit, and this one can't be split.
    pub(crate) header: usize,
}

impl<'a> Letter<'a> {
    pub(crate) fn new(message: &'a Message, routing: Routing, largest: usize) -> Result<Self, SinkError> {
        let size = message.payload.len();
        if size > largest {
            return Err(SinkError::unfit(format_args!(
                "the payload has {size} bytes, and at most {largest} are taken"
            )));
        }
        let routing_key = match routing {
            Routing::Topic => short("the topic", &message.topic)?,
            Routing::Key => match &message.key {
                Some(key) => short("the key", &key.to_string())?,
                None => ShortString::default(),
            },
        };
        let mut headers = Headers::default();
        for (name, value) in &message.headers {
            if is_like_an_attribute(name) {
                headers.insert(&format!("{GUISE}{name}"), value)?;
            } else {
                headers.insert(name, value)?;
            }
        }
        if let Some(key) = &message.key {
            headers.insert(&format!("{PREFIX}{KEY}"), &key.to_string())?;
        }
        for (name, value) in &message.attributes {
            headers.insert(&format!("{PREFIX}{name}"), value)?;
        }
        let mut properties = BasicProperties::default()
            .with_content_type(short("the content type", &message.content_type)?)
            .with_delivery_mode(PERSISTENT)
            .with_message_id(short("the id", &message.id.to_string())?);
        let attribute =
            |wanted: &str| message.attributes.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_str());
        if let Some(Ok(kind)) = attribute("type").map(ShortString::try_new) {
            properties = properties.with_type(kind);
        }
        if let Some(time) = attribute("time").and_then(seconds) {
            properties = properties.with_timestamp(time);
        }
        let texts = [properties.content_type(), properties.message_id(), properties.kind()];
        let texts: usize = texts.iter().filter_map(|text| text.as_ref()).map(|text| 1 + text.as_str().len()).sum();
        // The frame's own 8 bytes, 14 of the header's, the delivery mode, the time, and the length of the table.
        let header = 8 + 14 + 1 + 8 + 4 + texts + headers.size;
        let properties = properties.with_headers(headers.table);
        Ok(Self { routing_key, properties, payload: &message.payload, header })
    }

    /// Whether what the server sent back is this.
    pub(crate) fn is(&self, id: Option<&ShortString>, routing_key: &ShortString) -> bool {
        self.properties.message_id().as_ref() == id && self.routing_key == *routing_key
    }
}

/// The header in which quorum queues count.
const DELIVERIES: &str = "x-delivery-count";

/// A message as it came in, and which of its deliveries this is.
pub(crate) fn incoming(delivery: Delivery) -> (Incoming, u32) {
    let properties = &delivery.properties;
    let text = |text: &Option<ShortString>| text.as_ref().map(ToString::to_string);
    let mut incoming = Incoming {
        topic: delivery.routing_key.to_string(),
        id: text(properties.message_id()).filter(|id| !id.is_empty()),
        content_type: text(properties.content_type()).unwrap_or_default(),
        ..Incoming::default()
    };
    // A classic queue knows only whether there was one before.
    let mut deliveries = if delivery.redelivered { 2 } else { 1 };
    for (name, value) in properties.headers().iter().flat_map(FieldTable::inner) {
        let name = name.as_str();
        let Some(value) = header(value) else { continue };
        match name.strip_prefix(PREFIX).or_else(|| name.strip_prefix(OTHER_PREFIX)) {
            Some(KEY) => incoming.key = Some(Key::from(value)),
            Some(attribute) => incoming.attributes.push((attribute.to_owned(), value)),
            None if name == DELIVERIES => {
                deliveries = value.parse::<u32>().map_or(deliveries, |before| before.saturating_add(1));
            }
            None => {
                let own = name.strip_prefix(GUISE).filter(|own| is_like_an_attribute(own));
                incoming.headers.push((own.unwrap_or(name).to_owned(), value));
            }
        }
    }
    incoming.payload = delivery.data.into();
    (incoming, deliveries)
}

/// Whether a header of this name would pass for an attribute, or for one that would have.
fn is_like_an_attribute(name: &str) -> bool {
    let own = name.trim_start_matches(GUISE);
    own.starts_with(PREFIX) || own.starts_with(OTHER_PREFIX)
}

/// Text and numbers; what the server adds in tables is not for others.
fn header(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).ok(),
        AMQPValue::ShortString(text) => Some(text.to_string()),
        AMQPValue::Boolean(is) => Some(is.to_string()),
        AMQPValue::ShortShortInt(number) => Some(number.to_string()),
        AMQPValue::ShortShortUInt(number) => Some(number.to_string()),
        AMQPValue::ShortInt(number) => Some(number.to_string()),
        AMQPValue::ShortUInt(number) => Some(number.to_string()),
        AMQPValue::LongInt(number) => Some(number.to_string()),
        AMQPValue::LongUInt(number) => Some(number.to_string()),
        AMQPValue::LongLongInt(number) => Some(number.to_string()),
        _ => None,
    }
}

#[derive(Default)]
struct Headers {
    table: FieldTable,
    size: usize,
}

impl Headers {
    fn insert(&mut self, name: &str, value: &str) -> Result<(), SinkError> {
        self.size += 1 + name.len() + 1 + 4 + value.len();
        self.table.insert(short("the name of a header", name)?, AMQPValue::LongString(LongString::from(value)));
        Ok(())
    }
}

fn short(what: &str, text: &str) -> Result<ShortString, SinkError> {
    let size = text.len();
    ShortString::try_new(text)
        .map_err(|_| SinkError::unfit(format_args!("{what} has {size} bytes, and AMQP has room for 255")))
}

/// Seconds since 1970 of a time as RFC 3339 writes it, which is as exact as AMQP has it.
fn seconds(time: &str) -> Option<u64> {
    let number = |from: usize, to: usize| time.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let zone = time.get(19..)?.trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    let offset = match zone.as_bytes() {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), ..] if zone.len() == 6 => {
            let offset = zone.get(1..3)?.parse::<i64>().ok()? * 3600 + zone.get(4..6)?.parse::<i64>().ok()? * 60;
            if *sign == b'+' { offset } else { -offset }
        }
        _ => return None,
    };
    // Days of the proleptic Gregorian calendar, in years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_year = (153 * month + 2) / 5 + day - 1;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + of_year - 719_468;
    u64::try_from(days * 86_400 + hour * 3600 + minute * 60 + second - offset).ok()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pillarbox_core::{Event, domain::Key, port::SinkErrorKind};

    use super::*;

    fn message() -> Message {
        let id = Event::builder("OrderPlaced").json(&()).build().expect("an event").id();
        Message {
            topic: "orders".into(),
            key: Some(Key::from("order-7")),
            id,
            content_type: "application/json".into(),
            attributes: vec![
                ("id".into(), id.to_string()),
                ("type".into(), "OrderPlaced".into()),
                ("time".into(), "1970-01-02T00:00:01Z".into()),
            ],
            headers: vec![("x-note".into(), "grün".into()), ("cloudEvents:id".into(), "forged".into())],
            payload: Bytes::from_static(b"{}"),
        }
    }

    #[test]
    fn everything_has_its_place() {
        let message = message();
        let letter = Letter::new(&message, Routing::Topic, 10).expect("a letter");
        assert_eq!(letter.routing_key.as_str(), "orders");
        let properties = &letter.properties;
        assert_eq!(*properties.delivery_mode(), Some(2));
        assert_eq!(properties.message_id().as_ref().map(ShortString::as_str), Some(&*message.id.to_string()));
        assert_eq!(properties.content_type().as_ref().map(ShortString::as_str), Some("application/json"));
        assert_eq!(properties.kind().as_ref().map(ShortString::as_str), Some("OrderPlaced"));
        assert_eq!(*properties.timestamp(), Some(86_401));
        let headers = properties.headers().as_ref().expect("headers").inner();
        let text = |name: &str| headers.get(name).map(|value| format!("{value:?}")).unwrap_or_default();
        let expected = |value: &str| format!("{:?}", AMQPValue::LongString(value.into()));
        assert_eq!(text("x-note"), expected("grün"));
        assert_eq!(text("cloudEvents:id"), expected(&message.id.to_string()));
        assert_eq!(text("cloudEvents:partitionkey"), expected("order-7"));
        assert_eq!(text("header-cloudEvents:id"), expected("forged"));
        assert_eq!(headers.len(), 6);
        let letter = Letter::new(&message, Routing::Key, 10).expect("a letter");
        assert_eq!(letter.routing_key.as_str(), "order-7");
    }

    #[test]
    fn no_header_passes_for_an_attribute_and_each_comes_as_it_was_sent() {
        let names = [
            "cloudEvents:type",
            "cloudEvents_type",
            "cloudEvents:partitionkey",
            "cloudEvents_partitionkey",
            "cloudEvents:of-nobody",
            "header-cloudEvents_type",
            "header-x",
            "cloudevents",
        ];
        let mut sent = message();
        sent.headers = names.map(|name| (name.to_owned(), name.to_owned())).into();
        let letter = Letter::new(&sent, Routing::Topic, 10).expect("a letter");
        let delivery =
            Delivery { properties: letter.properties, ..Delivery::mock(1, "".into(), "orders".into(), false, vec![]) };
        let (received, _) = incoming(delivery);
        let sorted = |mut all: Vec<(String, String)>| {
            all.sort();
            all
        };
        let attributes = sent.attributes.into_iter().map(|(name, value)| (name.into_owned(), value)).collect();
        assert_eq!(sorted(received.attributes), sorted(attributes));
        assert_eq!(sorted(received.headers), sorted(sent.headers));
        assert_eq!(received.key, sent.key);
    }

    #[test]
    fn what_has_no_room_is_rejected_with_the_reason() {
        let long = "x".repeat(256);
        type Change = fn(&mut Message, String);
        let cases: [(Change, &str); 4] = [
            (|message, long| message.topic = long.into(), "the topic has 256 bytes"),
            (|message, long| message.content_type = long.into(), "the content type has 256 bytes"),
            (|message, long| message.headers.push((long, String::new())), "the name of a header has 256 bytes"),
            (|message, long| message.payload = long.into(), "at most 10 are taken"),
        ];
        for (change, words) in cases {
            let mut message = message();
            change(&mut message, long.clone());
            let error = Letter::new(&message, Routing::Topic, 10).expect_err(words);
            assert_eq!(error.kind(), SinkErrorKind::Rejected);
            assert!(error.to_string().contains(words), "{error}");
        }
        // The header `cloudEvents:type` has it whole.
        let mut message = message();
        message.attributes = vec![("type".into(), long)];
        assert_eq!(*Letter::new(&message, Routing::Topic, 10).expect("a letter").properties.kind(), None);
    }

    #[test]
    fn times_are_read_as_rfc_3339_writes_them() {
        for (time, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2026-01-02T03:04:05Z", Some(1_767_323_045)),
            ("2026-01-02T03:04:05.678901Z", Some(1_767_323_045)),
            ("2026-01-02T05:04:05+02:00", Some(1_767_323_045)),
            ("2024-02-29T12:00:00-00:30", Some(1_709_209_800)),
            ("1969-12-31T23:59:59Z", None),
            ("2026-01-02", None),
            ("2026-13-02T03:04:05Z", None),
            ("grün", None),
            ("", None),
        ] {
            assert_eq!(seconds(time), expected, "{time}");
        }
    }
}
