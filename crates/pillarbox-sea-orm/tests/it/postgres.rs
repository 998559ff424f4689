use std::time::Duration;

use pillarbox_core::{
    Event,
    port::{InboxStore, InboxUpkeep as _, NewRow, StoreErrorKind, UpkeepStore as _, WriteStore},
};
use pillarbox_postgres::{PostgresInbox, PostgresStore};
use pillarbox_sea_orm::SeaOrm;
use pillarbox_testkit::{
    driver::{Driver as _, End, Sql},
    servers::{Database, Shared},
};
use sea_orm::{DatabaseConnection, TransactionTrait as _};

use crate::{Bed, Place};

// An event is written in a transaction, or it does not compile.
static_assertions::assert_not_impl_any!(PostgresStore: WriteStore<DatabaseConnection>);
static_assertions::assert_not_impl_any!(PostgresInbox: InboxStore<DatabaseConnection>);

struct Postgres(Database);

impl Place for Postgres {
    type Store = PostgresStore;

    const SQL: Sql = Sql::POSTGRES;
    const INSERT: &str = "insert into orders (id) values ($1)";

    async fn fresh() -> (Self, PostgresStore) {
        let database = Shared::Postgres.database();
        let store = PostgresStore::open(database.url()).unwrap();
        store.migrate().await.unwrap();
        database.run("create table orders (id text primary key)").unwrap();
        (Self(database), store)
    }

    fn url(&self) -> String {
        self.0.url()
    }
}

pillarbox_testkit::driver!(Bed<Postgres>);

/// I3: the inbox knows every driver that events are written with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_entered_with_the_work_or_not_at_all() {
    let bed = Bed::<Postgres>::fresh().await;
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

#[tokio::test]
async fn a_transaction_on_a_database_of_another_kind_is_refused() {
    let orm = sea_orm::Database::connect("sqlite::memory:").await.unwrap();
    let tx = orm.begin().await.unwrap();
    // Nobody is asked there.
    let store = PostgresStore::open("postgres://nobody@127.0.0.1:1/none").unwrap();
    let event = Event::builder("Placed").key("k").json(&7).build().unwrap();
    let rows = [NewRow { partition: event.key_partition().unwrap(), event }];
    let refused = store.insert(&mut SeaOrm(&tx), &rows).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Rejected);
    assert!(refused.to_string().contains("is on SQLite, and the outbox on PostgreSQL"), "{refused}");
}
