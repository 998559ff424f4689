//! Consumers' dead letters, alone and beside the outbox's dead events.

use axum::body::Bytes;
use pillarbox_admin::{LetterError, Letters};
use pillarbox_core::port::{
    Actor, BoxFuture, InboxUpkeep as _, Letter, LetterAction, LetterId, LetterPlace, LetterQuery, LetterStatus,
    LetterStore as _,
};
use pillarbox_sqlite::{SqliteInbox, SqliteStore};
use pillarbox_testkit::letters::letter;
use serde_json::{Value, json};

use crate::bed::{ADA, Bed, each, tokens};

/// A queue that sends letters nowhere.
struct Queue(SqliteInbox);

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
        letter.history.push(LetterAction { at, what: what.into(), who, why });
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

    fn edit<'a>(
        &'a self,
        id: &'a LetterId,
        payload: Bytes,
        actor: &'a Actor,
    ) -> BoxFuture<'a, Result<(), LetterError>> {
        Box::pin(async move {
            let mut letter = self.0.find(id).await?.ok_or_else(|| LetterError::Unknown(id.clone()))?;
            if serde_json::from_slice::<Value>(&payload).is_err() {
                return Err(LetterError::Payload { id: id.clone(), why: "it is no JSON".into() });
            }
            letter.version += 1;
            letter.payload = payload;
            let (who, why) = (actor.who.clone(), actor.why.clone());
            letter.history.push(LetterAction { at: self.0.now().await?, what: "edit".into(), who, why });
            assert!(self.0.replace(&letter).await?);
            Ok(())
        })
    }

    fn replay<'a>(&'a self, id: &'a LetterId, actor: &'a Actor) -> BoxFuture<'a, Result<(), LetterError>> {
        Box::pin(self.finish(id, actor, "replay", LetterStatus::Replayed))
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

/// Letters 1 to 5; the events of the bed died 1 to 5 microseconds after the letters' time zero.
async fn bed() -> (tempfile::TempDir, Bed) {
    let (folder, inbox) = queue().await;
    for number in 1..=5 {
        assert!(inbox.insert(&letter(number)).await.unwrap());
    }
    let down = Letter { topic: "down".into(), consumer: "shipping".into(), ..letter(6) };
    assert!(inbox.insert(&down).await.unwrap());
    let bed = Bed::with(tokens(), |admin| admin.letters(Queue(inbox))).await;
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
