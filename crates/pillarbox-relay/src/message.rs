//! From an event to a message: CloudEvents 1.0.

use std::{borrow::Cow, fmt::Write as _};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use pillarbox_core::{
    Event,
    domain::{AggregateType, Headers, Key, Timestamp},
    port::Message,
};
use serde_json::{Map, Value, json, value::RawValue};

use crate::rules::Target;

/// How the attributes of an event travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Beside the payload, which is what was written to the byte.
    #[default]
    Binary,
    /// In one JSON document with the payload.
    Structured,
}

/// The content type of the structured mode.
const STRUCTURED: &str = "application/cloudevents+json";

/// Makes the message of an event. `source` says who sends it, as CloudEvents want it: a URI reference.
pub fn message(event: &Event, target: Target, mode: Mode, source: &str) -> Message {
    traced(event, None, target, mode, source)
}

/// The same, and the message continues this trace, unless the rule says otherwise.
pub(crate) fn traced(event: &Event, trace: Option<&Headers>, target: Target, mode: Mode, source: &str) -> Message {
    let key = match target.key {
        Some(key) => key.map(Key::from),
        None => event.key().cloned(),
    };
    let payload = event.payload();
    let mut headers: Vec<(String, String)> =
        event.headers().iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let of_trace = trace.into_iter().flat_map(Headers::iter).map(|(name, value)| (name.to_owned(), value.to_owned()));
    for (name, value) in of_trace.chain(target.headers) {
        headers.retain(|(other, _)| *other != name);
        headers.push((name, value));
    }
    let attributes = attributes(event, key.as_ref(), source);
    let (content_type, attributes, payload) = match mode {
        Mode::Binary => (payload.content_type().into(), attributes, payload.as_bytes().clone()),
        Mode::Structured => (STRUCTURED.into(), Vec::new(), structured(event, attributes)),
    };
    Message { topic: target.topic, key, id: event.id(), content_type, attributes, headers, payload }
}

/// The attributes, in the order of the specification; then those of the partitioning extension, and Pillarbox's own.
fn attributes(event: &Event, key: Option<&Key>, source: &str) -> Vec<(Cow<'static, str>, String)> {
    let mut attributes = Vec::with_capacity(9);
    let mut add = |name: &'static str, value: String| attributes.push((Cow::Borrowed(name), value));
    add("specversion", "1.0".to_owned());
    add("id", event.id().to_string());
    add("source", source.to_owned());
    add("type", event.event_type().as_str().to_owned());
    add("time", time(event.occurred_at()));
    let optional = [
        ("aggregatetype", aggregate_type(event)),
        ("subject", event.aggregate_id()),
        ("partitionkey", key.map(Key::as_str)),
        ("tenantid", event.tenant_id()),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            add(name, value.to_owned());
        }
    }
    attributes
}

/// What the event happened to, if it names one: the name for none is Pillarbox's own affair.
pub(crate) fn aggregate_type(event: &Event) -> Option<&str> {
    Some(event.aggregate_type().as_str()).filter(|name| *name != AggregateType::GLOBAL)
}

/// With room from the beginning: a number at a time, its text would grow again and again.
fn time(at: Timestamp) -> String {
    let mut text = String::with_capacity(32);
    // A string takes everything.
    let _ = write!(text, "{at}");
    text
}

