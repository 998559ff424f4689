//! The service as a process of its own, asked over HTTP, on both databases.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

mod service;
mod warehouse;

use reqwest::StatusCode;
use serde_json::{Value, json};
use service::{Database, Service};
use warehouse::Warehouse;

/// Runs each case on a database of its own.
macro_rules! on_each_database {
    ($($case:ident),+ $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(super::Database::sqlite()).await;
                }
            )+
        }

        mod postgres {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(super::Database::postgres()).await;
                }
            )+
        }
    };
}

on_each_database![
    an_order_is_shipped_after_its_request,
    a_request_that_fails_leaves_neither_order_nor_event,
    bad_input_is_answered_with_a_problem,
    what_is_not_there_is_not_found,
    a_repeated_request_places_one_order,
    a_cancelled_order_is_not_shipped,
    events_outlive_a_stop,
    events_outlive_a_kill,
];

async fn an_order_is_shipped_after_its_request(database: Database) {
    let warehouse = Warehouse::open().await;
    let service = Service::start(&database, &warehouse).await;
    let answer = service.post("/orders", &tea(3)).await;
    assert_eq!(answer.status(), StatusCode::CREATED);
    let location = answer.headers()["location"].to_str().unwrap().to_owned();
    let order: Value = answer.json().await.unwrap();
    assert_eq!((&order["item"], &order["quantity"], &order["status"]), (&json!("tea"), &json!(3), &json!("placed")));
    assert_eq!(location, format!("/orders/{}", id(&order)));

    service.shipped(id(&order)).await;
    let shipments = warehouse.shipments();
    assert_eq!(shipments, [(id(&order).to_owned(), json!({ "order_id": id(&order), "item": "tea", "quantity": 3 }))]);
    assert_eq!(database.number("select quantity from stock where item = 'tea'").await, 97);
    service.stop().await;
}

async fn a_request_that_fails_leaves_neither_order_nor_event(database: Database) {
    let warehouse = Warehouse::open().await;
    let service = Service::start(&database, &warehouse).await;
    for wish in [tea(101), json!({ "item": "gold", "quantity": 1 })] {
        let answer = service.post("/orders", &wish).await;
        assert_problem(answer, StatusCode::CONFLICT, "in stock").await;
    }
    assert_eq!(database.number("select count(*) from orders").await, 0);
    assert_eq!(database.number("select count(*) from outbox_event").await, 0);
    assert_eq!(database.number("select quantity from stock where item = 'tea'").await, 100);

    // The service goes on, and what comes after is delivered, alone.
    let order = service.place(2).await;
    service.shipped(&order).await;
    assert_eq!(warehouse.shipments().len(), 1);
    service.stop().await;
}

async fn bad_input_is_answered_with_a_problem(database: Database) {
    let warehouse = Warehouse::open().await;
    let service = Service::start(&database, &warehouse).await;
    for (body, status, words) in [
        ("{\"item\": ", StatusCode::BAD_REQUEST, "JSON"),
        ("{\"item\": \"tea\"}", StatusCode::UNPROCESSABLE_ENTITY, "quantity"),
        ("{\"item\": \"tea\", \"quantity\": \"two\"}", StatusCode::UNPROCESSABLE_ENTITY, "quantity"),
        ("{\"item\": \"tea\", \"quantity\": 1, \"prize\": 2}", StatusCode::UNPROCESSABLE_ENTITY, "prize"),
        ("{\"item\": \" \", \"quantity\": 1}", StatusCode::UNPROCESSABLE_ENTITY, "`item`"),
        ("{\"item\": \"tea\", \"quantity\": 0}", StatusCode::UNPROCESSABLE_ENTITY, "1 to 1000"),
        ("{\"item\": \"tea\", \"quantity\": -1}", StatusCode::UNPROCESSABLE_ENTITY, "1 to 1000"),
        ("{\"item\": \"tea\", \"quantity\": 1001}", StatusCode::UNPROCESSABLE_ENTITY, "1 to 1000"),
    ] {
        let request = service.request("/orders").header("content-type", "application/json").body(body);
        assert_problem(request.send().await.unwrap(), status, words).await;
    }
    let no_type = service.request("/orders").body("tea").send().await.unwrap();
    assert_problem(no_type, StatusCode::UNSUPPORTED_MEDIA_TYPE, "application/json").await;
    let no_key = service.request("/orders").json(&tea(1)).header("idempotency-key", "").send().await.unwrap();
    assert_problem(no_key, StatusCode::BAD_REQUEST, "Idempotency-Key").await;
    assert_eq!(database.number("select count(*) from orders").await, 0);
    service.stop().await;
}

