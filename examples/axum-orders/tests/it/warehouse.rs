//! What the service ships by: here, the test itself.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use serde_json::Value;
use tokio::net::TcpListener;

use super::service::wait;

#[derive(Debug, Default)]
struct Book {
    is_open: bool,
    refused: usize,
    shipments: Vec<(String, Value)>,
}

pub(super) struct Warehouse {
    url: String,
    book: Arc<Mutex<Book>>,
}

impl Warehouse {
    /// One that ships what it is asked to.
    pub(super) async fn open() -> Self {
        let warehouse = Self::closed().await;
        warehouse.reopen();
        warehouse
    }

    /// One that refuses, until it is opened.
    pub(super) async fn closed() -> Self {
        let book = Arc::new(Mutex::new(Book::default()));
        let app = Router::new().route("/shipments", post(ship)).with_state(book.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, book }
    }

    pub(super) fn reopen(&self) {
        self.book.lock().unwrap().is_open = true;
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// What was shipped: the event's id and the request.
    pub(super) fn shipments(&self) -> Vec<(String, Value)> {
        self.book.lock().unwrap().shipments.clone()
    }

    /// Waits until it has refused something.
    pub(super) async fn refused(&self) {
        let begin = Instant::now();
        while self.book.lock().unwrap().refused == 0 {
            wait(begin, "the warehouse was asked").await;
        }
    }
}

async fn ship(State(book): State<Arc<Mutex<Book>>>, headers: HeaderMap, Json(shipment): Json<Value>) -> StatusCode {
    let mut book = book.lock().unwrap();
    if !book.is_open {
        book.refused += 1;
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    // A second delivery is no second shipment.
    if book.shipments.iter().all(|(known, _)| *known != key) {
        book.shipments.push((key, shipment));
    }
    StatusCode::CREATED
}
