//! Standard output, or any other writer, as a sink: a JSON line a message.
//!
//! A pipe that nobody reads blocks who writes to it. So a thread of the sink's own does, one batch at a time: who waits for
//! it can give up, and the process can end.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt,
    io::{self, Write},
    sync::{Arc, OnceLock, mpsc},
    thread,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use pillarbox_core::{
    domain::Key,
    port::{Abilities, BoxFuture, Confirms, Message, Pace, Sent, Sink, SinkError},
};
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Writes each message as a line of JSON: topic, key, attributes, headers, and the payload as JSON, text or base64.
pub struct StdoutSink {
    out: Arc<Mutex<dyn Write + Send>>,
    /// Of the thread, which the first batch starts.
    queue: OnceLock<mpsc::Sender<Job>>,
    /// Of who may write. A batch keeps it until it is written, whether anybody waits for that or not.
    turn: Arc<Semaphore>,
}

struct Job {
    lines: Vec<u8>,
    turn: OwnedSemaphorePermit,
    done: oneshot::Sender<io::Result<()>>,
}

impl StdoutSink {
    /// Standard output.
    pub fn new() -> Self {
        Self::to(io::stdout())
    }

    /// Another writer.
    pub fn to(out: impl Write + Send + 'static) -> Self {
        Self { out: Arc::new(Mutex::new(out)), queue: OnceLock::new(), turn: Arc::new(Semaphore::new(1)) }
    }

    async fn write(&self, batch: &[Message]) -> io::Result<()> {
        // Nobody closes it.
        let turn = self.turn.clone().acquire_owned().await.map_err(io::Error::other)?;
        let mut lines = Vec::new();
        for message in batch {
            serde_json::to_writer(&mut lines, &line(message)?)?;
            lines.push(b'\n');
        }
        let (done, written) = oneshot::channel();
        let gone = || io::Error::other("the thread that writes is gone");
        self.queue()?.send(Job { lines, turn, done }).map_err(|_| gone())?;
        written.await.map_err(|_| gone())?
    }

