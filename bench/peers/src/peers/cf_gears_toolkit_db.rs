//! The outbox of cf-gears-toolkit-db: a sequencer gives events their place in a partition, processors read them in
//! this order and move a cursor.

use std::{future::pending, sync::Arc};

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};
use toolkit_db::{
    ConnectOpts, Db, connect_db,
    migration_runner::run_migrations_for_testing,
    outbox::{
        Batch, HandlerResult, LeasedHandler, Outbox, OutboxBuilder, OutboxProfile, Partitions, outbox_migrations,
    },
};

use super::PAYLOAD;
use crate::{Result, round, tally::Tally};

const PARTITIONS: u16 = 64;

pub(crate) struct Peer(OutboxBuilder);

struct Counter(Arc<Tally>);

#[async_trait]
impl LeasedHandler for Counter {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        let mut count = 0;
        while batch.next_msg().is_some() {
            batch.ack();
            count += 1;
        }
        self.0.add(count);
        HandlerResult::Success
    }
}

/// As in the library's own benchmark.
fn builder(db: Db, tally: Arc<Tally>) -> OutboxBuilder {
    Outbox::builder(db)
        .profile(OutboxProfile::high_throughput())
        .processors(8)
        .maintenance(2, 1)
        .queue("events", Partitions::of(PARTITIONS))
        .leased(Counter(tally))
        .done()
}

async fn connect(url: &str) -> Result<Db> {
    Ok(connect_db(url, ConnectOpts { max_conns: Some(22), ..ConnectOpts::default() }).await?)
}

impl round::Peer for Peer {
    const SETTINGS: &'static str = "profile high_throughput (batches of 100, sequencer 2000), leased batch handler, \
                                    64 partitions, 8 processors, 3 sequencers, 22 connections";
    const UNFINISHED: &'static str = "select (select count(*) from toolkit_outbox_incoming)
        + (select sum(sequence)::bigint from toolkit_outbox_partitions)
        - (select sum(processed_seq)::bigint from toolkit_outbox_processor)";

    async fn fill(url: &str, events: u32) -> Result<()> {
        let db = connect(url).await?;
        run_migrations_for_testing(&db, outbox_migrations()).await?;
        // Partitions are registered at the start.
        builder(db, Arc::new(Tally::new(events))).start().await?.stop().await;
        // A running outbox would deliver what is written through it.
        let mut session = PgConnection::connect(url).await?;
        sqlx::query(
            "with body as (
                 insert into toolkit_outbox_body (payload, payload_type)
                 select $2, 'event' from generate_series(1, $1) returning id
             ),
             partitions as (select array_agg(id) ids from toolkit_outbox_partitions)
             insert into toolkit_outbox_incoming (partition_id, body_id)
             select ids[1 + id % array_length(ids, 1)], id from body, partitions order by id",
        )
        .bind(i64::from(events))
        .bind(vec![b'x'; PAYLOAD])
        .execute(&mut session)
        .await?;
        Ok(session.close().await?)
    }

    async fn open(url: &str, tally: Arc<Tally>) -> Result<Self> {
        Ok(Self(builder(connect(url).await?, tally)))
    }

    async fn run(self) -> Result<()> {
        let _running = self.0.start().await?;
        pending().await
    }
}
