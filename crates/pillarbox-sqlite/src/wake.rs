//! News from other processes, by watching the file's version.

use std::time::Duration;

use pillarbox_core::domain::PartitionSet;
use pillarbox_core::port::{BoxFuture, StoreError, WakeStore};
use sqlx::Row as _;

use crate::SqliteStore;

/// How often the version is read.
const INTERVAL: Duration = Duration::from_millis(10);
/// And how often the nodes are looked at, if it has changed.
const FLEET_INTERVAL: Duration = Duration::from_millis(50);

/// How a wait for news of the nodes has seen them last, and at which version of the file.
pub(crate) struct Fleet {
    version: i64,
    nodes: String,
}

impl WakeStore for SqliteStore {
    fn wants_hints(&self) -> bool {
        // The commit itself is the hint: every other process sees the file's version change.
        false
    }

    fn hint(&self, _partitions: PartitionSet) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn news(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            let mut seen = self.0.seen_version.lock().await;
            loop {
                let version = self.data_version().await?;
                // The first call returns at once: what was committed before it is not known.
                if seen.replace(version) != Some(version) {
                    return Ok(());
                }
                tokio::time::sleep(INTERVAL).await;
            }
        })
    }

    fn fleet_news(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            let mut seen = self.0.seen_fleet.lock().await;
            loop {
                // Before the nodes are looked at: what changes meanwhile is a change at the next turn.
                let version = self.data_version().await?;
                if seen.as_ref().is_none_or(|seen| seen.version != version) {
                    let nodes = self.fleet().await?;
                    let before = seen.replace(Fleet { version, nodes: nodes.clone() });
                    // Who begins to wait has just looked around.
                    if before.is_some_and(|before| before.nodes != nodes) {
                        return Ok(());
                    }
                }
                tokio::time::sleep(FLEET_INTERVAL).await;
            }
        })
    }
}

impl SqliteStore {
    /// Changes with every commit of another connection, whichever process it is in.
    async fn data_version(&self) -> Result<i64, StoreError> {
        let mut entered = self.0.news.enter().await?;
        let row = sqlx::query("pragma data_version").fetch_one(entered.connection()?).await;
        let version = row.and_then(|row| row.try_get(0));
        version.map_err(|error| entered.failed(error))
    }

    async fn fleet(&self) -> Result<String, StoreError> {
        let mut entered = self.0.news.enter().await?;
        let row = sqlx::query(self.0.sql.own.fleet.clone()).fetch_one(entered.connection()?).await;
        let nodes = row.and_then(|row| row.try_get(0));
        nodes.map_err(|error| entered.failed(error))
    }
}
