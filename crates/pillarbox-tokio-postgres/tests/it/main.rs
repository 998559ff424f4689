//! `tokio-postgres` passes the exam of a driver.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

use std::time::Duration;

use pillarbox_core::{
    Event, Outbox,
    engine::{Receipt, WriteError},
    port::{InboxStore, InboxUpkeep as _, UpkeepStore as _, WriteStore},
};
use pillarbox_postgres::{PostgresInbox, PostgresStore};
use pillarbox_testkit::{
    driver::{Driver, End, Sql},
    servers::{Database, Shared},
};
use pillarbox_tokio_postgres::TokioPostgres;
use tokio_postgres::{Client, NoTls};

// An event is written in a transaction, or it does not compile.
static_assertions::assert_not_impl_any!(PostgresStore: WriteStore<Client>);
static_assertions::assert_not_impl_any!(PostgresInbox: InboxStore<Client>);

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
        let (mut client, connection) = tokio_postgres::connect(&self.database.url(), NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        let tx = client.transaction().await.unwrap();
        tx.execute("insert into orders (id) values ($1)", &[&order]).await.unwrap();
        let receipt = outbox.write_all(&mut TokioPostgres(&tx), events).await?;
        match end {
            End::Commit => tx.commit().await.unwrap(),
            End::Rollback => tx.rollback().await.unwrap(),
        }
        drop(client);
        connection.await.unwrap().unwrap();
        Ok(receipt)
    }

    async fn sql(&self, statement: &str) -> String {
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
    let (mut client, connection) = tokio_postgres::connect(&bed.database.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    for (end, answers) in [(End::Rollback, [true, true]), (End::Commit, [true, true]), (End::Commit, [false, false])] {
        let tx = client.transaction().await.unwrap();
        let messages = ["m-1", "it's grün"];
        assert_eq!(inbox.enter(&mut TokioPostgres(&tx), "billing", &messages).await.unwrap(), answers);
        match end {
            End::Commit => tx.commit().await.unwrap(),
            End::Rollback => tx.rollback().await.unwrap(),
        }
    }
}
