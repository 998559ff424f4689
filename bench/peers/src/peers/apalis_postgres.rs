//! apalis with apalis-postgres: tasks are claimed by an update in batches and marked as done in batches.

use std::sync::Arc;

use apalis::prelude::*;
use apalis_postgres::{Config, PgPool, PostgresStorage};

use super::{CHUNK, Event};
use crate::{Result, round, tally::Tally};

pub(crate) struct Peer {
    storage: PostgresStorage<Event>,
    tally: Arc<Tally>,
}

fn storage(pool: &PgPool) -> PostgresStorage<Event> {
    PostgresStorage::new(pool).with_config(Config::default().queue("events").batch_size(500).lock_tasks(false))
}

async fn count(_: Event, tally: Data<Arc<Tally>>) {
    tally.add(1);
}

impl round::Peer for Peer {
    const SETTINGS: &'static str = "batch 500, lock_tasks off, parallelize(tokio::spawn), 10 connections";
    const UNFINISHED: &'static str = "select count(*) from apalis.jobs where status <> 'Done'";

    async fn fill(url: &str, events: u32) -> Result<()> {
        let pool = PgPool::connect(url).await?;
        PostgresStorage::setup(&pool).await?;
        let mut storage = storage(&pool);
        let mut left = events as usize;
        while left > 0 {
            let tasks = vec![Event::new(); left.min(CHUNK as usize)];
            left -= tasks.len();
            storage.push_bulk(tasks).await?;
        }
        pool.close().await;
        Ok(())
    }

    async fn open(url: &str, tally: Arc<Tally>) -> Result<Self> {
        Ok(Self { storage: storage(&PgPool::connect(url).await?), tally })
    }

    async fn run(self) -> Result<()> {
        let worker =
            WorkerBuilder::new("peer").backend(self.storage).data(self.tally).parallelize(tokio::spawn).build(count);
        Ok(worker.run().await?)
    }
}
