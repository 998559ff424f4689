//! The dead letter queue of `pillarbox-inbox` behind the API.

use pillarbox_core::port::LetterStore as _;
use pillarbox_inbox::{DeadLetters, MemoryLetters};
use pillarbox_testkit::letters::letter;
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
