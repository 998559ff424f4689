//! SeaORM passes the exam of a driver.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

use std::time::Duration;

use pillarbox_core::{
    Event, Outbox,
    engine::{Receipt, WriteError},
    port::{InboxStore, InboxUpkeep as _, UpkeepStore as _, WriteStore},
};
use pillarbox_postgres::{PostgresInbox, PostgresStore};
use pillarbox_sea_orm::SeaOrm;
use pillarbox_testkit::{
    driver::{Driver, End},
    servers::{Database, Shared},
};
use sea_orm::{ConnectionTrait as _, DatabaseConnection, DbBackend, Statement, TransactionTrait as _};

// An event is written in a transaction, or it does not compile.
static_assertions::assert_not_impl_any!(PostgresStore: WriteStore<DatabaseConnection>);
static_assertions::assert_not_impl_any!(PostgresInbox: InboxStore<DatabaseConnection>);

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

/// I3: the inbox knows every driver that events are written with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_entered_with_the_work_or_not_at_all() {
    let bed = Bed::fresh().await;
    let inbox = PostgresInbox::new(&bed.store);
    inbox.migrate().await.unwrap();
    inbox.agree(Duration::from_hours(24)).await.unwrap();
    for (end, answers) in [(End::Rollback, [true, true]), (End::Commit, [true, true]), (End::Commit, [false, false])] {
        let tx = bed.orm.begin().await.unwrap();
        let messages = ["m-1", "it's grün"];
        assert_eq!(inbox.enter(&mut SeaOrm(&tx), "billing", &messages).await.unwrap(), answers);
        match end {
            End::Commit => tx.commit().await.unwrap(),
            End::Rollback => tx.rollback().await.unwrap(),
        }
    }
}
