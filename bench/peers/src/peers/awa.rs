//! awa: jobs are claimed in batches, and what is done is appended in batches.

use std::{future::pending, sync::Arc, time::Duration};

use awa::{
    Client, InsertOpts, JobArgs, JobResult, QueueConfig, QueueStorage, QueueStorageConfig, migrations,
    model::insert::params_with,
};
use serde::{Deserialize, Serialize};
use sqlx_08::{PgPool, postgres::PgPoolOptions};

use super::{CHUNK, Event};
use crate::{Result, round, tally::Tally};

const QUEUE: &str = "events";

pub(crate) struct Peer(Client);

#[derive(Debug, Deserialize, JobArgs, Serialize)]
#[serde(transparent)]
struct Job {
    event: Event,
}

impl round::Peer for Peer {
    const SETTINGS: &'static str = "queue storage, 256 workers, claims of 512, no deadline, 20 connections";
    // As its own exact count of a queue does it: what was enqueued, without all that has come to an end.
    const UNFINISHED: &'static str = "select (
        (select sum(awa.sequence_next_value(seq_name) - 1) from awa.queue_enqueue_heads)
        - (select coalesce(sum(live_terminal_count), 0) from awa.queue_terminal_live_counts)
        - (select coalesce(sum(terminal_delta), 0) from awa.queue_terminal_count_deltas)
        - (select coalesce(sum(completed_count), 0) from awa.receipt_completion_batches)
        - (select coalesce(sum(pruned_completed_count), 0) from awa.queue_terminal_rollups)
    )::bigint";

    async fn fill(url: &str, events: u32) -> Result<()> {
        let pool = PgPool::connect(url).await?;
        migrations::run(&pool).await?;
        let storage = QueueStorage::new(QueueStorageConfig::default())?;
        storage.prepare_schema(&pool).await?;
        // What a worker does when it is the first in a new database.
        sqlx_08::query("select awa.storage_auto_finalize_if_fresh($1)").bind(storage.schema()).execute(&pool).await?;
        let options = InsertOpts { queue: QUEUE.to_owned(), ..InsertOpts::default() };
        let job = params_with(&Job { event: Event::new() }, options)?;
        let mut left = events as usize;
        while left > 0 {
            let jobs = vec![job.clone(); left.min(CHUNK as usize)];
            left -= jobs.len();
            storage.enqueue_params_copy(&pool, &jobs).await?;
        }
        pool.close().await;
        Ok(())
    }

    async fn open(url: &str, tally: Arc<Tally>) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(20).connect(url).await?;
        let config = QueueConfig {
            max_workers: 256,
            claim_batch_size: 512,
            poll_interval: Duration::from_millis(50),
            deadline_duration: Duration::ZERO,
            ..QueueConfig::default()
        };
        let client = Client::builder(pool)
            .queue(QUEUE, config)
            .register::<Job, _, _>(move |_, _| {
                tally.add(1);
                async { Ok(JobResult::Completed) }
            })
            .build()?;
        Ok(Self(client))
    }

    async fn run(self) -> Result<()> {
        self.0.start().await?;
        pending().await
    }
}
