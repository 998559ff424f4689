//! PostgreSQL.

use pillarbox_core::port::{InboxUpkeep as _, TransactStore as _};
use pillarbox_inbox::{Guard, Inbox};
use pillarbox_postgres::{PostgresInbox, PostgresStore};
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection};
use tokio::sync::Mutex;

use super::{NOTE, Seen, count_seen};
use crate::{
    Result,
    backend::{Backend as _, Database as _, postgres},
    consumer::{
        guard::{self, BY, Marks},
        inbox::{self, By, CONSUMER, Desk, WINDOW},
    },
};

/// On a server of the run.
pub(in crate::consumer) struct Postgres<'a>(pub(in crate::consumer) &'a postgres::Bed);

impl guard::Place for Postgres<'_> {
    const NAMES: [&'static str; 2] = guard::names::POSTGRES;
    type Bare = Bare;
    type Kept = postgres::Database;

    async fn bare(&self, callers: usize) -> Result<Bare> {
        let (database, store) = open(self.0).await?;
        let options = store.pool().connect_options().as_ref().clone();
        let mut connections = Vec::new();
        for _ in 0..callers {
            connections.push(Mutex::new(options.connect().await?));
        }
        Ok(Bare { connections, _database: database })
    }

    async fn guard(&self) -> Result<(Guard, postgres::Database)> {
        let (database, store) = open(self.0).await?;
        Ok((Guard::new(PostgresInbox::new(&store)), database))
    }

    fn note(&self) -> String {
        NOTE.into()
    }
}

pub(in crate::consumer) struct Bare {
    connections: Vec<Mutex<PgConnection>>,
    _database: postgres::Database,
}

impl Marks for Bare {
    async fn mark(&self, caller: usize, message: &str) -> Result<bool> {
        let mut connection = self.connections[caller].lock().await;
        let marked = sqlx::query(
            "insert into inbox_guard (consumer, message, taken_by, expires_at)
             values ($1, $2, $3, clock_timestamp() + interval '1 hour') on conflict do nothing",
        );
        let marked = marked.bind(CONSUMER).bind(message).bind(BY).execute(&mut *connection).await?;
        Ok(marked.rows_affected() == 1)
    }
}

impl inbox::Place for Postgres<'_> {
    const NAMES: [&'static str; 3] = inbox::names::POSTGRES;
    type Desk = Rig;

    async fn desk(&self, before: usize) -> Result<Rig> {
        let (database, store) = open(self.0).await?;
        sqlx::query("create table bench_work (first text not null, messages bigint not null)")
            .execute(store.pool())
            .await?;
        let inbox = Inbox::new(PostgresInbox::new(&store)).window(WINDOW).start().await?;
        let seen = Seen::now()?;
        if before > 0 {
            let fill = format!(
                "insert into {} (consumer, message)
                 select '{CONSUMER}', md5(n::text) from generate_series(1, {before}) as numbers (n) order by 2",
                seen.before
            );
            // Else autovacuum would do it, in the middle of some round.
            for sql in [fill, format!("vacuum (analyze) {}", seen.before), "checkpoint".into()] {
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(store.pool()).await?;
            }
        }
        Ok(Rig { store, inbox, seen, _database: database })
    }
}

pub(in crate::consumer) struct Rig {
    store: PostgresStore,
    inbox: Inbox<PostgresInbox>,
    seen: Seen,
    _database: postgres::Database,
}

impl Desk for Rig {
    async fn run(&self, by: By, messages: &[&str]) -> Result<()> {
        let mut tx = self.store.begin().await?;
        let seen = &self.seen.present;
        let entered = match (by, messages) {
            (By::Inbox, _) => {
                self.inbox.enter_all(&mut tx, CONSUMER, messages).await?.into_iter().filter(|is_new| *is_new).count()
            }
            (By::Hand, [message]) => {
                let sql = format!("insert into {seen} (consumer, message) values ($1, $2) on conflict do nothing");
                let entered = sqlx::query(AssertSqlSafe(sql)).bind(CONSUMER).bind(message).execute(&mut *tx).await?;
                usize::try_from(entered.rows_affected())?
            }
            (By::Hand, messages) => {
                let sql = format!(
                    "insert into {seen} (consumer, message) select $1, message from unnest($2::text[]) as given (message)
                     on conflict do nothing"
                );
                let entered = sqlx::query(AssertSqlSafe(sql)).bind(CONSUMER).bind(messages).execute(&mut *tx).await?;
                usize::try_from(entered.rows_affected())?
            }
        };
        if entered != messages.len() {
            return Err("a message was known".into());
        }
        let work = sqlx::query("insert into bench_work (first, messages) values ($1, $2)");
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
pub(in crate::consumer) async fn open(bed: &postgres::Bed) -> Result<(postgres::Database, PostgresStore)> {
    let database = bed.empty().await?;
    let store = database.store().await?;
    PostgresInbox::new(&store).migrate().await?;
    Ok((database, store))
}
