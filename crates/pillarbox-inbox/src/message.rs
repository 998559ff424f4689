//! From a message of a broker to an event, as handlers take it.

use std::{borrow::Cow, fmt::Write as _, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use pillarbox_core::{
    Event, EventId,
    domain::{JSON, Payload, Timestamp},
    port::{Incoming, NAME_LIMIT},
};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use ulid::Ulid;

use crate::letters::{REPLAY_OF, is_of_replay};

/// The content type of CloudEvents in one document.
pub(crate) const STRUCTURED: &str = "application/cloudevents+json";

/// A message in structured mode.
type Document = Map<String, Value>;

/// What is known of a message without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// What it is known by when it comes again.
    pub(crate) id: String,
    pub(crate) event_type: String,
    pub(crate) source: Option<String>,
    pub(crate) saga_id: Option<String>,
    pub(crate) correlation_id: Option<String>,
}

/// Reads what can be read: of any message.
pub(crate) fn facts(message: &Incoming) -> Facts {
    let document = document(message).ok().flatten();
    let attribute = |name: &str| attribute(message, document.as_ref(), name).map(Cow::into_owned);
    let either = |header: &str, name: &str| message.header(header).map(str::to_owned).or_else(|| attribute(name));
    Facts {
        id: id(message, document.as_ref()).into_owned(),
        event_type: attribute("type").unwrap_or_else(|| message.topic.clone()),
        source: attribute("source"),
        saga_id: either("saga-id", "sagaid"),
        correlation_id: either("correlation-id", "correlationid"),
    }
}

/// What a message is known by when it comes again, and the event that it carries, or why it carries none.
pub(crate) fn read(message: &Incoming) -> (Arc<str>, Result<Event, String>) {
    let document = document(message);
    let known = document.as_ref().map(Option::as_ref);
    let id = id(message, known.ok().flatten());
    let event = known.map_err(Clone::clone).and_then(|document| event(message, document, &id));
    (id.into(), event)
}

/// An attribute, beside the payload or in it.
fn attribute<'a>(message: &'a Incoming, document: Option<&'a Document>, name: &str) -> Option<Cow<'a, str>> {
    match message.attribute(name) {
        Some(beside) => Some(beside.into()),
        None => document.and_then(|document| document.get(name)).and_then(text),
    }
}

fn id<'a>(message: &'a Incoming, document: Option<&'a Document>) -> Cow<'a, str> {
    // Of a replay first: what is broken in a message may be its id.
    let of_replay = message.header(REPLAY_OF).filter(|of| !of.is_empty()).map(Cow::from);
    let own = of_replay.or_else(|| attribute(message, document, "id"));
    own.or_else(|| message.id.as_deref().map(Cow::from))
        .and_then(storable)
        .unwrap_or_else(|| content_id(message).into())
}

/// Attributes that have a place of their own in an event; the others are headers.
const KNOWN: [&str; 13] = [
    "specversion",
    "id",
    "source",
    "type",
    "time",
    "subject",
    "datacontenttype",
    "dataschema",
    "partitionkey",
    "aggregatetype",
    "tenantid",
    "data",
    "data_base64",
];

fn event(message: &Incoming, document: Option<&Document>, id: &str) -> Result<Event, String> {
    let attribute = |name: &str| attribute(message, document, name);
    let payload = match document {
        Some(document) => data(document)?,
        None => payload(&message.content_type, message.payload.clone()),
    };
    let event_type = attribute("type").unwrap_or_else(|| message.topic.as_str().into());
    let mut builder = Event::builder(&*event_type).id(event_id(id)).payload(payload);
    if let Some(aggregate) = attribute("aggregatetype") {
        builder = builder.aggregate_type(&*aggregate);
    }
    if let Some(id) = attribute("subject") {
        builder = builder.aggregate_id(id);
    }
    if let Some(tenant) = attribute("tenantid") {
        builder = builder.tenant(tenant);
    }
    if let Some(key) = message.key.clone().or_else(|| attribute("partitionkey").map(|key| (&*key).into())) {
        builder = builder.key(key);
    }
    if let Some(time) = attribute("time").and_then(|time| parse_time(&time)) {
        builder = builder.occurred_at(time);
    }
    // Not what is said of a replay: a handler may pass its headers on with an event of its own, which is for everybody.
    for (name, value) in message.headers.iter().filter(|(name, _)| !is_of_replay(name)) {
        builder = builder.header(name.as_str(), value.as_str());
    }
    let beside = message.attributes.iter().map(|(name, value)| (name, Some(Cow::from(value))));
    let inside = document.into_iter().flatten().map(|(name, value)| (name, text(value)));
    for (name, value) in beside.chain(inside).filter(|(name, _)| !KNOWN.contains(&name.as_str())) {
        if let Some(value) = value {
            builder = builder.header(name.as_str(), value);
        }
    }
    builder.build().map_err(|error| error.to_string())
}

