//! The requests.

use std::time::Duration;

use axum::{
    Json, Router,
    extract::{Path, State, rejection::JsonRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use pillarbox::{AnyStore, new_id, prelude::*};
use serde::{Deserialize, Serialize};

use crate::{
    database::{Database, Order},
    problem::Problem,
};

/// For how long a repeated request is recognised.
const REPEATED_WITHIN: Duration = Duration::from_hours(24);

#[derive(Clone, Debug, Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "Order", aggregate_id = order_id, key = order_id)]
pub(crate) struct OrderPlaced {
    pub(crate) order_id: String,
    pub(crate) item: String,
    pub(crate) quantity: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "Order", aggregate_id = order_id, key = order_id)]
pub(crate) struct OrderCancelled {
    pub(crate) order_id: String,
}

#[derive(Clone, Debug)]
struct App {
    outbox: Outbox<AnyStore>,
    database: Database,
}

pub(crate) fn router(outbox: Outbox<AnyStore>, database: Database) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/orders", post(place))
        .route("/orders/{id}", get(show))
        .route("/orders/{id}/cancel", post(cancel))
        .fallback(|| async { Problem::new(StatusCode::NOT_FOUND, "there is nothing at this address") })
        .method_not_allowed_fallback(|| async {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this address does not take this method")
        })
        .with_state(App { outbox, database })
}

/// What a customer sends.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    item: String,
    quantity: i64,
}

impl Wish {
    fn check(&self) -> Result<(), Problem> {
        let wrong = |detail: &str| Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
        match self {
            Self { item, .. } if item.trim().is_empty() => wrong("`item` is empty"),
            Self { quantity, .. } if !(1..=1_000).contains(quantity) => wrong("`quantity` must be 1 to 1000"),
            _ => Ok(()),
        }
    }

    fn is_that_of(&self, order: &Order) -> bool {
        (&self.item, self.quantity) == (&order.item, order.quantity)
    }
}

/// Places an order. A client that got no answer repeats the request with the same `Idempotency-Key`, and gets the
/// order that was placed.
async fn place(
    State(App { outbox, database }): State<App>,
    headers: HeaderMap,
    wish: Result<Json<Wish>, JsonRejection>,
) -> Result<Response, Problem> {
    let Json(wish) = wish?;
    wish.check()?;
    // The order has the id of the event that tells of it, so that a repeated request finds it.
    let id = new_id();
    let order = Order::new(id.to_string(), wish.item.clone(), wish.quantity);
    let placed = OrderPlaced { order_id: order.id.clone(), item: order.item.clone(), quantity: order.quantity };
    let mut event = placed.to_event().id(id);
    if let Some(key) = idempotency_key(&headers)? {
        event = event.dedup(key, REPEATED_WITHIN);
    }

    let mut tx = outbox.begin().await?;
    database.insert(&mut tx, &order).await?;
    tx.write(event).await?;
    if let Some(earlier) = tx.duplicates().first() {
        let earlier = earlier.kept.to_string();
        tx.rollback().await?;
        return match database.find(&earlier).await? {
            Some(order) if wish.is_that_of(&order) => Ok(Json(order).into_response()),
            Some(_) => Err(Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "this `Idempotency-Key` was sent with another order",
            )),
            None => Err(Problem::no_such_order(&earlier)),
        };
    }
    if !database.take_from_stock(&mut tx, &order).await? {
        // The transaction is dropped: order and event go with it.
        return Err(Problem::new(StatusCode::CONFLICT, format!("there is not enough {} in stock", order.item)));
    }
    tx.commit().await?;
    let location = [(header::LOCATION, format!("/orders/{}", order.id))];
    Ok((StatusCode::CREATED, location, Json(order)).into_response())
}

/// Shows an order: `placed`, and `shipped` when the handler has run.
async fn show(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Order>, Problem> {
    app.database.find(&id).await?.map(Json).ok_or_else(|| Problem::no_such_order(&id))
}

/// Cancels an order that is not shipped yet.
async fn cancel(State(App { outbox, database }): State<App>, Path(id): Path<String>) -> Result<Json<Order>, Problem> {
    let mut tx = outbox.begin().await?;
    // First the row, which locks the order, then the event: so events of one order are in the order of its changes.
    let Some(order) = database.change_status(&mut tx, &id, "placed", "cancelled").await? else {
        drop(tx);
        return Err(match database.find(&id).await? {
            Some(order) => Problem::new(StatusCode::CONFLICT, format!("the order is {} already", order.status)),
            None => Problem::no_such_order(&id),
        });
    };
    database.put_into_stock(&mut tx, &order).await?;
    tx.write(&OrderCancelled { order_id: id }).await?;
    tx.commit().await?;
    Ok(Json(order))
}

/// Answers as long as the database does.
async fn health(State(app): State<App>) -> Result<&'static str, Problem> {
    app.database.ping().await?;
    Ok("ok")
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(key) if (1..=255).contains(&key.len()) => Ok(Some(key)),
        _ => Err(Problem::new(StatusCode::BAD_REQUEST, "`Idempotency-Key` must be 1 to 255 visible characters")),
    }
}
