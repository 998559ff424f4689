//! News from other processes, by `LISTEN` and `NOTIFY`. Behind a pooler there is no session to listen on: events are found
//! by polling, and who owns what is watched.

use std::{fmt::Write as _, time::Duration};

use pillarbox_core::domain::PartitionSet;
use pillarbox_core::port::{BoxFuture, StoreError, WakeStore};
use sqlx::{
    PgPool, Row as _,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};
use tokio::{
    runtime::{Handle, Id},
    sync::{Mutex, Notify},
};

use crate::{PostgresStore, error, row, tables::Names};

/// What a hint says that is about the nodes; else it names the partitions in which something was committed.
const FLEET: &str = "fleet";

/// How often the nodes are looked at behind a pooler.
const FLEET_INTERVAL: Duration = Duration::from_millis(50);

/// The connection that listens.
pub(crate) struct Listening {
    options: PgConnectOptions,
    connect_within: Duration,
    channel: String,
    /// Marks this store's own hints: they are news to others only.
    sender: String,
    listener: Mutex<Option<(Id, PgListener)>>,
    /// Rung when another process has a hint about the nodes.
    fleet: Notify,
    /// How the nodes were seen last behind a pooler.
    seen_fleet: Mutex<Option<String>>,
}

impl Listening {
    pub(crate) fn new(options: PgConnectOptions, connect_within: Duration, names: &Names) -> Self {
        let channel = channel(names);
        let sender = format!("{:016x}", fastrand::u64(..));
        Self {
            options,
            connect_within,
            channel,
            sender,
            listener: Mutex::default(),
            fleet: Notify::new(),
            seen_fleet: Mutex::default(),
        }
    }

    /// A pool of one, since a listener wants a pool. Nobody comes after it: its connection is closed, and not tried once more,
    /// which would warn of each one that was lost.
    fn pool(&self) -> PgPool {
        PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(self.connect_within)
            .after_release(|_, _| Box::pin(async { Ok(false) }))
            .connect_lazy_with(self.options.clone())
    }

    async fn listen(&self) -> Result<PgListener, sqlx::Error> {
        let mut listener = PgListener::connect_with(&self.pool()).await?;
        listener.ignore_pool_close_event(true);
        listener.eager_reconnect(false);
        listener.listen(&self.channel).await?;
        Ok(listener)
    }

    /// Waits for a hint of another process. The first call returns at once when it listens: what was committed before
    /// is not known.
    async fn news(&self) -> Result<(), sqlx::Error> {
        let mut slot = self.listener.lock().await;
        let here = Handle::current().id();
        if slot.as_ref().is_none_or(|(runtime, _)| *runtime != here) {
            *slot = None;
            *slot = Some((here, self.listen().await?));
            return Ok(());
        }
        loop {
            let Some((_, listener)) = slot.as_mut() else {
                return Err(sqlx::Error::WorkerCrashed);
            };
            match listener.try_recv().await {
                Ok(Some(hint)) if hint.payload().starts_with(&self.sender) => {}
                Ok(Some(hint)) if hint.payload().ends_with(FLEET) => self.fleet.notify_one(),
                Ok(Some(_)) => return Ok(()),
                Ok(None) => {
                    *slot = None;
                    return Err(sqlx::Error::Io(std::io::ErrorKind::ConnectionAborted.into()));
                }
                Err(error) => {
                    *slot = None;
                    return Err(error);
                }
            }
        }
    }
}

/// The server refuses longer names. By a hash of their own, outboxes with long names are apart; if two should be alike, they
/// wake each other in vain.
fn channel(names: &Names) -> String {
    const LIMIT: usize = 63;
    let channel = format!("{}wake", names.whole());
    if channel.len() <= LIMIT {
        return channel;
    }
    // FNV-1a: the same in every build of every program that listens.
    let hash = channel
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("pillarbox_wake_{hash:016x}")
}

impl WakeStore for PostgresStore {
    fn wants_hints(&self) -> bool {
        !self.0.behind_pooler
    }

    fn hint(&self, partitions: PartitionSet) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.within(async move {
            if self.0.behind_pooler || partitions.is_empty() {
                return Ok(());
            }
            let news = &self.0.news;
            let bits = row::bits(&partitions).iter().fold(String::new(), |mut bits, byte| {
                // Writing to a string does not fail.
                let _ = write!(bits, "{byte:02x}");
                bits
            });
            let mut entered = self.0.reads.enter().await?;
            sqlx::query("select pg_notify($1, $2)")
                .bind(&news.channel)
                .bind(format!("{} {bits}", news.sender))
                .execute(entered.connection().map_err(error::of)?)
                .await
                .map_err(error::of)?;
            entered.leave();
            Ok(())
        }))
    }

    fn news(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            if self.0.behind_pooler {
                // There is no session to listen on.
                std::future::pending::<()>().await;
            }
            self.0.news.news().await.map_err(error::of)
        })
    }

    fn hint_fleet(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.within(async move {
            if self.0.behind_pooler {
                return Ok(());
            }
            // On the connection of who calls it, the lease's.
            let news = &self.0.news;
            let mut entered = self.0.lease.enter().await?;
            sqlx::query("select pg_notify($1, $2)")
                .bind(&news.channel)
                .bind(format!("{} {FLEET}", news.sender))
                .execute(entered.connection().map_err(error::of)?)
                .await
                .map_err(error::of)?;
            entered.leave();
            Ok(())
        }))
    }

    fn fleet_news(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            if self.0.behind_pooler {
                return self.watch_fleet().await;
            }
            self.0.news.fleet.notified().await;
            Ok(())
        })
    }
}

impl PostgresStore {
    async fn watch_fleet(&self) -> Result<(), StoreError> {
        let mut seen = self.0.news.seen_fleet.lock().await;
        loop {
            let fleet = self.within(self.fleet()).await?;
            // Who begins to wait has just looked around.
            if seen.replace(fleet.clone()).is_some_and(|before| before != fleet) {
                return Ok(());
            }
            tokio::time::sleep(FLEET_INTERVAL).await;
        }
    }

    async fn fleet(&self) -> Result<String, StoreError> {
        let mut entered = self.0.reads.enter().await?;
        let connection = entered.begin_reading().await.map_err(error::of)?;
        let row = self.query(&self.0.sql.own.fleet).fetch_one(connection).await.map_err(error::of)?;
        entered.end_reading().await.map_err(error::of)?;
        entered.leave();
        row.try_get(0).map_err(error::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_has_a_name_that_the_server_takes_and_no_two_have_one() {
        let of = |schema: Option<&str>, prefix: &str| channel(&Names::new(schema, prefix).unwrap());
        // As older programs call it.
        assert_eq!(of(None, "outbox_"), "outbox_wake");
        assert_eq!(of(Some("Shop"), "my_"), "Shop.my_wake");
        let (schema, prefix) = ("s".repeat(63), "p".repeat(32));
        let mut channels =
            vec![of(Some(&schema), &prefix), of(Some(&schema[1..]), &prefix), of(Some(&schema), &prefix[1..])];
        channels.extend((1..64).map(|long| of(Some(&schema[..long]), "outbox_")));
        assert!(channels.iter().all(|channel| channel.len() <= 63), "{channels:?}");
        let all = channels.len();
        channels.sort();
        channels.dedup();
        assert_eq!(channels.len(), all);
    }
}
