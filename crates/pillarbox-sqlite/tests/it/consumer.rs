//! The exams of the consumer's half, on SQLite.

use std::time::Duration;

use pillarbox_core::{domain::bucket::SLOTS, port::InboxUpkeep as _};
use pillarbox_sqlite::{Options, SqliteInbox, SqliteStore};
use sqlx::AssertSqlSafe;
use tempfile::TempDir;

/// A file of its own.
struct File {
    store: SqliteStore,
    _folder: TempDir,
}

impl File {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inbox.db");
        Self { store: SqliteStore::open(path.to_str().unwrap()).await.unwrap(), _folder: folder }
    }

    async fn migrated() -> Self {
        let file = Self::new().await;
        file.inbox().migrate().await.unwrap();
        file
    }

    fn inbox(&self) -> SqliteInbox {
        SqliteInbox::new(&self.store)
    }

    async fn run(&self, sql: String) {
        sqlx::query(AssertSqlSafe(sql)).execute(self.store.pool()).await.unwrap();
    }
}

mod guard {
    use super::{Duration, File, SqliteInbox};

    impl pillarbox_testkit::guards::Place for File {
        type Store = SqliteInbox;

        async fn fresh() -> Self {
            Self::migrated().await
        }

        fn store(&self) -> SqliteInbox {
            self.inbox()
        }

        async fn pass(&self) {
            let micros = Duration::from_hours(1).as_micros();
            self.run(format!("update inbox_guard set expires_at = expires_at - {micros}")).await;
        }
    }

    pillarbox_testkit::guards!(File);
}

mod inbox {
    use super::{Duration, File, SLOTS, SqliteInbox, SqliteStore};

    impl pillarbox_testkit::inboxes::Place for File {
        type Store = SqliteStore;
        type Inbox = SqliteInbox;

        async fn fresh() -> Self {
            Self::new().await
        }

        fn store(&self) -> &SqliteStore {
            &self.store
        }

        fn inbox(&self) -> SqliteInbox {
            self.inbox()
        }

        async fn hurry(&self, bucket: Duration) {
            self.run(format!("update inbox_window set bucket_micros = {}", bucket.as_micros())).await;
        }

        async fn entries(&self) -> u64 {
            let counts = (0..SLOTS).map(|slot| format!("(select count(*) from inbox_seen_{slot})"));
            let sql = format!("select {}", counts.collect::<Vec<_>>().join(" + "));
            let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(self.store.pool()).await.unwrap();
            u64::try_from(count).unwrap()
        }
    }

    pillarbox_testkit::inboxes!(File);
}

mod letters {
    use super::{File, SqliteInbox};

    impl pillarbox_testkit::letters::Place for File {
        type Store = SqliteInbox;

        async fn fresh() -> Self {
            Self::migrated().await
        }

        fn store(&self) -> SqliteInbox {
            self.inbox()
        }
    }

    pillarbox_testkit::letters!(File);
}

#[tokio::test]
async fn an_inbox_needs_a_prefix_of_its_own() {
    let file = File::new().await;
    for bad in ["outbox_", "OUTBOX_", "a-b", ""] {
        assert!(SqliteInbox::with_prefix(&file.store, bad).is_err(), "{bad}");
    }
    let one = SqliteInbox::with_prefix(&file.store, "billing_inbox_").unwrap();
    one.migrate().await.unwrap();
    file.inbox().migrate().await.unwrap();
    assert_eq!(one.prefix(), "billing_inbox_");
}

#[tokio::test]
async fn the_text_of_the_inboxs_migrations_makes_the_tables() {
    let file = File::new().await;
    let text = Options::new().inbox_migration_sql("inbox_").unwrap();
    sqlx::raw_sql(AssertSqlSafe(text)).execute(file.store.pool()).await.unwrap();
    file.inbox().migrate().await.unwrap();
    file.inbox().agree(Duration::from_hours(24)).await.unwrap();
    let versions: i64 =
        sqlx::query_scalar("select count(*) from inbox_schema").fetch_one(file.store.pool()).await.unwrap();
    assert_eq!(versions, 1);
    assert!(Options::new().inbox_migration_sql("outbox_").is_err());
}
