//! pgmq: messages are made invisible by an update in batches and deleted in batches.

use std::sync::Arc;

use pgmq::PGMQueueExt;

use super::{CHUNK, Event};
use crate::{Result, round, tally::Tally};

const QUEUE: &str = "events";
const BATCH: i32 = 500;
/// Seconds.
const INVISIBLE: i32 = 60;

pub(crate) struct Peer {
    queue: PGMQueueExt,
    tally: Arc<Tally>,
}

impl round::Peer for Peer {
    const SETTINGS: &'static str = "read 500, delete in batch, one consumer; functions installed by the crate";
    const UNFINISHED: &'static str = "select count(*) from pgmq.q_events";

    async fn fill(url: &str, events: u32) -> Result<()> {
        let queue = PGMQueueExt::new(url.to_owned(), 1).await?;
        queue.install_sql_from_embedded().await?;
        queue.create(QUEUE).await?;
        let mut left = events as usize;
        while left > 0 {
            let messages = vec![Event::new(); left.min(CHUNK as usize)];
            queue.send_batch(QUEUE, &messages).await?;
            left -= messages.len();
        }
        Ok(())
    }

    async fn open(url: &str, tally: Arc<Tally>) -> Result<Self> {
        Ok(Self { queue: PGMQueueExt::new(url.to_owned(), 1).await?, tally })
    }

    async fn run(self) -> Result<()> {
        loop {
            let messages = self.queue.read_batch::<Event>(QUEUE, INVISIBLE, BATCH).await?;
            if messages.is_empty() {
                return Ok(());
            }
            let ids: Vec<i64> = messages.iter().map(|message| message.msg_id).collect();
            self.tally.add(u32::try_from(messages.len())?);
            self.queue.delete_batch(QUEUE, &ids).await?;
        }
    }
}
