//! Messages that a consumer has given up: a hash each, with its version and its document, and sorted sets to find them by.
//!
//! | key | holds |
//! |---|---|
//! | `{prefix}letter:{id}` | `version`, and `document`, the letter as JSON |
//! | `{prefix}letters` | all ids, the newest first |
//! | `{prefix}letters:PENDING`, ... | those of a status, the newest first |
//! | `{prefix}letters:finished` | those that may be purged, by their end |

use pillarbox_core::{
    domain::Timestamp,
    port::{
        BoxFuture, Deed, DeedPlace, DeedQuery, DeedStore, Deeds, Letter, LetterId, LetterPlace, LetterQuery,
        LetterStatus, LetterStore, StoreError, StoreErrorKind,
    },
};
use redis::{Pipeline, Value};

use crate::store::Store;

/// Stores a letter in one step, if there is none (version 0) or its predecessor. The scores are times before 1970, so to say:
/// the least is the newest, and letters of one time stand by id.
const KEEP: &str = "
local found = redis.call('HGET', KEYS[1], 'version')
if ARGV[2] == '' then
  if found then return 0 end
elseif found ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[3], 'document', ARGV[4])
redis.call('ZADD', KEYS[2], ARGV[5], ARGV[1])
for n = 4, #KEYS do redis.call('ZREM', KEYS[n], ARGV[1]) end
redis.call('ZADD', KEYS[4], ARGV[5], ARGV[1])
if ARGV[6] == '' then redis.call('ZREM', KEYS[3], ARGV[1]) else redis.call('ZADD', KEYS[3], ARGV[6], ARGV[1]) end
return 1";

/// Removes finished letters, the oldest first.
const PURGE: &str = "
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
for _, id in ipairs(ids) do
  redis.call('UNLINK', ARGV[3] .. id)
  for _, key in ipairs(KEYS) do redis.call('ZREM', key, id) end
end
return #ids";

/// How many letters are looked at in one go.
const PAGE: usize = 100;

/// Letters in Redis. Made by [`Options::letters`](crate::Options::letters).
#[derive(Debug)]
pub struct RedisLetters {
    store: Store,
    prefix: String,
}

/// How far a list was read: everything of a better score, and so many of this one.
struct Cursor {
    from: String,
    skip: usize,
}

impl RedisLetters {
    pub(crate) fn new(store: Store, prefix: String) -> Self {
        Self { store, prefix }
    }

    async fn keep(&self, letter: &Letter, before: &str) -> Result<bool, StoreError> {
        let finished = letter.finished_at.filter(|_| letter.status != LetterStatus::Pending);
        let finished = finished.map_or(String::new(), |finished| finished.as_micros().to_string());
        let others = LetterStatus::ALL.into_iter().filter(|status| *status != letter.status);
        let mut keys = vec![self.key(&letter.id), self.all(), self.finished(), self.of(letter.status)];
        keys.extend(others.map(|status| self.of(status)));
        let mut pipeline = Pipeline::new();
        pipeline.cmd("EVAL").arg(KEEP).arg(keys.len()).arg(keys);
        pipeline.arg(&letter.id.0).arg(before).arg(letter.version).arg(letter.to_json());
        pipeline.arg(score(letter.dead_at)).arg(finished);
        Ok(self.number(pipeline).await? == 1)
    }

    /// Looks at the letters that match, in their order, until it is told that it is enough.
    async fn each(
        &self,
        query: &LetterQuery,
        after: Option<&LetterPlace>,
        mut look: impl FnMut(Letter) -> bool,
    ) -> Result<(), StoreError> {
        let index = query.status.map_or_else(|| self.all(), |status| self.of(status));
        // From new to old is from the least score to the greatest.
        let newest = query.until.map_or("-inf".to_owned(), |until| format!("({}", score(until)));
        let oldest = query.from.map_or("+inf".to_owned(), |from| score(from).to_string());
        let (range, first, last_of_all) =
            if query.oldest_first { ("ZREVRANGEBYSCORE", oldest, newest) } else { ("ZRANGEBYSCORE", newest, oldest) };
        // A place that lies before the first is none to begin at.
        let is_outside = |place: &LetterPlace| {
            if query.oldest_first {
                query.from.is_some_and(|from| place.dead_at < from)
            } else {
                query.until.is_some_and(|until| place.dead_at >= until)
            }
        };
        let start = match after {
            Some(place) if !is_outside(place) => score(place.dead_at).to_string(),
            _ => first,
        };
        let mut cursor = Cursor { from: start, skip: 0 };
        loop {
            let mut pipeline = Pipeline::new();
            pipeline.cmd(range).arg(&index).arg(&cursor.from).arg(&last_of_all).arg("WITHSCORES");
            pipeline.arg("LIMIT").arg(cursor.skip).arg(PAGE);
            let found: Vec<(String, f64)> = self.one(pipeline).await?;
            let Some((_, last)) = found.last() else { return Ok(()) };
            let last = exact(*last);
            let of_last = found.iter().rev().take_while(|(_, score)| exact(*score) == last).count();
            let skip = if cursor.from == last { cursor.skip + of_last } else { of_last };
            let (is_end, ids) = (found.len() < PAGE, found.into_iter().map(|(id, _)| LetterId(id)).collect());
            for letter in self.read(ids).await? {
                let is_wanted = query.matches(&letter) && after.is_none_or(|place| query.is_after(&letter, place));
                if is_wanted && !look(letter) {
                    return Ok(());
                }
            }
            if is_end {
                return Ok(());
            }
            cursor = Cursor { from: last, skip };
        }
    }

