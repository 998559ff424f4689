//! Messages that a consumer has given up, in a bucket: a document each.
//!
//! A document is the letter in one line of JSON, without its payload, and the payload behind it, to the byte. It has to fit into one
//! message of the server's (`max_payload`), and is larger than the message that was given up by what JSON has of its headers, its
//! history and the reason: a few kilobytes. What does not fit is refused, and the consumer holds it.

use std::{
    cmp::Ordering,
    collections::{HashMap, HashSet},
    error::Error,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use pillarbox_core::{
    domain::Timestamp,
    port::{
        BoxFuture, Deed, DeedPlace, DeedQuery, DeedStore, Deeds, Letter, LetterId, LetterPlace, LetterQuery,
        LetterStatus, LetterStore, StoreError, StoreErrorKind,
    },
};

use tokio::time::Instant;

use crate::bucket::{Value, Values};

/// The key whose last change tells the server's time.
const CLOCK: &str = "clock";

/// Letters in a bucket. Made by [`Options::letters`](crate::Options::letters).
#[derive(Debug)]
pub struct NatsLetters {
    letters: Values,
    // The latest, so that not every page reads all letters.
    walks: Mutex<Vec<Walk>>,
}

/// The order of a list, as it was found when all letters were read.
#[derive(Clone, Debug)]
struct Walk {
    query: LetterQuery,
    places: Arc<[LetterPlace]>,
    since: Instant,
}

/// How many lists are gone through at once without one reading all letters again for the other.
const WALKS: usize = 4;

/// For how long the order of a list is good for its next pages. Letters that come in meanwhile are at its end, which is read anew.
const GOOD_FOR: Duration = Duration::from_secs(15);

impl NatsLetters {
    pub(crate) fn new(letters: Values) -> Self {
        Self { letters, walks: Mutex::default() }
    }

    async fn replace_one(&self, letter: &Letter) -> Result<bool, StoreError> {
        let key = key(&letter.id);
        let Some(stored) = self.letters.find(&key).await? else { return Ok(false) };
        if self.letter(&stored)?.version.checked_add(1) != Some(letter.version) {
            return Ok(false);
        }
        self.letters.put(&key, document(letter), stored.revision).await
    }

    /// Looks at all letters that can be read, one after another.
    async fn each(&self, mut look: impl FnMut(Letter, u64)) -> Result<(), StoreError> {
        let mut after = 0;
        while let Some(stored) = self.letters.next("letter.>", after).await? {
            after = stored.revision;
            match self.letter(&stored) {
                Ok(letter) => look(letter, stored.revision),
                // Of one, and not of all the others.
                Err(error) => left_out(&error),
            }
        }
        Ok(())
    }

    async fn page(
        &self,
        query: &LetterQuery,
        after: Option<&LetterPlace>,
        limit: usize,
    ) -> Result<Vec<Letter>, StoreError> {
        if let Some(after) = after
            && let Some(page) = self.page_of_walk(query, after, limit).await?
        {
            return Ok(page);
        }
        let mut places: Vec<LetterPlace> = Vec::new();
        // Those at hand: the first of those that were read.
        let mut kept: Vec<Letter> = Vec::new();
        let mut seen = HashSet::new();
        self.each(|letter, _| {
            // A letter that is changed meanwhile comes again at the end.
            if !seen.insert(letter.id.clone()) {
                places.retain(|place| place.id != letter.id);
                kept.retain(|other| other.id != letter.id);
            }
            if query.matches(&letter) && after.is_none_or(|place| query.is_after(&letter, place)) {
                places.push(LetterPlace::of(&letter));
                kept.push(letter);
                if kept.len() >= limit.saturating_mul(2) {
                    kept.sort_by(|one, other| query.order(one, other));
                    kept.truncate(limit);
                }
            }
        })
        .await?;
        places.sort_by(|one, other| in_order(query, one, other));
        let mut kept: HashMap<LetterId, Letter> = kept.into_iter().map(|letter| (letter.id.clone(), letter)).collect();
        let mut page = Vec::with_capacity(places.len().min(limit));
        for place in places.iter().take(limit) {
            match kept.remove(&place.id) {
                Some(letter) => page.push(letter),
                // Let go of when others were before it, which are not any more.
                None => page.extend(self.find_at(query, place).await?),
            }
        }
        if places.len() > limit {
            let walk = Walk { query: query.clone(), places: places.into(), since: Instant::now() };
            let mut walks = self.walks.lock().unwrap_or_else(PoisonError::into_inner);
            walks.retain(|walk| walk.query != *query && walk.since.elapsed() < GOOD_FOR);
            if walks.len() == WALKS {
                walks.remove(0);
            }
            walks.push(walk);
        }
        Ok(page)
    }

    /// A page in the order that was found a moment ago, each of its letters as it is now. None if it can't be filled from there: the
    /// end of a list, and what has come to it, is seen by who reads all.
    async fn page_of_walk(
        &self,
        query: &LetterQuery,
        after: &LetterPlace,
        limit: usize,
    ) -> Result<Option<Vec<Letter>>, StoreError> {
        let is_good = |walk: &&Walk| walk.query == *query && walk.since.elapsed() < GOOD_FOR;
        let walk = self.walks.lock().unwrap_or_else(PoisonError::into_inner).iter().find(is_good).cloned();
        let Some(walk) = walk else { return Ok(None) };
        let Ok(at) = walk.places.binary_search_by(|place| in_order(query, place, after)) else { return Ok(None) };
        let mut page = Vec::new();
        for place in &walk.places[at + 1..] {
            if page.len() == limit {
                break;
            }
            page.extend(self.find_at(query, place).await?);
        }
        Ok((page.len() == limit).then_some(page))
    }

    /// The letter of a place in a list, if it is there yet: one that has died again is at another.
    async fn find_at(&self, query: &LetterQuery, place: &LetterPlace) -> Result<Option<Letter>, StoreError> {
        let Some(stored) = self.letters.find(&key(&place.id)).await? else { return Ok(None) };
        let letter = self.letter(&stored).inspect_err(left_out).ok();
        Ok(letter.filter(|letter| query.matches(letter) && LetterPlace::of(letter) == *place))
    }

    async fn purge_some(&self, finished_before: Timestamp, most: usize) -> Result<u64, StoreError> {
        let mut old = Vec::new();
        self.each(|letter, revision| {
            let is_old = letter.finished_at.is_some_and(|finished| finished < finished_before);
            if is_old && letter.status != LetterStatus::Pending {
                old.push((letter.finished_at, letter.id, revision));
            }
        })
        .await?;
        old.sort();
        let mut purged = 0;
        for (_, id, revision) in old.into_iter().take(most) {
            purged += u64::from(self.letters.remove(&key(&id), revision).await?);
        }
        Ok(purged)
    }

    fn letter(&self, stored: &Value) -> Result<Letter, StoreError> {
        read(&stored.bytes).map_err(|error| {
            let words = format!("{} can't be read: it was changed by another program, or a newer one", stored.key);
            self.letters.told(StoreErrorKind::Rejected, &words).caused_by(error)
        })
    }
}

/// The order of a list, of places alone.
fn in_order(query: &LetterQuery, one: &LetterPlace, other: &LetterPlace) -> Ordering {
    let newest_first = (other.dead_at, &one.id).cmp(&(one.dead_at, &other.id));
    if query.oldest_first { newest_first.reverse() } else { newest_first }
}

fn left_out(error: &StoreError) {
    tracing::warn!(error = error as &dyn Error, "a dead letter is left out");
}

fn key(id: &LetterId) -> String {
    format!("letter.{id}")
}

fn document(letter: &Letter) -> Bytes {
    let mut document = Letter { payload: Bytes::new(), ..letter.clone() }.to_json();
    document.push(b'\n');
    document.extend_from_slice(&letter.payload);
    document.into()
}

fn read(document: &[u8]) -> Result<Letter, impl Error + Send + Sync + use<>> {
    match document.iter().position(|byte| *byte == b'\n') {
        Some(end) => {
            let payload = Bytes::copy_from_slice(&document[end + 1..]);
            Letter::from_json(&document[..end]).map(|letter| Letter { payload, ..letter })
        }
        // As it was written before: the payload is in the JSON.
        None => Letter::from_json(document),
    }
}

impl DeedStore for NatsLetters {
    fn deeds<'a>(
        &'a self,
        query: &'a DeedQuery,
        after: Option<&'a DeedPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Deed>, StoreError>> {
        Box::pin(async move {
            let mut deeds = Deeds::new(query, after, limit);
            self.each(|letter, _| deeds.look(letter.into())).await?;
            Ok(deeds.done())
        })
    }
}

