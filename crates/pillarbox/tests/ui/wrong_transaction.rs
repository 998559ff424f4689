//! Events for an outbox on SQLite, in what is no transaction of SQLite's.

use pillarbox::prelude::*;

fn event() -> Event {
    Event::builder("OrderPlaced").json(&7).build().unwrap()
}

async fn a_pool(outbox: Outbox<SqliteStore>, mut pool: sqlx::SqlitePool) {
    outbox.write(&mut pool, event()).await.unwrap().confirm();
}

async fn a_connection(outbox: Outbox<SqliteStore>, mut connection: sqlx::SqliteConnection) {
    outbox.write(&mut connection, event()).await.unwrap().confirm();
}

fn main() {}