    /// Those that are there yet and can be read. One that can't is told, and does not keep the others from being read.
    async fn read(&self, ids: Vec<LetterId>) -> Result<Vec<Letter>, StoreError> {
        let mut letters = Vec::with_capacity(ids.len());
        for read in self.read_each(&ids).await? {
            match read {
                Ok(letter) => letters.extend(letter),
                Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "a dead letter is left out"),
            }
        }
        Ok(letters)
    }

    async fn read_each(&self, ids: &[LetterId]) -> Result<Vec<Result<Option<Letter>, StoreError>>, StoreError> {
        let mut pipeline = Pipeline::new();
        for id in ids {
            pipeline.cmd("HGET").arg(self.key(id)).arg("document");
        }
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        let documents = self.store.ask(pipeline).await?;
        let letter = |(id, document): (&LetterId, Value)| match document {
            Value::BulkString(document) => Letter::from_json(&document).map(Some).map_err(|error| {
                let words = format!("letter {id} can't be read: it was changed by another program, or a newer one");
                StoreError::new(StoreErrorKind::Rejected, words).caused_by(error)
            }),
            Value::Nil => Ok(None),
            other => Err(self.store.strange(&other)),
        };
        Ok(ids.iter().zip(documents).map(letter).collect())
    }

    async fn one<T: redis::FromRedisValue>(&self, pipeline: Pipeline) -> Result<T, StoreError> {
        let answer = self.store.ask(pipeline).await?.pop().unwrap_or(Value::Nil);
        redis::from_redis_value(answer.clone()).map_err(|_| self.store.strange(&answer))
    }

    async fn number(&self, pipeline: Pipeline) -> Result<u64, StoreError> {
        self.one(pipeline).await
    }

    fn key(&self, id: &LetterId) -> String {
        format!("{}letter:{id}", self.prefix)
    }

    fn all(&self) -> String {
        format!("{}letters", self.prefix)
    }

    fn of(&self, status: LetterStatus) -> String {
        format!("{}letters:{status}", self.prefix)
    }

    fn finished(&self) -> String {
        format!("{}letters:finished", self.prefix)
    }
}

/// Microseconds stay exact in a score for centuries.
fn score(time: Timestamp) -> i64 {
    -time.as_micros()
}

fn exact(score: f64) -> String {
    format!("{score:.0}")
}

impl DeedStore for RedisLetters {
    fn deeds<'a>(
        &'a self,
        query: &'a DeedQuery,
        after: Option<&'a DeedPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Deed>, StoreError>> {
        Box::pin(async move {
            let mut deeds = Deeds::new(query, after, limit);
            self.each(&LetterQuery::default(), None, |letter| {
                deeds.look(letter.into());
                true
            })
            .await?;
            Ok(deeds.done())
        })
    }
}

impl LetterStore for RedisLetters {
    fn insert<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.keep(letter, ""))
    }

    fn replace<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            match letter.version.checked_sub(1) {
                Some(before) => self.keep(letter, &before.to_string()).await,
                None => Ok(false),
            }
        })
    }

    fn find<'a>(&'a self, id: &'a LetterId) -> BoxFuture<'a, Result<Option<Letter>, StoreError>> {
        Box::pin(async move { self.read_each(std::slice::from_ref(id)).await?.pop().unwrap_or(Ok(None)) })
    }

    fn list<'a>(
        &'a self,
        query: &'a LetterQuery,
        after: Option<&'a LetterPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Letter>, StoreError>> {
        Box::pin(async move {
            let mut page = Vec::new();
            if limit > 0 {
                self.each(query, after, |letter| {
                    page.push(letter);
                    page.len() < limit as usize
                })
                .await?;
            }
            Ok(page)
        })
    }

    fn count<'a>(&'a self, query: &'a LetterQuery) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let by_status =
                LetterQuery { status: query.status, oldest_first: query.oldest_first, ..LetterQuery::default() };
            if *query == by_status {
                let index = query.status.map_or_else(|| self.all(), |status| self.of(status));
                let mut pipeline = Pipeline::new();
                pipeline.cmd("ZCARD").arg(index);
                return self.number(pipeline).await;
            }
            let mut count = 0;
            self.each(query, None, |_| {
                count += 1;
                true
            })
            .await?;
            Ok(count)
        })
    }

    fn purge(&self, finished_before: Timestamp, most: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let mut keys = vec![self.finished(), self.all()];
            keys.extend(LetterStatus::ALL.map(|status| self.of(status)));
            let mut pipeline = Pipeline::new();
            pipeline.cmd("EVAL").arg(PURGE).arg(keys.len()).arg(keys);
            pipeline.arg(finished_before.as_micros()).arg(most).arg(format!("{}letter:", self.prefix));
            self.number(pipeline).await
        })
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        Box::pin(async move {
            let mut pipeline = Pipeline::new();
            pipeline.cmd("TIME");
            let (seconds, micros): (i64, i64) = self.one(pipeline).await?;
            Ok(Timestamp::from_micros(seconds * 1_000_000 + micros))
        })
    }
}
