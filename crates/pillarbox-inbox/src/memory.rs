//! Guard and dead letters in memory: for one process, and for tests.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use pillarbox_core::{
    domain::Timestamp,
    port::{
        BoxFuture, Clock, Deed, DeedPlace, DeedQuery, DeedStore, Deeds, GuardStore, Letter, LetterId, LetterPlace,
        LetterQuery, LetterStatus, LetterStore, StoreError, SystemClock,
    },
};

/// Marks in memory. They are gone with the process, and other processes don't see them. Clones share them.
#[derive(Clone)]
pub struct MemoryGuard {
    marks: Arc<Mutex<HashMap<(String, String), Mark>>>,
    clock: Arc<dyn Clock>,
}

struct Mark {
    by: String,
    until: Timestamp,
}

impl MemoryGuard {
    /// Without marks, by the host's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// By another clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self { marks: Arc::default(), clock }
    }
}

impl Default for MemoryGuard {
    fn default() -> Self {
        Self::new()
    }
}

impl GuardStore for MemoryGuard {
    fn take<'a>(
        &'a self,
        consumer: &'a str,
        messages: &'a [&'a str],
        by: &'a str,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Vec<bool>, StoreError>> {
        Box::pin(async move {
            let now = self.clock.now();
            let mut marks = self.marks.lock();
            let take = |message: &&str| {
                let place = (consumer.to_owned(), (*message).to_owned());
                let is_free = marks.get(&place).is_none_or(|mark| mark.until <= now);
                if is_free {
                    marks.insert(place, Mark { by: by.to_owned(), until: now.saturating_add(ttl) });
                }
                is_free
            };
            Ok(messages.iter().map(take).collect())
        })
    }

    fn release<'a>(
        &'a self,
        consumer: &'a str,
        messages: &'a [&'a str],
        by: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let mut marks = self.marks.lock();
            for message in messages {
                let place = (consumer.to_owned(), (*message).to_owned());
                if marks.get(&place).is_some_and(|mark| mark.by == by) {
                    marks.remove(&place);
                }
            }
            Ok(())
        })
    }

    fn purge(&self, most: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let now = self.clock.now();
            let mut marks = self.marks.lock();
            let over = marks.iter().filter(|(_, mark)| mark.until <= now).map(|(place, _)| place.clone());
            let over: Vec<_> = over.take(most as usize).collect();
            over.iter().for_each(|place| {
                marks.remove(place);
            });
            Ok(over.len() as u64)
        })
    }
}

/// Dead letters in memory. They are gone with the process: for tests. Clones share them.
#[derive(Clone)]
pub struct MemoryLetters {
    letters: Arc<Mutex<BTreeMap<LetterId, Letter>>>,
    clock: Arc<dyn Clock>,
}

impl MemoryLetters {
    /// Without letters, by the host's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// By another clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self { letters: Arc::default(), clock }
    }
}

impl Default for MemoryLetters {
    fn default() -> Self {
        Self::new()
    }
}

impl DeedStore for MemoryLetters {
    fn deeds<'a>(
        &'a self,
        query: &'a DeedQuery,
        after: Option<&'a DeedPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Deed>, StoreError>> {
        Box::pin(async move {
            let mut deeds = Deeds::new(query, after, limit);
            self.letters.lock().values().for_each(|letter| deeds.look(letter.clone().into()));
            Ok(deeds.done())
        })
    }
}

impl LetterStore for MemoryLetters {
    fn insert<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut letters = self.letters.lock();
            let is_new = !letters.contains_key(&letter.id);
            if is_new {
                letters.insert(letter.id.clone(), letter.clone());
            }
            Ok(is_new)
        })
    }

    fn replace<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut letters = self.letters.lock();
            let Some(stored) = letters.get_mut(&letter.id).filter(|stored| stored.version + 1 == letter.version) else {
                return Ok(false);
            };
            stored.clone_from(letter);
            Ok(true)
        })
    }

    fn find<'a>(&'a self, id: &'a LetterId) -> BoxFuture<'a, Result<Option<Letter>, StoreError>> {
        Box::pin(async move { Ok(self.letters.lock().get(id).cloned()) })
    }

    fn list<'a>(
        &'a self,
        query: &'a LetterQuery,
        after: Option<&'a LetterPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Letter>, StoreError>> {
        Box::pin(async move {
            let mut found: Vec<_> =
                self.letters.lock().values().filter(|letter| query.matches(letter)).cloned().collect();
            found.retain(|letter| after.is_none_or(|place| query.is_after(letter, place)));
            found.sort_by(|one, other| query.order(one, other));
            found.truncate(limit as usize);
            Ok(found)
        })
    }

    fn count<'a>(&'a self, query: &'a LetterQuery) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move { Ok(self.letters.lock().values().filter(|letter| query.matches(letter)).count() as u64) })
    }

    fn purge(&self, finished_before: Timestamp, most: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let mut letters = self.letters.lock();
            let is_over = |letter: &&Letter| {
                letter.status != LetterStatus::Pending && letter.finished_at.is_some_and(|at| at < finished_before)
            };
            let over: Vec<_> =
                letters.values().filter(is_over).take(most as usize).map(|letter| letter.id.clone()).collect();
            over.iter().for_each(|id| {
                letters.remove(id);
            });
            Ok(over.len() as u64)
        })
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        Box::pin(async { Ok(self.clock.now()) })
    }
}

impl std::fmt::Debug for MemoryGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryGuard").field("marks", &self.marks.lock().len()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for MemoryLetters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryLetters").field("letters", &self.letters.lock().len()).finish_non_exhaustive()
    }
}
