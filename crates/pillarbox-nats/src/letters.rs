//! Messages that a consumer has given up, in a bucket: a document each.
//!
//! A document is the letter in one line of JSON, without its payload, and the payload behind it, to the byte. It has to fit into one
//! message of the server's (`max_payload`), and is larger than the message that was given up by what JSON has of its headers, its
//! history and the reason: a few kilobytes. What does not fit is refused, and the consumer holds it.

use std::fmt;

use bytes::Bytes;
use pillarbox_core::{
    domain::Timestamp,
    port::{
        BoxFuture, Deed, DeedPlace, DeedQuery, DeedStore, Deeds, Letter, LetterId, LetterPlace, LetterQuery,
        LetterStatus, LetterStore, StoreError, StoreErrorKind,
    },
};

use crate::bucket::Values;

/// The key whose last change tells the server's time.
const CLOCK: &str = "clock";

/// Letters in a bucket. Made by [`Options::letters`](crate::Options::letters).
#[derive(Debug)]
pub struct NatsLetters {
    letters: Values,
}

impl NatsLetters {
    pub(crate) fn new(letters: Values) -> Self {
        Self { letters }
    }

    async fn replace_one(&self, letter: &Letter) -> Result<bool, StoreError> {
        let key = key(&letter.id);
        let Some(stored) = self.letters.find(&key).await? else { return Ok(false) };
        if self.letter(&stored.bytes)?.version.checked_add(1) != Some(letter.version) {
            return Ok(false);
        }
        self.letters.put(&key, document(letter), stored.revision).await
    }

    /// Looks at all letters, one after another.
    async fn each(&self, mut look: impl FnMut(Letter, u64)) -> Result<(), StoreError> {
        let mut after = 0;
        while let Some(stored) = self.letters.next("letter.>", after).await? {
            after = stored.revision;
            look(self.letter(&stored.bytes)?, stored.revision);
        }
        Ok(())
    }

    async fn page(
        &self,
        query: &LetterQuery,
        after: Option<&LetterPlace>,
        limit: usize,
    ) -> Result<Vec<Letter>, StoreError> {
        let mut page: Vec<Letter> = Vec::new();
        let first = |page: &mut Vec<Letter>| {
            page.sort_by(|one, other| query.order(one, other));
            page.truncate(limit);
        };
        self.each(|letter, _| {
            if query.matches(&letter) && after.is_none_or(|place| query.is_after(&letter, place)) {
                // A letter that is changed meanwhile comes again at the end.
                page.retain(|other| other.id != letter.id);
                page.push(letter);
                if page.len() >= limit.saturating_mul(2) {
                    first(&mut page);
                }
            }
        })
        .await?;
        first(&mut page);
        Ok(page)
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

    fn letter(&self, document: &[u8]) -> Result<Letter, StoreError> {
        let unreadable =
            |error| self.letters.told(StoreErrorKind::Schema, &format_args!("a letter can't be read: {error}"));
        read(document).map_err(unreadable)
    }
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

fn read(document: &[u8]) -> Result<Letter, impl fmt::Display> {
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
            stored.map(|stored| self.letter(&stored.bytes)).transpose()
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
            let mut ids = std::collections::HashSet::new();
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