pub(crate) fn is_json(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    let end = kind.len().checked_sub("+json".len()).and_then(|begin| kind.get(begin..));
    kind.eq_ignore_ascii_case(JSON) || end.is_some_and(|end| end.eq_ignore_ascii_case("+json"))
}

/// The attributes and the data of a message in structured mode; none if it is in binary mode.
fn document(message: &Incoming) -> Result<Option<Document>, String> {
    let begins = message.content_type.get(..STRUCTURED.len());
    if !begins.is_some_and(|begins| begins.eq_ignore_ascii_case(STRUCTURED)) {
        return Ok(None);
    }
    match serde_json::from_slice(&message.payload) {
        Ok(Value::Object(document)) => Ok(Some(document)),
        Ok(_) => Err("the CloudEvent is not a JSON object".into()),
        Err(error) => Err(format!("the CloudEvent is not JSON: {error}")),
    }
}

/// The payload that stands in a document, to the byte as far as JSON keeps it.
fn data(document: &Document) -> Result<Payload, String> {
    let content_type = document.get("datacontenttype").and_then(Value::as_str).unwrap_or(JSON);
    if let Some(bytes) = document.get("data_base64").and_then(Value::as_str) {
        let bytes = STANDARD.decode(bytes).map_err(|error| format!("data_base64 is not base64: {error}"))?;
        return Ok(payload(content_type, bytes.into()));
    }
    let data = document.get("data").unwrap_or(&Value::Null);
    match data {
        Value::String(text) if !is_json(content_type) => Ok(Payload::stored(content_type, text.clone(), true)),
        data => Ok(payload(content_type, data.to_string().into())),
    }
}

fn payload(content_type: &str, body: Bytes) -> Payload {
    let content_type = if content_type.is_empty() { JSON } else { content_type };
    let is_text = is_json(content_type) && std::str::from_utf8(&body).is_ok();
    if is_text { Payload::stored(content_type, body, true) } else { Payload::bytes(content_type, body) }
}

/// The id of an event; one that is no ULID stands for itself by its hash.
fn event_id(id: &str) -> EventId {
    id.parse().unwrap_or_else(|_| {
        let hash = Sha256::digest(id.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash[..16]);
        EventId::from_ulid(Ulid::from_bytes(bytes))
    })
}

/// The longest id that is stored as it is: there is room for the number of a replay behind it.
const LONGEST_ID: usize = NAME_LIMIT - 20;

