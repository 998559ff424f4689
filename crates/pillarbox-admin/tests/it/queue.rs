//! The dead letter queue of `pillarbox-inbox` behind the API.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::Request,
};
use pillarbox_admin::{Access, Admin, Asked, Identity, LetterError, Letters, Limits};
use pillarbox_core::port::{
    Abilities, Actor, BoxFuture, Deed, DeedPlace, DeedQuery, Letter, LetterId, LetterPlace, LetterQuery, LetterStatus,
    LetterStore as _, Message, Sent, Sink,
};
use pillarbox_inbox::{DeadLetters, MemoryLetters, Parked};
use pillarbox_testkit::{MemoryBroker, MemoryStore, letters::letter};
use serde_json::json;

use crate::bed::{ADA, Bed, answer, tokens};

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

/// U3: a dry run says what would be done: as many as are asked for, and without those that were replayed too often.
#[tokio::test]
async fn a_dry_run_of_many_letters_counts_what_would_be_done() {
    let letters = MemoryLetters::new();
    for number in 1..=60 {
        let replays = if number % 10 == 0 { 3 } else { 0 };
        assert!(letters.insert(&Letter { replays, ..letter(number) }).await.unwrap());
    }
    let queue = DeadLetters::new(letters).sink(Arc::new(MemoryBroker::new()));
    let bed = Bed::with(tokens(), |admin| admin.letters(queue)).await;
    let mut parts = Vec::new();
    for path in ["/dlq/replay", "/dlq/discard"] {
        let mut body = json!({ "all": true, "limit": 25, "dry_run": true, "rate": 1 });
        loop {
            let done = bed.post(path, body.clone()).await.ok();
            assert_eq!(done["dry_run"], true);
            parts.push((done["changed"].as_u64().unwrap(), done["refused"].as_u64().unwrap()));
            if done["next"].is_null() {
                break;
            }
            body["cursor"] = done["next"].clone();
        }
    }
    assert_eq!(parts, [(23, 2), (22, 3), (9, 1), (25, 0), (25, 0), (10, 0)]);
    assert_eq!(bed.get("/dlq/count").await.ok(), json!({ "count": 60 }));
    // And so it comes.
    let done = bed.post("/dlq/replay", json!({ "all": true })).await.ok();
    assert_eq!((&done["changed"], &done["refused"]), (&json!(54), &json!(6)));
}

/// A broker that takes its time.
struct Late(MemoryBroker, tokio::sync::watch::Sender<bool>);

impl Sink for Late {
    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>> {
        Box::pin(async move {
            let sent = self.0.send(batch).await;
            self.1.subscribe().wait_for(|is_open| *is_open).await.unwrap();
            sent
        })
    }

    fn abilities(&self) -> Abilities {
        self.0.abilities()
    }

    fn check(&self) -> BoxFuture<'_, Sent> {
        Sink::check(&self.0)
    }
}

/// U3, A3: whoever has asked for it, it is done, and told.
#[tokio::test]
async fn a_replay_that_nobody_waits_for_any_more_is_still_under_way() {
    let letters = MemoryLetters::new();
    for number in 1..=2 {
        assert!(letters.insert(&letter(number)).await.unwrap());
    }
    let (broker, gate) = (MemoryBroker::new(), tokio::sync::watch::Sender::new(false));
    let queue = DeadLetters::new(letters).sink(Arc::new(Late(broker.clone(), gate.clone())));
    let access = Access::everybody(Identity::operator("ada"));
    let limits = Limits { time: Duration::from_millis(100), ..Limits::default() };
    let router = Admin::of_letters(queue.clone(), access.clone()).limits(limits).router();
    let path = format!("/dlq/{:032x}/replay", 1);
    let problem = answer(&router, Request::post(&path).body(Body::empty()).unwrap()).await.problem(504);
    assert!(problem["type"].as_str().unwrap().ends_with(":under-way"), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("look there before"), "{problem}");
    // A client that leaves drops the request's future.
    let router = Admin::of_letters(queue.clone(), access).router();
    let path = format!("/dlq/{:032x}/replay", 2);
    let request = Request::post(&path).body(Body::empty()).unwrap();
    let sent = async {
        while broker.sent("orders.placed").len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        answer = answer(&router, request) => panic!("{answer:?}"),
        () = sent => {}
    }
    gate.send_replace(true);
    let replayed = LetterQuery { status: Some(LetterStatus::Replayed), ..LetterQuery::default() };
    while queue.count(&replayed).await.unwrap() < 2 {
        tokio::task::yield_now().await;
    }
    let shown = answer(&router, Request::get("/actions").body(Body::empty()).unwrap()).await.ok();
    assert_eq!(shown["actions"].as_array().unwrap().len(), 2);
}

