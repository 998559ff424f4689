//! `diesel-async` passes the exam of a driver.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

use std::time::Duration;

use diesel::sql_types::Text;
use diesel_async::{AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _, SimpleAsyncConnection as _};
use pillarbox_core::{
    Event, Outbox,
    engine::{Receipt, WriteError},
    port::{InboxStore, InboxUpkeep as _, StoreErrorKind, UpkeepStore as _, WriteStore},
};
use pillarbox_diesel::Diesel;
use pillarbox_postgres::{PostgresInbox, PostgresStore};
use pillarbox_testkit::{
    driver::{Driver, End},
    servers::{Database, Shared},
};

// An event is written in a transaction, or it does not compile.
static_assertions::assert_not_impl_any!(PostgresStore: WriteStore<AsyncPgConnection>);
static_assertions::assert_not_impl_any!(PostgresInbox: InboxStore<AsyncPgConnection>);

struct Bed {
    store: PostgresStore,
    database: Database,
}

impl Bed {
    async fn connect(&self) -> AsyncPgConnection {
        AsyncPgConnection::establish(&self.database.url()).await.unwrap()
    }
}

/// Why a transaction did not commit.
#[derive(Debug)]
enum Ended {
    RolledBack(Receipt),
    Write(WriteError),
    Database(diesel::result::Error),
}

impl From<diesel::result::Error> for Ended {
    fn from(error: diesel::result::Error) -> Self {
        Self::Database(error)
    }
}

impl From<WriteError> for Ended {
    fn from(error: WriteError) -> Self {
        Self::Write(error)
    }
}

impl Driver for Bed {
    type Store = PostgresStore;

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
        let mut connection = self.connect().await;
        let done = pillarbox_diesel::transaction(&mut connection, async |mut tx| {
            let insert = diesel::sql_query("insert into orders (id) values ($1)").bind::<Text, _>(order);
            insert.execute(&mut *tx).await?;
            let receipt = outbox.write_all(&mut tx, events).await?;
            match end {
                End::Commit => Ok(receipt),
                End::Rollback => Err(Ended::RolledBack(receipt)),
            }
        });
        match done.await {
            Ok(receipt) | Err(Ended::RolledBack(receipt)) => Ok(receipt),
            Err(Ended::Write(error)) => Err(error),
            Err(Ended::Database(error)) => panic!("{error}"),
        }
    }

    fn sql(&self, statement: &str) -> String {
        self.database.run(statement).unwrap()
    }
}

pillarbox_testkit::driver!(Bed);

#[tokio::test]
async fn outside_of_a_transaction_nothing_is_written() {
    let bed = Bed::fresh().await;
    let outbox = Outbox::writer_only(bed.store()).start().await.unwrap();
    let mut connection = bed.connect().await;
    let refused = |error: WriteError| {
        let WriteError::Store(error) = error else { panic!("{error}") };
        assert_eq!(error.kind(), StoreErrorKind::Rejected);
        assert!(error.to_string().contains("in no transaction"), "{error}");
    };
    refused(Diesel::new(&mut connection).unwrap_err());

    // One that was ended behind its back is noticed, too.
    connection.begin_test_transaction().await.unwrap();
    let mut tx = Diesel::new(&mut connection).unwrap();
    use diesel_async::{AnsiTransactionManager, TransactionManager as _};
    AnsiTransactionManager::rollback_transaction(&mut *tx).await.unwrap();
    refused(outbox.write(&mut tx, Event::builder("Placed").json(&7)).await.unwrap_err());
    connection.batch_execute("select 1").await.unwrap();
    assert_eq!(bed.sql("select count(*) from outbox_event").trim(), "0");
}

#[tokio::test]
async fn diesels_own_transaction_takes_events_and_so_does_a_savepoint() {
    let bed = Bed::fresh().await;
    let outbox = Outbox::writer_only(bed.store()).start().await.unwrap();
    let mut connection = bed.connect().await;
    let (store, writer) = (bed.store(), outbox.clone());
    // On another thread: the futures must be fit for that.
    let written = tokio::spawn(async move {
        let placed = || Event::builder("Placed").json(&7);
        connection
            .transaction(async |connection| {
                let receipt = writer.write(&mut Diesel::new(connection)?, placed()).await?;
                let undone = pillarbox_diesel::transaction(connection, async |mut tx| {
                    Err::<(), _>(Ended::RolledBack(writer.write(&mut tx, placed()).await?))
                });
                assert!(matches!(undone.await, Err(Ended::RolledBack(_))));
                Ok::<_, Ended>(receipt)
            })
            .await
    });
    let receipt = written.await.unwrap().unwrap();
    assert_eq!(bed.sql("select event_id from outbox_event").trim(), receipt.ids()[0].to_string());
    receipt.confirm();
    drop(store);
}

/// I3: the inbox knows every driver that events are written with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_entered_with_the_work_or_not_at_all() {
    let bed = Bed::fresh().await;
    let inbox = PostgresInbox::new(&bed.store);
    inbox.migrate().await.unwrap();
    inbox.agree(Duration::from_hours(24)).await.unwrap();
    let mut connection = bed.connect().await;
    for (end, answers) in [(End::Rollback, [true, true]), (End::Commit, [true, true]), (End::Commit, [false, false])] {
        let done = pillarbox_diesel::transaction(&mut connection, async |mut tx| {
            let messages = ["m-1", "it's grün"];
            assert_eq!(inbox.enter(&mut tx, "billing", &messages).await.unwrap(), answers);
            match end {
                End::Commit => Ok(()),
                End::Rollback => Err(diesel::result::Error::RollbackTransaction),
            }
        });
        assert_eq!(done.await.is_ok(), matches!(end, End::Commit));
    }
}
