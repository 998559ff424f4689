//! outbox-core with outbox-postgres: events are claimed by an update in batches and marked as sent in batches.

use std::sync::Arc;

use async_trait::async_trait;
use outbox_core::{OutboxConfig, OutboxError, OutboxManager, OutboxManagerBuilder, Transport};
use outbox_postgres::PostgresOutbox;
use sqlx::{Connection as _, PgConnection};
use sqlx_08::PgPool;
use tokio::sync::watch;

use super::Event;
use crate::{Result, round, tally::Tally};

const SCHEMA: &str = include_str!("outbox_core.sql");

pub(crate) struct Peer {
    manager: OutboxManager<PostgresOutbox<Event>, Counter, Event>,
    _running: watch::Sender<bool>,
}

struct Counter(Arc<Tally>);

#[async_trait]
impl Transport<Event> for Counter {
    async fn publish(&self, _: outbox_core::Event<Event>) -> std::result::Result<(), OutboxError> {
        self.0.add(1);
        Ok(())
    }
}

impl round::Peer for Peer {
    const SETTINGS: &'static str = "one manager, batch 500, 10 connections";
    const UNFINISHED: &'static str = "select count(*) from outbox_events where status in ('Pending', 'Processing')";

    async fn fill(url: &str, events: u32) -> Result<()> {
        let mut session = PgConnection::connect(url).await?;
        sqlx::raw_sql(SCHEMA).execute(&mut session).await?;
        // The library writes event by event; these are its columns, as it fills them.
        sqlx::query(
            "insert into outbox_events (event_type, payload, status, created_at, locked_until)
             select 'event', $2::jsonb, 'Pending', clock_timestamp(), 'epoch' from generate_series(1, $1)",
        )
        .bind(i64::from(events))
        .bind(serde_json::to_string(&Event::new())?)
        .execute(&mut session)
        .await?;
        Ok(session.close().await?)
    }

    async fn open(url: &str, tally: Arc<Tally>) -> Result<Self> {
        let mut config = OutboxConfig::default();
        config.batch_size = 500;
        let config = Arc::new(config);
        let (running, shutdown) = watch::channel(false);
        let manager = OutboxManagerBuilder::new()
            .storage(Arc::new(PostgresOutbox::new(PgPool::connect(url).await?, config.clone())))
            .publisher(Arc::new(Counter(tally)))
            .config(config)
            .shutdown_rx(shutdown)
            .build()?;
        Ok(Self { manager, _running: running })
    }

    async fn run(self) -> Result<()> {
        Ok(self.manager.run().await?)
    }
}
