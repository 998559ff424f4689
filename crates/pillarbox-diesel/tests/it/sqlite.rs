use diesel::SqliteConnection;
use diesel_async::{
    AsyncConnection as _, RunQueryDsl as _, SimpleAsyncConnection as _, sync_connection_wrapper::SyncConnectionWrapper,
};
use pillarbox_core::{
    Event, Outbox,
    port::{StoreErrorKind, UpkeepStore as _, WriteStore},
};
use pillarbox_diesel::Diesel;
use pillarbox_sqlite::SqliteStore;
use pillarbox_testkit::driver::Sql;
use tempfile::TempDir;

use crate::{Ended, bed, transactions};

type Wrapper = SyncConnectionWrapper<SqliteConnection>;

// An event is written in a transaction, or it does not compile.
static_assertions::assert_not_impl_any!(SqliteStore: WriteStore<Wrapper>);

struct Bed {
    store: SqliteStore,
    folder: TempDir,
}

impl Bed {
    async fn fresh() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(file(&folder)).await.unwrap();
        store.migrate().await.unwrap();
        let bed = Self { store, folder };
        bed.connect().await.batch_execute("create table orders (id text primary key)").await.unwrap();
        bed
    }

    async fn connect(&self) -> Wrapper {
        let mut connection = Wrapper::establish(&file(&self.folder)).await.unwrap();
        connection.batch_execute("pragma busy_timeout = 5000").await.unwrap();
        connection
    }

    async fn sql(&self, statement: &str) -> String {
        #[derive(diesel::QueryableByName)]
        struct Value {
            #[diesel(sql_type = diesel::sql_types::Text)]
            value: String,
        }

        let mut connection = self.connect().await;
        if !statement.starts_with("select") {
            connection.batch_execute(statement).await.unwrap();
            return String::new();
        }
        let select = diesel::sql_query(format!("select cast((select * from ({statement})) as text) as value"));
        let values = select.load::<Value>(&mut connection).await;
        values.unwrap_or_default().into_iter().map(|value| value.value).collect()
    }
}

fn file(folder: &TempDir) -> String {
    folder.path().join("shop.db").display().to_string()
}

bed!(Bed, SqliteStore, Sql::SQLITE, "insert into orders (id) values (?)");
pillarbox_testkit::driver!(Bed);
transactions!(Bed);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_begun_to_write_and_one_that_is_not_may_fail() {
    let bed = Bed::fresh().await;
    let outbox = Outbox::writer_only(bed.store.clone()).start().await.unwrap();
    let placed = || Event::builder("Placed").json(&7);
    let (mut early, mut other) = (bed.connect().await, bed.connect().await);

    let late = early.transaction(async |early| {
        diesel::sql_query("select * from orders").execute(early).await?;
        pillarbox_diesel::transaction(&mut other, async |mut tx| {
            outbox.write(&mut tx, placed()).await?.confirm();
            Ok::<_, Ended>(())
        })
        .await?;
        outbox.write(&mut Diesel::new(early)?, placed()).await?.confirm();
        Ok::<_, Ended>(())
    });
    let Err(Ended::Write(pillarbox_core::engine::WriteError::Store(refused))) = late.await else {
        panic!("written upon an old snapshot")
    };
    assert_eq!(refused.kind(), StoreErrorKind::Unavailable, "{refused}");

    // Nobody writes in between.
    pillarbox_diesel::transaction(&mut early, async |mut tx| {
        diesel::sql_query("select * from orders").execute(&mut *tx).await?;
        other.batch_execute("pragma busy_timeout = 0").await?;
        let others = other.batch_execute("insert into orders (id) values ('o')").await;
        assert!(others.unwrap_err().to_string().contains("locked"));
        outbox.write(&mut tx, placed()).await?.confirm();
        Ok::<_, Ended>(())
    })
    .await
    .unwrap();
    assert_eq!(bed.sql("select count(*) from outbox_event").await, "2");
}
