//! Who may come in, and what they may do.

use std::net::SocketAddr;

use axum::{
    body::Body,
    extract::ConnectInfo,
    http::{Request, Version},
};
use pillarbox_admin::{Access, Identity};
use serde_json::json;

use crate::bed::{ADA, Answer, Bed, VIC, id};

/// Every route that acts.
fn acting() -> Vec<(&'static str, String)> {
    vec![
        ("POST", "/events/replay".into()),
        ("POST", "/events/discard".into()),
        ("DELETE", format!("/events/{}", id(1))),
        ("POST", format!("/events/{}/replay", id(1))),
        ("POST", format!("/events/{}/skip", id(1))),
        ("PUT", format!("/events/{}/payload", id(1))),
        ("POST", "/dlq/replay".into()),
        ("POST", "/dlq/discard".into()),
        ("DELETE", format!("/dlq/{:032x}", 1)),
        ("POST", format!("/dlq/{:032x}/replay", 1)),
        ("PUT", format!("/dlq/{:032x}/payload", 1)),
    ]
}

#[tokio::test]
async fn a_viewer_looks_and_can_not_act() {
    let bed = Bed::new().await;
    for path in ["/events", "/events/count", "/events/1", "/dead", "/dead/count", "/actions", "/stats", "/fleet"] {
        bed.send("GET", path, Some(VIC), None).await.ok();
    }
    let before = bed.get("/events?limit=500").await.ok();
    for (method, path) in acting() {
        for body in [Some(json!({ "all": true, "payload": 1 })), Some(json!({})), None] {
            let problem = bed.send(method, &path, Some(VIC), body).await.problem(403);
            assert!(problem["detail"].as_str().unwrap().contains("only operators act"), "{problem}");
        }
    }
    assert_eq!(bed.get("/events?limit=500").await.ok(), before);
    assert_eq!(bed.get("/actions").await.ok()["actions"], json!([]));
}

/// Every route of the document that changes something is among those that a viewer was tried on.
#[tokio::test]
async fn every_route_that_acts_is_tried() {
    let bed = Bed::new().await;
    let document = bed.get("/openapi.json").await.ok();
    let paths = document["paths"].as_object().unwrap();
    let acts = paths.values().flat_map(|of| of.as_object().unwrap().keys()).filter(|method| *method != "get").count();
    assert_eq!(acts, acting().len());
}

#[tokio::test]
async fn without_a_valid_token_every_answer_is_the_same() {
    let bed = Bed::new().await;
    let missing = bed.send("GET", "/events", None, None).await;
    missing.problem(401);
    assert_eq!(missing.headers["www-authenticate"], "Bearer realm=\"pillarbox\"");
    let long = "x".repeat(5_000);
    for header in [
        "",
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Basic YTpi",
        "bearer  ",
        ADA,
        &format!("Bearer {ADA}x"),
        &format!("Bearer {long}"),
    ] {
        for (method, path) in acting().into_iter().chain([("GET", "/events".into()), ("GET", "/nothing".into())]) {
            let request =
                Request::builder().method(method).uri(format!("/api/admin{path}")).header("authorization", header);
            let answer = bed.request(request.body(Body::empty()).unwrap()).await;
            assert_eq!((answer.status, &answer.text), (missing.status, &missing.text), "{header}: {method} {path}");
        }
    }
    let two = Request::get("/api/admin/events")
        .header("authorization", format!("Bearer {ADA}"))
        .header("authorization", "Bearer x");
    bed.request(two.body(Body::empty()).unwrap()).await.problem(401);
    let query = bed.send("GET", &format!("/events?token={ADA}&access_token={ADA}"), None, None).await;
    assert_eq!(query.text, missing.text, "a token in the address is none");
    let case = Request::get("/api/admin/events").header("authorization", format!("bEARER {ADA}"));
    bed.request(case.body(Body::empty()).unwrap()).await.ok();
}

#[tokio::test]
async fn who_acts_stands_in_the_record() {
    let bed = Bed::new().await;
    let request = Request::post(format!("/api/admin/events/{}/replay", id(2)))
        .header("authorization", format!("Bearer {ADA}"))
        .header("x-pillarbox-as", "bob");
    bed.request(request.body(Body::empty()).unwrap()).await.ok();
    assert_eq!(bed.get("/actions").await.ok()["actions"][0]["who"], "ada (bob)");
}

fn from(peer: &str, host: &str) -> axum::http::request::Builder {
    let peer: SocketAddr = peer.parse().unwrap();
    Request::get("/api/admin/events").extension(ConnectInfo(peer)).header("host", host)
}

