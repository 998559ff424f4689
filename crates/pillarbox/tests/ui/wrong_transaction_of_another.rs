//! Events for an outbox on SQLite, in a transaction of PostgreSQL's.

use pillarbox::prelude::*;

fn event() -> Event {
    Event::builder("OrderPlaced").json(&7).build().unwrap()
}

async fn of_postgres(outbox: Outbox<SqliteStore>, mut tx: sqlx::Transaction<'static, sqlx::Postgres>) {
    outbox.write(&mut tx, event()).await.unwrap().confirm();
}

fn main() {}
