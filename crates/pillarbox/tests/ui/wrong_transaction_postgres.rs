//! Events for an outbox on PostgreSQL, in what is no transaction of PostgreSQL's.

use pillarbox::prelude::*;

fn event() -> Event {
    Event::builder("OrderPlaced").json(&7).build().unwrap()
}

async fn of_sqlite(outbox: Outbox<PostgresStore>, mut tx: sqlx::Transaction<'static, sqlx::Sqlite>) {
    outbox.write(&mut tx, event()).await.unwrap().confirm();
}

async fn a_pool(outbox: Outbox<PostgresStore>, mut pool: sqlx::PgPool) {
    outbox.write(&mut pool, event()).await.unwrap().confirm();
}

fn main() {}
