//! obix: events are a log, and a subscriber that is a job keeps its position in it.

use std::{any::Any, error::Error, future::pending, sync::Arc};

use job::{JobSvcConfig, JobType, Jobs};
use obix::{
    EventCtx, EventDelivery, Handled, InsertOrder, MailboxConfig, Outbox, OutboxEventJobConfig, SingletonSubscriber,
};
use sqlx::{Connection as _, PgConnection};
use sqlx_08::PgPool;

use super::{CHUNK, Event};
use crate::{Result, round, tally::Tally};

const SCHEMA: &str = include_str!("obix.sql");
const BATCH: usize = 1_000;

pub(crate) struct Peer {
    jobs: Jobs,
    /// Ends with the worker.
    _outbox: Outbox<Event>,
    _subscription: Box<dyn Any + Send>,
}

struct Counter(Arc<Tally>);

impl SingletonSubscriber<Event, InsertOrder> for Counter {
    type Batch = ();

    async fn handle_persistent<'inv>(
        &self,
        context: EventCtx<'inv, ()>,
        _: &EventDelivery<Event, InsertOrder>,
    ) -> std::result::Result<Handled<'inv>, Box<dyn Error + Send + Sync>> {
        self.0.add(1);
        Ok(context.collect_with(|()| ()))
    }
}

async fn outbox(pool: &PgPool) -> Result<Outbox<Event>> {
    Ok(Outbox::init(pool, MailboxConfig::builder().backfill_page_size(BATCH).build()).await?)
}

impl round::Peer for Peer {
    const SETTINGS: &'static str = "singleton subscriber, position durable after each batch of 1000, 10 connections";
    const UNFINISHED: &'static str = "select (select max(sequence) from persistent_outbox_events)
        - coalesce((select (execution_state_json ->> 'sequence')::bigint from job_execution_states), 0)";

    async fn fill(url: &str, events: u32) -> Result<()> {
        let mut session = PgConnection::connect(url).await?;
        sqlx::raw_sql(SCHEMA).execute(&mut session).await?;
        session.close().await?;
        let pool = PgPool::connect(url).await?;
        let config = JobSvcConfig::builder().pool(pool.clone()).exec_migrations(true).build()?;
        Jobs::init(config).await?;
        let outbox = outbox(&pool).await?;
        let mut left = events as usize;
        while left > 0 {
            let events = vec![Event::new(); left.min(CHUNK as usize)];
            left -= events.len();
            let mut transaction = outbox.begin_op().await?;
            outbox.publish_all_persisted(&mut transaction, events).await?;
            transaction.commit().await?;
        }
        pool.close().await;
        Ok(())
    }

    async fn open(url: &str, tally: Arc<Tally>) -> Result<Self> {
        let pool = PgPool::connect(url).await?;
        let mut jobs = Jobs::init(JobSvcConfig::builder().pool(pool.clone()).build()?).await?;
        let config = OutboxEventJobConfig::new(JobType::new("peer")).with_max_batch_size(BATCH);
        let outbox = outbox(&pool).await?;
        let subscription = outbox.register_singleton_subscriber(&mut jobs, config, Counter(tally)).await?;
        Ok(Self { jobs, _outbox: outbox, _subscription: Box::new(subscription) })
    }

    async fn run(mut self) -> Result<()> {
        self.jobs.start_poll().await?;
        pending().await
    }
}
