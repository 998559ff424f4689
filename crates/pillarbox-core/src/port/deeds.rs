//! What people have done to dead letters, over all of them.
//!
//! Each deed stands in the history of its letter, and was stored with its effect in one step: there is no effect without its
//! record. A list gathers them from the letters, and a letter that is purged takes its history with it.

use std::cmp::Reverse;

use super::{BoxFuture, Letter, LetterAction, LetterId, StoreError};
use crate::domain::Timestamp;

/// Lists what people have done to letters; a part of every [`LetterStore`](super::LetterStore).
pub trait DeedStore: Send + Sync + 'static {
    /// The deeds that match, the newest first, after a place in that order. Looks at every letter that has a history.
    fn deeds<'a>(
        &'a self,
        query: &'a DeedQuery,
        after: Option<&'a DeedPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Deed>, StoreError>>;
}

/// An action, and the letter that it was done to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deed {
    /// Which letter.
    pub letter: LetterId,
    /// Its place in the history of the letter, from 0.
    pub number: u32,
    /// Which consumer gave the letter up.
    pub consumer: String,
    /// The event's id, as it was sent.
    pub event_id: String,
    /// The event's type.
    pub event_type: String,
    /// Of the payload, also of the one that an edit has replaced.
    pub content_type: String,
    /// What was done.
    pub action: LetterAction,
}

/// Picks deeds; unset fields match everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeedQuery {
    /// To this letter.
    pub letter: Option<LetterId>,
    /// To letters of this event.
    pub event_id: Option<String>,
    /// To letters of this consumer.
    pub consumer: Option<String>,
    /// By this actor.
    pub who: Option<String>,
}

/// A place in the order of a list of deeds: by time, the newest first, then by letter, and within one from its last to its
/// first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeedPlace {
    /// When the deed there was done.
    pub at: Timestamp,
    /// To which letter.
    pub letter: LetterId,
    /// Its place in that letter's history.
    pub number: u32,
}

impl DeedPlace {
    /// The place of a deed.
    pub fn of(deed: &Deed) -> Self {
        Self { at: deed.action.at, letter: deed.letter.clone(), number: deed.number }
    }

    fn is_before(&self, deed: &Deed) -> bool {
        (Reverse(self.at), &self.letter, Reverse(self.number)) < rank(deed)
    }
}

fn rank(deed: &Deed) -> (Reverse<Timestamp>, &LetterId, Reverse<u32>) {
    (Reverse(deed.action.at), &deed.letter, Reverse(deed.number))
}

/// A letter with its history, and without what no list of deeds needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acted {
    /// Which letter.
    pub letter: LetterId,
    /// Which consumer gave it up.
    pub consumer: String,
    /// The event's id.
    pub event_id: String,
    /// The event's type.
    pub event_type: String,
    /// Of the payload.
    pub content_type: String,
    /// What was done to it, oldest first.
    pub history: Vec<LetterAction>,
}

impl From<Letter> for Acted {
    fn from(letter: Letter) -> Self {
        let Letter { id, consumer, event_id, event_type, content_type, history, .. } = letter;
        Self { letter: id, consumer, event_id, event_type, content_type, history }
    }
}

/// Gathers the newest deeds of letters that are looked at one after another, and never holds many more than were asked for.
#[derive(Debug)]
pub struct Deeds<'a> {
    query: &'a DeedQuery,
    after: Option<&'a DeedPlace>,
    limit: usize,
    found: Vec<Deed>,
}

impl<'a> Deeds<'a> {
    /// Nothing yet.
    pub fn new(query: &'a DeedQuery, after: Option<&'a DeedPlace>, limit: u32) -> Self {
        Self { query, after, limit: limit as usize, found: Vec::new() }
    }

    /// Takes what is wanted out of a letter's history. A letter that comes again takes the place of what it was before.
    pub fn look(&mut self, acted: Acted) {
        let Acted { letter, consumer, event_id, event_type, content_type, history } = acted;
        let is = |asked: &Option<String>, has: &str| asked.as_ref().is_none_or(|asked| asked == has);
        let DeedQuery { letter: asked, event_id: event_asked, consumer: consumer_asked, who } = self.query;
        let is_asked = asked.as_ref().is_none_or(|asked| *asked == letter);
        if !(is_asked && is(event_asked, &event_id) && is(consumer_asked, &consumer)) {
            return;
        }
        self.found.retain(|deed| deed.letter != letter);
        for (number, action) in (0..).zip(history) {
            if !is(who, &action.who) {
                continue;
            }
            let deed = Deed {
                letter: letter.clone(),
                number,
                consumer: consumer.clone(),
                event_id: event_id.clone(),
                event_type: event_type.clone(),
                content_type: content_type.clone(),
                action,
            };
            if self.after.is_none_or(|place| place.is_before(&deed)) {
                self.found.push(deed);
            }
        }
        if self.found.len() >= self.limit.saturating_mul(2).saturating_add(64) {
            self.cut();
        }
    }

    /// The newest of them, in their order.
    pub fn done(mut self) -> Vec<Deed> {
        self.cut();
        self.found
    }

    fn cut(&mut self) {
        self.found.sort_by(|one, other| rank(one).cmp(&rank(other)));
        self.found.truncate(self.limit);
    }
}