    /// Only one has its turn: the thread is not started twice.
    fn queue(&self) -> io::Result<&mpsc::Sender<Job>> {
        if let Some(queue) = self.queue.get() {
            return Ok(queue);
        }
        let (queue, jobs) = mpsc::channel::<Job>();
        let out = self.out.clone();
        // Not one of the runtime's: at its end, that would wait for it.
        thread::Builder::new().name("pillarbox-stdout".into()).spawn(move || {
            for Job { lines, turn, done } in jobs {
                let mut out = out.lock();
                let written = out.write_all(&lines).and_then(|()| out.flush());
                drop(turn);
                // Who does not wait any more is delivered to again.
                let _ = done.send(written);
            }
        })?;
        Ok(self.queue.get_or_init(|| queue))
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
        Box::pin(async move {
            let sent = self.write(batch).await;
            vec![sent.map_err(|error| SinkError::unavailable(format!("the output: {error}"))); batch.len()]
        })
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

#[derive(serde::Serialize)]
struct Line<'a> {
    topic: &'a str,
    key: Option<&'a str>,
    id: String,
    content_type: &'a str,
    attributes: BTreeMap<&'a str, &'a str>,
    headers: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Cow<'a, RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

fn line(message: &Message) -> io::Result<Line<'_>> {
    let payload = match std::str::from_utf8(&message.payload) {
        Ok(text) => Some(match json(message, text) {
            Some(json) => json,
            None => Cow::Owned(to_raw_value(text)?),
        }),
        Err(_) => None,
    };
    Ok(Line {
        topic: &message.topic,
        key: message.key.as_ref().map(Key::as_str),
        id: message.id.to_string(),
        content_type: &message.content_type,
        attributes: message.attributes.iter().map(|(name, value)| (&**name, &**value)).collect(),
        headers: message.headers.iter().map(|(name, value)| (&**name, &**value)).collect(),
        payload_base64: payload.is_none().then(|| STANDARD.encode(&message.payload)),
        payload,
    })
}

/// JSON as it was written, in one line.
fn json<'a>(message: &Message, text: &'a str) -> Option<Cow<'a, RawValue>> {
    let json: &RawValue = serde_json::from_str(text).ok().filter(|_| message.content_type.contains("json"))?;
    if !json.get().contains(['\n', '\r']) {
        return Some(Cow::Borrowed(json));
    }
    // They stand between values only: a text has them as \n and \r.
    RawValue::from_string(json.get().replace(['\n', '\r'], " ")).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use pillarbox_core::Event;
    use serde_json::Value;

    use super::*;

    fn message(content_type: &str, payload: &'static [u8]) -> Message {
        Message {
            topic: "orders".into(),
            key: Some("k".into()),
            id: Event::builder("Placed").json(&1).build().unwrap().id(),
            content_type: content_type.into(),
            attributes: vec![("type".into(), "Placed".into())],
            headers: vec![("region".into(), "eu".into())],
            payload: Bytes::from_static(payload),
        }
    }

    fn written(content_type: &str, payload: &'static [u8]) -> String {
        serde_json::to_string(&line(&message(content_type, payload)).unwrap()).unwrap()
    }

    #[test]
    fn json_stands_as_it_was_written_and_in_one_line() {
        let text = written("application/json", br#"{ "n": 12345678901234567890123, "b": 1.10, "a": 1e2 }"#);
        assert!(text.contains(r#""payload":{ "n": 12345678901234567890123, "b": 1.10, "a": 1e2 }"#), "{text}");
        let text = written("application/cloudevents+json", b"{\r\n  \"a\": \"b\\nc\"\n}\n");
        assert!(!text.contains(['\n', '\r']), "{text}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["payload"]["a"], "b\nc");
    }

    #[test]
    fn what_is_no_json_is_text_or_base64() {
        for (content_type, payload, name, expected) in [
            ("text/plain", &b"plain \"words\"\n"[..], "payload", "plain \"words\"\n"),
            ("text/plain", b"{}", "payload", "{}"),
            ("application/json", b"{ broken", "payload", "{ broken"),
            ("application/x-protobuf", b"\x00\xffab", "payload_base64", "AP9hYg=="),
            ("application/json", b"\xff", "payload_base64", "/w=="),
        ] {
            let line: Value = serde_json::from_str(&written(content_type, payload)).unwrap();
            assert_eq!(line[name], expected, "{line}");
            let other = if name == "payload" { "payload_base64" } else { "payload" };
            assert!(line.get(other).is_none(), "{line}");
            assert_eq!((&line["topic"], &line["key"]), (&"orders".into(), &"k".into()));
            assert_eq!((&line["attributes"]["type"], &line["headers"]["region"]), (&"Placed".into(), &"eu".into()));
        }
    }

    /// Takes a line whenever it is let, and remembers it.
    struct Pipe {
        let_in: mpsc::Receiver<()>,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.let_in.recv().map_err(io::Error::other)?;
            self.taken.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// On one thread: who blocked it would block the timeout too.
    #[tokio::test]
    async fn who_waits_for_a_pipe_that_nobody_reads_can_give_up() {
        let (reads, let_in) = mpsc::channel();
        let taken = Arc::default();
        let sink = StdoutSink::to(Pipe { let_in, taken: Arc::clone(&taken) });
        let batch = |n: usize| vec![message("text/plain", b"x"); n];
        for n in [1, 2] {
            let sent = tokio::time::timeout(Duration::from_millis(20), sink.send(&batch(n))).await;
            assert!(sent.is_err(), "nobody has read it");
        }
        reads.send(()).unwrap();
        reads.send(()).unwrap();
        assert_eq!(sink.send(&batch(3)).await, vec![Ok(()); 3]);
        // The second had no turn, and nobody waited for it any more.
        assert_eq!(String::from_utf8_lossy(&taken.lock()).lines().count(), 4);
        drop(reads);
        let sent = sink.send(&batch(1)).await;
        assert!(sent[0].as_ref().is_err_and(|error| error.to_string().contains("the output")), "{sent:?}");
    }
}
