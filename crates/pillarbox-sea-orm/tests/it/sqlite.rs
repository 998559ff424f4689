use pillarbox_core::{
    Event, Outbox,
    engine::WriteError,
    port::{StoreErrorKind, UpkeepStore as _, WriteStore},
};
use pillarbox_sea_orm::SeaOrm;
use pillarbox_sqlite::SqliteStore;
use pillarbox_testkit::driver::{Driver as _, Sql};
use sea_orm::{ConnectionTrait as _, DatabaseConnection, TransactionTrait as _};
use tempfile::TempDir;

use crate::{Bed, Place, begin_to_write};

// An event is written in a transaction, or it does not compile.
static_assertions::assert_not_impl_any!(SqliteStore: WriteStore<DatabaseConnection>);

struct Sqlite(TempDir);

impl Place for Sqlite {
    type Store = SqliteStore;

    const SQL: Sql = Sql::SQLITE;
    const INSERT: &str = "insert into orders (id) values (?)";

    async fn fresh() -> (Self, SqliteStore) {
        let place = Self(tempfile::tempdir().unwrap());
        let store = SqliteStore::open(place.url()).await.unwrap();
        store.migrate().await.unwrap();
        let orm = sea_orm::Database::connect(place.url()).await.unwrap();
        orm.execute_unprepared("create table orders (id text primary key)").await.unwrap();
        orm.close().await.unwrap();
        (place, store)
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.0.path().join("shop.db").display())
    }
}

pillarbox_testkit::driver!(Bed<Sqlite>);

#[tokio::test]
async fn one_that_read_before_another_wrote_is_to_be_run_again_and_an_immediate_one_waits() {
    let bed = Bed::<Sqlite>::fresh().await;
    let outbox = Outbox::writer_only(bed.store()).start().await.unwrap();
    let placed = || Event::builder("Placed").json(&7);
    // SeaORM has one connection to a SQLite file.
    let another = sea_orm::Database::connect(bed.place.url()).await.unwrap();

    let early = bed.orm.begin().await.unwrap();
    early
        .query_all_raw(sea_orm::Statement::from_string(sea_orm::DbBackend::Sqlite, "select * from orders"))
        .await
        .unwrap();
    let other = begin_to_write(&another).await;
    outbox.write(&mut SeaOrm(&other), placed()).await.unwrap().confirm();
    other.commit().await.unwrap();
    let WriteError::Store(refused) = outbox.write(&mut SeaOrm(&early), placed()).await.unwrap_err() else {
        panic!("not the store's error")
    };
    assert_eq!(refused.kind(), StoreErrorKind::Conflict, "{refused}");
    assert!(refused.to_string().contains("begin immediate"), "{refused}");
    early.rollback().await.unwrap();

    let (first, second) = tokio::join!(
        async {
            let first = begin_to_write(&bed.orm).await;
            outbox.write(&mut SeaOrm(&first), placed()).await.unwrap().confirm();
            tokio::task::yield_now().await;
            first.commit().await
        },
        async {
            let second = begin_to_write(&another).await;
            outbox.write(&mut SeaOrm(&second), placed()).await.unwrap().confirm();
            second.commit().await
        }
    );
    first.unwrap();
    second.unwrap();
    assert_eq!(bed.sql("select count(*) from outbox_event").await, "3");
}