/// Without a way back nothing is left out in silence.
#[tokio::test]
async fn many_letters_are_refused_where_there_is_no_sink() {
    let letters = MemoryLetters::new();
    assert!(letters.insert(&letter(1)).await.unwrap());
    let bed = Bed::with(tokens(), |admin| admin.letters(DeadLetters::new(letters))).await;
    for dry_run in [true, false] {
        let problem = bed.post("/dlq/replay", json!({ "all": true, "dry_run": dry_run })).await.problem(409);
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("no sink") && detail.contains("--config FILE or --broker URL"), "{detail}");
    }
    assert_eq!(bed.post("/dlq/discard", json!({ "all": true })).await.ok()["changed"], 1);
}

/// A queue whose store takes its time to list.
struct Slow(DeadLetters);

impl Letters for Slow {
    fn list<'a>(
        &'a self,
        query: &'a LetterQuery,
        after: Option<&'a LetterPlace>,
        limit: u32,
    ) -> Asked<'a, Vec<Letter>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(8)).await;
            Letters::list(&self.0, query, after, limit).await
        })
    }

    fn count<'a>(&'a self, query: &'a LetterQuery) -> Asked<'a, u64> {
        Letters::count(&self.0, query)
    }

    fn find<'a>(&'a self, id: &'a LetterId) -> Asked<'a, Option<Letter>> {
        Letters::find(&self.0, id)
    }

    fn deeds<'a>(&'a self, query: &'a DeedQuery, after: Option<&'a DeedPlace>, limit: u32) -> Asked<'a, Vec<Deed>> {
        Letters::deeds(&self.0, query, after, limit)
    }

    fn replay<'a>(&'a self, id: &'a LetterId, actor: &'a Actor) -> Asked<'a, ()> {
        Letters::replay(&self.0, id, actor)
    }

    fn may_replay(&self, letter: &Letter) -> Result<(), LetterError> {
        Letters::may_replay(&self.0, letter)
    }

    fn discard<'a>(&'a self, id: &'a LetterId, actor: &'a Actor) -> Asked<'a, ()> {
        Letters::discard(&self.0, id, actor)
    }

    fn edit<'a>(&'a self, id: &'a LetterId, payload: Bytes, actor: &'a Actor) -> Asked<'a, ()> {
        Letters::edit(&self.0, id, payload, actor)
    }
}

/// Where half the time of a request is over before its first letter, it goes on all the same, and so does the next.
#[tokio::test(start_paused = true)]
async fn many_letters_come_to_their_end_over_a_slow_store() {
    let letters = MemoryLetters::new();
    for number in 1..=3 {
        assert!(letters.insert(&letter(number)).await.unwrap());
    }
    // The newest is asked for, and then a page: that is 16 of 15 seconds.
    let queue = Slow(DeadLetters::new(letters.clone()));
    let access = Access::everybody(Identity::operator("ada"));
    let limits = Limits { time: Duration::from_secs(30), ..Limits::default() };
    let router = Admin::new(MemoryStore::virtual_time(), access).letters(queue).limits(limits).router();
    let (mut body, mut changed) = (json!({ "all": true }), 0);
    for _ in 0..3 {
        let request = Request::post("/dlq/discard").header("content-type", "application/json");
        let done = answer(&router, request.body(Body::from(body.to_string())).unwrap()).await.ok();
        changed += done["changed"].as_u64().unwrap();
        if done["next"].is_null() {
            break;
        }
        body["cursor"] = done["next"].clone();
    }
    assert_eq!(changed, 3);
}

/// Consumers have dead letters with or without an outbox beside them.
#[tokio::test]
async fn letters_are_looked_at_and_acted_upon_without_an_outbox() {
    let letters = MemoryLetters::new();
    assert!(letters.insert(&letter(1)).await.unwrap());
    let access = Access::everybody(Identity::operator("ada"));
    let router = Admin::of_letters(DeadLetters::new(letters), access).router();
    let get = async |path: &str| answer(&router, Request::get(path).body(Body::empty()).unwrap()).await;
    assert_eq!(get("/dead/count").await.ok(), json!({ "count": 1, "outbox": 0, "letters": 1 }));
    assert_eq!(get("/dead").await.ok()["dead"][0]["origin"], "billing");
    let path = format!("/dlq/{:032x}", 1);
    let gone = answer(&router, Request::delete(&path).body(Body::empty()).unwrap()).await;
    assert_eq!(gone.status, 204);
    assert_eq!(get("/actions").await.ok()["actions"][0]["action"], "discard");
    assert_eq!(get("/actions?origin=outbox").await.ok()["actions"], json!([]));
    for path in ["/events", "/events/count", "/events/1", "/stats", "/fleet"] {
        let problem = get(path).await.problem(404);
        assert!(problem["detail"].as_str().unwrap().contains("no outbox"), "{problem}");
    }
}
