//! Which handlers of an event have had their part.
//!
//! It is stored with the row when the event is to be tried again, or is dead. What succeeded is never run again; what
//! failed for good is not either, until the event is replayed, which begins with no attempts.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::domain::Record;

/// The handlers of one event that need not be run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    done: BTreeSet<String>,
    /// With their errors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    failed: BTreeMap<String, String>,
}

impl Progress {
    /// As the row has it. What can't be read is none: then everything runs again, as at least once allows.
    pub(crate) fn of(record: &Record) -> Self {
        let Some(text) = &record.progress else { return Self::default() };
        let mut progress: Self = serde_json::from_str(text).unwrap_or_else(|error| {
            tracing::warn!(event_id = %record.event.id(), %error, "the progress of the event can't be read: all its handlers run again");
            Self::default()
        });
        if record.attempts == 0 {
            progress.failed.clear();
        }
        progress
    }

    /// Whether a handler has had its part.
    pub(crate) fn has(&self, handler: &str) -> bool {
        self.done.contains(handler) || self.failed.contains_key(handler)
    }

    pub(crate) fn succeeded(&mut self, handler: &str) {
        self.done.insert(handler.into());
    }

    pub(crate) fn failed(&mut self, handler: &str, error: &str) {
        self.failed.insert(handler.into(), error.into());
    }

    /// What has failed for good.
    pub(crate) fn errors(&self) -> impl Iterator<Item = &str> {
        self.failed.values().map(String::as_str)
    }

    /// The stored form; none if there is nothing to remember.
    pub(crate) fn stored(&self) -> Option<Box<str>> {
        if self.done.is_empty() && self.failed.is_empty() {
            return None;
        }
        // Sets and maps of strings always have a JSON form.
        serde_json::to_string(self).ok().map(Into::into)
    }
}
