//! The keys that wait behind an event of theirs, and why.

use pillarbox::{AnyStore, Found, Query, Status, Timestamp, port::AdminStore as _};
use serde::Serialize;

use super::{for_people, seconds};
use crate::{error::Error, out::one_line, store::unreadable};

/// So many are shown; more would hide what matters.
const SHOWN: usize = 20;
/// So many events of each status are looked at for them, so that a glance stays a glance.
const LOOKED_AT: usize = 5_000;
const PAGE: u32 = 500;

/// The blocked keys: those that wait for an operator, and those whose event is tried again.
#[derive(Debug, Serialize)]
pub(super) struct Blocked {
    keys: Vec<BlockedKey>,
    /// Whether there may be others.
    more: bool,
}

#[derive(Debug, Serialize)]
struct BlockedKey {
    /// None, as the partition and the type, where the row can't be decoded. It holds its key all the same.
    key: Option<String>,
    seq: i64,
    partition: Option<u8>,
    /// `DEAD` waits for an operator, `RETRY` for its next attempt.
    status: &'static str,
    event_id: String,
    event_type: Option<String>,
    attempts: u32,
    error: Option<String>,
    /// Since its head died, or was written if it is tried again.
    blocked_seconds: Option<f64>,
}

impl Blocked {
    pub(super) async fn read(store: &AnyStore, now: Timestamp) -> Result<Self, Error> {
        let mut blocked = Self { keys: Vec::new(), more: false };
        for status in [Status::Dead, Status::Retry] {
            let query = Query { statuses: vec![status], ..Query::default() };
            let (mut from, mut seen) = (Some(pillarbox::Seq(0)), 0);
            while let Some(seq) = from {
                if blocked.keys.len() >= SHOWN || seen >= LOOKED_AT {
                    blocked.more = true;
                    break;
                }
                let listing = store.list(&query, seq, PAGE).await;
                let listing = listing.map_err(|error| unreadable(error, store.kind()))?;
                seen += listing.events.len();
                blocked.keys.extend(listing.events.iter().filter_map(|found| BlockedKey::of(found, now)));
                from = listing.next;
            }
        }
        blocked.more |= blocked.keys.len() > SHOWN;
        blocked.keys.truncate(SHOWN);
        Ok(blocked)
    }

    pub(super) fn write_to(&self, text: &mut impl std::fmt::Write) -> std::fmt::Result {
        if self.keys.is_empty() {
            return Ok(());
        }
        writeln!(text, "\nblocked keys")?;
        for blocked in &self.keys {
            let BlockedKey { status, event_id, attempts, .. } = blocked;
            let no_key = || format!("(key can't be read), seq {}", blocked.seq);
            let key = blocked.key.as_deref().map_or_else(no_key, one_line);
            let event_type = blocked.event_type.as_deref().map_or_else(|| "an event".to_owned(), one_line);
            let (event_id, since) = (one_line(event_id), blocked.blocked_seconds.map_or("?".to_owned(), for_people));
            let tries = if *attempts == 1 { "attempt" } else { "attempts" };
            writeln!(text, "  {key}: {status} for {since} behind {event_type} {event_id}, {attempts} {tries}")?;
            if let Some(error) = &blocked.error {
                // One line: the whole text is in the JSON.
                writeln!(text, "    {}", one_line(error.lines().next().unwrap_or_default()))?;
            }
        }
        if self.more {
            writeln!(text, "  and perhaps more")?;
        }
        Ok(())
    }
}

impl BlockedKey {
    /// What an event blocks, if it does.
    fn of(found: &Found, now: Timestamp) -> Option<Self> {
        let record = found.record.as_ref();
        let created_at = record.ok().map(|record| record.created_at);
        let since = match found.status {
            Status::Dead if found.holds_key => found.done_at.or(created_at),
            // One that was only put off has no error, and was never an obstacle by its own fault.
            Status::Retry if found.last_error.is_some() && record.is_ok_and(|record| record.key().is_some()) => {
                created_at
            }
            _ => return None,
        };
        Some(Self {
            key: record.ok().and_then(|record| record.key()).map(|key| key.as_str().to_owned()),
            seq: found.seq.0,
            partition: record.ok().map(|record| record.partition.0),
            status: found.status.as_str(),
            event_id: found.id.clone(),
            event_type: record.ok().map(|record| record.event.event_type().as_str().to_owned()),
            attempts: found.attempts,
            error: found.last_error.clone().or_else(|| record.err().cloned()),
            blocked_seconds: since.map(|since| seconds(since, now)),
        })
    }
}
