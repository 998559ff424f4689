use std::time::Duration;

use diesel_async::{AsyncConnection as _, AsyncPgConnection};
use pillarbox_core::{
    Event, Outbox,
    port::{InboxStore, InboxUpkeep as _, UpkeepStore as _, WriteStore},
};
use pillarbox_diesel::Diesel;
use pillarbox_postgres::{PostgresInbox, PostgresStore};
use pillarbox_testkit::{
    driver::{End, Sql},
    servers::{Database, Shared},
};

use crate::{Ended, bed, transactions};

// An event is written in a transaction, or it does not compile.
static_assertions::assert_not_impl_any!(PostgresStore: WriteStore<AsyncPgConnection>);
static_assertions::assert_not_impl_any!(PostgresInbox: InboxStore<AsyncPgConnection>);

struct Bed {
    store: PostgresStore,
    database: Database,
}

impl Bed {
    async fn fresh() -> Self {
        let database = Shared::Postgres.database();
        let store = PostgresStore::open(database.url()).unwrap();
        store.migrate().await.unwrap();
        database.run("create table orders (id text primary key)").unwrap();
        Self { store, database }
    }

    async fn connect(&self) -> AsyncPgConnection {
        AsyncPgConnection::establish(&self.database.url()).await.unwrap()
    }

    fn sql(&self, statement: &str) -> std::future::Ready<String> {
        std::future::ready(self.database.run(statement).unwrap())
    }
}

bed!(Bed, PostgresStore, Sql::POSTGRES, "insert into orders (id) values ($1)");
pillarbox_testkit::driver!(Bed);
transactions!(Bed);

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
