//! The SQLite store passes the exam.

use std::time::Duration;

use pillarbox_core::{domain::Seq, port::UpkeepStore};
use pillarbox_sqlite::SqliteStore;
use pillarbox_testkit::conformance::{Backend, Executed};
use sqlx::SqliteConnection;
use tempfile::TempDir;

struct Sqlite {
    store: SqliteStore,
    folder: TempDir,
}

impl Sqlite {
    async fn execute(&self, sql: &'static str, number: i64) {
        sqlx::query(sql).bind(number).execute(self.store.pool()).await.expect(sql);
    }
}

async fn open(folder: &TempDir) -> SqliteStore {
    let path = folder.path().join("outbox.db");
    SqliteStore::open(path.to_str().expect("a path of text")).await.expect("open")
}

impl Backend for Sqlite {
    type Store = SqliteStore;

    const OVERLAPPING_WRITERS: bool = false;

    async fn fresh() -> Self {
        let folder = TempDir::new().expect("a folder");
        let store = open(&folder).await;
        store.migrate().await.expect("migrate");
        sqlx::query("create table work (value text not null)").execute(store.pool()).await.expect("a table");
        Self { store, folder }
    }

    fn store(&self) -> &SqliteStore {
        &self.store
    }

    async fn second_handle(&self) -> SqliteStore {
        open(&self.folder).await
    }

    async fn break_row(&self, seq: Seq) {
        self.execute("update outbox_event set event_id = 'not an id' where seq = ?", seq.0).await;
    }

    /// SQLite's clock is the host's: every stored time moves back instead.
    async fn pass(&self, span: Duration) {
        let micros = i64::try_from(span.as_micros()).expect("a short span");
        for sql in [
            "update outbox_event set available_at = available_at - ?1, created_at = created_at - ?1, done_at = done_at - ?1",
            "update outbox_dedup set expires_at = expires_at - ?1",
            "update outbox_action set at = at - ?1",
            "update outbox_instance set until = until - ?1, started_at = started_at - ?1",
        ] {
            self.execute(sql, micros).await;
        }
    }

    async fn add_work(connection: &mut SqliteConnection, value: String) -> Executed {
        sqlx::query("insert into work values (?)").bind(value).execute(connection).await?;
        Ok(())
    }

    async fn work(&self) -> Vec<String> {
        sqlx::query_scalar("select value from work order by value").fetch_all(self.store.pool()).await.expect("work")
    }
}

pillarbox_testkit::conformance!(Sqlite);
