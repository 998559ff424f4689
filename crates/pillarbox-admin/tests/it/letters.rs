//! Consumers' dead letters, alone and beside the outbox's dead events.

use axum::body::Bytes;
use pillarbox_admin::{LetterError, Letters, Redaction};
use pillarbox_core::{
    domain::Timestamp,
    port::{
        Actor, BoxFuture, Deed, DeedPlace, DeedQuery, DeedStore as _, InboxUpkeep as _, Letter, LetterAction, LetterId,
        LetterPlace, LetterQuery, LetterStatus, LetterStore as _, StoreError, StoreErrorKind,
    },
};
use pillarbox_sqlite::{SqliteInbox, SqliteStore};
use pillarbox_testkit::letters::letter;
use serde_json::{Value, json};

use crate::bed::{ADA, Bed, VIC, each, id, tokens};

/// The store of this queue takes no longer payload, as one of NATS.
const LARGEST: usize = 100_000;

/// A queue that sends letters nowhere.
pub(crate) struct Queue(SqliteInbox);

impl Queue {
    async fn finish(&self, id: &LetterId, actor: &Actor, what: &str, to: LetterStatus) -> Result<(), LetterError> {
        let mut letter = self.0.find(id).await?.ok_or_else(|| LetterError::Unknown(id.clone()))?;
        if letter.status != LetterStatus::Pending {
            return Err(LetterError::Refused(format!("dead letter {id} is {}", letter.status)));
        }
        if letter.topic == "down" {
            return Err(LetterError::NotSent { id: id.clone(), why: "connection refused by password=hunter2".into() });
        }
        let at = self.0.now().await?;
        letter.version += 1;
        letter.status = to;
        letter.finished_at = Some(at);
        let (who, why) = (actor.who.clone(), actor.why.clone());
        letter.history.push(LetterAction { at, what: what.into(), who, why, before: None });
        assert!(self.0.replace(&letter).await?);
        Ok(())
    }
}

impl Letters for Queue {
    fn list<'a>(
        &'a self,
        query: &'a LetterQuery,
        after: Option<&'a LetterPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Letter>, LetterError>> {
        Box::pin(async move { Ok(self.0.list(query, after, limit).await?) })
    }

    fn count<'a>(&'a self, query: &'a LetterQuery) -> BoxFuture<'a, Result<u64, LetterError>> {
        Box::pin(async move { Ok(self.0.count(query).await?) })
    }

    fn find<'a>(&'a self, id: &'a LetterId) -> BoxFuture<'a, Result<Option<Letter>, LetterError>> {
        Box::pin(async move { Ok(self.0.find(id).await?) })
    }

    fn deeds<'a>(
        &'a self,
        query: &'a DeedQuery,
        after: Option<&'a DeedPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Deed>, LetterError>> {
        Box::pin(async move { Ok(self.0.deeds(query, after, limit).await?) })
    }

    fn edit<'a>(
        &'a self,
        id: &'a LetterId,
        payload: Bytes,
        actor: &'a Actor,
    ) -> BoxFuture<'a, Result<(), LetterError>> {
        Box::pin(async move {
            let mut letter = self.0.find(id).await?.ok_or_else(|| LetterError::Unknown(id.clone()))?;
            if payload.len() > LARGEST {
                return Err(StoreError::new(StoreErrorKind::Rejected, "max payload size exceeded").into());
            }
            if serde_json::from_slice::<Value>(&payload).is_err() {
                return Err(LetterError::Payload { id: id.clone(), why: "it is no JSON".into() });
            }
            letter.version += 1;
            let before = Some(std::mem::replace(&mut letter.payload, payload));
            let (who, why) = (actor.who.clone(), actor.why.clone());
            letter.history.push(LetterAction { at: self.0.now().await?, what: "edit".into(), who, why, before });
            assert!(self.0.replace(&letter).await?);
            Ok(())
        })
    }

    fn replay<'a>(&'a self, id: &'a LetterId, actor: &'a Actor) -> BoxFuture<'a, Result<(), LetterError>> {
        Box::pin(self.finish(id, actor, "replay", LetterStatus::Replayed))
    }

    fn may_replay(&self, _: &Letter) -> Result<(), LetterError> {
        Ok(())
    }

    fn discard<'a>(&'a self, id: &'a LetterId, actor: &'a Actor) -> BoxFuture<'a, Result<(), LetterError>> {
        Box::pin(self.finish(id, actor, "discard", LetterStatus::Discarded))
    }
}

