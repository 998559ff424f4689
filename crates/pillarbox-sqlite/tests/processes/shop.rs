//! The application, on a file of the test's own.

use pillarbox_sqlite::{Options, SqliteStore, VERSION};
use pillarbox_testkit::processes::{Application, Failure, Order, Site, Task, chaos::Stormy};
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

pub(crate) struct Shop;

impl Application for Shop {
    type Store = SqliteStore;

    const VERSION: i64 = VERSION;
    const MARK: &'static str = "select coalesce(max(mark), 0) from outbox_instance";

    async fn open(url: &str, task: &Task) -> Result<SqliteStore, Failure> {
        let mut options = Options::new();
        if let Some(timeout) = task.millis("busy_timeout") {
            options = options.busy_timeout(timeout);
        }
        Ok(options.open(url).await?)
    }

    async fn create(store: &SqliteStore) -> Result<(), Failure> {
        let orders = "create table orders (number integer primary key autoincrement, event_id text, event_key text)";
        for sql in [orders, "create table lives (name text primary key)"] {
            sqlx::query(sql).execute(store.pool()).await?;
        }
        Ok(())
    }

    async fn add_order(connection: &mut SqliteConnection, key: Option<&str>) -> Result<i64, Failure> {
        let insert = sqlx::query_scalar("insert into orders (event_key) values (?) returning number");
        Ok(insert.bind(key.map(str::to_owned)).fetch_one(connection).await?)
    }

    async fn name_event(connection: &mut SqliteConnection, number: i64, id: &str) -> Result<(), Failure> {
        let name = sqlx::query("update orders set event_id = ? where number = ?");
        name.bind(id.to_owned()).bind(number).execute(connection).await?;
        Ok(())
    }

    async fn begin_life(connection: &mut SqliteConnection, name: &str) -> Result<bool, Failure> {
        let once = sqlx::query("insert or ignore into lives (name) values (?)").bind(name.to_owned());
        Ok(once.execute(connection).await?.rows_affected() > 0)
    }

    async fn orders(store: &SqliteStore) -> Result<Vec<Order>, Failure> {
        let orders = sqlx::query_as("select number, event_id, event_key from orders order by number");
        let rows: Vec<(i64, String, Option<String>)> = orders.fetch_all(store.pool()).await?;
        Ok(rows.into_iter().map(|(number, id, key)| Order { number, id, key }).collect())
    }

    async fn number(store: &SqliteStore, sql: &'static str) -> Result<i64, Failure> {
        Ok(sqlx::query_scalar(sql).fetch_one(store.pool()).await?)
    }

    async fn crowd(store: &SqliteStore, key: &'static str, count: i64) -> Result<(), Failure> {
        let insert = "with recursive numbers (n) as (values (1) union all select n + 1 from numbers where n < ?1)
            insert into outbox_event (partition, event_id, event_type, event_key, payload)
            select partition, printf('%026d', seq + n), event_type, event_key, '{\"number\":0}'
            from (select * from outbox_event where event_key = ?2 order by seq desc limit 1) as last
                cross join numbers
            order by n";
        sqlx::query(insert).bind(count).bind(key).execute(store.pool()).await?;
        Ok(())
    }

    /// In the middle of a transaction a process keeps the file's only write lock: no node could do anything.
    async fn is_locked(store: &SqliteStore) -> bool {
        let mut connection = store.pool().acquire().await.unwrap();
        sqlx::query("pragma busy_timeout = 50").execute(&mut *connection).await.unwrap();
        let tx = connection.begin_with("begin immediate").await;
        let locked = tx.is_err();
        if let Ok(tx) = tx {
            tx.rollback().await.unwrap();
        }
        locked
    }

    /// The role `locker` only holds the write lock, until the word `unlock`.
    async fn play(task: &Task) {
        assert_eq!(task.text("role"), "locker");
        let mut connection = SqliteConnection::connect(task.text("url")).await.unwrap();
        let tx = connection.begin_with("begin immediate").await.unwrap();
        task.pen().word("locked", "-", 0);
        task.wait_for("unlock").await;
        tx.rollback().await.unwrap();
    }
}

pub(crate) struct File(TempDir);

impl Site for File {
    type App = Shop;

    fn fresh() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn url(&self) -> String {
        self.0.path().join("shop.db").to_str().unwrap().to_owned()
    }
}

impl Stormy for File {}
