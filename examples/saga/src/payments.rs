//! The payment service: charges, declines and refunds. Its bank does not always answer, and does not touch frozen accounts; for
//! some it takes so long to say that it has paid that the order has timed out.

use std::time::Duration;

use pillarbox::prelude::*;
use sqlx::SqliteConnection;

use crate::{
    Failure,
    choreography::{Payment, Word, payment},
    events::{Heard, OrderTimedOut, StockReserved},
    service::{Place, Service, hears},
};

/// The tables, if they are not there. Every booking is kept, and nothing here would refuse a second one.
pub(crate) const TABLES: &str = "
    create table if not exists account (
        customer text primary key not null,
        cents integer not null,
        frozen integer not null,
        late real not null -- seconds that the bank's word takes
    ) strict;
    create table if not exists booking (
        order_id text not null,
        customer text not null,
        kind text not null check (kind in ('CHARGE', 'REFUND')),
        cents integer not null
    ) strict;
    create table if not exists payment (
        order_id text primary key not null,
        customer text not null,
        cents integer not null,
        state text not null
    ) strict";

/// One in so many charges finds that the bank does not answer.
const SILENCE: u32 = 25;

struct Account {
    balance: i64,
    frozen: bool,
    late: Duration,
}

pub(crate) async fn run(place: Place) -> Result<(), Failure> {
    let service = Service::start("payment", place).await?;
    sqlx::raw_sql(TABLES).execute(service.pool()).await?;
    let consumer = service
        .consumer()?
        .handle_in_tx(hears::<StockReserved, _>(hear))
        .handle_in_tx(hears::<OrderTimedOut, _>(hear))
        .start()
        .await?;
    service.run(consumer).await
}

/// One word: the payment, the account, and what the others are told, in the transaction that the word is entered in.
async fn hear(mut work: Work<SqliteStore>, heard: Heard) -> Result<(), HandlerError> {
    let order = &heard.order;
    let state = load(&mut work, &order.id).await?;
    let Account { balance, frozen, late } = account(&mut work, &order.customer).await?;
    let (next, told) =
        payment(state, heard.word, balance >= order.cents).map_err(|error| HandlerError::from(error).permanent())?;
    match (state, next) {
        (None, Payment::Charged | Payment::Declined) if frozen => {
            return Err(HandlerError::msg(format!("the account of {} is frozen", order.customer)).permanent());
        }
        (None, Payment::Charged) => {
            book(&mut work, &heard, "CHARGE", -order.cents).await?;
            // After the booking, so that it is the rollback that undoes it.
            if heard.word == Word::StockReserved && fastrand::u32(..SILENCE) == 0 {
                return Err(HandlerError::msg("the bank does not answer"));
            }
        }
        (Some(Payment::Charged), Payment::Refunded) => book(&mut work, &heard, "REFUND", order.cents).await?,
        _ => {}
    }
    let upsert = "insert into payment (order_id, customer, cents, state) values (?, ?, ?, ?)
        on conflict (order_id) do update set state = excluded.state";
    let upsert = sqlx::query(upsert).bind(&order.id).bind(&order.customer).bind(order.cents).bind(next.name());
    upsert.execute(&mut *work).await?;
    if let Some(word) = told {
        let answer = heard.answer(word);
        let is_late = word == Word::PaymentTaken && !late.is_zero();
        work.write(if is_late { answer.deliver_after(late) } else { answer }).await?;
    }
    Ok(())
}

async fn load(database: &mut SqliteConnection, id: &str) -> Result<Option<Payment>, HandlerError> {
    let state = sqlx::query_scalar::<_, String>("select state from payment where order_id = ?").bind(id);
    let Some(name) = state.fetch_optional(database).await? else { return Ok(None) };
    Payment::of_name(&name)
        .map(Some)
        .ok_or_else(|| HandlerError::msg(format!("{id} has the state {name}, which is none")))
}

async fn account(database: &mut SqliteConnection, customer: &str) -> Result<Account, HandlerError> {
    let found = sqlx::query_as("select cents, frozen, late from account where customer = ?").bind(customer);
    // Who has no account has no money.
    let (balance, frozen, late) = found.fetch_optional(database).await?.unwrap_or((0, false, 0.0));
    Ok(Account { balance, frozen, late: Duration::try_from_secs_f64(late)? })
}

/// Moves money, and keeps that it was moved.
async fn book(database: &mut SqliteConnection, heard: &Heard, kind: &str, change: i64) -> Result<(), HandlerError> {
    let order = &heard.order;
    let update = sqlx::query("update account set cents = cents + ? where customer = ?");
    update.bind(change).bind(&order.customer).execute(&mut *database).await?;
    let kept = sqlx::query("insert into booking (order_id, customer, kind, cents) values (?, ?, ?, ?)");
    kept.bind(&order.id).bind(&order.customer).bind(kind).bind(order.cents).execute(database).await?;
    Ok(())
}