async fn queue() -> (tempfile::TempDir, SqliteInbox) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("inbox.db").to_str().unwrap()).await.unwrap();
    let inbox = SqliteInbox::new(&store);
    inbox.migrate().await.unwrap();
    (folder, inbox)
}

/// A queue with letters 1 to 5.
pub(crate) async fn some_letters() -> (tempfile::TempDir, Queue) {
    let (folder, inbox) = queue().await;
    for number in 1..=5 {
        assert!(inbox.insert(&letter(number)).await.unwrap());
    }
    (folder, Queue(inbox))
}

/// Letters 1 to 5; the events of the bed died 1 to 5 microseconds after the letters' time zero.
async fn bed() -> (tempfile::TempDir, Bed) {
    let (folder, queue) = some_letters().await;
    let down = Letter { topic: "down".into(), consumer: "shipping".into(), ..letter(6) };
    assert!(queue.0.insert(&down).await.unwrap());
    let bed = Bed::with(tokens(), |admin| admin.letters(queue)).await;
    (folder, bed)
}

/// A1.
#[tokio::test]
async fn dead_letters_are_listed_counted_shown_replayed_and_discarded() {
    let (_folder, bed) = bed().await;
    let page = bed.get("/dlq?limit=20").await.ok();
    let id = |number: u8| format!("{number:032x}");
    assert_eq!(
        each(&page["letters"], "id"),
        [6, 5, 4, 3, 2, 1].map(|number| Value::from(id(number))).iter().collect::<Vec<_>>()
    );
    assert_eq!(bed.get("/dlq/count").await.ok(), json!({ "count": 6 }));
    let shown = bed.get(&format!("/dlq/{}", id(3))).await.ok();
    assert_eq!(
        (&shown["consumer"], &shown["payload"]["total"], &shown["attempts"]),
        (&json!("billing"), &json!(4200), &json!(10))
    );

    let put =
        async |number, body| bed.send("PUT", &format!("/dlq/{}/payload", id(number)), Some(ADA), Some(body)).await;
    put(2, json!({ "payload": { "total": 1 }, "because": "mended" })).await.ok();
    let edited = bed.get(&format!("/dlq/{}", id(2))).await.ok();
    assert_eq!((&edited["payload"], &edited["history"][0]["action"]), (&json!({ "total": 1 }), &json!("edit")));
    put(2, json!({ "payload_base64": "AA==" })).await.problem(422);
    put(2, json!({})).await.problem(400);
    let large = put(2, json!({ "payload": "x".repeat(LARGEST) })).await.problem(422);
    assert!(large["detail"].as_str().unwrap().contains("max payload size exceeded"), "{large}");
    put(99, json!({ "payload": 1 })).await.problem(404);
    bed.post(&format!("/dlq/{}/replay", id(3)), json!({ "because": "fixed" })).await.ok();
    bed.post(&format!("/dlq/{}/replay", id(3)), json!({})).await.problem(409);
    bed.send("DELETE", &format!("/dlq/{}", id(3)), Some(ADA), None).await.problem(409);
    let shown = bed.get(&format!("/dlq/{}", id(3))).await.ok();
    assert_eq!(
        (&shown["status"], &shown["history"][0]["who"], &shown["history"][0]["why"]),
        (&json!("REPLAYED"), &json!("ada"), &json!("fixed"))
    );
    let gone = bed.send("DELETE", &format!("/dlq/{}", id(4)), Some(ADA), None).await;
    assert_eq!(gone.status, 204);
    assert_eq!(bed.get("/dlq/count").await.ok(), json!({ "count": 4 }), "pending ones");
    assert_eq!(bed.get("/dlq/count?status=ALL").await.ok(), json!({ "count": 6 }));
    assert_eq!(bed.get("/dlq/count?consumer=shipping").await.ok(), json!({ "count": 1 }));

    for unknown in [id(99), "x".into(), "%00".into(), "' or 1=1".replace(' ', "%20")] {
        bed.get(&format!("/dlq/{unknown}")).await.problem(404);
        bed.post(&format!("/dlq/{unknown}/replay"), json!({})).await.problem(404);
        bed.send("DELETE", &format!("/dlq/{unknown}"), Some(ADA), None).await.problem(404);
    }
    let down = bed.post(&format!("/dlq/{}/replay", id(6)), json!({})).await;
    down.problem(503);
    assert!(!down.text.contains("hunter2"), "{}", down.text);
}

