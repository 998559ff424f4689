//! Entries that somebody had before: those of an answer that was lost, of consumers that are gone, and those that were given
//! back.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use pillarbox_core::port::SinkError;
use redis::{Cmd, Pipeline, Value};
use tokio::time::Instant;

use super::{PREFIX, Reading, RedisSource, millis};
use crate::{Subscription, connection::Open, entry};

/// How often consumers are looked for that are gone.
const SWEEP: Duration = Duration::from_mins(10);

/// Sets how long entries have been idle, of those that are this consumer's yet.
const SET_IDLE: &str = "
for n = 4, #ARGV do
  local found = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[n], ARGV[n], 1)
  if found[1] and found[1][2] == ARGV[2] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[n], 'IDLE', ARGV[3], 'JUSTID')
  end
end";

/// Removes consumers of ours that have not been heard of for a time and have no entries. In one step: a consumer that is
/// removed takes its entries with it.
const REMOVE_DEAD: &str = "
for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for n = 1, #flat, 2 do consumer[flat[n]] = flat[n + 1] end
  local is_ours = string.sub(consumer.name, 1, #ARGV[3]) == ARGV[3] and consumer.name ~= ARGV[2]
  if is_ours and consumer.pending == 0 and consumer.idle > tonumber(ARGV[4]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer.name)
  end
end";

/// An entry that was given to somebody before.
struct Pending {
    id: String,
    deliveries: u32,
}

impl RedisSource {
    /// Entries that somebody had, and whatever else is due from time to time.
    pub(super) async fn take_old(
        &self,
        open: &mut Open,
        reading: &mut Reading,
        most: usize,
        every: Duration,
    ) -> Result<(), SinkError> {
        if reading.is_unsure {
            self.take_own(open, reading, most).await?;
        }
        if reading.came.is_empty()
            && (self.is_given_back.swap(false, Ordering::SeqCst) || is_due(reading.claimed, every))
        {
            self.take_idle(open, reading, most).await?;
            reading.claimed = Some(Instant::now());
        }
        if is_due(reading.swept, SWEEP) {
            self.remove_dead(open).await?;
            reading.swept = Some(Instant::now());
        }
        Ok(())
    }

    /// Entries that are this consumer's, and that it does not know of: their answer was lost.
    async fn take_own(&self, open: &mut Open, reading: &mut Reading, most: usize) -> Result<(), SinkError> {
        const PAGE: usize = 100;
        for place in 0..self.subscription.streams.len() {
            let mut after = "-".to_owned();
            loop {
                let mut question = self.pending(place);
                question.arg(&after).arg("+").arg(PAGE).arg(&self.consumer);
                let page = pending(self.ask(&self.waiting, open, &question).await?);
                let Some(last) = page.last().filter(|_| page.len() == PAGE).map(|last| format!("({}", last.id)) else {
                    self.claim_unknown(open, reading, place, page).await?;
                    break;
                };
                after = last;
                self.claim_unknown(open, reading, place, page).await?;
                if reading.came.len() >= most {
                    // The others the next time.
                    return Ok(());
                }
            }
        }
        reading.is_unsure = false;
        Ok(())
    }

    async fn claim_unknown(
        &self,
        open: &mut Open,
        reading: &mut Reading,
        place: usize,
        mut page: Vec<Pending>,
    ) -> Result<(), SinkError> {
        page.retain(|pending| !self.tickets().is_out(&(place, pending.id.as_str().into())));
        self.claim(open, reading, place, page, Duration::ZERO).await
    }

    /// Entries whose time is over: their consumer is gone, or has forgotten them, or has given them back.
    async fn take_idle(&self, open: &mut Open, reading: &mut Reading, most: usize) -> Result<(), SinkError> {
        let idle = self.subscription.again_after;
        for place in 0..self.subscription.streams.len() {
            let mut question = self.pending(place);
            question.arg("IDLE").arg(millis(idle)).arg("-").arg("+").arg(most);
            let page = pending(self.ask(&self.waiting, open, &question).await?);
            if page.len() == most {
                // There may be more.
                self.is_given_back.store(true, Ordering::SeqCst);
            }
            self.claim(open, reading, place, page, idle).await?;
        }
        Ok(())
    }

    /// Those that are idle for this time yet: others may have been faster.
    async fn claim(
        &self,
        open: &mut Open,
        reading: &mut Reading,
        place: usize,
        page: Vec<Pending>,
        idle: Duration,
    ) -> Result<(), SinkError> {
        if page.is_empty() {
            return Ok(());
        }
        let Subscription { streams, group, .. } = &self.subscription;
        let mut question = redis::cmd("XCLAIM");
        question.arg(&streams[place]).arg(group).arg(&self.consumer).arg(millis(idle));
        for pending in &page {
            question.arg(&pending.id);
        }
        let was_unsure = std::mem::replace(&mut reading.is_unsure, true);
        let answer = self.ask(&self.waiting, open, &question).await?;
        for entry in entry::all(answer) {
            let before = page.iter().find(|pending| pending.id == entry.id).map_or(1, |pending| pending.deliveries);
            self.give(reading, place, entry, before.saturating_add(1));
        }
        reading.is_unsure = was_unsure;
        Ok(())
    }

    fn pending(&self, place: usize) -> Cmd {
        let mut question = redis::cmd("XPENDING");
        question.arg(&self.subscription.streams[place]).arg(&self.subscription.group);
        question
    }

    async fn remove_dead(&self, open: &mut Open) -> Result<(), SinkError> {
        // One that lives, and was removed because it had nothing, is made anew when it reads.
        let idle = self.subscription.again_after.saturating_mul(2);
        for stream in &self.subscription.streams {
            let mut question = redis::cmd("EVAL");
            question.arg(REMOVE_DEAD).arg(1).arg(stream).arg(&self.subscription.group);
            question.arg(&self.consumer).arg(PREFIX).arg(millis(idle));
            self.ask(&self.waiting, open, &question).await?;
        }
        Ok(())
    }

    /// Sets how long entries count as not heard of.
    pub(super) async fn set_idle(&self, entries: Vec<(usize, Arc<str>)>, idle: u64) {
        let mut pipeline = Pipeline::new();
        for (place, stream) in self.subscription.streams.iter().enumerate() {
            let ids: Vec<_> = entries.iter().filter(|(of, _)| *of == place).map(|(_, id)| &**id).collect();
            if !ids.is_empty() {
                pipeline.cmd("EVAL").arg(SET_IDLE).arg(1).arg(stream).arg(&self.subscription.group);
                pipeline.arg(&self.consumer).arg(idle).arg(ids);
            }
        }
        if pipeline.is_empty() {
            return;
        }
        // What does not arrive is as if it was not said: the entries come again after their time.
        let _ = self.tell(&pipeline).await;
    }
}

fn is_due(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= every)
}

fn pending(answer: Value) -> Vec<Pending> {
    let rows: Vec<(String, String, u64, u32)> = redis::from_redis_value(answer).unwrap_or_default();
    rows.into_iter().map(|(id, _, _, deliveries)| Pending { id, deliveries }).collect()
}