impl LetterStore for NatsLetters {
    fn insert<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move { self.letters.put(&key(&letter.id), document(letter), 0).await })
    }

    fn replace<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.replace_one(letter))
    }

    fn find<'a>(&'a self, id: &'a LetterId) -> BoxFuture<'a, Result<Option<Letter>, StoreError>> {
        Box::pin(async move {
            let stored = self.letters.find(&key(id)).await?;
            stored.as_ref().map(|stored| self.letter(stored)).transpose()
        })
    }

    fn list<'a>(
        &'a self,
        query: &'a LetterQuery,
        after: Option<&'a LetterPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Letter>, StoreError>> {
        Box::pin(self.page(query, after, limit as usize))
    }

    fn count<'a>(&'a self, query: &'a LetterQuery) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let mut ids = HashSet::new();
            self.each(|letter, _| {
                if query.matches(&letter) {
                    ids.insert(letter.id);
                } else {
                    ids.remove(&letter.id);
                }
            })
            .await?;
            Ok(ids.len() as u64)
        })
    }

    fn purge(&self, finished_before: Timestamp, most: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.purge_some(finished_before, most as usize))
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        Box::pin(async { Ok(self.letters.touch(CLOCK).await?.into()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(payload: Vec<u8>) -> Letter {
        Letter {
            id: LetterId("0f".repeat(16)),
            version: 3,
            consumer: "billing".into(),
            event_id: "e-1".into(),
            event_type: "OrderPlaced".into(),
            topic: "orders".into(),
            key: None,
            content_type: "application/octet-stream".into(),
            attributes: vec![("id".into(), "e-1".into())],
            headers: vec![("h".into(), "two\nlines".into())],
            payload: payload.into(),
            reason: "declined".into(),
            attempts: 10,
            dead_at: Timestamp::from_micros(17),
            source: None,
            saga_id: None,
            correlation_id: None,
            replays: 0,
            status: LetterStatus::Pending,
            finished_at: None,
            claim: None,
            history: Vec::new(),
        }
    }

    #[test]
    fn a_document_gives_the_letter_back_whenever_it_was_written() {
        for payload in [&b""[..], b"{\"a\": 1}", b"\n\n", b"\xff\n\x00"] {
            let letter = letter(payload.into());
            assert_eq!(read(&document(&letter)).ok(), Some(letter.clone()));
            assert_eq!(read(&letter.to_json()).ok(), Some(letter));
        }
        assert!(read(b"{}\n").is_err());
    }

    #[test]
    fn a_payload_takes_no_more_room_than_it_has() {
        let empty = document(&letter(Vec::new())).len();
        assert_eq!(document(&letter(vec![0xff; 100_000])).len(), empty + 100_000);
    }
}