#[tokio::test]
async fn dead_letters_come_page_by_page() {
    let (_folder, bed) = bed().await;
    let (mut all, mut path) = (Vec::new(), "/dlq?limit=2".to_owned());
    loop {
        let page = bed.get(&path).await.ok();
        all.extend(each(&page["letters"], "event_id").into_iter().cloned());
        match &page["next"] {
            Value::Null => break,
            next => path = format!("/dlq?limit=2&cursor={}", next.as_str().unwrap()),
        }
    }
    assert_eq!(all, ["event-6", "event-5", "event-4", "event-3", "event-2", "event-1"]);
    assert_eq!(bed.get("/dlq?cursor=x").await.problem(400)["parameter"], "cursor");
    assert_eq!(bed.get("/dlq?status=DEAD").await.problem(400)["parameter"], "status");
    assert_eq!(bed.get("/dlq?tpic=x").await.problem(400)["nearest"], "topic");
}

#[tokio::test]
async fn without_a_queue_there_are_no_letters_and_it_is_said() {
    let bed = Bed::new().await;
    let problem = bed.get("/dlq").await.problem(404);
    assert!(problem["detail"].as_str().unwrap().contains("no dead letter queue"), "{problem}");
    assert_eq!(bed.get("/dead/count").await.ok(), json!({ "count": 5, "outbox": 5, "letters": 0 }));
    assert_eq!(each(&bed.get("/dead").await.ok()["dead"], "origin"), ["outbox"; 5]);
}

/// "The outbox's own dead events and the consumers' dead letters are shown in one list with their origin."
#[tokio::test]
async fn dead_events_and_dead_letters_are_one_list_with_their_origin() {
    let (_folder, bed) = bed().await;
    assert_eq!(bed.get("/dead/count").await.ok(), json!({ "count": 11, "outbox": 5, "letters": 6 }));
    for limit in 1..=12 {
        let (mut all, mut path) = (Vec::new(), format!("/dead?limit={limit}"));
        loop {
            let page = bed.get(&path).await.ok();
            let items = page["dead"].as_array().unwrap();
            assert!(items.len() <= limit && !items.is_empty());
            for item in items {
                let what = if item["origin"] == "outbox" { &item["event"]["seq"] } else { &item["letter"]["event_id"] };
                all.push((item["origin"].as_str().unwrap().to_owned(), what.to_string(), item["dead_at"].clone()));
            }
            match &page["next"] {
                Value::Null => break,
                next => path = format!("/dead?limit={limit}&cursor={}", next.as_str().unwrap()),
            }
        }
        let told: Vec<_> = all.iter().map(|(origin, what, _)| format!("{origin} {what}")).collect();
        let expected = [
            "shipping \"event-6\"",
            "outbox 5",
            "billing \"event-5\"",
            "outbox 4",
            "billing \"event-4\"",
            "outbox 3",
            "billing \"event-3\"",
            "outbox 2",
            "billing \"event-2\"",
            "outbox 1",
            "billing \"event-1\"",
        ];
        assert_eq!(told, expected, "in pages of {limit}");
        assert!(all.windows(2).all(|pair| pair[0].2.as_str() >= pair[1].2.as_str()), "the newest first");
    }
    let only =
        async |origin: &str| bed.get(&format!("/dead?origin={origin}")).await.ok()["dead"].as_array().unwrap().len();
    assert_eq!((only("outbox").await, only("billing").await, only("nobody").await), (5, 5, 0));
    assert_eq!(bed.get("/dead?type=Placed").await.ok()["dead"].as_array().unwrap().len(), 5);
    assert_eq!(bed.get("/dead?cursor=1").await.problem(400)["parameter"], "cursor");
}