async fn ask(bed: &Bed, request: axum::http::request::Builder) -> Answer {
    bed.request(request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn without_tokens_only_this_machine_may_come_in() {
    let bed = Bed::with(Access::loopback(), |admin| admin).await;
    for (peer, host) in [
        ("127.0.0.1:9", "localhost:8080"),
        ("[::1]:9", "[::1]:8080"),
        ("127.0.0.2:9", "127.0.0.1"),
        ("[::ffff:127.0.0.1]:9", "localhost"),
    ] {
        ask(&bed, from(peer, host)).await.ok();
    }
    for (peer, host) in [
        ("10.0.0.1:9", "localhost"),
        ("[2001:db8::1]:9", "localhost"),
        ("127.0.0.1:9", "evil.example"),
        ("127.0.0.1:9", "localhost.evil.example"),
        ("127.0.0.1:9", "localhost:9@evil.example"),
    ] {
        ask(&bed, from(peer, host)).await.problem(403);
    }
    // Nobody said where it comes from, or a proxy did.
    ask(&bed, Request::get("/api/admin/events").header("host", "localhost")).await.problem(403);
    for header in ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "forwarded", "via", "x-real-ip"] {
        ask(&bed, from("127.0.0.1:9", "localhost").header(header, "1.2.3.4")).await.problem(403);
    }
    ask(&bed, from("127.0.0.1:9", "localhost").version(Version::HTTP_10)).await.problem(403);
    ask(&bed, Request::get("/api/admin/docs").header("host", "localhost")).await.problem(403);
}

/// A page in a browser on this machine can neither act nor read.
#[tokio::test]
async fn a_page_of_another_origin_can_not_act() {
    let bed = Bed::with(Access::loopback(), |admin| admin).await;
    let post = || {
        let peer: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let path = format!("/api/admin/events/{}/replay", id(2));
        Request::post(path).extension(ConnectInfo(peer)).header("host", "localhost:8080")
    };
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("origin", "http://localhost:9999"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        ask(&bed, post().header(name, value)).await.problem(403);
    }
    for form in ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"] {
        ask(&bed, post().header("content-type", form)).await.problem(415);
    }
    assert_eq!(bed.text("select status from outbox_event where seq = 2").await, "DEAD");
    ask(&bed, post().header("origin", "http://localhost:8080")).await.ok();
    assert_eq!(bed.text("select actor from outbox_action").await, "local");
}

#[tokio::test]
async fn other_origins_are_not_let_in() {
    let bed = Bed::new().await;
    for method in ["OPTIONS", "GET"] {
        let request = Request::builder()
            .method(method)
            .uri("/api/admin/events")
            .header("authorization", format!("Bearer {ADA}"))
            .header("origin", "https://evil.example")
            .header("access-control-request-method", "POST");
        let answer = bed.request(request.body(Body::empty()).unwrap()).await;
        assert!(answer.headers.keys().all(|name| !name.as_str().starts_with("access-control")), "{answer:?}");
        assert_eq!(answer.status, if method == "GET" { 200 } else { 405 });
        assert_eq!(answer.headers["cache-control"], "no-store");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        assert_eq!(answer.headers["referrer-policy"], "no-referrer");
        assert!(answer.headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'self'"));
        assert!(!answer.headers.contains_key("set-cookie"));
    }
}

/// Behind one's own authentication.
#[tokio::test]
async fn ones_own_authentication_says_who_it_is() {
    let access = Access::behind_your_own(|parts| {
        let user = parts.headers.get("x-user")?.to_str().ok()?;
        Some(if user == "root" { Identity::operator(user) } else { Identity::viewer(user) })
    });
    let bed = Bed::with(access, |admin| admin).await;
    let post = |user: &str| Request::post(format!("/api/admin/events/{}/replay", id(2))).header("x-user", user);
    ask(&bed, Request::get("/api/admin/events")).await.problem(401);
    ask(&bed, Request::get("/api/admin/docs")).await.problem(401);
    ask(&bed, Request::get("/api/admin/events").header("x-user", "eve")).await.ok();
    ask(&bed, post("eve")).await.problem(403);
    ask(&bed, post("root").header("origin", "https://evil.example")).await.problem(403);
    ask(&bed, post("root")).await.ok();
    assert_eq!(bed.text("select actor from outbox_action").await, "root");
}

/// The page sends cookies where they may say who it is, and never beside a token.
#[tokio::test]
async fn the_page_works_behind_ones_own_authentication_by_cookie() {
    let access = Access::behind_your_own(|parts| {
        (parts.headers.get("cookie")? == "session=7").then(|| Identity::operator("root"))
    });
    let bed = Bed::with(access, |admin| admin).await;
    let page = async |path: &str| {
        let with_cookie = Request::get(format!("/api/admin{path}")).header("cookie", "session=7");
        let answer = ask(&bed, with_cookie).await;
        assert_eq!(answer.status, 200, "{path}");
        answer.text
    };
    assert!(page("/docs").await.contains("<html lang=\"en\" data-credentials=\"same-origin\">"));
    let script = page("/docs.js").await;
    assert!(script.contains("const { credentials } = document.documentElement.dataset;"), "{script}");
    // Every request of the page is sent so.
    assert_eq!(script.matches("fetch(").count(), script.matches("credentials }").count() - 1, "{script}");
    page("/openapi.json").await;
    ask(&bed, Request::get("/api/admin/openapi.json")).await.problem(401);

    let by_token = Bed::new().await.send("GET", "/docs", None, None).await.text;
    assert!(by_token.contains("data-credentials=\"omit\""), "{by_token}");
}
