//! The outbox's events: look at them, and act on the dead.

use std::time::Duration;

use axum::{body::Body, http::Request};
use pillarbox_admin::Limits;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bed::{ADA, Bed, answer, coded, each, id, in_memory, tokens};

/// U3.
#[tokio::test]
async fn events_are_listed_by_filters_page_by_page() {
    let bed = Bed::new().await;
    let seqs = async |path: &str| {
        let page = bed.get(path).await.ok();
        each(&page["events"], "seq").into_iter().map(|seq| seq.as_i64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(seqs("/events").await, [8, 7, 6, 5, 4, 3, 2, 1], "the newest first");
    assert_eq!(seqs("/events?order=oldest").await, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(seqs("/events?status=dead&order=oldest").await, [1, 2, 3, 4, 5]);
    assert_eq!(seqs("/events?status=NEW,DONE").await, [8, 7, 6]);
    assert_eq!(seqs("/events?type=Paid").await, [7, 6]);
    assert_eq!(seqs("/events?tenant=acme").await, [2]);
    assert_eq!(seqs("/events?aggregate_type=Order&aggregate_id=7").await, [2]);
    assert_eq!(seqs("/events?key=k1").await, [8, 1]);
    assert_eq!(seqs("/events?text=of%203").await, [3]);
    assert_eq!(seqs("/events?text=4711").await, [5, 4, 3, 2, 1]);
    assert_eq!(seqs("/events?from=2999-01-01").await, [0; 0]);
    assert_eq!(seqs("/events?until=2999-01-01T00:00:00%2B01:00&status=DONE").await, [7]);

    for order in ["newest", "oldest"] {
        let mut all = Vec::new();
        let mut path = format!("/events?limit=3&order={order}");
        loop {
            let page = bed.get(&path).await.ok();
            assert!(page["events"].as_array().unwrap().len() <= 3);
            all.extend(each(&page["events"], "seq").into_iter().map(|seq| seq.as_i64().unwrap()));
            match &page["next"] {
                Value::Null => break,
                next => path = format!("/events?limit=3&order={order}&cursor={}", next.as_str().unwrap()),
            }
        }
        if order == "newest" {
            all.reverse();
        }
        assert_eq!(all, [1, 2, 3, 4, 5, 6, 7, 8], "{order}");
    }
    assert_eq!(bed.get("/events/count?status=DEAD").await.ok(), json!({ "count": 5 }));
    assert_eq!(bed.get("/events/count").await.ok(), json!({ "count": 8 }));
}

#[tokio::test]
async fn a_page_has_20_items_unless_more_are_asked_for() {
    let bed = Bed::new().await;
    for number in 9..=60 {
        bed.insert(number, "NEW", "Paid", "1").await;
    }
    let page = bed.get("/events").await.ok();
    assert_eq!(page["events"].as_array().unwrap().len(), 20);
    assert_eq!(bed.get("/events?limit=500").await.ok()["events"].as_array().unwrap().len(), 60);
    for limit in ["0", "-1", "many", ""] {
        let problem = bed.get(&format!("/events?limit={limit}")).await.problem(400);
        assert_eq!(problem["parameter"], "limit");
        assert_eq!(problem["allowed"], json!(["a number, 1 or more"]));
    }
    let few = Bed::with(tokens(), |admin| admin.limits(Limits { largest_page: 3, ..Limits::default() })).await;
    for path in ["/events", "/events?limit=4", "/events?limit=4000000000"] {
        let page = few.get(path).await.ok();
        assert_eq!((page["events"].as_array().unwrap().len(), &page["next"]), (3, &json!("5")), "{path}");
    }
}

#[tokio::test]
async fn a_page_ends_early_where_its_payloads_are_too_many_bytes() {
    let small = Limits { page_bytes: 1_000, ..Limits::default() };
    let bed = Bed::with(tokens(), |admin| admin.limits(small)).await;
    for number in 100..200 {
        bed.insert(number, "NEW", "Large", &format!("\"{}\"", "x".repeat(100))).await;
    }
    let page = bed.get("/events?limit=100&type=Large").await.ok();
    assert_eq!(page["events"].as_array().unwrap().len(), 50);
    assert!(page["next"].is_string());
}

#[tokio::test]
async fn an_event_is_shown_whole_by_its_id_or_its_number() {
    let bed = Bed::new().await;
    let event = bed.get(&format!("/events/{}", id(1))).await;
    assert!(event.text.contains(r#""payload":{"total": 1.50"#), "to the byte: {}", event.text);
    let event = event.ok();
    assert_eq!((&event["seq"], &event["status"], &event["holds_key"]), (&json!(1), &json!("DEAD"), &json!(true)));
    assert_eq!((&event["type"], &event["key"], &event["attempts"]), (&json!("Placed"), &json!("k1"), &json!(10)));
    assert_eq!(bed.get("/events/1").await.ok(), event);
    for unknown in
        [id(99), "99".into(), "x".into(), "%F0%9F%A6%80".into(), "%FF".into(), "' or 1=1 --".replace(' ', "%20")]
    {
        bed.get(&format!("/events/{unknown}")).await.problem(404);
    }
    bed.run("update outbox_event set headers = 'x' where seq = 4").await;
    let broken = bed.get("/events/4").await.ok();
    assert!(broken["undecodable"].as_str().unwrap().contains("headers"), "{broken}");
    bed.run("update outbox_event set payload = x'00ff', content_type = 'image/png' where seq = 5").await;
    assert_eq!(bed.get("/events/5").await.ok()["payload_base64"], "AP8=");
}

/// U3, U4: 404 for what is unknown, 409 for the wrong state.
#[tokio::test]
async fn a_dead_event_is_replayed_once_and_recorded() {
    let bed = Bed::new().await;
    let path = format!("/events/{}/replay", id(2));
    let done = bed.post(&path, json!({ "because": "the carrier is back" })).await.ok();
    assert_eq!(done, json!({ "id": id(2), "action": "replay" }));
    assert_eq!(bed.get("/events/2").await.ok()["status"], "NEW");
    let problem = bed.post(&path, json!({})).await.problem(409);
    assert!(problem["detail"].as_str().unwrap().contains("is NEW, and only DEAD events can be replayed"), "{problem}");
    bed.post(&format!("/events/{}/replay", id(99)), json!({})).await.problem(404);
    bed.post(&format!("/events/{}/replay", id(7)), json!({})).await.problem(409);

    // Without a body, as curl -X POST sends it.
    let plain = bed.send("POST", &format!("/events/{}/replay?because=again", id(3)), Some(ADA), None).await;
    plain.ok();
    let actions = bed.get("/actions").await.ok();
    let told = |n: usize, field: &str| actions["actions"][n][field].clone();
    assert_eq!([told(0, "who"), told(0, "why"), told(0, "action")], ["ada", "again", "replay"]);
    assert_eq!([told(1, "who"), told(1, "why"), told(1, "event_id")], ["ada", "the carrier is back", &id(2)]);
    assert_eq!(told(1, "seq"), 2);
    assert!(told(1, "at").as_str().unwrap().ends_with('Z'));
    assert_eq!(actions["actions"].as_array().unwrap().len(), 2, "what changed nothing is not recorded");
}

#[tokio::test]
async fn a_dead_event_is_discarded_and_its_key_goes_on() {
    let bed = Bed::new().await;
    let path = format!("/events/{}?because=a%20test", id(1));
    let gone = bed.send("DELETE", &path, Some(ADA), None).await;
    assert_eq!((gone.status.as_u16(), gone.text.as_str()), (204, ""));
    bed.get("/events/1").await.problem(404);
    assert_eq!(bed.text("select kind from outbox_hold").await, "OVERFLOW");
    bed.send("DELETE", &path, Some(ADA), None).await.problem(404);
    bed.send("DELETE", &format!("/events/{}", id(6)), Some(ADA), None).await.problem(409);
    let actions = bed.get(&format!("/actions?event_id={}", id(1))).await.ok();
    assert_eq!(
        (&actions["actions"][0]["action"], &actions["actions"][0]["why"]),
        (&json!("discard"), &json!("a test"))
    );
}

/// U3: an id may be none of ours, and the row may be gone: the number stays.
#[tokio::test]
async fn the_record_of_an_event_is_asked_for_by_its_number_or_its_id_as_it_stands_there() {
    let bed = Bed::new().await;
    let small = "01arz3ndektsv4rrffq69g5fav";
    bed.run(&format!("update outbox_event set event_id = '{small}' where seq = 1")).await;
    bed.run("update outbox_event set event_id = 'no-ulid-2' where seq = 2").await;
    bed.post("/events/1/replay", json!({})).await.ok();
    bed.send("DELETE", "/events/2", Some(ADA), None).await;
    bed.post(&format!("/events/{}/replay", id(3)), json!({})).await.ok();
    let done = async |to: &str| {
        let page = bed.get(&format!("/actions?event_id={to}")).await.ok();
        let actions = page["actions"].as_array().unwrap().iter();
        actions.map(|action| (action["action"].clone(), action["seq"].as_i64().unwrap())).collect::<Vec<_>>()
    };
    for (to, action, seq) in
        [("1", "replay", 1), (small, "replay", 1), ("2", "discard", 2), ("no-ulid-2", "discard", 2), ("3", "replay", 3)]
    {
        assert_eq!(done(to).await, [(json!(action), seq)], "{to}");
    }
    bed.run("update outbox_action set event_id = '01ARZ3NDEKTSV4RRFFQ69G5FAV' where seq = 1").await;
    assert_eq!(done(small).await, [(json!("replay"), 1)], "as ids of ours are written");
    assert_eq!(done("4").await, []);
    assert_eq!(done("nobody").await, []);
}

#[tokio::test]
async fn the_key_of_a_dead_head_goes_on_without_it() {
    let bed = Bed::new().await;
    bed.post(&format!("/events/{}/skip", id(1)), json!({})).await.ok();
    let event = bed.get("/events/1").await.ok();
    assert_eq!((&event["status"], &event["holds_key"]), (&json!("DEAD"), &json!(false)));
    let problem = bed.post(&format!("/events/{}/skip", id(2)), json!({})).await.problem(409);
    assert!(problem["detail"].as_str().unwrap().contains("holds no key"), "{problem}");
}

/// U3, W8: other languages write ids of their own.
#[tokio::test]
async fn an_event_whose_id_is_none_of_ours_is_acted_upon_by_its_number() {
    let bed = Bed::new().await;
    bed.run("update outbox_event set event_id = 'no-ulid-' || seq where seq in (1, 2, 3)").await;
    let problem = bed.post("/events/no-ulid-2/replay", json!({})).await.problem(404);
    assert!(problem["detail"].as_str().unwrap().contains("named by its number"), "{problem}");
    bed.post("/events/1/skip", json!({})).await.ok();
    assert_eq!(bed.get("/events/1").await.ok()["holds_key"], false);
    bed.post("/events/2/replay", json!({})).await.ok();
    assert_eq!(bed.text("select status from outbox_event where seq = 2").await, "NEW");
    bed.post("/events/2/replay", json!({})).await.problem(409);
    let edit = json!({ "payload": { "total": 2 }, "content_type": "application/json" });
    bed.send("PUT", "/events/3/payload", Some(ADA), Some(edit)).await.ok();
    assert_eq!(bed.send("DELETE", "/events/3", Some(ADA), None).await.status, 204);
    bed.post("/events/99/replay", json!({})).await.problem(404);
    // The number of a row that is not there is not that of the next.
    bed.run("delete from outbox_event where seq = 4").await;
    bed.post("/events/4/replay", json!({})).await.problem(404);
    assert_eq!(bed.text("select status from outbox_event where seq = 5").await, "DEAD");
}

/// U3: edit payload before replay.
#[tokio::test]
async fn a_payload_is_edited_before_the_replay_and_the_old_one_kept() {
    let bed = Bed::new().await;
    let path = format!("/events/{}/payload", id(2));
    let put = async |path: &str, body: Value| bed.send("PUT", path, Some(ADA), Some(body)).await;
    put(&path, json!({ "payload": { "total": 15 }, "because": "the total was wrong" })).await.ok();
    let event = bed.get("/events/2").await.ok();
    assert_eq!((&event["payload"], &event["status"]), (&json!({ "total": 15 }), &json!("DEAD")));
    let action = &bed.get("/actions").await.ok()["actions"][0];
    assert_eq!((&action["action"], &action["why"]), (&json!("edit"), &json!("the total was wrong")));
    assert_eq!(action["before"]["payload"]["card"]["number"], "4711-0815");

    put(&path, json!({ "payload": null })).await.ok();
    assert_eq!(bed.text("select payload from outbox_event where seq = 2").await, "null", "null is JSON, too");
    put(&path, json!({ "payload_base64": "AAH/", "content_type": "image/png" })).await.ok();
    assert_eq!(bed.get("/events/2").await.ok()["payload_base64"], "AAH/");
    put(&path, json!({ "payload": "text now", "content_type": "text/plain" })).await.ok();
    assert_eq!(bed.get("/events/2").await.ok()["payload"], "text now");

    for (body, status) in [
        (json!({}), 400),
        (json!({ "payload": 1, "payload_base64": "AA==" }), 400),
        (json!({ "payload": { "a": 1 } }), 400),
        (json!({ "payload_base64": "not base64!" }), 400),
        (json!({ "payload_base64": "AA==", "content_type": "application/json" }), 422),
        (json!({ "payload": "x", "content_type": "" }), 400),
        (json!({ "payload": "x", "content_type": "x".repeat(300) }), 422),
        (json!({ "payload": "x".repeat((1 << 20) + 1) }), 413),
        (json!({ "payload": "x".repeat(4 << 20) }), 413),
    ] {
        let answer = put(&path, body.clone()).await;
        assert_eq!(answer.status, status, "{}", &answer.text);
        answer.problem(status);
    }
    assert_eq!(bed.get("/events/2").await.ok()["payload"], "text now");
    put(&format!("/events/{}/payload", id(6)), json!({ "payload": 1 })).await.problem(409);
    put(&format!("/events/{}/payload", id(99)), json!({ "payload": 1 })).await.problem(404);
}

/// U3: replay many in batches, and a dry run.
#[tokio::test]
async fn many_are_replayed_in_parts_and_tried_without_effect() {
    let bed = Bed::new().await;
    let wanted = json!({ "filter": { "type": "Placed" }, "dry_run": true });
    assert_eq!(bed.post("/events/replay", wanted).await.ok(), json!({ "changed": 5, "dry_run": true, "next": null }));
    assert_eq!(bed.get("/events/count?status=DEAD").await.ok()["count"], 5);
    assert!(bed.get("/actions").await.ok()["actions"].as_array().unwrap().is_empty());

    let part = json!({ "all": true, "limit": 3, "because": "all of them" });
    let done = bed.post("/events/replay", part).await.ok();
    assert_eq!(done, json!({ "changed": 3, "dry_run": false, "next": "4" }));
    let rest = json!({ "all": true, "cursor": done["next"], "because": "all of them" });
    assert_eq!(bed.post("/events/replay", rest).await.ok(), json!({ "changed": 2, "dry_run": false, "next": null }));
    assert_eq!(bed.get("/events/count?status=DEAD").await.ok()["count"], 0);
    let actions = bed.get("/actions?who=ada").await.ok();
    assert_eq!(each(&actions["actions"], "why"), ["all of them"; 5]);
}

/// U3: with a rate. One that would take longer than a request may ends in time, and says where to go on.
#[tokio::test(start_paused = true)]
async fn a_slow_bulk_keeps_its_rate_ends_in_time_and_goes_on() {
    let router = in_memory(Limits { time: Duration::from_secs(4), ..Limits::default() }).await;
    let (mut cursor, mut changed, mut rounds, begun) = (Value::Null, 0, 0, Instant::now());
    loop {
        let body = json!({ "all": true, "rate": 1, "cursor": cursor }).to_string();
        let request = Request::post("/events/replay").header("content-type", "application/json");
        let done = answer(&router, request.body(Body::from(body)).unwrap()).await.ok();
        rounds += 1;
        changed += done["changed"].as_u64().unwrap();
        cursor = done["next"].clone();
        if cursor.is_null() {
            break;
        }
        assert!(changed <= begun.elapsed().as_secs() + rounds, "one a second, and one at once");
    }
    assert_eq!(changed, 5);
    assert!(rounds > 1, "{rounds}");
    let counted = answer(&router, Request::get("/events/count?status=DEAD").body(Body::empty()).unwrap()).await.ok();
    assert_eq!(counted["count"], 0);
}

#[tokio::test]
async fn many_are_discarded_by_a_filter_and_never_by_mistake() {
    let bed = Bed::new().await;
    for body in [
        json!({}),
        json!({ "filter": {} }),
        json!({ "filter": { "type": "Placed" }, "all": true }),
        json!({ "all": false }),
    ] {
        bed.post("/events/discard", body).await.problem(400);
    }
    let done = bed.post("/events/discard", json!({ "filter": { "tenant": "acme" } })).await.ok();
    assert_eq!(done["changed"], 1);
    bed.get("/events/2").await.problem(404);
    for (body, parameter) in [
        (json!({ "all": true, "limit": 0 }), "limit"),
        (json!({ "all": true, "rate": 0 }), "rate"),
        (json!({ "all": true, "rate": "fast" }), "rate"),
        (json!({ "all": true, "cursor": "x" }), "cursor"),
        (json!({ "all": "yes" }), "all"),
        (json!({ "filter": { "typ": "x" } }), "typ"),
        (json!({ "filter": { "from": "yesterday" } }), "from"),
        (json!({ "filter": { "status": "NEW" } }), "status"),
        (json!({ "all": true, "because": "x".repeat(1_001) }), "because"),
    ] {
        let problem = bed.post("/events/discard", body.clone()).await.problem(400);
        assert_eq!(problem["parameter"], parameter, "{body}: {problem}");
    }
    assert_eq!(bed.get("/events/count?status=DEAD").await.ok()["count"], 4);
}

#[tokio::test]
async fn the_outbox_is_told_in_numbers_and_nodes() {
    let bed = Bed::new().await;
    let stats = bed.get("/stats").await.ok();
    assert_eq!(stats["pending"], 2);
    assert_eq!(each(&stats["by_status"], "events"), [2, 0, 1, 5]);
    let fleet = bed.get("/fleet").await.ok();
    assert_eq!(fleet["free_partitions"].as_array().unwrap().len(), 256);
}

/// Unknown and wrong parameters are named, with what is allowed and what may have been meant.
#[tokio::test]
async fn mistakes_are_named() {
    let bed = Bed::new().await;
    let problem = bed.get("/events?typ=Placed").await.problem(400);
    assert_eq!((&problem["parameter"], &problem["nearest"]), (&json!("typ"), &json!("type")));
    assert!(problem["allowed"].as_array().unwrap().contains(&json!("aggregate_id")), "{problem}");
    assert_eq!(bed.get("/events?status=DEADLY").await.problem(400)["parameter"], "status");
    assert_eq!(bed.get("/events?type=a&type=b").await.problem(400)["parameter"], "type");
    assert_eq!(bed.get("/events?from=soon").await.problem(400)["parameter"], "from");
    assert_eq!(bed.get("/events?order=best").await.problem(400)["parameter"], "order");
    assert_eq!(bed.get("/events?key=%00").await.problem(400)["parameter"], "key");
    assert_eq!(bed.get("/actions?event_id=%00").await.problem(400)["parameter"], "event_id");
    assert_eq!(bed.get("/stats?x=1").await.problem(400)["parameter"], "x");
    bed.get("/nothing").await.problem(404);
    let wrong = bed.send("PATCH", "/events", Some(ADA), None).await;
    wrong.problem(405);
    assert_eq!(wrong.headers["allow"], "GET,HEAD");
}

/// Texts that look like SQL are texts.
#[tokio::test]
async fn injection_finds_nothing_and_changes_nothing() {
    let bed = Bed::new().await;
    let hostile = [
        "' or '1'='1",
        "'; drop table outbox_event; --",
        "%",
        "_",
        "\\",
        "1) or (1=1",
        "\" or \"\"=\"",
        "k1'--",
        "${jndi:x}",
        "{event}",
    ];
    for text in hostile {
        let coded = coded(text);
        for name in ["type", "aggregate_type", "aggregate_id", "tenant", "key"] {
            let count = bed.get(&format!("/events/count?{name}={coded}")).await.ok();
            assert_eq!(count["count"], 0, "{name}={text}");
        }
        assert_eq!(bed.get(&format!("/actions?who={coded}")).await.ok()["actions"], json!([]));
        let bulk = json!({ "filter": { "key": text }, "because": text });
        assert_eq!(bed.post("/events/discard", bulk).await.ok()["changed"], 0);
    }
    bed.post(&format!("/events/{}/replay", id(2)), json!({ "because": hostile[1] })).await.ok();
    assert_eq!(bed.get("/actions").await.ok()["actions"][0]["why"], hostile[1]);
    assert_eq!(bed.get("/events/count").await.ok()["count"], 8);
}
