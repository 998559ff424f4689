//! The document tells the truth: every route is in it, and every answer is as it says.

use std::collections::BTreeSet;

use axum::{body::Body, http::Request};
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::{
    bed::{ADA, Answer, Bed, id, tokens},
    letters::some_letters,
};

async fn document(bed: &Bed) -> Value {
    bed.send("GET", "/openapi.json", None, None).await.ok()
}

fn operations(document: &Value) -> Vec<(String, String)> {
    let paths = document["paths"].as_object().unwrap();
    let of = |(path, methods): (&String, &Value)| {
        let names = methods.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        names.into_iter().map(|method| (method, path.clone())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of).collect()
}

#[tokio::test]
async fn the_document_names_its_place_and_every_operation_once() {
    let bed = Bed::new().await;
    let document = document(&bed).await;
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["servers"], json!([{ "url": "/api/admin" }]));
    let ids: Vec<_> = operations(&document)
        .iter()
        .map(|(method, path)| document["paths"][path][method]["operationId"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
}

/// Every operation of the document is a route: it gives neither the problem of no path nor that of no method.
#[tokio::test]
async fn every_operation_is_a_route() {
    let bed = Bed::new().await;
    let document = document(&bed).await;
    for (method, path) in operations(&document) {
        let answer = bed.send(&method.to_uppercase(), &path.replace("{id}", "7"), Some(ADA), None).await;
        assert!(!answer.text.contains("no-such-path") && answer.status != 405, "{method} {path}: {answer:?}");
    }
}

/// The schema of a response, with the components it refers to.
fn validator(document: &Value, method: &str, path: &str, status: u16) -> Validator {
    let responses = &document["paths"][path][method]["responses"];
    let response = match responses.get(status.to_string()) {
        Some(response) => response,
        None => &document["components"]["responses"]["Problem"],
    };
    let content = response["content"].as_object().unwrap_or_else(|| panic!("{method} {path} {status}"));
    let mut schema = content.values().next().unwrap()["schema"].clone();
    schema["components"] = document["components"].clone();
    jsonschema::draft202012::new(&schema).unwrap()
}

#[track_caller]
fn matches(document: &Value, method: &str, path: &str, answer: &Answer) {
    if answer.status == 204 {
        assert!(answer.text.is_empty());
        return;
    }
    let validator = validator(document, method, path, answer.status.as_u16());
    let value = answer.json();
    let errors: Vec<_> =
        validator.iter_errors(&value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{method} {path}: {errors:#?}\n{value:#}");
}

/// Every answer is as the document says, good or bad.
#[tokio::test]
async fn every_answer_is_as_the_document_says() {
    let (_folder, queue) = some_letters().await;
    let letter = |number: u8| format!("{number:032x}");
    let bed = Bed::with(tokens(), |admin| admin.letters(queue)).await;
    bed.run("update outbox_event set headers = 'x' where seq = 4").await;
    bed.run("update outbox_event set payload = x'00ff', content_type = 'image/png' where seq = 5").await;
    bed.run("insert into outbox_instance (id, until, routes, in_flight) values ('n', 1, '[\"a\"]', 1)").await;
    let document = document(&bed).await;
    let one = id(1);
    let cases = [
        ("get", "/events", "/events?limit=500".to_owned(), None),
        ("get", "/events", "/events?limit=3&payloads=false".to_owned(), None),
        ("get", "/events", "/events?nonsense=3".to_owned(), None),
        ("get", "/events/count", "/events/count".to_owned(), None),
        ("get", "/events/{id}", "/events/4".to_owned(), None),
        ("get", "/events/{id}", "/events/5".to_owned(), None),
        ("get", "/events/{id}", "/events/nothing".to_owned(), None),
        (
            "put",
            "/events/{id}/payload",
            format!("/events/{one}/payload"),
            Some(json!({ "payload": 7, "because": "b" })),
        ),
        ("put", "/events/{id}/payload", format!("/events/{one}/payload"), Some(json!({}))),
        ("post", "/events/{id}/skip", format!("/events/{one}/skip"), Some(json!({}))),
        ("post", "/events/{id}/skip", format!("/events/{one}/skip"), Some(json!({}))),
        ("post", "/events/{id}/replay", format!("/events/{one}/replay"), Some(json!({ "because": "b" }))),
        ("post", "/events/{id}/replay", format!("/events/{one}/replay"), Some(json!({}))),
        ("delete", "/events/{id}", format!("/events/{}", id(2)), None),
        ("delete", "/events/{id}", format!("/events/{}", id(2)), None),
        (
            "post",
            "/events/replay",
            "/events/replay".to_owned(),
            Some(json!({ "all": true, "dry_run": true, "limit": 1 })),
        ),
        ("post", "/events/discard", "/events/discard".to_owned(), Some(json!({ "filter": { "key": "nobody" } }))),
        ("post", "/events/discard", "/events/discard".to_owned(), Some(json!({}))),
        ("get", "/dead", "/dead".to_owned(), None),
        ("get", "/dead/count", "/dead/count".to_owned(), None),
        ("get", "/dlq", "/dlq".to_owned(), None),
        ("get", "/dlq/count", "/dlq/count".to_owned(), None),
        ("get", "/dlq/{id}", "/dlq/x".to_owned(), None),
        ("delete", "/dlq/{id}", "/dlq/x".to_owned(), None),
        ("post", "/dlq/{id}/replay", "/dlq/x/replay".to_owned(), None),
        ("put", "/dlq/{id}/payload", "/dlq/x/payload".to_owned(), None),
        ("put", "/dlq/{id}/payload", format!("/dlq/{}/payload", letter(1)), Some(json!({ "payload": 7 }))),
        ("get", "/dlq/{id}", format!("/dlq/{}", letter(1)), None),
        ("post", "/dlq/{id}/replay", format!("/dlq/{}/replay", letter(1)), None),
        ("delete", "/dlq/{id}", format!("/dlq/{}", letter(2)), None),
        ("post", "/dlq/replay", "/dlq/replay".to_owned(), Some(json!({ "all": true, "limit": 1, "rate": 9 }))),
        ("post", "/dlq/replay", "/dlq/replay".to_owned(), Some(json!({ "all": true, "dry_run": true }))),
        ("post", "/dlq/discard", "/dlq/discard".to_owned(), Some(json!({ "filter": { "topic": "nowhere" } }))),
        ("post", "/dlq/discard", "/dlq/discard".to_owned(), Some(json!({}))),
        ("get", "/actions", "/actions".to_owned(), None),
        ("get", "/stats", "/stats".to_owned(), None),
        ("get", "/fleet", "/fleet".to_owned(), None),
        ("get", "/openapi.json", "/openapi.json".to_owned(), None),
    ];
    let mut tried = BTreeSet::new();
    for (method, of, path, body) in cases {
        let answer = bed.send(&method.to_uppercase(), &path, Some(ADA), body).await;
        matches(&document, method, of, &answer);
        tried.insert((method.to_owned(), of.to_owned()));
        let refused = bed.send(&method.to_uppercase(), &path, None, None).await;
        if of != "/openapi.json" {
            matches(&document, method, of, &refused);
        }
    }
    let left: Vec<_> =
        operations(&document).into_iter().filter(|of| !tried.contains(of) && !of.1.starts_with("/docs")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The parameters of the document are those that are taken: none is missing, and none is unknown.
#[tokio::test]
async fn the_parameters_are_those_of_the_document() {
    let (_folder, queue) = some_letters().await;
    let bed = Bed::with(tokens(), |admin| admin.letters(queue)).await;
    let document = document(&bed).await;
    for (method, path) in operations(&document)
        .into_iter()
        .filter(|(method, path)| method == "get" && !path.starts_with("/docs") && path != "/openapi.json")
    {
        let parameters = document["paths"][&path][&method].get("parameters").cloned().unwrap_or(json!([]));
        let named: BTreeSet<_> = parameters
            .as_array()
            .unwrap()
            .iter()
            .filter(|parameter| parameter["in"] == "query")
            .map(|parameter| parameter["name"].as_str().unwrap().to_owned())
            .collect();
        let problem = bed.get(&format!("{}?no_such_parameter=1", path.replace("{id}", "7"))).await.problem(400);
        let allowed = problem.get("allowed").cloned().unwrap_or(json!([]));
        let allowed: BTreeSet<_> =
            allowed.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect();
        assert_eq!(allowed, named, "{path}");
    }
}

/// The page works without a token, and without anything from elsewhere.
#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere() {
    let bed = Bed::new().await;
    for (path, kind) in [("/docs", "text/html"), ("/docs.js", "text/javascript"), ("/docs.css", "text/css")] {
        let answer = bed.send("GET", path, None, None).await;
        assert_eq!(answer.status, 200);
        assert!(answer.headers["content-type"].to_str().unwrap().starts_with(kind));
        let policy = answer.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'self';") && !policy.contains("unsafe"), "{policy}");
        for far in [
            "http:",
            "https:",
            "//cdn",
            "src=\"//",
            "href=\"//",
            "@import",
            "url(",
            "data:",
            "innerHTML",
            "eval(",
            "localStorage",
        ] {
            assert!(!answer.text.contains(far), "{path} has {far}");
        }
    }
    let page = bed.send("GET", "/docs", None, None).await.text;
    assert!(!page.contains("<style") && !page.contains("style=") && !page.contains("onclick"), "the policy forbids it");
    for file in ["docs.js", "docs.css"] {
        assert!(page.contains(&format!("\"{file}\"")), "{page}");
    }
    // Data needs a token all the same.
    let request = Request::get("/api/admin/docs/../events").body(Body::empty()).unwrap();
    assert_ne!(bed.request(request).await.status, 200);
    bed.send("POST", "/docs", None, None).await.problem(401);
}