/// U3, I6: many at once, as of events.
#[tokio::test]
async fn many_letters_are_replayed_and_discarded_from_old_to_new() {
    let (_folder, bed) = bed().await;
    let wanted = json!({ "filter": { "consumer": "billing" }, "dry_run": true });
    let done = bed.post("/dlq/replay", wanted).await.ok();
    assert_eq!(done, json!({ "changed": 5, "refused": 0, "dry_run": true, "next": null }));
    assert_eq!(bed.get("/dlq/count").await.ok()["count"], 6);

    let part = json!({ "all": true, "limit": 2, "because": "the bank is back" });
    let done = bed.post("/dlq/replay", part).await.ok();
    assert_eq!((&done["changed"], &done["refused"]), (&json!(2), &json!(0)));
    let left = bed.get("/dlq").await.ok();
    assert_eq!(each(&left["letters"], "event_id"), ["event-6", "event-5", "event-4", "event-3"], "the oldest first");
    let rest = json!({ "all": true, "cursor": done["next"], "because": "the bank is back" });
    let done = bed.post("/dlq/replay", rest).await.ok();
    // Letter 6 can't be sent, and holds up no other.
    assert_eq!(done, json!({ "changed": 3, "refused": 1, "dry_run": false, "next": null }));
    let actions = bed.get("/actions?who=ada&origin=billing").await.ok();
    assert_eq!(each(&actions["actions"], "why"), ["the bank is back"; 5]);

    let discard = json!({ "filter": { "type": "OrderPlaced", "topic": "orders.placed" } });
    assert_eq!(bed.post("/dlq/discard", discard).await.ok()["changed"], 0, "those are replayed");
    for body in [json!({}), json!({ "all": true, "filter": { "topic": "x" } }), json!({ "all": false })] {
        bed.post("/dlq/replay", body).await.problem(400);
    }
    for (body, name) in [
        (json!({ "filter": { "tenant": "acme" } }), "tenant"),
        (json!({ "all": true, "cursor": "7" }), "cursor"),
        (json!({ "all": true, "cursor": "7~8" }), "cursor"),
        (json!({ "all": true, "rate": 0 }), "rate"),
        (json!({ "all": true, "limit": 0 }), "limit"),
        (json!({ "filter": { "from": "soon" } }), "from"),
    ] {
        assert_eq!(bed.post("/dlq/discard", body).await.problem(400)["parameter"], name);
    }
    assert_eq!(
        bed.post("/dlq/discard", json!({ "filter": { "topic": "x" }, "limit": 10_001 })).await.ok()["changed"],
        0
    );
    bed.send("POST", "/dlq/discard", Some(VIC), Some(json!({ "all": true }))).await.problem(403);
    assert_eq!(bed.get("/dlq/count").await.ok()["count"], 1);
    Bed::new().await.post("/dlq/replay", json!({ "all": true })).await.problem(404);
}

