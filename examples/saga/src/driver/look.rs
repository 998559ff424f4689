//! Looks from outside: how far the orders are, and whether anything is under way.

use std::path::Path;

use async_nats::jetstream::{self, Context, consumer::pull};
use sqlx::{AssertSqlSafe, SqliteConnection};

use crate::{
    Failure,
    plan::{SERVICES, look_into},
};

/// What stands in the three files just now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    pub(super) waiting: i64,
    pub(super) confirmed: i64,
    pub(super) cancelled: i64,
    /// Dead letters that nobody has replayed yet.
    pub(super) letters: i64,
    pub(super) replayed: i64,
    /// Events in the outboxes.
    pub(super) unsent: i64,
}

impl Look {
    pub(super) async fn at(folder: &Path) -> Result<Self, Failure> {
        let mut look = Self::default();
        for service in SERVICES {
            let mut database = look_into(folder, service).await?;
            look.unsent += count(&mut database, "outbox_event", "status in ('NEW', 'RETRY')").await?;
            look.letters += count(&mut database, "inbox_letter", "status = 'PENDING'").await?;
            look.replayed += count(&mut database, "inbox_letter", "status = 'REPLAYED'").await?;
            if service == "order" {
                look.waiting = count(&mut database, "orders", "state = 'PLACED'").await?;
                look.confirmed = count(&mut database, "orders", "state = 'CONFIRMED'").await?;
                look.cancelled = count(&mut database, "orders", "state = 'CANCELLED'").await?;
            }
        }
        Ok(look)
    }

    /// Whether so many orders have ended, and everything that was written is sent.
    fn is_over(&self, orders: usize) -> bool {
        usize::try_from(self.confirmed + self.cancelled).is_ok_and(|ended| ended == orders)
            && self.waiting == 0
            && self.unsent == 0
    }
}

/// How many rows there are; none before the service has made the table.
async fn count(database: &mut SqliteConnection, table: &'static str, which: &'static str) -> Result<i64, Failure> {
    let there = sqlx::query_scalar("select count(*) from sqlite_master where name = ?").bind(table);
    if there.fetch_one(&mut *database).await.map(|tables: i64| tables == 0)? {
        return Ok(0);
    }
    let sql = AssertSqlSafe(format!("select count(*) from {table} where {which}"));
    Ok(sqlx::query_scalar(sql).fetch_one(database).await?)
}

/// The broker, as it sees itself.
pub(super) struct Broker {
    context: Context,
    stream: String,
}

impl Broker {
    pub(super) async fn connect(url: &str, stream: &str) -> Result<Self, Failure> {
        Ok(Self { context: jetstream::new(async_nats::connect(url).await?), stream: stream.to_owned() })
    }

    /// How much was told so far.
    async fn told(&self) -> Result<u64, Failure> {
        Ok(self.context.get_stream(&self.stream).await?.cached_info().state.last_sequence)
    }

    /// Whether every service has heard everything, and said so.
    async fn all_is_heard(&self) -> Result<bool, Failure> {
        let stream = self.context.get_stream(&self.stream).await?;
        for service in SERVICES {
            // One that has not begun to listen has not heard.
            let Ok(consumer) = stream.get_consumer::<pull::Config>(service).await else { return Ok(false) };
            let info = consumer.cached_info();
            if info.num_pending > 0 || info.num_ack_pending > 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether all orders have ended, and nothing is under way. What is heard between the two looks is told of by something in
    /// an outbox, or in the stream: the second look finds it.
    pub(super) async fn is_quiet(&self, folder: &Path, orders: usize) -> Result<bool, Failure> {
        let told = self.told().await?;
        Ok(Look::at(folder).await?.is_over(orders)
            && self.all_is_heard().await?
            && Look::at(folder).await?.is_over(orders)
            && self.told().await? == told)
    }

    /// Removes the stream.
    pub(super) async fn clean_up(&self) -> Result<(), Failure> {
        self.context.delete_stream(&self.stream).await?;
        Ok(())
    }
}
