//! News between handles that stand for different processes.

use std::sync::{Arc, Weak};

use pillarbox_core::{
    domain::PartitionSet,
    port::{BoxFuture, StoreError, WakeStore},
};

use tokio::sync::Notify;

use super::{MemoryStore, Process};

impl WakeStore for MemoryStore {
    fn hint(&self, partitions: PartitionSet) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            if !partitions.is_empty() {
                self.ring(|process| &process.news);
            }
            Ok(())
        })
    }

    fn news(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            self.process.news.notified().await;
            Ok(())
        })
    }

    fn hint_fleet(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            self.ring(|process| &process.fleet);
            Ok(())
        })
    }

    fn fleet_news(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            self.process.fleet.notified().await;
            Ok(())
        })
    }
}

impl MemoryStore {
    /// Rings a bell of every other process.
    fn ring(&self, bell: impl Fn(&Process) -> &Notify) {
        let processes = self.database.processes.lock();
        for process in processes.iter().filter_map(Weak::upgrade) {
            if !Arc::ptr_eq(&process, &self.process) {
                bell(&process).notify_one();
            }
        }
    }
}