fn structured(event: &Event, attributes: Vec<(Cow<'static, str>, String)>) -> Bytes {
    #[derive(serde::Serialize)]
    struct Document<'a> {
        #[serde(flatten)]
        attributes: Map<String, Value>,
        datacontenttype: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<&'a RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        data_base64: Option<String>,
    }
    let payload = event.payload();
    let kind = payload.content_type().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = kind == "application/json" || kind.ends_with("+json");
    let data = is_json.then(|| serde_json::from_slice::<&RawValue>(payload.as_bytes()).ok()).flatten();
    let document = Document {
        attributes: attributes.into_iter().map(|(name, value)| (name.into_owned(), json!(value))).collect(),
        datacontenttype: payload.content_type(),
        data,
        data_base64: data.is_none().then(|| STANDARD.encode(payload.as_bytes())),
    };
    // Texts and JSON that was just read: there is nothing that could not be written.
    serde_json::to_vec(&document).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        Target { topic: "orders".into(), key: None, headers: Vec::new() }
    }

    fn placed() -> Event {
        let event = Event::builder("OrderPlaced").aggregate("Order", "7").tenant("acme").key("order-7");
        event.header("traceparent", "00-1-2-01").json_text(r#"{ "total": 4200 }"#).build().unwrap()
    }

    #[test]
    fn binary_mode_leaves_the_payload_as_it_was_written() {
        let event = placed();
        let message = message(&event, target(), Mode::Binary, "/orders");
        assert_eq!(message.payload, r#"{ "total": 4200 }"#);
        assert_eq!(&*message.content_type, "application/json");
        assert_eq!(message.key, Some(Key::from("order-7")));
        let attribute = |name| message.attributes.iter().find(|(other, _)| *other == name).map(|(_, value)| &**value);
        assert_eq!(attribute("specversion"), Some("1.0"));
        assert_eq!(attribute("id"), Some(&*event.id().to_string()));
        assert_eq!(attribute("source"), Some("/orders"));
        assert_eq!(attribute("type"), Some("OrderPlaced"));
        assert_eq!(attribute("subject"), Some("7"));
        assert_eq!(attribute("partitionkey"), Some("order-7"));
        assert_eq!(attribute("tenantid"), Some("acme"));
        assert!(attribute("time").is_some_and(|time| time.ends_with('Z')), "{:?}", message.attributes);
        assert!(message.headers.contains(&("traceparent".into(), "00-1-2-01".into())));
    }

    #[test]
    fn an_event_without_an_aggregate_says_nothing_of_one() {
        let bare = Event::builder("Ping").json(&1).build().unwrap();
        for event in [bare, placed()] {
            let expected = (event.event_type().as_str() == "OrderPlaced").then_some("Order");
            let binary = message(&event, target(), Mode::Binary, "/");
            let found = binary.attributes.iter().find(|(name, _)| name == "aggregatetype");
            assert_eq!(found.map(|(_, value)| value.as_str()), expected, "{:?}", binary.attributes);
            let document = message(&event, target(), Mode::Structured, "/").payload;
            let document: Value = serde_json::from_slice(&document).unwrap();
            assert_eq!(document.get("aggregatetype").and_then(Value::as_str), expected, "{document}");
        }
    }

    #[test]
    fn structured_mode_is_one_document() {
        let message = message(&placed(), target(), Mode::Structured, "/orders");
        assert_eq!(&*message.content_type, "application/cloudevents+json");
        assert!(message.attributes.is_empty());
        let document: Value = serde_json::from_slice(&message.payload).unwrap();
        assert_eq!(document["data"]["total"], 4200);
        assert_eq!(document["datacontenttype"], "application/json");
        assert_eq!(document["type"], "OrderPlaced");
        assert_eq!(document["specversion"], "1.0");
        assert!(document.get("data_base64").is_none());
        // Numbers and their writing are the writer's.
        assert!(std::str::from_utf8(&message.payload).unwrap().contains(r#"{ "total": 4200 }"#));
    }

    #[test]
    fn bytes_are_base64_in_a_document() {
        let event = Event::builder("x").bytes("application/x-protobuf", &b"\x00\xffab"[..]).build().unwrap();
        let message = message(&event, target(), Mode::Structured, "/");
        let document: Value = serde_json::from_slice(&message.payload).unwrap();
        assert_eq!(document["data_base64"], "AP9hYg==");
        assert!(document.get("data").is_none());
    }

    #[test]
    fn a_message_continues_the_trace_of_its_delivery() {
        let trace = Headers::from_iter([("traceparent", "00-1-3-01"), ("tracestate", "a=1")]);
        let of = |target| traced(&placed(), Some(&trace), target, Mode::Binary, "/").headers;
        let headers = of(target());
        assert_eq!(headers.iter().filter(|(name, _)| name == "traceparent").count(), 1);
        assert!(headers.contains(&("traceparent".into(), "00-1-3-01".into())), "{headers:?}");
        assert!(headers.contains(&("tracestate".into(), "a=1".into())), "{headers:?}");
        let headers = of(Target { headers: vec![("traceparent".into(), "the rule's".into())], ..target() });
        assert!(headers.contains(&("traceparent".into(), "the rule's".into())), "{headers:?}");
    }

    #[test]
    fn a_rules_key_and_headers_come_before_the_events() {
        let target = Target {
            topic: "t".into(),
            key: Some(None),
            headers: vec![("traceparent".into(), "other".into()), ("x".into(), "y".into())],
        };
        let message = message(&placed(), target, Mode::Binary, "/");
        assert_eq!(message.key, None);
        assert_eq!(message.headers.iter().filter(|(name, _)| name == "traceparent").count(), 1);
        assert!(message.headers.contains(&("traceparent".into(), "other".into())));
    }
}
