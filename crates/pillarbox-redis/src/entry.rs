//! An entry of a stream as Redis gives it.

use bytes::Bytes;
use pillarbox_core::{domain::Key, port::Incoming};
use redis::Value;

/// How the names of attributes and of other headers begin.
const ATTRIBUTE: &str = "ce_";
const HEADER: &str = "header_";

/// An entry: its id, and names and values in their order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: String,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    /// The message that it is. Names and values that are no text are left out, but for the payload.
    pub(crate) fn incoming(self, stream: &str) -> Incoming {
        let mut id = None;
        let mut incoming = Incoming { topic: stream.to_owned(), ..Incoming::default() };
        // Most of them are attributes.
        incoming.attributes.reserve_exact(self.fields.len());
        for (name, value) in self.fields {
            let Ok(mut name) = String::from_utf8(name) else { continue };
            if name == "payload" {
                incoming.payload = Bytes::from(value);
                continue;
            }
            let Ok(value) = String::from_utf8(value) else { continue };
            if name.starts_with(ATTRIBUTE) {
                name.drain(..ATTRIBUTE.len());
                incoming.attributes.push((name, value));
            } else if name.starts_with(HEADER) {
                name.drain(..HEADER.len());
                incoming.headers.push((name, value));
            } else {
                match &*name {
                    "id" => id = Some(value),
                    "key" => incoming.key = Some(Key::from(value)),
                    "content-type" => incoming.content_type = value,
                    // Of a program that knows nothing of us: a message of several fields.
                    _ => incoming.headers.push((name, value)),
                }
            }
        }
        // Ids of entries grow with the time: also after a stream was deleted, none comes twice.
        incoming.id = Some(id.unwrap_or_else(|| format!("{stream}:{}", self.id)));
        incoming
    }
}

/// The answer to `XREADGROUP`: streams with their entries, or nothing.
pub(crate) fn of_streams(answer: Value) -> Vec<(String, Vec<Entry>)> {
    let streams = match answer {
        Value::Map(streams) => streams,
        Value::Array(streams) => streams.into_iter().filter_map(pair).collect(),
        _ => Vec::new(),
    };
    streams.into_iter().filter_map(|(name, entries)| Some((text(name)?, all(entries)))).collect()
}

/// The answer to `XCLAIM`: entries. Those that were deleted meanwhile are nothing.
pub(crate) fn all(answer: Value) -> Vec<Entry> {
    let Value::Array(entries) = answer else { return Vec::new() };
    entries.into_iter().filter_map(pair).filter_map(one).collect()
}

/// How many entries wait for a group, and are out, by the answer to `XINFO GROUPS`; nothing if Redis does not know.
pub(crate) fn lag(answer: Value, group: &str) -> Option<u64> {
    let Value::Array(groups) = answer else { return None };
    groups.into_iter().map(fields).find_map(|fields| {
        let number = |name: &str| {
            let field = fields.iter().find(|(other, _)| other == name.as_bytes());
            field.and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse::<u64>().ok())
        };
        let is_it = fields.iter().any(|(name, value)| name == b"name" && value == group.as_bytes());
        is_it.then(|| number("lag").zip(number("pending")).map(|(lag, pending)| lag + pending))
    })?
}

fn one((id, of_entry): (Value, Value)) -> Option<Entry> {
    if of_entry == Value::Nil {
        return None;
    }
    Some(Entry { id: text(id)?, fields: fields(of_entry) })
}

fn pair(value: Value) -> Option<(Value, Value)> {
    let Value::Array(two) = value else { return None };
    let mut two = two.into_iter();
    Some((two.next()?, two.next()?))
}

/// Names and values by turns, or a map.
fn fields(value: Value) -> Vec<(Vec<u8>, Vec<u8>)> {
    let both = |name: Value, value: Value| Some((bytes(name)?, bytes(value)?));
    match value {
        Value::Map(pairs) => pairs.into_iter().filter_map(|(name, value)| both(name, value)).collect(),
        Value::Array(flat) => {
            let mut fields = Vec::with_capacity(flat.len() / 2);
            let mut flat = flat.into_iter();
            while let (Some(name), Some(value)) = (flat.next(), flat.next()) {
                fields.extend(both(name, value));
            }
            fields
        }
        _ => Vec::new(),
    }
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        Value::Int(number) => Some(number.to_string().into_bytes()),
        _ => None,
    }
}

fn text(value: Value) -> Option<String> {
    String::from_utf8(bytes(value)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(reply: &str) -> Value {
        redis::parse_redis_value(reply.replace(' ', "\r\n").as_bytes()).expect(reply)
    }

    #[test]
    fn an_entry_becomes_a_message() {
        let fields = [
            ("id", "e-1"),
            ("key", "k"),
            ("content-type", "text/plain"),
            ("ce_type", "T"),
            ("header_x", "ü"),
            ("other", "o"),
            ("payload", "p"),
        ];
        let fields = fields.map(|(name, value)| (name.into(), value.into())).to_vec();
        let incoming = Entry { id: "7-0".into(), fields }.incoming("orders");
        let expected = Incoming {
            topic: "orders".into(),
            key: Some(Key::from("k")),
            id: Some("e-1".into()),
            content_type: "text/plain".into(),
            attributes: vec![("type".into(), "T".into())],
            headers: vec![("x".into(), "ü".into()), ("other".into(), "o".into())],
            payload: "p".into(),
        };
        assert_eq!(incoming, expected);
        let bare = Entry { id: "7-0".into(), fields: vec![(b"payload".to_vec(), vec![0, 255])] }.incoming("orders");
        assert_eq!((bare.id.as_deref(), &bare.payload[..]), (Some("orders:7-0"), &[0, 255][..]));
        let strange = Entry { id: "7-0".into(), fields: vec![(vec![255], b"v".to_vec()), (b"a".to_vec(), vec![255])] };
        assert_eq!(strange.incoming("orders").headers, []);
    }

    #[test]
    fn answers_are_read_in_both_protocols() {
        let entry = "*2 $3 1-0 *2 $1 a $1 b ";
        let expected =
            [("s".to_owned(), vec![Entry { id: "1-0".into(), fields: vec![(b"a".to_vec(), b"b".to_vec())] }])];
        assert_eq!(of_streams(said(&format!("*1 *2 $1 s *1 {entry}"))), expected);
        assert_eq!(of_streams(said(&format!("%1 $1 s *1 {entry}"))), expected);
        assert_eq!(of_streams(Value::Nil), []);
        assert_eq!(all(said(&format!("*3 {entry}*2 $3 2-0 $-1 $-1 "))), expected[0].1);
    }

    #[test]
    fn the_lag_is_that_of_the_group() {
        let group = |name: &str, lag: &str| format!("*6 $4 name ${} {name} $7 pending :2 $3 lag {lag} ", name.len());
        let both = said(&format!("*2 {}{}", group("a", ":1"), group("bc", ":40")));
        assert_eq!((lag(both.clone(), "bc"), lag(both.clone(), "a"), lag(both, "d")), (Some(42), Some(3), None));
        assert_eq!(lag(said(&format!("*1 {}", group("a", "$-1"))), "a"), None);
    }
}