/// A broker that is down ends it: nobody waits for the time-out of every letter.
#[tokio::test]
async fn many_letters_are_not_sent_to_a_broker_that_is_down() {
    let (folder, queue) = some_letters().await;
    for number in 10..20 {
        assert!(queue.0.insert(&Letter { topic: "down".into(), ..letter(number) }).await.unwrap());
    }
    let bed = Bed::with(tokens(), |admin| admin.letters(queue)).await;
    let answer = bed.post("/dlq/replay", json!({ "all": true })).await;
    let detail = answer.problem(503)["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("stays pending") && detail.ends_with("; 5 were done before"), "{detail}");
    assert!(!answer.text.contains("hunter2"));
    assert_eq!(bed.get("/dlq/count").await.ok()["count"], 10);
    drop(folder);
}

/// U3, A3: who, when, why and what, in one list with those of events.
#[tokio::test]
async fn what_was_done_to_letters_stands_in_the_record_of_events() {
    let (_folder, bed) = bed().await;
    let letter_id = |number: u8| format!("{number:032x}");
    let edit = json!({ "payload": { "total": 1 }, "because": "mended" });
    bed.send("PUT", &format!("/dlq/{}/payload", letter_id(2)), Some(ADA), Some(edit)).await.ok();
    bed.post(&format!("/events/{}/replay", id(1)), json!({ "because": "an event" })).await.ok();
    bed.post(&format!("/dlq/{}/replay", letter_id(2)), json!({ "because": "a letter" })).await.ok();
    bed.send("DELETE", &format!("/events/{}?because=gone", id(2)), Some(ADA), None).await;
    bed.send("DELETE", &format!("/dlq/{}?because=over", letter_id(3)), Some(ADA), None).await;

    // SQLite rounds the times of events' actions to milliseconds: they are set between those of the letters'.
    let of_letters = bed.get("/actions?origin=billing").await.ok();
    let micros = |n: usize| {
        let at = of_letters["actions"][n]["at"].as_str().unwrap().parse::<Timestamp>().unwrap();
        at.as_micros()
    };
    for (action, at) in [("REPLAY", micros(2)), ("DISCARD", micros(1))] {
        bed.run(&format!("update outbox_action set at = {at} where action = '{action}'")).await;
    }
    let expected = [
        ("billing", "discard", "over"),
        ("outbox", "discard", "gone"),
        ("billing", "replay", "a letter"),
        ("outbox", "replay", "an event"),
        ("billing", "edit", "mended"),
    ];
    for limit in 1..=6 {
        let (mut all, mut path) = (Vec::new(), format!("/actions?limit={limit}"));
        loop {
            let page = bed.get(&path).await.ok();
            all.extend(page["actions"].as_array().unwrap().clone());
            match &page["next"] {
                Value::Null => break,
                next => path = format!("/actions?limit={limit}&cursor={}", next.as_str().unwrap()),
            }
        }
        let told: Vec<_> = all
            .iter()
            .map(|action| ["origin", "action", "why"].map(|field| action[field].as_str().unwrap()))
            .map(|[origin, action, why]| (origin, action, why))
            .collect();
        assert_eq!(told, expected, "in pages of {limit}");
        assert!(all.windows(2).all(|pair| pair[0]["at"].as_str() >= pair[1]["at"].as_str()));
        assert_eq!(all[4]["before"]["payload"], json!({ "total": 4200 }), "an edit keeps what it has replaced");
        assert_eq!((&all[4]["letter_id"], &all[4]["event_id"]), (&json!(letter_id(2)), &json!("event-2")));
        assert_eq!((&all[3]["letter_id"], &all[3]["event_id"]), (&Value::Null, &json!(id(1))));
    }
    let count =
        async |query: &str| bed.get(&format!("/actions?{query}")).await.ok()["actions"].as_array().unwrap().len();
    assert_eq!(count("origin=outbox").await, 2);
    assert_eq!(count("origin=billing").await, 3);
    assert_eq!(count("origin=nobody").await, 0);
    assert_eq!(count("event_id=event-2").await, 2);
    assert_eq!(count(&format!("event_id={}", id(1))).await, 1);
    assert_eq!(count(&format!("letter_id={}", letter_id(3))).await, 1);
    assert_eq!(bed.get("/actions?letter_id=7").await.problem(400)["parameter"], "letter_id");
    for cursor in ["x", "1", "x~.", ".~x", ".~1-2-3"] {
        assert_eq!(bed.get(&format!("/actions?cursor={cursor}")).await.problem(400)["parameter"], "cursor");
    }
    let shown = bed.get(&format!("/dlq/{}", letter_id(2))).await.ok();
    assert_eq!(shown["history"][0]["before"]["payload"], json!({ "total": 4200 }));
}

/// What an edit has replaced is a payload too.
#[tokio::test]
async fn a_viewer_sees_no_redacted_value_in_the_history_of_a_letter() {
    let (_folder, queue) = some_letters().await;
    let rules = Redaction::new().path("$.total").unwrap();
    let bed = Bed::with(tokens(), |admin| admin.letters(queue).redact(rules)).await;
    let path = format!("/dlq/{:032x}", 2);
    let edit = json!({ "payload": { "z": 1, "total": 77001, "a": 2 } });
    bed.send("PUT", &format!("{path}/payload"), Some(ADA), Some(edit)).await.ok();
    for path in [path.as_str(), "/actions", "/dlq", "/dead"] {
        let seen = bed.send("GET", path, Some(VIC), None).await;
        assert!(!seen.text.contains("4200}") && !seen.text.contains("77001"), "{path}: {}", seen.text);
        assert!(seen.text.contains("[redacted]"), "{path}: {}", seen.text);
        seen.ok();
    }
    // The rest stays as it was written, in its order.
    let seen = bed.send("GET", &path, Some(VIC), None).await;
    assert!(seen.text.contains(r#""payload":{"z":1,"total":"[redacted]","a":2}"#), "{}", seen.text);
}

/// The reason outlives the payload that it quotes; and in structured mode the payload stands in the message's data.
#[tokio::test]
async fn a_viewer_sees_no_redacted_value_in_the_reason_of_a_letter() {
    let (_folder, queue) = some_letters().await;
    let reason = || "no card 4711-0815".to_owned();
    let structured = r#"{"specversion": "1.0", "data": {"card": {"number": "4711-0815"}}}"#;
    let edited =
        LetterAction { at: letter(8).dead_at, what: "edit".into(), who: "ada".into(), why: None, before: None };
    for more in [
        Letter { payload: r#"{"card": {"number": "4711-0815"}}"#.into(), reason: reason(), ..letter(6) },
        Letter {
            content_type: "application/cloudevents+json".into(),
            payload: structured.into(),
            reason: reason(),
            ..letter(7)
        },
        // As it was written before edits kept what they replaced.
        Letter { reason: reason(), history: vec![edited], ..letter(8) },
    ] {
        assert!(queue.0.insert(&more).await.unwrap());
    }
    let rules = Redaction::new().path("$.card.number").unwrap();
    let bed = Bed::with(tokens(), |admin| admin.letters(queue).redact(rules)).await;
    let path = |number: u8| format!("/dlq/{number:032x}");
    for number in ["0000-0000", "1111-1111"] {
        let edit = json!({ "payload": { "card": { "number": number } } });
        bed.send("PUT", &format!("{}/payload", path(6)), Some(ADA), Some(edit)).await.ok();
    }
    for (number, told) in [(6, "no card [redacted]"), (7, "no card [redacted]"), (8, "[redacted]")] {
        let seen = bed.send("GET", &path(number), Some(VIC), None).await;
        assert!(!seen.text.contains("4711"), "{}", seen.text);
        assert_eq!(seen.ok()["reason"], told);
        assert_eq!(bed.get(&path(number)).await.ok()["reason"], reason());
    }
    for path in ["/dlq", "/dead?origin=billing", "/actions"] {
        let seen = bed.send("GET", path, Some(VIC), None).await;
        assert!(!seen.text.contains("4711"), "{path}: {}", seen.text);
        seen.ok();
    }
    let seen = bed.send("GET", &path(7), Some(VIC), None).await.ok();
    assert_eq!(seen["payload"]["data"], json!({ "card": { "number": "[redacted]" } }));
}

/// "errors name the inbox's tables and the command that makes them"
#[tokio::test]
async fn without_the_inboxs_tables_it_is_said_what_makes_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("inbox.db").to_str().unwrap()).await.unwrap();
    let bed = Bed::with(tokens(), |admin| admin.letters(Queue(SqliteInbox::new(&store)))).await;
    for path in ["/dlq", "/dlq/count", "/dead", "/actions"] {
        let problem = bed.get(path).await.problem(503);
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("the inbox's tables") && detail.contains("pillarbox migrate --inbox"), "{detail}");
    }
}
