//! The inventory: reserves, ships, and takes back.

use pillarbox::prelude::*;
use sqlx::SqliteConnection;

use crate::{
    Failure,
    choreography::{Stock, stock},
    events::{Heard, OrderConfirmed, OrderPlaced, OrderTimedOut, PaymentDeclined},
    service::{Place, Service, hears},
};

/// The tables, if they are not there. Every move of stock is kept, and nothing here would refuse a second one.
pub(crate) const TABLES: &str = "
    create table if not exists stock (item text primary key not null, quantity integer not null) strict;
    create table if not exists move (order_id text not null, item text not null, quantity integer not null) strict;
    create table if not exists reservation (
        order_id text primary key not null,
        item text not null,
        quantity integer not null,
        state text not null
    ) strict";

pub(crate) async fn run(place: Place) -> Result<(), Failure> {
    let service = Service::start("inventory", place).await?;
    sqlx::raw_sql(TABLES).execute(service.pool()).await?;
    let consumer = service
        .consumer()?
        .handle_in_tx(hears::<OrderPlaced, _>(hear))
        .handle_in_tx(hears::<OrderConfirmed, _>(hear))
        .handle_in_tx(hears::<OrderTimedOut, _>(hear))
        .handle_in_tx(hears::<PaymentDeclined, _>(hear))
        .start()
        .await?;
    service.run(consumer).await
}

/// One word: the reservation, the stock, and what the others are told, in the transaction that the word is entered in.
async fn hear(mut work: Work<SqliteStore>, heard: Heard) -> Result<(), HandlerError> {
    let order = &heard.order;
    let state = load(&mut work, &order.id).await?;
    let left = sqlx::query_scalar::<_, i64>("select quantity from stock where item = ?").bind(&order.item);
    let in_stock = left.fetch_optional(&mut *work).await?.unwrap_or(0) >= order.quantity;
    let (next, told) = stock(state, heard.word, in_stock).map_err(|error| HandlerError::from(error).permanent())?;
    match (state, next) {
        (None, Stock::Reserved) => take(&mut work, &heard, -order.quantity).await?,
        (Some(Stock::Reserved), Stock::Released) => take(&mut work, &heard, order.quantity).await?,
        _ => {}
    }
    let upsert = "insert into reservation (order_id, item, quantity, state) values (?, ?, ?, ?)
        on conflict (order_id) do update set state = excluded.state";
    let upsert = sqlx::query(upsert).bind(&order.id).bind(&order.item).bind(order.quantity).bind(next.name());
    upsert.execute(&mut *work).await?;
    if let Some(word) = told {
        work.write(heard.answer(word)).await?;
    }
    Ok(())
}

async fn load(database: &mut SqliteConnection, id: &str) -> Result<Option<Stock>, HandlerError> {
    let state = sqlx::query_scalar::<_, String>("select state from reservation where order_id = ?").bind(id);
    let Some(name) = state.fetch_optional(database).await? else { return Ok(None) };
    Stock::of_name(&name)
        .map(Some)
        .ok_or_else(|| HandlerError::msg(format!("{id} has the state {name}, which is none")))
}

async fn take(database: &mut SqliteConnection, heard: &Heard, quantity: i64) -> Result<(), HandlerError> {
    let order = &heard.order;
    let change =
        sqlx::query("update stock set quantity = quantity + ? where item = ?").bind(quantity).bind(&order.item);
    change.execute(&mut *database).await?;
    let kept = sqlx::query("insert into move (order_id, item, quantity) values (?, ?, ?)");
    kept.bind(&order.id).bind(&order.item).bind(quantity).execute(database).await?;
    Ok(())
}
