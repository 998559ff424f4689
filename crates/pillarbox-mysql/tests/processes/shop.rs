//! The application, on a database of the test's own.

use pillarbox_mysql::{MySqlStore, VERSION};
use pillarbox_testkit::{
    processes::{self, Application, Failure, Held, Order, Restart, Served, Site, Task, chaos::Stormy},
    servers::{self, Database, MariaDb},
};
use sqlx::{Connection as _, Executor as _, MySqlConnection};

pub(crate) struct Shop;

impl Application for Shop {
    type Store = MySqlStore;

    const VERSION: i64 = VERSION;
    const MARK: &'static str = "select coalesce(max(mark), 0) from outbox_instance";

    async fn open(url: &str, _task: &Task) -> Result<MySqlStore, Failure> {
        Ok(MySqlStore::open(url).await?)
    }

    async fn create(store: &MySqlStore) -> Result<(), Failure> {
        // With the keys that are common: two transactions that insert a key at the same time may be in a deadlock.
        let tables = "create table if not exists aggregates
                (name varchar(200) character set ascii primary key, version bigint not null);
            create table if not exists orders (number bigint auto_increment primary key,
                event_id varchar(200) character set ascii, event_key varchar(200) character set ascii);
            create table if not exists lives (name varchar(200) character set ascii primary key);
            insert ignore into aggregates (name, version)
                values ('k0', 0), ('k1', 0), ('k2', 0), ('k3', 0), ('k4', 0), ('k5', 0), ('k6', 0), ('k7', 0)";
        sqlx::raw_sql(tables).execute(store.pool()).await?;
        Ok(())
    }

    async fn add_order(connection: &mut MySqlConnection, key: Option<&str>) -> Result<i64, Failure> {
        if let Some(key) = key {
            let change = "update aggregates set version = version + 1 where name = ?";
            if sqlx::query(change).bind(key).execute(&mut *connection).await?.rows_affected() == 0 {
                let insert = "insert into aggregates (name, version) values (?, 1)
                    on duplicate key update version = version + 1";
                sqlx::query(insert).bind(key).execute(&mut *connection).await?;
            }
        }
        let insert = sqlx::query("insert into orders (event_key) values (?)").bind(key);
        Ok(i64::try_from(insert.execute(connection).await?.last_insert_id())?)
    }

    async fn name_event(connection: &mut MySqlConnection, number: i64, id: &str) -> Result<(), Failure> {
        let name = sqlx::query("update orders set event_id = ? where number = ?");
        name.bind(id).bind(number).execute(connection).await?;
        Ok(())
    }

    async fn begin_life(connection: &mut MySqlConnection, name: &str) -> Result<bool, Failure> {
        let once = sqlx::query("insert ignore into lives (name) values (?)").bind(name);
        Ok(once.execute(connection).await?.rows_affected() > 0)
    }

    async fn orders(store: &MySqlStore) -> Result<Vec<Order>, Failure> {
        let orders = sqlx::query_as("select number, event_id, event_key from orders order by number");
        let rows: Vec<(i64, String, Option<String>)> = orders.fetch_all(store.pool()).await?;
        Ok(rows.into_iter().map(|(number, id, key)| Order { number, id, key }).collect())
    }

    async fn number(store: &MySqlStore, sql: &'static str) -> Result<i64, Failure> {
        Ok(sqlx::query_scalar(sql).fetch_one(store.pool()).await?)
    }

    async fn crowd(store: &MySqlStore, key: &'static str, count: i64) -> Result<(), Failure> {
        // The numbers are those of MariaDB's sequence engine.
        let insert = "insert into outbox_event (`partition`, event_id, event_type, event_key, payload)
            select `partition`, lpad(last.seq + numbers.seq, 26, '0'), event_type, event_key, '{\"number\":0}'
            from (select * from outbox_event where event_key = ? order by seq desc limit 1) as last
                cross join seq_1_to_1000000 as numbers
            where numbers.seq <= ?
            order by numbers.seq";
        sqlx::query(insert).bind(key).bind(count).execute(store.pool()).await?;
        Ok(())
    }
}

