//! A guard in memory beside a map with a lock: there is no statement.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use pillarbox_inbox::{Guard, MemoryGuard};

use super::guard::{CONSUMER, Marks, Place, names};
use crate::Result;

/// Where nothing is stored.
pub(super) struct Maps;

/// Consumer and message, with the end of the mark.
#[derive(Default)]
pub(super) struct Map(Mutex<HashMap<(String, String), Instant>>);

impl Place for Maps {
    const NAMES: [&'static str; 2] = names::MEMORY;
    const IS_FAST: bool = true;
    type Bare = Map;
    type Kept = ();

    async fn bare(&self, _callers: usize) -> Result<Map> {
        Ok(Map::default())
    }

    async fn guard(&self) -> Result<(Guard, ())> {
        Ok((Guard::new(MemoryGuard::new()), ()))
    }

    fn note(&self) -> String {
        "a std HashMap of owned names behind a Mutex".into()
    }
}

impl Marks for Map {
    async fn mark(&self, _caller: usize, message: &str) -> Result<bool> {
        let now = Instant::now();
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (CONSUMER.to_owned(), message.to_owned());
        let is_first = map.get(&key).is_none_or(|end| *end <= now);
        if is_first {
            map.insert(key, now + Duration::from_hours(1));
        }
        Ok(is_first)
    }
}
