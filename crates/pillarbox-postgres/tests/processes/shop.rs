//! The application, on a database of the test's own.

use pillarbox_postgres::{PostgresStore, VERSION};
use pillarbox_testkit::{
    processes::{self, Application, Failure, Held, Order, Restart, Served, Site, Task, chaos::Stormy},
    servers::{
        self, Database, Postgres,
        postgres::{Stop, Version},
    },
};
use sqlx::{Connection as _, Executor as _, PgConnection};

/// Its statements are not prepared by name, so that it can live behind a pooler.
pub(crate) struct Shop;

impl Application for Shop {
    type Store = PostgresStore;

    const VERSION: i64 = VERSION;
    const MARK: &'static str = "select coalesce(max(mark), 0) from outbox_mark";

    async fn open(url: &str, _task: &Task) -> Result<PostgresStore, Failure> {
        Ok(PostgresStore::open(url)?)
    }

    async fn create(store: &PostgresStore) -> Result<(), Failure> {
        let tables = "create table if not exists aggregates (name text primary key, version bigint not null);
            create table if not exists orders (number bigserial primary key, event_id text, event_key text);
            create table if not exists lives (name text primary key)";
        sqlx::raw_sql(tables).execute(store.pool()).await?;
        Ok(())
    }

    async fn add_order(connection: &mut PgConnection, key: Option<&str>) -> Result<i64, Failure> {
        if let Some(key) = key {
            let change = "insert into aggregates as present values ($1, 1)
                on conflict (name) do update set version = present.version + 1";
            sqlx::query(change).persistent(false).bind(key).execute(&mut *connection).await?;
        }
        let insert = sqlx::query_scalar("insert into orders (event_key) values ($1) returning number");
        Ok(insert.persistent(false).bind(key).fetch_one(connection).await?)
    }

    async fn name_event(connection: &mut PgConnection, number: i64, id: &str) -> Result<(), Failure> {
        let name = sqlx::query("update orders set event_id = $1 where number = $2");
        name.persistent(false).bind(id).bind(number).execute(connection).await?;
        Ok(())
    }

    async fn begin_life(connection: &mut PgConnection, name: &str) -> Result<bool, Failure> {
        let once = sqlx::query("insert into lives values ($1) on conflict do nothing").bind(name);
        Ok(once.persistent(false).execute(connection).await?.rows_affected() > 0)
    }

    async fn orders(store: &PostgresStore) -> Result<Vec<Order>, Failure> {
        let orders = sqlx::query_as("select number, event_id, event_key from orders order by number");
        let rows: Vec<(i64, String, Option<String>)> = orders.persistent(false).fetch_all(store.pool()).await?;
        Ok(rows.into_iter().map(|(number, id, key)| Order { number, id, key }).collect())
    }

    async fn number(store: &PostgresStore, sql: &'static str) -> Result<i64, Failure> {
        Ok(sqlx::query_scalar(sql).persistent(false).fetch_one(store.pool()).await?)
    }

    async fn crowd(store: &PostgresStore, key: &'static str, count: i64) -> Result<(), Failure> {
        let insert = "insert into outbox_event (given_partition, event_id, event_type, event_key, payload)
            select partition, lpad((seq + n)::text, 26, '0'), event_type, event_key, '{\"number\":0}'
            from (select * from outbox_event where event_key = $1 order by seq desc limit 1) as last
                cross join generate_series(1, $2) as n
            order by n";
        sqlx::query(insert).persistent(false).bind(key).bind(count).execute(store.pool()).await?;
        Ok(())
    }
}

/// On the server that all tests share.
pub(crate) struct Shared(pub(crate) Database);

impl Site for Shared {
    type App = Shop;

    fn fresh() -> Self {
        Self(servers::Shared::Postgres.database())
    }

    fn url(&self) -> String {
        self.0.url()
    }
}

impl Served for Shared {
    const STANDING: &'static str = "select count(distinct pid) from pg_locks join pg_stat_activity using (pid)
        where relation = 'outbox_instance'::regclass and granted and state = 'idle in transaction'
            and state_change < clock_timestamp() - interval '300 ms'";

    async fn end_a_connection(&self, store: &PostgresStore) -> Result<(), Failure> {
        end_a_connection(store).await
    }

    fn hold_open(&self, what: Held) -> Box<dyn Send> {
        let begin = match what {
            Held::Snapshot => "begin isolation level repeatable read; select count(*) from outbox_event",
            Held::Writer => {
                "begin; create table held (n int); insert into held values (1); select pg_current_xact_id()"
            }
        };
        Box::new(Open::new(&self.url(), begin))
    }
}

/// Ends any connection but the asking one.
async fn end_a_connection(store: &PostgresStore) -> Result<(), Failure> {
    let end = "select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() order by random() limit 1";
    sqlx::query(end).execute(store.pool()).await?;
    Ok(())
}

/// On the newest server.
pub(crate) struct Newest(Shared);

impl Site for Newest {
    type App = Shop;

    fn fresh() -> Self {
        Self(Shared(servers::Shared::PostgresNewest.database()))
    }

    fn url(&self) -> String {
        self.0.url()
    }
}

impl Served for Newest {
    const STANDING: &'static str = Shared::STANDING;

    async fn end_a_connection(&self, store: &PostgresStore) -> Result<(), Failure> {
        self.0.end_a_connection(store).await
    }

    fn hold_open(&self, what: Held) -> Box<dyn Send> {
        self.0.hold_open(what)
    }
}

/// A connection with a runtime of its own, so that it is there as long as this is.
struct Open {
    _connection: PgConnection,
    _runtime: tokio::runtime::Runtime,
}

impl Open {
    fn new(url: &str, begin: &'static str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let connection = runtime.block_on(async {
            let mut connection = PgConnection::connect(url).await.unwrap();
            connection.execute(sqlx::raw_sql(begin)).await.unwrap();
            connection
        });
        Self { _connection: connection, _runtime: runtime }
    }
}

/// On a server of the test's own, whose commits wait for the disk.
pub(crate) struct Private {
    // Before its server.
    database: Database,
    server: Postgres,
}

impl Site for Private {
    type App = Shop;

    fn fresh() -> Self {
        let server = Postgres::options(Version::Debian).durable().start().unwrap();
        Self { database: server.database(), server }
    }

    fn url(&self) -> String {
        self.database.url()
    }
}

impl processes::Private for Private {
    const WAYS: &'static [Restart] = &[Restart::Fast, Restart::Immediate, Restart::Killed];

    fn restart(&mut self, how: Restart) {
        match how {
            Restart::Fast => self.server.stop(Stop::Fast),
            Restart::Immediate => self.server.stop(Stop::Immediate),
            Restart::Killed => self.server.kill_9(),
        }
        self.server.start_again().unwrap();
    }
}

impl Stormy for Private {
    const SERVER: bool = true;

    fn restart(&mut self, how: Restart) {
        processes::Private::restart(self, how);
    }

    async fn cut(&self, store: &PostgresStore) -> Result<(), Failure> {
        end_a_connection(store).await
    }
}
