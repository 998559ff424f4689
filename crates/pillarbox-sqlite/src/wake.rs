//! News from other processes, by watching the file's version.

use std::time::Duration;

use pillarbox_core::domain::PartitionSet;
use pillarbox_core::port::{BoxFuture, StoreError, WakeStore};
use sqlx::Row as _;

use crate::SqliteStore;

/// How often the version is read.
const INTERVAL: Duration = Duration::from_millis(10);

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
}

impl SqliteStore {
    /// Changes with every commit of another connection, whichever process it is in.
    async fn data_version(&self) -> Result<i64, StoreError> {
        let mut entered = self.0.news.enter().await?;
        let row = sqlx::query("pragma data_version").fetch_one(entered.connection()?).await;
        let version = row.and_then(|row| row.try_get(0));
        version.map_err(|error| entered.failed(error))
    }
}
