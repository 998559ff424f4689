//! The MySQL store passes the exam, on MariaDB and on MySQL.

use std::time::Duration;

use pillarbox_core::{domain::Seq, port::UpkeepStore};
use pillarbox_mysql::MySqlStore;
use pillarbox_testkit::{
    conformance::{Backend, Executed},
    servers::{Database, Shared},
};
use sqlx::MySqlConnection;

struct Server {
    store: MySqlStore,
    database: Database,
}

impl Server {
    async fn fresh(server: Shared) -> Self {
        let database = server.database();
        let store = MySqlStore::open(database.url()).await.unwrap();
        store.migrate().await.unwrap();
        sqlx::query("create table work (value varchar(100) not null)").execute(store.pool()).await.unwrap();
        Self { store, database }
    }

    async fn another(&self) -> MySqlStore {
        MySqlStore::open(self.database.url()).await.unwrap()
    }

    async fn execute(&self, sql: &'static str, numbers: &[i64]) {
        let mut query = sqlx::query(sql);
        for number in numbers {
            query = query.bind(*number);
        }
        query.execute(self.store.pool()).await.expect(sql);
    }

    async fn break_row(&self, seq: Seq) {
        self.execute("update outbox_event set event_id = 'not an id' where seq = ?", &[seq.0]).await;
    }

    /// The server's clock can't be moved: every stored time moves back instead.
    async fn pass(&self, span: Duration) {
        let micros = i64::try_from(span.as_micros()).expect("a short span");
        for sql in [
            "update outbox_event set available_at = available_at - interval ? microsecond,
                created_at = created_at - interval ? microsecond, done_at = done_at - interval ? microsecond",
            "update outbox_dedup set expires_at = expires_at - interval ? microsecond where ? = ?",
            "update outbox_action set `at` = `at` - interval ? microsecond where ? = ?",
            "update outbox_instance set `until` = `until` - interval ? microsecond,
                started_at = started_at - interval ? microsecond where 0 < ?",
        ] {
            self.execute(sql, &[micros; 3]).await;
        }
    }
}

macro_rules! backend {
    ($name:ident, $server:expr) => {
        struct $name(Server);

        impl Backend for $name {
            type Store = MySqlStore;

            fn missing() -> Option<String> {
                let missing = $server == Shared::MySql && !$server.is_there();
                missing.then(|| format!("{} is not set", $server.variable()))
            }

            async fn fresh() -> Self {
                Self(Server::fresh($server).await)
            }

            fn store(&self) -> &MySqlStore {
                &self.0.store
            }

            async fn second_handle(&self) -> MySqlStore {
                self.0.another().await
            }

            async fn break_row(&self, seq: Seq) {
                self.0.break_row(seq).await;
            }

            async fn pass(&self, span: Duration) {
                self.0.pass(span).await;
            }

            async fn add_work(connection: &mut MySqlConnection, value: String) -> Executed {
                sqlx::query("insert into work values (?)").bind(value).execute(connection).await?;
                Ok(())
            }

            async fn work(&self) -> Vec<String> {
                let work = sqlx::query_scalar("select value from work order by value");
                work.fetch_all(self.0.store.pool()).await.expect("work")
            }
        }
    };
}

mod mariadb {
    use super::*;

    backend!(MariaDb, Shared::MariaDb);
    pillarbox_testkit::conformance!(MariaDb);
}

/// MySQL can't always be had: without it these cases do nothing, and say so.
mod mysql {
    use super::*;

    backend!(MySql, Shared::MySql);
    pillarbox_testkit::conformance!(MySql);
}
