//! The dead letter queue of `pillarbox-inbox` behind the API.

use std::sync::Arc;

use pillarbox_core::port::{Abilities, BoxFuture, Letter, LetterStore as _, Message, Sent, Sink};
use pillarbox_inbox::{DeadLetters, MemoryLetters, Parked};
use pillarbox_testkit::{MemoryBroker, letters::letter};
use serde_json::json;

use crate::bed::{ADA, Bed, tokens};

/// A1.
#[tokio::test]
async fn the_consumers_queue_is_looked_at_and_acted_upon() {
    let store = MemoryLetters::new();
    for number in 1..=3 {
        assert!(store.insert(&letter(number)).await.unwrap());
    }
    let bed = Bed::with(tokens(), |admin| admin.letters(DeadLetters::new(store))).await;
    let path = |number: u8| format!("/dlq/{number:032x}");
    assert_eq!(bed.get("/dlq/count").await.ok(), json!({ "count": 3 }));
    assert_eq!(bed.get("/dead/count").await.ok(), json!({ "count": 8, "outbox": 5, "letters": 3 }));
    let edit = json!({ "payload": { "total": 1 }, "because": "mended" });
    bed.send("PUT", &format!("{}/payload", path(1)), Some(ADA), Some(edit)).await.ok();
    let shown = bed.get(&path(1)).await.ok();
    assert_eq!((&shown["payload"], &shown["history"][0]["why"]), (&json!({ "total": 1 }), &json!("mended")));
    bed.send("PUT", &format!("{}/payload", path(1)), Some(ADA), Some(json!({ "payload_base64": "AA==" })))
        .await
        .problem(422);
    assert_eq!(bed.send("DELETE", &path(2), Some(ADA), None).await.status, 204);
    bed.send("DELETE", &path(2), Some(ADA), None).await.problem(409);
    bed.send("DELETE", &path(9), Some(ADA), None).await.problem(404);
    // This queue has no way back to a broker, and says so.
    let problem = bed.post(&format!("{}/replay", path(1)), json!({})).await.problem(409);
    assert!(problem["detail"].as_str().unwrap().contains("no sink"), "{problem}");
}

/// Sends what is replayed, and parks it again at once: the handler still fails.
struct Failing {
    broker: MemoryBroker,
    letters: MemoryLetters,
}

impl Sink for Failing {
    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>> {
        Box::pin(async move {
            let sent = self.broker.send(batch).await;
            for message in self.broker.sent("orders.placed").iter().rev().take(batch.len()) {
                let parked = Parked { consumer: "billing", message, reason: "still", attempts: 1 };
                DeadLetters::new(self.letters.clone()).park(&parked).await.unwrap();
            }
            sent
        })
    }

    fn abilities(&self) -> Abilities {
        self.broker.abilities()
    }

    fn check(&self) -> BoxFuture<'_, Sent> {
        Sink::check(&self.broker)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Sink::close(&self.broker)
    }
}

/// U3, I6: many are sent to their topic, each once in a run, whatever comes back meanwhile; at most 3 times in all.
#[tokio::test]
async fn many_letters_are_sent_once_a_run_while_the_handler_still_fails() {
    let (broker, letters) = (MemoryBroker::new(), MemoryLetters::new());
    for number in 1..=7 {
        assert!(letters.insert(&Letter { consumer: "billing".into(), ..letter(number) }).await.unwrap());
    }
    // As a consumer would have called them.
    let sink = Failing { broker: broker.clone(), letters: letters.clone() };
    let queue = DeadLetters::new(letters.clone()).sink(Arc::new(sink));
    let bed = Bed::with(tokens(), |admin| admin.letters(queue)).await;
    let mut cursor = json!(null);
    let mut changed = 0;
    loop {
        let mut body = json!({ "all": true, "limit": 3, "because": "the bank is back" });
        if !cursor.is_null() {
            body["cursor"] = cursor;
        }
        let done = bed.post("/dlq/replay", body).await.ok();
        changed += done["changed"].as_u64().unwrap();
        cursor = done["next"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!((changed, broker.sent("orders.placed").len()), (7, 7), "each once");
}

/// Without a way back nothing is left out in silence.
#[tokio::test]
async fn many_letters_are_refused_where_there_is_no_sink() {
    let letters = MemoryLetters::new();
    assert!(letters.insert(&letter(1)).await.unwrap());
    let bed = Bed::with(tokens(), |admin| admin.letters(DeadLetters::new(letters))).await;
    let problem = bed.post("/dlq/replay", json!({ "all": true })).await.problem(409);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("no sink") && detail.contains("--config FILE or --broker URL"), "{detail}");
    assert_eq!(bed.post("/dlq/discard", json!({ "all": true })).await.ok()["changed"], 1);
}
