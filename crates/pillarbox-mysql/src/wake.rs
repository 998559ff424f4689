//! News from other processes, by watching the newest number and who owns what.
//!
//! Neither server can tell a client of a commit. The newest number is one look at the end of the primary key, some
//! forty times a second; an idle reader would read a page as often for the same latency, and a page is several times
//! as much work. What commits late below the newest number is no news, and waits for the next poll.
//!
//! Who owns what is a look at two small tables, twenty times a second: whoever waits for a partition has it soon after
//! it was released.

use std::time::Duration;

use pillarbox_core::domain::PartitionSet;
use pillarbox_core::port::{BoxFuture, StoreError, WakeStore};
use sqlx::Row as _;

use crate::{MySqlStore, error};

/// How often the number is read.
const INTERVAL: Duration = Duration::from_millis(25);
/// And how often the nodes are looked at.
const FLEET_INTERVAL: Duration = Duration::from_millis(50);

impl WakeStore for MySqlStore {
    fn wants_hints(&self) -> bool {
        // The commit itself is the hint: every other process sees the newest number change.
        false
    }

    fn hint(&self, _partitions: PartitionSet) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn news(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            let mut seen = self.0.seen.lock().await;
            loop {
                let newest = self.within(self.newest()).await?;
                // The first call returns at once: what was committed before it is not known.
                if seen.replace(newest) != Some(newest) {
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
                let fleet = self.within(self.fleet()).await?;
                // Who begins to wait has just looked around.
                if seen.replace(fleet.clone()).is_some_and(|before| before != fleet) {
                    return Ok(());
                }
                tokio::time::sleep(FLEET_INTERVAL).await;
            }
        })
    }
}

impl MySqlStore {
    async fn newest(&self) -> Result<i64, StoreError> {
        let mut entered = self.0.pages.enter().await?;
        let row = sqlx::query(self.0.sql.read.newest.clone()).fetch_one(&mut *entered).await.map_err(error::of)?;
        entered.done();
        row.try_get(0).map_err(error::of)
    }

    async fn fleet(&self) -> Result<String, StoreError> {
        let mut entered = self.0.pages.enter().await?;
        let row = sqlx::query(self.0.sql.own.fleet.clone()).fetch_one(&mut *entered).await.map_err(error::of)?;
        entered.done();
        row.try_get(0).map_err(error::of)
    }
}
