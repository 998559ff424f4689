//! What is logged.

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use crate::bed::{ADA, Bed, VIC, id};

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Kept {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// No secret in any log, at the most talkative level: neither tokens nor payloads nor headers.
#[tokio::test]
async fn no_secret_is_logged_and_actions_are() {
    let kept = Kept::default();
    let logs = tracing_subscriber::fmt().with_writer(kept.clone()).with_env_filter("trace").with_ansi(false).finish();
    let _here = tracing::subscriber::set_default(logs);
    let bed = Bed::new().await;
    for token in [ADA, VIC, "a-token-that-nobody-has-at-all"] {
        for path in ["/events", "/events/3", "/stats", "/events?text=4711-0815"] {
            bed.send("GET", path, Some(token), None).await;
        }
        let edit = json!({ "payload": { "card": "0815-secret" }, "because": "wrong card" });
        bed.send("PUT", &format!("/events/{}/payload", id(3)), Some(token), Some(edit)).await;
        bed.send("POST", &format!("/events/{}/replay", id(3)), Some(token), Some(json!({}))).await;
        bed.send("POST", "/events/replay", Some(token), Some(json!({ "all": true }))).await;
    }
    let logged = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
    // What SQLite is asked is logged by its driver, with places for the values.
    for secret in [ADA, VIC, "a-token-that-nobody-has", "4711-0815", "0815-secret", "c2VjcmV0"] {
        assert!(!logged.contains(secret), "{secret} is logged");
    }
    assert!(logged.contains("an operator acted") && logged.contains("who=\"ada\""), "{logged}");
}
