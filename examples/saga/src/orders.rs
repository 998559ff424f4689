//! The order service: takes orders, hears how they end, and cancels those that take too long.

use std::time::Duration;

use pillarbox::prelude::*;
use sqlx::{Row as _, SqliteConnection, SqlitePool};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    Failure,
    choreography::{self, Word},
    events::{Heard, Order, PaymentDeclined, PaymentRefunded, PaymentTaken, PlaceOrder, StockRejected, event},
    service::{Place, Service, hears},
};

/// The table, if it is not there.
pub(crate) const TABLES: &str = "
    create table if not exists orders (
        id text primary key not null,
        customer text not null,
        item text not null,
        quantity integer not null,
        cents integer not null,
        state text not null,
        reason text,
        correlation text not null,
        placed_at real not null default (unixepoch('subsec'))
    ) strict;
    create index if not exists orders_waiting on orders (placed_at) where state = 'PLACED'";

pub(crate) async fn run(place: Place) -> Result<(), Failure> {
    let timeout = place.timeout;
    let service = Service::start("order", place).await?;
    sqlx::raw_sql(TABLES).execute(service.pool()).await?;
    let consumer = service
        .consumer()?
        .handle_in_tx(hears::<PlaceOrder, _>(hear))
        .handle_in_tx(hears::<StockRejected, _>(hear))
        .handle_in_tx(hears::<PaymentTaken, _>(hear))
        .handle_in_tx(hears::<PaymentDeclined, _>(hear))
        .handle_in_tx(hears::<PaymentRefunded, _>(hear))
        .start()
        .await?;
    let detector = tokio::spawn(detect(service.outbox.clone(), service.pool().clone(), timeout));
    let ended = service.run(consumer).await;
    detector.abort();
    ended
}

/// One word: the order's new state, and what the others are told, in the transaction that the word is entered in.
async fn hear(mut work: Work<SqliteStore>, heard: Heard) -> Result<(), HandlerError> {
    let state = load(&mut work, &heard.order.id).await?;
    let (state, told) =
        choreography::order(state, heard.word).map_err(|error| HandlerError::from(error).permanent())?;
    if heard.word == Word::PlaceOrder {
        insert(&mut work, &heard).await?;
    }
    store(&mut work, &heard.order.id, state).await?;
    if let Some(word) = told {
        work.write(heard.answer(word)).await?;
    }
    Ok(())
}

/// The timeout detector.
async fn detect(outbox: Outbox<SqliteStore>, pool: SqlitePool, timeout: Duration) {
    let mut ticks = interval(Duration::from_millis(200));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = cancel_late(&outbox, &pool, timeout).await {
            eprintln!("late orders can't be cancelled now: {error}");
        }
    }
}

/// Cancels the orders that have waited too long, and tells of it in the same transaction.
async fn cancel_late(outbox: &Outbox<SqliteStore>, pool: &SqlitePool, timeout: Duration) -> Result<(), Failure> {
    // A look that locks nothing comes first: there is hardly ever one.
    let late = "select id, customer, item, quantity, cents, correlation from orders
        where state = 'PLACED' and placed_at < unixepoch('subsec') - ? order by placed_at limit 100";
    let rows = sqlx::query(late).bind(timeout.as_secs_f64()).fetch_all(pool).await?;
    for row in rows {
        let order = Order {
            id: row.try_get("id")?,
            customer: row.try_get("customer")?,
            item: row.try_get("item")?,
            quantity: row.try_get("quantity")?,
            cents: row.try_get("cents")?,
        };
        let mut tx = outbox.begin().await?;
        // It may have ended since.
        let state = load(&mut tx, &order.id).await?;
        let (state, told) = choreography::order(state, Word::OrderTimedOut)?;
        store(&mut tx, &order.id, state).await?;
        if let Some(word) = told {
            tx.write(event(word, &order, row.try_get("correlation")?)).await?;
        }
        tx.commit().await?;
    }
    Ok(())
}

async fn load(database: &mut SqliteConnection, id: &str) -> Result<Option<choreography::Order>, HandlerError> {
    let row = sqlx::query("select state, reason from orders where id = ?").bind(id).fetch_optional(database).await?;
    let Some(row) = row else { return Ok(None) };
    let (state, reason): (String, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
    let order = choreography::Order::of_columns(&state, reason.as_deref());
    order.map(Some).ok_or_else(|| HandlerError::msg(format!("{id} has the state {state} {reason:?}, which is none")))
}

async fn insert(database: &mut SqliteConnection, heard: &Heard) -> Result<(), HandlerError> {
    let Order { id, customer, item, quantity, cents } = &heard.order;
    let insert =
        "insert into orders (id, customer, item, quantity, cents, state, correlation) values (?, ?, ?, ?, ?, '', ?)";
    let insert = sqlx::query(insert).bind(id).bind(customer).bind(item).bind(quantity).bind(cents);
    insert.bind(&heard.correlation).execute(database).await?;
    Ok(())
}

async fn store(database: &mut SqliteConnection, id: &str, order: choreography::Order) -> Result<(), HandlerError> {
    let (state, reason) = order.columns();
    let update = sqlx::query("update orders set state = ?, reason = ? where id = ?").bind(state).bind(reason).bind(id);
    update.execute(database).await?;
    Ok(())
}