/// On the server that all tests share.
pub(crate) struct Shared(pub(crate) Database);

impl Site for Shared {
    type App = Shop;

    fn fresh() -> Self {
        Self(servers::Shared::MariaDb.database())
    }

    fn url(&self) -> String {
        self.0.url()
    }
}

impl Served for Shared {
    // The node's row is locked exclusively by its settle, and is all that such a transaction has locked at first.
    const STANDING: &'static str = "select count(*) from information_schema.innodb_trx
        join information_schema.processlist on id = trx_mysql_thread_id
        where db = database() and command = 'Sleep' and time_ms > 300 and trx_isolation_level = 'READ COMMITTED'";

    async fn end_a_connection(&self, store: &MySqlStore) -> Result<(), Failure> {
        end_a_connection(store).await
    }

    fn hold_open(&self, what: Held) -> Box<dyn Send> {
        let begin = match what {
            Held::Snapshot => {
                "set session transaction isolation level repeatable read; \
                start transaction with consistent snapshot; select count(*) from outbox_event"
            }
            Held::Writer => "create table held (n int primary key); start transaction; insert into held values (1)",
        };
        Box::new(Open::new(&self.url(), begin))
    }
}

/// Ends any connection but the asking one.
async fn end_a_connection(store: &MySqlStore) -> Result<(), Failure> {
    let any = "select cast(id as signed) from information_schema.processlist
        where db = database() and id <> connection_id() order by rand() limit 1";
    let Some(id) = sqlx::query_scalar::<_, i64>(any).fetch_optional(store.pool()).await? else {
        return Ok(());
    };
    // Who was found may have gone meanwhile.
    let _ = store.pool().execute(sqlx::raw_sql(sqlx::AssertSqlSafe(format!("kill connection {id}")))).await;
    Ok(())
}

/// On MySQL, which may be missing.
pub(crate) struct MySql(Shared);

impl Site for MySql {
    type App = Shop;

    fn missing() -> Option<String> {
        let server = servers::Shared::MySql;
        (!server.is_there()).then(|| format!("{} is not set", server.variable()))
    }

    fn fresh() -> Self {
        Self(Shared(servers::Shared::MySql.database()))
    }

    /// It offers TLS by itself, and the proxy can't look into that.
    fn url(&self) -> String {
        format!("{}?ssl-mode=DISABLED", self.0.url())
    }
}

impl Served for MySql {
    const STANDING: &'static str = Shared::STANDING;

    async fn end_a_connection(&self, store: &MySqlStore) -> Result<(), Failure> {
        self.0.end_a_connection(store).await
    }

    fn hold_open(&self, what: Held) -> Box<dyn Send> {
        self.0.hold_open(what)
    }
}

/// A connection with a runtime of its own, so that it is there as long as this is.
struct Open {
    _connection: MySqlConnection,
    _runtime: tokio::runtime::Runtime,
}

impl Open {
    fn new(url: &str, begin: &'static str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let connection = runtime.block_on(async {
            let mut connection = MySqlConnection::connect(url).await.unwrap();
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
    server: MariaDb,
}

impl Site for Private {
    type App = Shop;

    fn fresh() -> Self {
        let server = MariaDb::start_with(servers::mysql::Options::default().durable()).unwrap();
        Self { database: server.database(), server }
    }

    fn url(&self) -> String {
        self.database.url()
    }
}

impl processes::Private for Private {
    const WAYS: &'static [Restart] = &[Restart::Fast, Restart::Killed];

    fn restart(&mut self, how: Restart) {
        match how {
            Restart::Fast => self.server.stop(),
            // It knows no other way without order.
            Restart::Immediate | Restart::Killed => self.server.kill_9(),
        }
        self.server.start_again().unwrap();
    }
}

impl Stormy for Private {
    const SERVER: bool = true;

    fn restart(&mut self, how: Restart) {
        processes::Private::restart(self, how);
    }

    async fn cut(&self, store: &MySqlStore) -> Result<(), Failure> {
        end_a_connection(store).await
    }
}
