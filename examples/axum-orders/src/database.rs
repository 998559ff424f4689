//! The business queries. Both databases take the same SQL; what differs is the type of the connection.

use pillarbox::{AnyConnection, AnyStore};
use serde::Serialize;
use sqlx::{PgPool, SqlitePool};

use crate::Failure;

/// Runs one query on whichever connection a transaction has.
macro_rules! in_transaction {
    ($tx:expr, |$connection:ident| $query:expr) => {
        match $tx {
            AnyConnection::Sqlite(tx) => {
                let $connection = &mut **tx;
                $query
            }
            AnyConnection::Postgres(tx) => {
                let $connection = &mut **tx;
                $query
            }
            // `Database::new` has refused it.
            _ => Err(sqlx::Error::Configuration("this service runs on SQLite and PostgreSQL".into())),
        }
    };
}

/// The same, outside of transactions.
macro_rules! in_pool {
    ($pool:expr, |$connection:ident| $query:expr) => {
        match $pool {
            Database::Sqlite($connection) => $query,
            Database::Postgres($connection) => $query,
        }
    };
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Order {
    pub(crate) id: String,
    pub(crate) item: String,
    pub(crate) quantity: i64,
    /// `placed`, `shipped` or `cancelled`.
    pub(crate) status: String,
}

impl Order {
    pub(crate) fn new(id: String, item: String, quantity: i64) -> Self {
        Self { id, item, quantity, status: "placed".into() }
    }
}

/// The columns of an order. `sqlx`'s derive would spare these lines, and cost the build of its macros.
type Row = (String, String, i64, String);

impl From<Row> for Order {
    fn from((id, item, quantity, status): Row) -> Self {
        Self { id, item, quantity, status }
    }
}

/// The database, by the pool that the outbox has.
#[derive(Clone, Debug)]
pub(crate) enum Database {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

impl Database {
    pub(crate) fn new(store: &AnyStore) -> Result<Self, Failure> {
        match store {
            AnyStore::Sqlite(store) => Ok(Self::Sqlite(store.pool().clone())),
            AnyStore::Postgres(store) => Ok(Self::Postgres(store.pool().clone())),
            other => Err(format!("this service runs on SQLite and PostgreSQL, not on {}", other.kind()).into()),
        }
    }

    /// The tables, and a hundred of each item.
    pub(crate) async fn create_tables(&self) -> sqlx::Result<()> {
        const TABLES: &str = "
            create table if not exists orders (
                id text primary key, item text not null, quantity bigint not null, status text not null
            );
            create table if not exists stock (item text primary key, quantity bigint not null);
            insert into stock values ('tea', 100), ('coffee', 100) on conflict do nothing";
        in_pool!(self, |pool| sqlx::raw_sql(TABLES).execute(pool).await.map(|_| ()))
    }

    pub(crate) async fn ping(&self) -> sqlx::Result<()> {
        in_pool!(self, |pool| sqlx::query("select 1").execute(pool).await.map(|_| ()))
    }

    pub(crate) async fn find(&self, id: &str) -> sqlx::Result<Option<Order>> {
        const FIND: &str = "select id, item, quantity, status from orders where id = $1";
        let row: Option<Row> = in_pool!(self, |pool| sqlx::query_as(FIND).bind(id).fetch_optional(pool).await)?;
        Ok(row.map(Order::from))
    }

    pub(crate) async fn insert(&self, tx: &mut AnyConnection, order: &Order) -> sqlx::Result<()> {
        let Order { id, item, quantity, status } = order;
        const INSERT: &str = "insert into orders (id, item, quantity, status) values ($1, $2, $3, $4)";
        in_transaction!(tx, |connection| {
            let insert = sqlx::query(INSERT).bind(id).bind(item).bind(quantity).bind(status);
            insert.execute(connection).await.map(|_| ())
        })
    }

    /// The changed order; none if there is no such order in that status.
    pub(crate) async fn change_status(
        &self,
        tx: &mut AnyConnection,
        id: &str,
        from: &str,
        to: &str,
    ) -> sqlx::Result<Option<Order>> {
        const CHANGE: &str =
            "update orders set status = $3 where id = $1 and status = $2 returning id, item, quantity, status";
        let row: Option<Row> = in_transaction!(tx, |connection| {
            sqlx::query_as(CHANGE).bind(id).bind(from).bind(to).fetch_optional(connection).await
        })?;
        Ok(row.map(Order::from))
    }

    /// The same in a transaction of its own. Done twice, it changes nothing more.
    pub(crate) async fn mark_shipped(&self, id: &str) -> sqlx::Result<()> {
        const SHIPPED: &str = "update orders set status = 'shipped' where id = $1 and status = 'placed'";
        in_pool!(self, |pool| sqlx::query(SHIPPED).bind(id).execute(pool).await.map(|_| ()))
    }

    /// Whether there was enough.
    pub(crate) async fn take_from_stock(&self, tx: &mut AnyConnection, order: &Order) -> sqlx::Result<bool> {
        const TAKE: &str = "update stock set quantity = quantity - $2 where item = $1 and quantity >= $2";
        in_transaction!(tx, |connection| {
            let take = sqlx::query(TAKE).bind(&order.item).bind(order.quantity);
            take.execute(connection).await.map(|done| done.rows_affected() == 1)
        })
    }

    pub(crate) async fn put_into_stock(&self, tx: &mut AnyConnection, order: &Order) -> sqlx::Result<()> {
        const PUT: &str = "update stock set quantity = quantity + $2 where item = $1";
        in_transaction!(tx, |connection| {
            sqlx::query(PUT).bind(&order.item).bind(order.quantity).execute(connection).await.map(|_| ())
        })
    }
}
