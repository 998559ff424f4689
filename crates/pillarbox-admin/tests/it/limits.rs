//! How much a caller may ask.

use std::time::Duration;

use axum::{body::Body, http::Request};
use pillarbox_admin::{Access, Admin, Identity, Limits};
use pillarbox_testkit::{Call, Faulty, MemoryStore};
use serde_json::json;

use crate::bed::{ADA, Bed, VIC, answer, id, tokens};

#[tokio::test]
async fn a_caller_is_slowed_down_and_others_are_not() {
    let slow = Limits { requests_per_second: 0.001, burst: 3, ..Limits::default() };
    let bed = Bed::with(tokens(), |admin| admin.limits(slow)).await;
    for _ in 0..3 {
        bed.get("/stats").await.ok();
    }
    let refused = bed.get("/stats").await;
    refused.problem(429);
    assert!(refused.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() > 100);
    bed.send("GET", "/stats", Some(VIC), None).await.ok();
    bed.send("GET", "/stats", Some("nobody"), None).await.problem(401);
}

#[tokio::test]
async fn a_body_has_its_size_and_its_kind() {
    let bed = Bed::new().await;
    let path = format!("/events/{}/replay", id(2));
    bed.post(&path, json!({ "because": "x".repeat(70_000) })).await.problem(413);
    let send = async |content_type: &str, body: &'static str| {
        let request = Request::post(format!("/api/admin{path}"))
            .header("authorization", format!("Bearer {ADA}"))
            .header("content-type", content_type);
        bed.request(request.body(Body::from(body)).unwrap()).await
    };
    send("text/plain", "{}").await.problem(415);
    send("", "{}").await.problem(415);
    for wrong in ["{", "[]", "1", "null", "{\"because\": 1}", "{\"because\": \"\"}", "{\"becase\": \"x\"}", "\u{0}"] {
        send("application/json", wrong).await.problem(400);
    }
    assert_eq!(send("application/json", "{\"becase\": \"x\"}").await.problem(400)["nearest"], "because");
    assert_eq!(bed.text("select status from outbox_event where seq = 2").await, "DEAD");
    send("application/json; charset=utf-8", "{}").await.ok();
}

fn on(store: Faulty<MemoryStore>, limits: Limits) -> axum::Router {
    Admin::new(store, Access::everybody(Identity::operator("ada"))).limits(limits).router()
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_request_has_its_time() {
    let store = Faulty::new(MemoryStore::new());
    let faults = store.faults().clone();
    faults.hang(Call::Stats);
    let router = on(store, Limits { time: Duration::from_secs(3), ..Limits::default() });
    answer(&router, get("/stats")).await.problem(504);
    answer(&router, get("/stats")).await.ok();
}

#[tokio::test]
async fn only_so_many_are_worked_on_at_once() {
    let store = Faulty::new(MemoryStore::new());
    let faults = store.faults().clone();
    let gate = faults.stop_before(Call::Stats);
    let router = on(store, Limits { at_once: 1, ..Limits::default() });
    let first = tokio::spawn({
        let router = router.clone();
        async move { answer(&router, get("/stats")).await }
    });
    gate.reached().await;
    let busy = answer(&router, get("/fleet")).await;
    busy.problem(503);
    assert_eq!(busy.headers["retry-after"], "1");
    gate.open();
    first.await.unwrap().ok();
    answer(&router, get("/fleet")).await.ok();
}

/// Bodies of viewers are not waited for, so that they take no places.
#[tokio::test]
async fn a_viewer_who_begins_requests_and_does_not_end_them_keeps_nobody_out() {
    let bed = Bed::with(tokens(), |admin| admin.limits(Limits { at_once: 1, ..Limits::default() })).await;
    let endless = |method: &str, path: String| {
        let request = Request::builder().method(method).uri(format!("/api/admin{path}"));
        let request =
            request.header("authorization", format!("Bearer {VIC}")).header("content-type", "application/json");
        let body = Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
        bed.request(request.body(body).unwrap())
    };
    endless("POST", format!("/events/{}/replay", id(2))).await.problem(403);
    endless("GET", "/stats".into()).await.ok();
    bed.get("/stats").await.ok();
}

/// The database's own words stay in the log.
#[tokio::test]
async fn a_database_that_fails_is_told_without_its_words() {
    use pillarbox_core::port::StoreErrorKind;
    let store = Faulty::new(MemoryStore::new());
    let faults = store.faults().clone();
    let router = on(store, Limits::default());
    for (kind, status) in [
        (StoreErrorKind::Unavailable, 503),
        (StoreErrorKind::Conflict, 503),
        (StoreErrorKind::OutcomeUnknown, 503),
        (StoreErrorKind::Schema, 503),
        (StoreErrorKind::Rejected, 500),
    ] {
        faults.fail(Call::Stats, 1, kind);
        answer(&router, get("/stats")).await.problem(status);
    }
}
