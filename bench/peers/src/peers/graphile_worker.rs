//! graphile_worker: jobs are claimed by an update in batches and deleted in batches.

use std::{sync::Arc, time::Duration};

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, Worker, WorkerContext, WorkerOptions,
    WorkerUtils,
};
use sqlx::{PgPool, postgres::PgPoolOptions};

use super::{CHUNK, Event};
use crate::{Result, round, tally::Tally};

const SCHEMA: &str = "graphile_worker";

pub(crate) struct Peer(Worker);

/// The same with named queues: jobs of one queue run one after another.
pub(crate) struct InQueues(Worker);

/// As many as the other peer with an order has partitions.
const QUEUES: usize = 64;

impl TaskHandler for Event {
    const IDENTIFIER: &'static str = "event";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(tally) = context.get_ext::<Arc<Tally>>() {
            tally.add(1);
        }
        Ok::<(), String>(())
    }
}

impl round::Peer for Peer {
    const SETTINGS: &'static str =
        "local queue 500, concurrency 500, completion in batches after 5 ms, poll 5 ms, 10 connections";
    const UNFINISHED: &'static str = "select count(*) from graphile_worker._private_jobs";

    async fn fill(url: &str, events: u32) -> Result<()> {
        fill(url, events, |_| None).await
    }

    async fn open(url: &str, tally: Arc<Tally>) -> Result<Self> {
        Ok(Self(open(url, tally).await?))
    }

    async fn run(self) -> Result<()> {
        Ok(self.0.run().await?)
    }
}

impl round::Peer for InQueues {
    const SETTINGS: &'static str = "64 named queues; local queue 500, concurrency 500, completion in batches after 5 ms, \
                                    poll 5 ms, 10 connections";
    const UNFINISHED: &'static str = Peer::UNFINISHED;

    async fn fill(url: &str, events: u32) -> Result<()> {
        fill(url, events, |number| Some(format!("queue-{}", number % QUEUES))).await
    }

    async fn open(url: &str, tally: Arc<Tally>) -> Result<Self> {
        Ok(Self(open(url, tally).await?))
    }

    async fn run(self) -> Result<()> {
        Ok(self.0.run().await?)
    }
}

async fn fill(url: &str, events: u32, queue: impl Fn(usize) -> Option<String>) -> Result<()> {
    let pool = PgPool::connect(url).await?;
    let utils = WorkerUtils::new(pool.clone(), SCHEMA);
    utils.migrate().await?;
    let payload = serde_json::to_value(Event::new())?;
    let job = |number| RawJobSpec {
        identifier: Event::IDENTIFIER.to_owned(),
        payload: payload.clone(),
        spec: JobSpec { queue_name: queue(number), ..JobSpec::default() },
    };
    let numbers: Vec<usize> = (0..events as usize).collect();
    for chunk in numbers.chunks(CHUNK as usize) {
        let jobs: Vec<_> = chunk.iter().copied().map(job).collect();
        utils.add_raw_jobs(&jobs).await?;
    }
    pool.close().await;
    Ok(())
}

async fn open(url: &str, tally: Arc<Tally>) -> Result<Worker> {
    let pool = PgPoolOptions::new().max_connections(10).connect(url).await?;
    let options = WorkerOptions::default()
        .database(pool)
        .schema(SCHEMA)
        .concurrency(500)
        .poll_interval(Duration::from_millis(5))
        .local_queue(LocalQueueConfig::default().with_size(500))
        .complete_job_batch_delay(Duration::from_millis(5))
        .add_extension(tally)
        .define_job::<Event>();
    // Too large a future for the stack.
    Ok(Box::pin(options.init()).await?)
}
