//! Standard output, or any other writer, as a sink: a JSON line a message.

use std::{fmt, io::Write, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use pillarbox_core::port::{Abilities, BoxFuture, Confirms, Message, Pace, Sent, Sink, SinkError};
use serde_json::{Map, Value, json};

/// Writes each message as a line of JSON: topic, key, attributes, headers, and the payload as JSON, text or base64.
pub struct StdoutSink {
    out: Arc<Mutex<dyn Write + Send>>,
}

impl StdoutSink {
    /// Standard output.
    pub fn new() -> Self {
        Self::to(std::io::stdout())
    }

    /// Another writer.
    pub fn to(out: impl Write + Send + 'static) -> Self {
        Self { out: Arc::new(Mutex::new(out)) }
    }

    fn write(&self, batch: &[Message]) -> std::io::Result<()> {
        let mut lines = Vec::new();
        for message in batch {
            serde_json::to_writer(&mut lines, &line(message))?;
            lines.push(b'\n');
        }
        let mut out = self.out.lock();
        out.write_all(&lines)?;
        out.flush()
    }
}

impl Default for StdoutSink {
    fn default() -> Self {
        Self::new()
    }
}

impl Sink for StdoutSink {
    fn abilities(&self) -> Abilities {
        Abilities { confirms: Confirms::Received, largest: None, keeps_order: true, dedupes: false }
    }

    /// There is nothing to wait for between two.
    fn pace(&self) -> Pace {
        Pace { batches: 1, ..Pace::default() }
    }

    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>> {
        // A pipe that nobody reads blocks, and so does its thread: that is what a pipe is for.
        let sent = self.write(batch).map_err(|error| SinkError::unavailable(format!("the output: {error}")));
        Box::pin(async move { vec![sent; batch.len()] })
    }

    fn check(&self) -> BoxFuture<'_, Sent> {
        Box::pin(async { Ok(()) })
    }
}

impl fmt::Debug for StdoutSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StdoutSink")
    }
}

fn line(message: &Message) -> Value {
    let text = |pairs: &mut dyn Iterator<Item = (String, String)>| {
        Value::Object(pairs.map(|(name, value)| (name, json!(value))).collect::<Map<_, _>>())
    };
    let mut line = json!({
        "topic": &*message.topic,
        "key": message.key.as_ref().map(ToString::to_string),
        "id": message.id.to_string(),
        "content_type": &*message.content_type,
        "attributes": text(&mut message.attributes.iter().map(|(name, value)| (name.to_string(), value.clone()))),
        "headers": text(&mut message.headers.iter().cloned()),
    });
    let json = serde_json::from_slice::<Value>(&message.payload).ok().filter(|_| message.content_type.contains("json"));
    let (name, payload) = match (json, std::str::from_utf8(&message.payload)) {
        (Some(json), _) => ("payload", json),
        (None, Ok(text)) => ("payload", json!(text)),
        (None, Err(_)) => ("payload_base64", json!(STANDARD.encode(&message.payload))),
    };
    line[name] = payload;
    line
}
