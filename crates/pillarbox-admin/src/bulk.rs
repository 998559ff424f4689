//! One action on many dead letters, one after another, from the oldest to the newest.
//!
//! A letter that dies again meanwhile is left alone: a bulk ends at the letter that was the newest when it began, and its
//! cursor says so. What can't be acted upon is left out and counted.

use std::num::NonZeroU32;

use axum::{Json, response::IntoResponse};
use pillarbox_core::{
    domain::Timestamp,
    port::{Actor, LetterPlace, LetterQuery, LetterStatus},
};
use serde::Serialize;
use tokio::time::{Duration, Instant, sleep_until};

use crate::{
    call::Call,
    letters::{self, LetterError, Letters, read_place, write_place},
    problem::Problem,
};

type Answer = Result<axum::response::Response, Problem>;

const BULK: &[&str] = &["filter", "all", "rate", "limit", "cursor", "dry_run", "because"];

/// So many letters are read at once: each may have a payload of a mebibyte.
const READ: u32 = 50;

/// When so many in a row could not be sent, the broker is down; or their store is full.
const FAILURES: u32 = 3;

/// What was done to many.
#[derive(Default, Serialize)]
struct Many {
    changed: u64,
    /// Those that were left out: replayed as often as may be, or somebody else was at them.
    refused: u64,
    dry_run: bool,
    next: Option<String>,
}

#[derive(Clone, Copy, PartialEq)]
enum Act {
    Replay,
    Discard,
}

pub(crate) async fn replay(call: Call) -> Answer {
    run(call, Act::Replay).await
}

pub(crate) async fn discard(call: Call) -> Answer {
    run(call, Act::Discard).await
}

struct Bulk {
    query: LetterQuery,
    after: Option<LetterPlace>,
    limit: u64,
    rate: Option<NonZeroU32>,
    until: Instant,
    dry_run: bool,
}

async fn run(call: Call, act: Act) -> Answer {
    call.actor(None)?;
    call.params.only(&[])?;
    let fields = call.fields(BULK)?;
    let actor = call.actor(fields.because()?)?;
    let wanted = fields.object("filter", letters::NAMES)?;
    let all = fields.parsed::<bool>("all", "true or false")?.unwrap_or(false);
    if wanted.is_empty() != all {
        return Err(Problem::bad_body("give a `filter`, or `\"all\": true` for every pending letter; not both"));
    }
    let query = LetterQuery {
        status: Some(LetterStatus::Pending),
        oldest_first: true,
        ..letters::narrowed(&wanted, call.eyes())?
    };
    let (limits, limit) = (&call.desk.limits, call.bulk_limit(&fields)?);
    let rate = fields.parsed::<NonZeroU32>("rate", "letters a second, 1 or more")?;
    let dry_run = fields.parsed::<bool>("dry_run", "true or false")?.unwrap_or(false);
    let cursor = fields.text("cursor")?.map(|text| read_cursor(&text)).transpose()?;
    let queue = letters::letters(&call)?;
    // Half the time of a request, so that its last letter comes to its end.
    let until = Instant::now() + limits.time / 2;
    // A dry run waits for nobody.
    let rate = rate.filter(|_| !dry_run);
    let done = match first(queue, query, cursor).await? {
        Some((query, after)) => Bulk { query, after, limit, rate, until, dry_run }.work(queue, act, &actor).await?,
        None => Many { dry_run, ..Many::default() },
    };
    let (action, changed) = (if act == Act::Replay { "replay many" } else { "discard many" }, done.changed);
    tracing::info!(who = call.identity.name, action, changed, dry_run, "an operator acted on letters");
    Ok(Json(done).into_response())
}

/// Where it begins and ends; nothing if there is nothing to do.
async fn first(
    queue: &dyn Letters,
    query: LetterQuery,
    cursor: Option<(Timestamp, LetterPlace)>,
) -> Result<Option<(LetterQuery, Option<LetterPlace>)>, Problem> {
    if let Some((end, after)) = cursor {
        return Ok(Some((LetterQuery { until: Some(end), ..query }, Some(after))));
    }
    let newest = queue.list(&LetterQuery { oldest_first: false, ..query.clone() }, None, 1).await?.pop();
    let just_after = |time: Timestamp| time.saturating_add(Duration::from_micros(1));
    Ok(newest.map(|newest| (LetterQuery { until: Some(just_after(newest.dead_at)), ..query }, None)))
}

impl Bulk {
    async fn work(mut self, queue: &dyn Letters, act: Act, actor: &Actor) -> Result<Many, Problem> {
        let mut done = Many { dry_run: self.dry_run, ..Many::default() };
        let (mut taken, mut failures, mut next_at) = (0, 0, Instant::now());
        loop {
            let page = queue.list(&self.query, self.after.as_ref(), READ).await?;
            let is_last = page.len() < READ as usize;
            for letter in page {
                // One is taken however late it is: else a list that is slow would never come to its end.
                let late = taken > 0 && next_at.max(Instant::now()) >= self.until;
                if taken >= self.limit || late {
                    done.next = self.cursor();
                    // Who goes on with another request keeps the rate.
                    sleep_until(next_at.min(self.until)).await;
                    return Ok(done);
                }
                sleep_until(next_at).await;
                let begun = Instant::now();
                let acted = match act {
                    Act::Replay if self.dry_run => queue.may_replay(&letter),
                    Act::Discard if self.dry_run => Ok(()),
                    Act::Replay => queue.replay(&letter.id, actor).await,
                    Act::Discard => queue.discard(&letter.id, actor).await,
                };
                taken += 1;
                self.after = Some(LetterPlace::of(&letter));
                match acted {
                    Ok(()) => {
                        (done.changed, failures) = (done.changed + 1, 0);
                        if let Some(rate) = self.rate {
                            next_at = begun + Duration::from_secs(1) / rate.get();
                        }
                    }
                    Err(LetterError::Refused(_) | LetterError::Unknown(_)) => done.refused += 1,
                    Err(error) if matches!(error, LetterError::NotSent { .. }) || error.is_of_the_letter() => {
                        (done.refused, failures) = (done.refused + 1, failures + 1);
                        if failures >= FAILURES {
                            return Err(error.of_action().after(done.changed));
                        }
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "a dead letter could not be sent again, or stored"
                        );
                    }
                    Err(error) => return Err(Problem::from(error).after(done.changed)),
                }
            }
            if is_last {
                return Ok(done);
            }
        }
    }

    fn cursor(&self) -> Option<String> {
        let end = self.query.until?.as_micros();
        Some(format!("{end}~{}", write_place(self.after.as_ref()?)))
    }
}

fn read_cursor(text: &str) -> Result<(Timestamp, LetterPlace), Problem> {
    let refused = || Problem::bad_parameter("cursor", "it is no cursor", "`next` of the answer before");
    let (end, place) = text.split_once('~').ok_or_else(refused)?;
    let end = end.parse().map(Timestamp::from_micros).map_err(|_| refused())?;
    Ok((end, read_place(place)?))
}
