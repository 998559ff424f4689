//! SeaORM passes the exam of a driver.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

use pillarbox_core::{
    Event, Outbox,
    engine::{Receipt, WriteError},
    port::{UpkeepStore as _, WriteStore},
};
use pillarbox_postgres::PostgresStore;
use pillarbox_sea_orm::SeaOrm;
use pillarbox_testkit::{
    driver::{Driver, End},
    servers::{Database, Shared},
};
use sea_orm::{ConnectionTrait as _, DatabaseConnection, DbBackend, Statement, TransactionTrait as _};

// An event is written in a transaction, or it does not compile.
static_assertions::assert_not_impl_any!(PostgresStore: WriteStore<DatabaseConnection>);

struct Bed {
    store: PostgresStore,
    orm: DatabaseConnection,
    database: Database,
}

impl Driver for Bed {
    type Store = PostgresStore;

    async fn fresh() -> Self {
        let database = Shared::Postgres.database();
        let store = PostgresStore::open(database.url()).unwrap();
        store.migrate().await.unwrap();
        database.run("create table orders (id text primary key)").unwrap();
        let orm = sea_orm::Database::connect(database.url()).await.unwrap();
        Self { store, orm, database }
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
        let tx = self.orm.begin().await.unwrap();
        let insert = "insert into orders (id) values ($1)";
        let insert = Statement::from_sql_and_values(DbBackend::Postgres, insert, [order.into()]);
        tx.execute_raw(insert).await.unwrap();
        let receipt = outbox.write_all(&mut SeaOrm(&tx), events).await?;
        match end {
            End::Commit => tx.commit().await.unwrap(),
            End::Rollback => tx.rollback().await.unwrap(),
        }
        Ok(receipt)
    }

    fn sql(&self, statement: &str) -> String {
        self.database.run(statement).unwrap()
    }
}

pillarbox_testkit::driver!(Bed);
