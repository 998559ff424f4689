//! News between handles that stand for different processes.

use std::sync::{Arc, Weak};

use pillarbox_core::{
    domain::PartitionSet,
    port::{BoxFuture, StoreError, WakeStore},
};

use super::MemoryStore;

impl WakeStore for MemoryStore {
    fn hint(&self, partitions: PartitionSet) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            if !partitions.is_empty() {
                let processes = self.database.processes.lock();
                for process in processes.iter().filter_map(Weak::upgrade) {
                    if !Arc::ptr_eq(&process, &self.process) {
                        process.news.notify_one();
                    }
                }
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
}
