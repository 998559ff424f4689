//! Whatever is sent, the answer is a success or a problem, and no fault of the service's own.

use axum::{body::Body, http::Request};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::bed::{ADA, Answer, Bed, VIC, coded, id};

fn method() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["GET", "GET", "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
}

fn segment() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (1..9_i64).prop_map(id),
        2 => (-3..12_i64).prop_map(|seq| seq.to_string()),
        1 => (0..9_u8).prop_map(|number| format!("{number:032x}")),
        2 => any::<String>().prop_map(|text| coded(&text)),
        1 => Just("%FF".to_owned()),
        1 => "[0-9A-Z]{26}",
        1 => "[-0-9]{1,25}",
    ]
}

fn path() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "events",
        "dlq",
        "dead",
        "actions",
        "stats",
        "fleet",
        "docs",
        "openapi.json",
        "nothing",
    ]);
    let tail = prop::sample::select(vec!["", "/replay", "/discard", "/skip", "/payload", "/count", "/nothing", "/"]);
    prop_oneof![
        (name.clone(), tail.clone()).prop_map(|(name, tail)| format!("/{name}{tail}")),
        (name, segment(), tail).prop_map(|(name, segment, tail)| format!("/{name}/{segment}{tail}")),
    ]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => any::<String>().prop_map(|text| coded(&text)),
        2 => "[0-9]{1,25}",
        1 => "-?[0-9]{1,20}",
        1 => Just("%FF%00".to_owned()),
        1 => Just("DEAD,NEW".to_owned()),
        1 => Just("true".to_owned()),
        1 => Just("2026-11-15".to_owned()),
        1 => "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|%2B[0-9]{2}:[0-9]{2})",
        1 => Just("9999-12-31T23:59:59Z".to_owned()),
        1 => Just("0001-01-01".to_owned()),
        1 => "(\\.|-?[0-9]{0,20})~(\\.|-?[0-9]{0,20}-[0-9a-f]{32}(-[0-9]{1,12})?)?",
        1 => "[a-z%&=+~.-]{0,30}",
        1 => Just("'%20or%201=1--".to_owned()),
    ]
}

fn query() -> impl Strategy<Value = String> {
    let names = vec![
        "status",
        "type",
        "aggregate_type",
        "aggregate_id",
        "tenant",
        "key",
        "from",
        "until",
        "text",
        "order",
        "limit",
        "cursor",
        "payloads",
        "event_id",
        "who",
        "because",
        "origin",
        "topic",
        "consumer",
        "letter_id",
        "saga_id",
        "correlation_id",
        "x",
    ];
    prop::collection::vec((prop::sample::select(names), value()), 0..4)
        .prop_map(|pairs| pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&"))
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(json!({ "type": "Placed" })),
        Just(json!({ "consumer": "billing", "saga_id": "saga-1" })),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{0,8}", inner, 0..3).prop_map(|map| map.into_iter().collect::<Value>()),
        ]
    })
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let names = vec![
        "filter",
        "all",
        "rate",
        "limit",
        "cursor",
        "dry_run",
        "because",
        "payload",
        "payload_base64",
        "content_type",
        "x",
    ];
    let members = prop::collection::btree_map(prop::sample::select(names), json_value(), 0..4);
    let object = members.prop_map(|map| {
        let map: serde_json::Map<_, _> = map.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Value::from(map).to_string().into_bytes()
    });
    prop_oneof![
        6 => object,
        1 => json_value().prop_map(|value| value.to_string().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..50),
        2 => Just(Vec::new()),
    ]
}

#[derive(Clone, Debug)]
struct Sent {
    method: &'static str,
    uri: String,
    token: Option<&'static str>,
    content_type: Option<&'static str>,
    on_behalf: Option<Vec<u8>>,
    body: Vec<u8>,
}

fn sent() -> impl Strategy<Value = Sent> {
    (
        method(),
        path(),
        query(),
        prop::sample::select(vec![Some(ADA), Some(ADA), Some(ADA), Some(VIC), None]),
        prop::sample::select(vec![Some("application/json"), Some("application/json"), Some("text/plain"), None]),
        prop::option::weighted(0.1, prop::collection::vec(0x20_u8..0x7f, 0..120)),
        body(),
    )
        .prop_map(|(method, path, query, token, content_type, on_behalf, body)| Sent {
            method,
            uri: if query.is_empty() { format!("/api/admin{path}") } else { format!("/api/admin{path}?{query}") },
            token,
            content_type,
            on_behalf,
            body,
        })
}

fn request(sent: &Sent) -> Option<Request<Body>> {
    let mut request = Request::builder().method(sent.method).uri(&sent.uri);
    if let Some(token) = sent.token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    if let Some(content_type) = sent.content_type {
        request = request.header("content-type", content_type);
    }
    if let Some(name) = &sent.on_behalf {
        request = request.header("x-pillarbox-as", &name[..]);
    }
    request.body(Body::from(sent.body.clone())).ok()
}

fn is_good(answer: &Answer, method: &str) -> Result<(), String> {
    let status = answer.status.as_u16();
    let problem = answer.headers.get("content-type").is_some_and(|kind| kind == "application/problem+json");
    match status {
        200 | 204 if !problem => Ok(()),
        400 | 401 | 403 | 404 | 405 | 409 | 413 | 415 | 422 if problem => {
            if method == "HEAD" {
                return Ok(());
            }
            let told: Value = serde_json::from_str(&answer.text).map_err(|error| error.to_string())?;
            if told["status"] == status { Ok(()) } else { Err(format!("another status: {told}")) }
        }
        _ => Err("no such answer is foreseen".into()),
    }
}

/// Security: "fuzz the API's inputs with no 500".
#[test]
fn whatever_is_sent_is_answered_by_a_success_or_a_problem() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limits = pillarbox_admin::Limits::unhurried();
    let (_folder, queue) = runtime.block_on(crate::letters::some_letters());
    let bed = runtime.block_on(Bed::with(crate::bed::tokens(), |admin| admin.limits(limits).letters(queue)));
    proptest!(ProptestConfig::with_cases(3_000), |(sent in sent())| {
        if let Some(request) = request(&sent) {
            let answer = runtime.block_on(bed.request(request));
            if let Err(why) = is_good(&answer, sent.method) {
                prop_assert!(false, "{}: {sent:?}: {answer:?}", why);
            }
        }
    });
}