async fn what_is_not_there_is_not_found(database: Database) {
    let warehouse = Warehouse::open().await;
    let service = Service::start(&database, &warehouse).await;
    assert_eq!(service.get("/health").await.text().await.unwrap(), "ok");
    assert_problem(service.get("/orders/7").await, StatusCode::NOT_FOUND, "no order 7").await;
    assert_problem(service.post("/orders/7/cancel", &json!({})).await, StatusCode::NOT_FOUND, "no order 7").await;
    assert_problem(service.get("/").await, StatusCode::NOT_FOUND, "address").await;
    assert_problem(service.get("/orders").await, StatusCode::METHOD_NOT_ALLOWED, "method").await;
    service.stop().await;
}

async fn a_repeated_request_places_one_order(database: Database) {
    let warehouse = Warehouse::open().await;
    let service = Service::start(&database, &warehouse).await;
    let send = || service.request("/orders").json(&tea(1)).header("idempotency-key", "k-7").send();
    // At once, as an impatient client does, and once more.
    let (a, b, c, d) = tokio::join!(send(), send(), send(), send());
    let answers = [a, b, c, d, send().await].map(Result::unwrap);
    let created = answers.iter().filter(|answer| answer.status() == StatusCode::CREATED).count();
    assert_eq!(created, 1, "{answers:?}");
    let mut ids = Vec::new();
    for answer in answers {
        assert!(answer.status().is_success(), "{answer:?}");
        ids.push(id(&answer.json().await.unwrap()).to_owned());
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let other = service.request("/orders").json(&tea(2)).header("idempotency-key", "k-7").send().await.unwrap();
    assert_problem(other, StatusCode::UNPROCESSABLE_ENTITY, "another order").await;

    service.shipped(&ids[0]).await;
    assert_eq!(database.number("select count(*) from orders").await, 1);
    assert_eq!(database.number("select quantity from stock where item = 'tea'").await, 99);
    assert_eq!(warehouse.shipments().len(), 1);
    service.stop().await;
}

async fn a_cancelled_order_is_not_shipped(database: Database) {
    let warehouse = Warehouse::closed().await;
    let service = Service::start(&database, &warehouse).await;
    let order = service.place(5).await;
    warehouse.refused().await;
    let cancel = async || service.post(&format!("/orders/{order}/cancel"), &Value::Null).await;
    let cancelled: Value = cancel().await.json().await.unwrap();
    assert_eq!(cancelled["status"], "cancelled");
    assert_problem(cancel().await, StatusCode::CONFLICT, "cancelled already").await;
    warehouse.reopen();

    database.drained().await;
    assert_eq!(warehouse.shipments(), []);
    assert_eq!(database.number("select quantity from stock where item = 'tea'").await, 100);
    assert_eq!(database.number("select count(*) from outbox_event where status = 'DONE'").await, 2);

    let order = service.place(1).await;
    service.shipped(&order).await;
    let too_late = service.post(&format!("/orders/{order}/cancel"), &Value::Null).await;
    assert_problem(too_late, StatusCode::CONFLICT, "shipped already").await;
    service.stop().await;
}

async fn events_outlive_a_stop(database: Database) {
    let warehouse = Warehouse::closed().await;
    let service = Service::start(&database, &warehouse).await;
    let orders = [service.place(1).await, service.place(2).await, service.place(3).await];
    warehouse.refused().await;
    service.stop().await;
    deliver_what_is_left(&database, &warehouse, &orders).await;
}

async fn events_outlive_a_kill(database: Database) {
    let warehouse = Warehouse::closed().await;
    let service = Service::start(&database, &warehouse).await;
    let orders = [service.place(1).await, service.place(2).await, service.place(3).await];
    warehouse.refused().await;
    service.kill().await;
    deliver_what_is_left(&database, &warehouse, &orders).await;
}

async fn deliver_what_is_left(database: &Database, warehouse: &Warehouse, orders: &[String]) {
    assert_eq!(warehouse.shipments(), []);
    assert_eq!(database.number("select count(*) from orders where status = 'placed'").await, 3);
    warehouse.reopen();
    let service = Service::start(database, warehouse).await;
    for order in orders {
        service.shipped(order).await;
    }
    let mut shipped: Vec<_> = warehouse.shipments().into_iter().map(|(order, _)| order).collect();
    shipped.sort();
    // Ids of one process sort in the order in which they were made.
    assert_eq!(shipped, orders);
    service.stop().await;
}

#[tokio::test]
async fn a_database_that_it_does_not_know_is_refused_in_words() {
    let (code, words) = service::fails_to_start("oracle://me:secret@localhost/shop").await;
    assert_eq!(code, Some(1));
    assert!(words.contains("postgres://") && words.contains("sqlite:") && !words.contains("secret"), "{words}");
}

fn tea(quantity: i64) -> Value {
    json!({ "item": "tea", "quantity": quantity })
}

fn id(order: &Value) -> &str {
    order["id"].as_str().unwrap()
}

async fn assert_problem(answer: reqwest::Response, status: StatusCode, words: &str) {
    assert_eq!(answer.status(), status, "{answer:?}");
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    let problem: Value = answer.json().await.unwrap();
    assert_eq!(problem["status"], status.as_u16());
    assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
}
