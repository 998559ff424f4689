//! SQLite.

use pillarbox_core::port::{InboxUpkeep as _, TransactStore as _};
use pillarbox_inbox::{Guard, Inbox};
use pillarbox_sqlite::{SqliteInbox, SqliteStore};
use sqlx::{AssertSqlSafe, ConnectOptions as _, SqliteConnection};
use tokio::sync::Mutex;

use super::{Seen, count_seen};
use crate::{
    Result,
    backend::{Backend as _, Database as _, sqlite},
    consumer::{
        guard::{self, BY, Marks},
        inbox::{self, By, CONSUMER, Desk, WINDOW},
    },
};

/// On a server of the run.
pub(in crate::consumer) struct Sqlite<'a>(pub(in crate::consumer) &'a sqlite::Bed);

impl guard::Place for Sqlite<'_> {
    const NAMES: [&'static str; 2] = guard::names::SQLITE;
    type Bare = Bare;
    type Kept = sqlite::Database;

    async fn bare(&self, _callers: usize) -> Result<Bare> {
        let (database, store) = open(self.0).await?;
        let options = store.pool().connect_options().as_ref().clone();
        // One writes at a time: more connections would only wait for each other.
        Ok(Bare { connection: Mutex::new(options.connect().await?), _database: database })
    }

    async fn guard(&self) -> Result<(Guard, sqlite::Database)> {
        let (database, store) = open(self.0).await?;
        Ok((Guard::new(SqliteInbox::new(&store)), database))
    }

    fn note(&self) -> String {
        "one prepared insert that skips what is there, its own transaction, one connection".into()
    }
}

pub(in crate::consumer) struct Bare {
    connection: Mutex<SqliteConnection>,
    _database: sqlite::Database,
}

impl Marks for Bare {
    async fn mark(&self, _caller: usize, message: &str) -> Result<bool> {
        let mut connection = self.connection.lock().await;
        let marked = sqlx::query(
            "insert into inbox_guard (consumer, message, taken_by, expires_at)
             values (?, ?, ?, cast(unixepoch('subsec') * 1000000 as integer) + 3600000000) on conflict do nothing",
        );
        let marked = marked.bind(CONSUMER).bind(message).bind(BY).execute(&mut *connection).await?;
        Ok(marked.rows_affected() == 1)
    }
}

impl inbox::Place for Sqlite<'_> {
    const NAMES: [&'static str; 3] = inbox::names::SQLITE;
    type Desk = Rig;

    async fn desk(&self, before: usize) -> Result<Rig> {
        let (database, store) = open(self.0).await?;
        sqlx::query("create table bench_work (first text not null, messages integer not null)")
            .execute(store.pool())
            .await?;
        let inbox = Inbox::new(SqliteInbox::new(&store)).window(WINDOW).start().await?;
        let seen = Seen::now()?;
        if before > 0 {
            let fill = format!(
                "insert into {} (consumer, message)
                 with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < {before})
                 select '{CONSUMER}', lower(hex(randomblob(16))) from numbers order by 2",
                seen.before
            );
            for sql in [fill, "pragma wal_checkpoint(truncate)".into()] {
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(store.pool()).await?;
            }
        }
        Ok(Rig { store, inbox, seen, _database: database })
    }
}

pub(in crate::consumer) struct Rig {
    store: SqliteStore,
    inbox: Inbox<SqliteInbox>,
    seen: Seen,
    _database: sqlite::Database,
}

impl Desk for Rig {
    async fn run(&self, by: By, messages: &[&str]) -> Result<()> {
        let mut tx = self.store.begin().await?;
        let seen = &self.seen.present;
        let entered = match by {
            By::Inbox => {
                self.inbox.enter_all(&mut tx, CONSUMER, messages).await?.into_iter().filter(|is_new| *is_new).count()
            }
            By::Hand => {
                let rows = vec!["(?, ?)"; messages.len()].join(", ");
                let sql = format!("insert into {seen} (consumer, message) values {rows} on conflict do nothing");
                let insert = sqlx::query(AssertSqlSafe(sql));
                let insert = messages.iter().fold(insert, |insert, message| insert.bind(CONSUMER).bind(*message));
                usize::try_from(insert.execute(&mut *tx).await?.rows_affected())?
            }
        };
        if entered != messages.len() {
            return Err("a message was known".into());
        }
        let work = sqlx::query("insert into bench_work (first, messages) values (?, ?)");
        work.bind(messages[0]).bind(i64::try_from(messages.len())?).execute(&mut *tx).await?;
        Ok(self.store.commit(tx).await?)
    }

    async fn count(&self) -> Result<(usize, usize)> {
        let seen: i64 = sqlx::query_scalar(AssertSqlSafe(count_seen())).fetch_one(self.store.pool()).await?;
        let work: i64 = sqlx::query_scalar("select count(*) from bench_work").fetch_one(self.store.pool()).await?;
        self.store.pool().close().await;
        Ok((usize::try_from(seen)?, usize::try_from(work)?))
    }
}

/// A new database with the inbox's tables.
pub(in crate::consumer) async fn open(bed: &sqlite::Bed) -> Result<(sqlite::Database, SqliteStore)> {
    let database = bed.empty().await?;
    let store = database.store().await?;
    SqliteInbox::new(&store).migrate().await?;
    Ok((database, store))
}