/// What a message of this id is known by: one that is too long stands for itself by its hash, or its message could never be
/// marked, entered or parked. An empty one is none.
fn storable(id: Cow<'_, str>) -> Option<Cow<'_, str>> {
    match id.len() {
        0 => None,
        1..=LONGEST_ID => Some(id),
        _ => Some(format!("sha256-{}", hex(&Sha256::digest(id.as_bytes())[..16])).into()),
    }
}

/// What a message without any id is known by: its content, so that the same one is known again.
fn content_id(message: &Incoming) -> String {
    let mut hash = Sha256::new();
    hash.update(message.topic.as_bytes());
    hash.update([0]);
    hash.update(&message.payload);
    format!("sha256-{}", hex(&hash.finalize()[..16]))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut hex, byte| {
        // A text takes everything.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
        other => Some(other.to_string().into()),
    }
}

/// A time of RFC 3339, such as `2026-01-02T03:04:05.678Z`, with any offset. None if it is not one.
fn parse_time(text: &str) -> Option<Timestamp> {
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (clock, offset) = match rest.find(['Z', 'z', '+', '-']) {
        Some(at) => rest.split_at(at),
        None => return None,
    };
    let offset = match offset.strip_prefix(['+', '-']) {
        Some(span) => {
            let (hours, minutes) = span.split_once(':')?;
            let seconds = hours.parse::<i64>().ok()? * 3_600 + minutes.parse::<i64>().ok()? * 60;
            if offset.starts_with('-') { -seconds } else { seconds }
        }
        None => 0,
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut clock = clock.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let in_range = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second)
        && (0..10_000).contains(&year);
    if !in_range || !fraction.bytes().all(|byte| byte.is_ascii_digit()) || fraction.is_empty() {
        return None;
    }
    let digits = fraction.bytes().map(|digit| i64::from(digit - b'0')).chain(std::iter::repeat(0));
    let micros = digits.take(6).fold(0, |micros, digit| micros * 10 + digit);
    // Years begin in March here, so that the leap day is the last of its year.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second - offset;
    Some(Timestamp::from_micros(seconds * 1_000_000 + micros))
}

#[cfg(test)]
mod tests {
    use pillarbox_core::domain::Key;
    use proptest::prelude::*;

    use super::*;

    fn event_of(message: &Incoming) -> Result<Event, String> {
        read(message).1
    }

    fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn binary() -> Incoming {
        Incoming {
            topic: "orders".into(),
            key: Some(Key::from("order-7")),
            id: Some("of the broker".into()),
            content_type: "application/json".into(),
            attributes: pairs(&[
                ("specversion", "1.0"),
                ("id", "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
                ("source", "/orders"),
                ("type", "OrderPlaced"),
                ("time", "2026-01-02T03:04:05.678901Z"),
                ("subject", "7"),
                ("tenantid", "acme"),
                ("aggregatetype", "Order"),
                ("sagaid", "s-1"),
            ]),
            headers: pairs(&[("traceparent", "00-1-2-01"), ("Correlation-Id", "c-1")]),
            payload: Bytes::from_static(b"{\"total\": 4200}"),
        }
    }

    #[test]
    fn a_message_in_binary_mode_is_the_event_it_was() {
        let event = event_of(&binary()).unwrap();
        assert_eq!(event.id().to_string(), "01ARZ3NDEKTSV4RRFFQ69G5FAV");
        assert_eq!(event.event_type().as_str(), "OrderPlaced");
        assert_eq!(event.aggregate_type().as_str(), "Order");
        assert_eq!((event.aggregate_id(), event.tenant_id()), (Some("7"), Some("acme")));
        assert_eq!(event.key().map(Key::as_str), Some("order-7"));
        assert_eq!(event.payload().as_bytes(), &binary().payload);
        assert_eq!(event.headers().get("traceparent"), Some("00-1-2-01"));
        assert_eq!(event.headers().get("sagaid"), Some("s-1"), "extensions are headers");
        assert_eq!(event.occurred_at().to_string(), "2026-01-02T03:04:05.678901Z");
        let facts = facts(&binary());
        assert_eq!((facts.saga_id.as_deref(), facts.correlation_id.as_deref()), (Some("s-1"), Some("c-1")));
    }

    #[test]
    fn a_message_in_structured_mode_is_the_same() {
        let payload = br#"{"specversion":"1.0","id":"e-1","source":"/x","type":"OrderPlaced","partitionkey":"k","n":7,
            "datacontenttype":"application/json","data":{"total":4200}}"#;
        let message = Incoming {
            content_type: "application/cloudevents+json; charset=utf-8".into(),
            payload: Bytes::from_static(payload),
            ..Incoming::default()
        };
        let event = event_of(&message).unwrap();
        assert_eq!(event.payload().to::<Value>().unwrap()["total"], 4200);
        assert_eq!(event.key().map(Key::as_str), Some("k"));
        assert_eq!(event.headers().get("n"), Some("7"));
        assert_eq!(facts(&message).id, "e-1");
        let bytes = Incoming {
            payload: Bytes::from_static(br#"{"id":"e","type":"t","datacontenttype":"x/y","data_base64":"AP8="}"#),
            ..message
        };
        assert_eq!(event_of(&bytes).unwrap().payload().as_bytes()[..], [0, 255]);
    }

    #[test]
    fn a_message_that_is_no_cloud_event_goes_by_its_topic_and_the_brokers_id() {
        let plain = Incoming { topic: "orders".into(), id: Some("m-1".into()), payload: "7".into(), ..<_>::default() };
        let event = event_of(&plain).unwrap();
        assert_eq!(event.event_type().as_str(), "orders");
        assert_eq!(event.id(), event_of(&plain).unwrap().id(), "the same id each time");
        assert_eq!(event.payload().to::<i64>().unwrap(), 7);
        let nameless = Incoming { id: None, ..plain };
        assert_eq!(facts(&nameless).id, facts(&nameless.clone()).id);
        assert_ne!(facts(&nameless).id, facts(&Incoming { payload: "8".into(), ..nameless.clone() }).id);
    }

    #[test]
    fn an_id_that_is_too_long_or_empty_is_replaced_by_one_that_can_be_stored() {
        let of = |id: &str| facts(&Incoming { id: Some(id.into()), payload: "7".into(), ..<_>::default() }).id;
        assert_eq!(of(&"x".repeat(180)).len(), 180);
        let long = of(&"x".repeat(181));
        assert!(long.len() < 180 && long == of(&"x".repeat(181)) && long != of(&"x".repeat(182)), "{long}");
        assert!(of("").starts_with("sha256-"));
    }

    #[test]
    fn what_is_no_event_is_told() {
        let message = |payload: &'static [u8]| Incoming {
            content_type: STRUCTURED.into(),
            payload: Bytes::from_static(payload),
            ..Incoming::default()
        };
        for (payload, words) in
            [(&b"{"[..], "not JSON"), (b"[]", "not a JSON object"), (br#"{"data_base64":"%"}"#, "base64")]
        {
            assert!(event_of(&message(payload)).unwrap_err().contains(words));
        }
        let large = Incoming { topic: "t".into(), payload: vec![b'x'; 2 << 20].into(), ..Incoming::default() };
        assert!(event_of(&large).is_err());
    }

    #[test]
    fn json_is_known_by_its_content_type_in_any_letter_case() {
        for json in ["application/json", " Application/JSON ; charset=utf-8", "application/vnd.Acme+Json", "+json"] {
            assert!(is_json(json), "{json}");
        }
        for other in ["", "json", "application/json5", "text/plain; x=+json", "application/json+x", "ü+jsön"] {
            assert!(!is_json(other), "{other}");
        }
    }

    #[test]
    fn times_are_read_with_any_offset() {
        let read = |text| parse_time(text).map(|time| time.to_string());
        assert_eq!(read("2026-01-02T03:04:05Z").as_deref(), Some("2026-01-02T03:04:05.000000Z"));
        assert_eq!(read("2024-02-29t23:30:00.5+01:30").as_deref(), Some("2024-02-29T22:00:00.500000Z"));
        assert_eq!(read("1969-12-31T23:59:59-01:00").as_deref(), Some("1970-01-01T00:59:59.000000Z"));
        for bad in ["", "2026", "2026-13-01T00:00:00Z", "2026-01-02T03:04:05", "2026-01-02T03:04:05.xZ", "T::Z"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_written_time_is_read_back(micros in 0_i64..250_000_000_000_000_000) {
            let time = Timestamp::from_micros(micros);
            prop_assert_eq!(parse_time(&time.to_string()), Some(time));
        }

        #[test]
        fn no_text_is_too_strange_for_a_time(text in ".{0,40}") {
            let _ = parse_time(&text);
        }
    }
}
