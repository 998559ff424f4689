//! MySQL and MariaDB.

use pillarbox_core::port::{InboxUpkeep as _, TransactStore as _};
use pillarbox_inbox::{Guard, Inbox};
use pillarbox_mysql::{MySqlInbox, MySqlStore};
use sqlx::{AssertSqlSafe, ConnectOptions as _, MySqlConnection};
use tokio::sync::Mutex;

use super::{NOTE, Seen, count_seen};
use crate::{
    Result,
    backend::{Backend as _, Database as _, mysql},
    consumer::{
        guard::{self, BY, Marks},
        inbox::{self, By, CONSUMER, Desk, WINDOW},
    },
};

/// On a server of the run.
pub(in crate::consumer) struct MySql<'a>(pub(in crate::consumer) &'a mysql::Bed);

impl guard::Place for MySql<'_> {
    const NAMES: [&'static str; 2] = guard::names::MYSQL;
    type Bare = Bare;
    type Kept = mysql::Database;

    async fn bare(&self, callers: usize) -> Result<Bare> {
        let (database, store) = open(self.0).await?;
        let options = store.pool().connect_options().as_ref().clone();
        let mut connections = Vec::new();
        for _ in 0..callers {
            connections.push(Mutex::new(options.connect().await?));
        }
        Ok(Bare { connections, _database: database })
    }

    async fn guard(&self) -> Result<(Guard, mysql::Database)> {
        let (database, store) = open(self.0).await?;
        Ok((Guard::new(MySqlInbox::new(&store)), database))
    }

    fn note(&self) -> String {
        NOTE.into()
    }
}

pub(in crate::consumer) struct Bare {
    connections: Vec<Mutex<MySqlConnection>>,
    _database: mysql::Database,
}

impl Marks for Bare {
    async fn mark(&self, caller: usize, message: &str) -> Result<bool> {
        let mut connection = self.connections[caller].lock().await;
        let marked = sqlx::query(
            "insert ignore into inbox_guard (consumer, message, taken_by, taken_in, expires_at)
             values (?, ?, ?, 7, utc_timestamp(6) + interval 1 hour)",
        );
        let marked = marked.bind(CONSUMER).bind(message).bind(BY).execute(&mut *connection).await?;
        Ok(marked.rows_affected() == 1)
    }
}

impl inbox::Place for MySql<'_> {
    const NAMES: [&'static str; 3] = inbox::names::MYSQL;
    type Desk = Rig;

    async fn desk(&self, before: usize) -> Result<Rig> {
        let (database, store) = open(self.0).await?;
        sqlx::query("create table bench_work (first varchar(64) not null, messages bigint not null) engine = InnoDB")
            .execute(store.pool())
            .await?;
        let inbox = Inbox::new(MySqlInbox::new(&store)).window(WINDOW).start().await?;
        let seen = Seen::now()?;
        if before > 0 {
            let fill = format!(
                "insert into {} (consumer, message, entered_by)
                 select '{CONSUMER}', md5(n), 7
                 from json_table(concat('[', repeat('0,', {before} - 1), '0]'), '$[*]' columns (n for ordinality)) as numbers
                 order by 2",
                seen.before
            );
            sqlx::raw_sql(AssertSqlSafe(fill)).execute(store.pool()).await?;
            sqlx::raw_sql(AssertSqlSafe(format!("analyze table {}", seen.before))).execute(store.pool()).await?;
            self.0.settle_down().await?;
        }
        Ok(Rig { store, inbox, seen, _database: database })
    }
}

pub(in crate::consumer) struct Rig {
    store: MySqlStore,
    inbox: Inbox<MySqlInbox>,
    seen: Seen,
    _database: mysql::Database,
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
                let rows = vec!["(?, ?, 7)"; messages.len()].join(", ");
                let sql = format!("insert ignore into {seen} (consumer, message, entered_by) values {rows}");
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
pub(in crate::consumer) async fn open(bed: &mysql::Bed) -> Result<(mysql::Database, MySqlStore)> {
    let database = bed.empty().await?;
    let store = database.store().await?;
    MySqlInbox::new(&store).migrate().await?;
    Ok((database, store))
}
