//! `sqlx` passes the exam of a driver.

use pillarbox_core::{
    Event, Outbox,
    engine::{Receipt, WriteError},
    port::UpkeepStore as _,
};
use pillarbox_postgres::PostgresStore;
use pillarbox_testkit::{
    driver::{Driver, End, Sql},
    servers::{Database, Shared},
};

struct Bed {
    store: PostgresStore,
    database: Database,
}

impl Driver for Bed {
    type Store = PostgresStore;

    const SQL: Sql = Sql::POSTGRES;

    async fn fresh() -> Self {
        let database = Shared::Postgres.database();
        let store = PostgresStore::open(database.url()).unwrap();
        store.migrate().await.unwrap();
        database.run("create table orders (id text primary key)").unwrap();
        Self { store, database }
    }

    fn store(&self) -> PostgresStore {
        self.store.clone()
    }

    async fn write(
        &self,
        outbox: &Outbox<PostgresStore>,
        order: &str,
        events: Vec<Event>,
        end: End,
    ) -> Result<Receipt, WriteError> {
        let mut tx = self.store.pool().begin().await.unwrap();
        sqlx::query("insert into orders (id) values ($1)").bind(order).execute(&mut *tx).await.unwrap();
        let receipt = outbox.write_all(&mut tx, events).await?;
        match end {
            End::Commit => tx.commit().await.unwrap(),
            End::Rollback => tx.rollback().await.unwrap(),
        }
        Ok(receipt)
    }

    async fn sql(&self, statement: &str) -> String {
        self.database.run(statement).unwrap()
    }
}

pillarbox_testkit::driver!(Bed);
