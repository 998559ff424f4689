//! SeaORM passes the exam of a driver, on every database.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

mod mysql;
mod postgres;
mod sqlite;

use pillarbox_core::{
    Event, Outbox,
    engine::{Receipt, WriteError},
    port::{Store, WriteStore},
};
use pillarbox_sea_orm::SeaOrm;
use pillarbox_testkit::driver::{Driver, End, Sql};
use sea_orm::{
    ConnectionTrait as _, DatabaseConnection, DatabaseTransaction, SqliteTransactionMode, Statement,
    TransactionOptions, TransactionTrait as _,
};

/// A database of a kind, with an outbox and a table of orders in it.
trait Place: Sized + Send + Sync {
    type Store: Store + Clone + for<'t> WriteStore<SeaOrm<'t>>;

    const SQL: Sql;
    /// Inserts an order.
    const INSERT: &str;

    fn missing() -> Option<String> {
        None
    }

    fn fresh() -> impl Future<Output = (Self, Self::Store)> + Send;

    fn url(&self) -> String;
}

struct Bed<P: Place> {
    store: P::Store,
    orm: DatabaseConnection,
    // Dropped last: it may be a folder.
    place: P,
}

impl<P: Place> Driver for Bed<P> {
    type Store = P::Store;

    const SQL: Sql = P::SQL;

    fn missing() -> Option<String> {
        P::missing()
    }

    async fn fresh() -> Self {
        let (place, store) = P::fresh().await;
        let orm = sea_orm::Database::connect(place.url()).await.unwrap();
        Self { store, orm, place }
    }

    fn store(&self) -> P::Store {
        self.store.clone()
    }

    async fn write(
        &self,
        outbox: &Outbox<P::Store>,
        order: &str,
        events: Vec<Event>,
        end: End,
    ) -> Result<Receipt, WriteError> {
        let tx = begin_to_write(&self.orm).await;
        let insert = Statement::from_sql_and_values(self.orm.get_database_backend(), P::INSERT, [order.into()]);
        tx.execute_raw(insert).await.unwrap();
        let receipt = outbox.write_all(&mut SeaOrm(&tx), events).await?;
        match end {
            End::Commit => tx.commit().await.unwrap(),
            End::Rollback => tx.rollback().await.unwrap(),
        }
        Ok(receipt)
    }

    async fn sql(&self, statement: &str) -> String {
        if !statement.starts_with("select") {
            self.orm.execute_unprepared(statement).await.unwrap();
            return String::new();
        }
        let select = Statement::from_string(self.orm.get_database_backend(), statement);
        let row = self.orm.query_one_raw(select).await.unwrap();
        let text = |row: sea_orm::QueryResult| {
            row.try_get_by_index::<String>(0)
                .or_else(|_| row.try_get_by_index::<i64>(0).map(|number| number.to_string()))
                .unwrap()
        };
        row.map(text).unwrap_or_default()
    }
}

/// On SQLite with `begin immediate`, which says nothing to the others.
async fn begin_to_write(orm: &DatabaseConnection) -> DatabaseTransaction {
    let immediate = Some(SqliteTransactionMode::Immediate);
    let options = TransactionOptions { sqlite_transaction_mode: immediate, ..Default::default() };
    orm.begin_with_options(options).await.unwrap()
}
