//! The dead letter queue: what a consumer gave up, and what people do about it.
//!
//! A letter is changed by compare and set alone, so that of two people at once one acts. A replay goes in three steps: it claims
//! the letter for a minute, sends the message, and says so in the letter. A broker that gives no word within 45 seconds may have
//! the message or not: the claim stands until its minute is over, as after a death. When the process dies:
//! - before the claim: nothing has happened;
//! - between the claim and the broker's word: the claim lapses after its minute, and the letter is pending as before. Whether
//!   the message went out is not known; a second replay sends it again, and the consumer's guard or inbox drops one of them;
//! - between the broker's word and the letter's change: the same, and the message is on its way. The letter is pending still.
//!   If the message is parked again, it counts its replay itself; until then a second one sends it again, uncounted, and
//!   guard or inbox drop one;
//! - after the letter's change: the replay is over.
//!
//! Parking a message is one step, and the consumer acknowledges after it: if it dies between the two, the message comes again,
//! and when it fails again it is the same letter.

mod state;

use std::{error::Error as _, fmt, num::NonZeroU32, panic::resume_unwind, sync::Arc, time::Duration};

use bytes::Bytes;
use pillarbox_core::{
    domain::Timestamp,
    port::{
        Actor, Claim, Deed, DeedPlace, DeedQuery, Incoming, Letter, LetterId, LetterPlace, LetterQuery, LetterStatus,
        LetterStore, Sink, SinkError, StoreError,
    },
};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::Instrument as _;

pub(crate) use self::state::is_of_replay;
use self::state::{
    CLAIM, EDIT, acted, again, check_payload, claimed, free, letter, replay_number, replayed_message, sent, within,
};
pub use self::state::{REPLAY_FOR, REPLAY_NUMBER, REPLAY_OF, id_of};
use crate::{DeadLetterSettings, Error};

/// How long a sink may take to answer: its answer is in the letter before the claim is over.
const WORD: Duration = Duration::from_secs(45);

/// What the claim of a consumer that runs a message alone begins with.
const ALONE: &str = "alone/";

/// A queue of dead letters. Cheap to clone.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use pillarbox_core::port::{Actor, LetterQuery};
/// use pillarbox_inbox::{DeadLetters, MemoryLetters};
///
/// let queue = DeadLetters::new(MemoryLetters::new());
/// let ada = Actor::new("ada").because("the customer has called");
/// for letter in queue.list(&LetterQuery::default(), None, 20).await? {
///     println!("{} {} {}", letter.id, letter.event_type, letter.reason);
///     queue.discard(&letter.id, &ada).await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct DeadLetters {
    store: Arc<dyn LetterStore>,
    sink: Option<Arc<dyn Sink>>,
    enabled: bool,
    most_replays: u32,
    retention: Duration,
}

/// A message that a consumer gives up.
#[derive(Clone, Debug)]
pub struct Parked<'a> {
    /// Who gives it up.
    pub consumer: &'a str,
    /// The message.
    pub message: &'a Incoming,
    /// Why.
    pub reason: &'a str,
    /// How often it was tried.
    pub attempts: u32,
}

impl DeadLetters {
    /// A queue without a way back: letters can be looked at and discarded. At most 3 replays; finished letters are kept for 7
    /// days, pending ones for ever.
    pub fn new(store: impl LetterStore) -> Self {
        let DeadLetterSettings { enabled, most_replays, retention, .. } = DeadLetterSettings::default();
        Self { store: Arc::new(store), sink: None, enabled, most_replays, retention }
    }

    /// The way back to the broker, for replays.
    #[must_use]
    pub fn sink(mut self, sink: Arc<dyn Sink>) -> Self {
        self.sink = Some(sink);
        self
    }

    /// Takes all settings from a file or the environment; the sink they name is the caller's affair.
    #[must_use]
    pub fn settings(self, settings: &DeadLetterSettings) -> Self {
        self.enabled(settings.enabled).most_replays(settings.most_replays).retention(settings.retention)
    }

    /// Switches it off: what is given up is told in the log, and gone. Letters that are there can still be acted upon.
    /// Default: on.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// How often a letter may be replayed. Default: 3.
    #[must_use]
    pub fn most_replays(mut self, most: u32) -> Self {
        self.most_replays = most;
        self
    }

    /// How long finished letters are kept. Default: 7 days.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Adds a message that was given up. One that was there before, and has come back, is pending again, and its replays still
    /// count.
    pub async fn park(&self, parked: &Parked<'_>) -> Result<LetterId, Error> {
        if !self.enabled {
            let new = letter(parked, Timestamp::from_micros(0));
            let Letter { consumer, event_id, event_type, topic, reason, attempts, .. } = &new;
            tracing::error!(
                consumer,
                event_id,
                event_type,
                topic,
                attempts,
                reason,
                "a message was given up and is gone: the dead letter queue is switched off"
            );
            return Ok(new.id);
        }
        let now = self.store.now().await?;
        let new = letter(parked, now);
        if self.store.insert(&new).await? {
            return Ok(new.id);
        }
        self.change(&new.id, |stored| Ok(again(stored, &new, replay_number(parked)))).await?;
        Ok(new.id)
    }

    /// Letters that match, newest first, after a place in that order.
    pub async fn list(
        &self,
        query: &LetterQuery,
        after: Option<&LetterPlace>,
        limit: u32,
    ) -> Result<Vec<Letter>, Error> {
        Ok(self.store.list(query, after, limit).await?)
    }

    /// How many letters match.
    pub async fn count(&self, query: &LetterQuery) -> Result<u64, Error> {
        Ok(self.store.count(query).await?)
    }

    /// How many letters wait for a person.
    pub async fn pending(&self) -> Result<u64, Error> {
        self.count(&LetterQuery { status: Some(LetterStatus::Pending), ..LetterQuery::default() }).await
    }

    /// The letter of an id.
    pub async fn find(&self, id: &LetterId) -> Result<Option<Letter>, Error> {
        self.store.find(id).await.map_err(|error| unreadable(id, error))
    }

    /// What people have done to letters, the newest first, after a place in that order.
    pub async fn deeds(&self, query: &DeedQuery, after: Option<&DeedPlace>, limit: u32) -> Result<Vec<Deed>, Error> {
        Ok(self.store.deeds(query, after, limit).await?)
    }

    /// Whether a letter could be replayed as far as its replays and the way back go.
    pub fn may_replay(&self, letter: &Letter) -> Result<(), Error> {
        if self.sink.is_none() {
            return Err(Error::NoSink);
        }
        within(letter, self.most_replays)
    }

    /// Sends a pending letter to its topic again, for the consumer that gave it up. Of several calls at once one sends it; the
    /// others are told that somebody is at it, or that it is not pending any more. If this future is dropped, what was begun
    /// comes to its end all the same.
    pub async fn replay(&self, id: &LetterId, actor: &Actor) -> Result<(), Error> {
        let sink = self.sink.clone().ok_or(Error::NoSink)?;
        let (queue, id, actor) = (self.clone(), id.clone(), actor.clone());
        // Dropped between the broker's word and the letter's change it would be sent, and leave no trace.
        let replaying = async move { queue.replay_through(&*sink, &id, &actor).await };
        tokio::spawn(replaying.in_current_span()).await.unwrap_or_else(|ended| match ended.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => {
                Err(SinkError::unavailable("the program ends: look at the letter before you replay it again").into())
            }
        })
    }

    async fn replay_through(&self, sink: &dyn Sink, id: &LetterId, actor: &Actor) -> Result<(), Error> {
        let by = pillarbox_core::new_id().to_string();
        let now = self.store.now().await?;
        let claimed = self.change(id, |letter| claimed(letter, now, &by, self.most_replays)).await?;
        let message = replayed_message(&claimed);
        let Ok(answer) = timeout(WORD, sink.send(std::slice::from_ref(&message))).await else {
            let words = format!(
                "no word within {WORD:?}, so it is not known whether it has the message: the letter can be replayed again in a \
                 moment, and the consumer's guard or inbox drops one of the two"
            );
            return Err(SinkError::unavailable(words).into());
        };
        let answer = answer.into_iter().next().unwrap_or_else(|| Err(SinkError::failed("the sink gave no answer")));
        if let Err(error) = answer {
            // Nothing was taken: whoever comes next need not wait for the claim's end.
            self.drop_claim(id, &by).await;
            return Err(error.into());
        }
        let now = self.store.now().await?;
        self.change(id, |letter| Ok(sent(letter, now, &by, claimed.replays + 1, actor))).await?;
        Ok(())
    }

    /// Says that a pending letter does not matter.
    pub async fn discard(&self, id: &LetterId, actor: &Actor) -> Result<(), Error> {
        let now = self.store.now().await?;
        self.change(id, |letter| {
            free(letter, now, "discarded")?;
            let status = LetterStatus::Discarded;
            Ok(Letter { status, finished_at: Some(now), ..acted(letter, now, "discard", actor) })
        })
        .await?;
        Ok(())
    }

    /// Puts another payload in the place of a pending letter's, before it is replayed. Its content type stays; JSON must be
    /// JSON. What was there is kept in the letter's history.
    pub async fn edit(&self, id: &LetterId, payload: impl Into<Bytes>, actor: &Actor) -> Result<(), Error> {
        let payload = payload.into();
        let now = self.store.now().await?;
        self.change(id, |letter| {
            free(letter, now, "edited")?;
            check_payload(&letter.content_type, &payload)?;
            let mut edited = Letter { payload: payload.clone(), ..acted(letter, now, EDIT, actor) };
            if let Some(action) = edited.history.last_mut() {
                action.before = Some(letter.payload.clone());
            }
            Ok(edited)
        })
        .await?;
        Ok(())
    }

    /// Replays all pending letters that match, oldest first, at most so many a second. Letters that can't be replayed are left
    /// out. `told` hears of each as it goes. Returns how many were sent.
    pub async fn replay_all(
        &self,
        query: &LetterQuery,
        per_second: Option<NonZeroU32>,
        actor: &Actor,
        mut told: impl FnMut(&Letter, Result<(), &Error>),
    ) -> Result<u64, Error> {
        let mut letters = Vec::new();
        let query = LetterQuery { status: Some(LetterStatus::Pending), ..query.clone() };
        loop {
            let after = letters.last().map(LetterPlace::of);
            let page = self.store.list(&query, after.as_ref(), 500).await?;
            if page.is_empty() {
                break;
            }
            // Only what is needed to find them again: there may be many, and each may be large.
            letters.extend(page.into_iter().map(|letter| Letter { payload: Bytes::new(), ..letter }));
        }
        let mut sent = 0;
        let mut next_at = Instant::now();
        for letter in letters.iter().rev() {
            sleep_until(next_at).await;
            let replayed = self.replay(&letter.id, actor).await;
            told(letter, replayed.as_ref().copied());
            match replayed {
                Ok(()) => {
                    sent += 1;
                    if let Some(rate) = per_second {
                        next_at = Instant::now() + Duration::from_secs(1) / rate.get();
                    }
                }
                Err(Error::NotPending { .. } | Error::NotFound(_) | Error::Busy(_) | Error::TooManyReplays { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Removes letters that were finished longer ago than they are kept, and says how many. A consumer does it by itself.
    pub async fn purge(&self) -> Result<u64, Error> {
        let before = self.store.now().await?.saturating_sub(self.retention);
        let mut purged = 0;
        loop {
            let some = self.store.purge(before, 500).await?;
            purged += some;
            if some < 500 {
                return Ok(purged);
            }
        }
    }

    /// Says in a letter that a consumer is about to run a message alone, which may end the process. None: it was said
    /// before, and [`end_alone`](Self::end_alone) has never come. Also in a queue that is switched off: what ends its process shall
    /// not do so for ever.
    pub(crate) async fn begin_alone(&self, parked: &Parked<'_>, by: &str) -> Result<Option<LetterId>, Error> {
        let now = self.store.now().await?;
        let by = format!("{ALONE}{by}");
        let claim = Some(Claim { by: by.clone(), until: now.saturating_add(CLAIM) });
        let new = Letter { claim, ..letter(parked, now) };
        if self.store.insert(&new).await? {
            return Ok(Some(new.id));
        }
        let begun = self.change(&new.id, |stored| {
            let claim = stored.claim.as_ref().filter(|claim| claim.by.starts_with(ALONE) && claim.by != by);
            if claim.is_some() && stored.status == LetterStatus::Pending {
                return Err(Error::Busy(stored.id.to_string()));
            }
            Ok(again(stored, &new, replay_number(parked)))
        });
        match begun.await {
            Ok(begun) => Ok(Some(begun.id)),
            Err(Error::Busy(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What ran alone has ended, and its process has not: there is nothing to be kept, unless the message was parked meanwhile.
    pub(crate) async fn end_alone(&self, id: &LetterId, by: &str, consumer: &str) -> Result<(), Error> {
        let now = self.store.now().await?;
        let actor = Actor::new(consumer).because("it was delivered too often, ran alone and did no harm");
        let closed = self.change(id, |letter| {
            let is_ours = letter.claim.as_ref().and_then(|claim| claim.by.strip_prefix(ALONE)) == Some(by);
            if !is_ours {
                return Err(Error::Busy(letter.id.to_string()));
            }
            // A replay that was a suspect is a replay still.
            let status = if letter.replays > 0 { LetterStatus::Replayed } else { LetterStatus::Discarded };
            // Once: it may run alone many times.
            let is_told = letter.history.last().is_some_and(|last| last.who == actor.who && last.why == actor.why);
            let letter = if is_told { letter.clone() } else { acted(letter, now, "discard", &actor) };
            Ok(Letter { status, finished_at: Some(now), claim: None, ..letter })
        });
        match closed.await {
            Ok(_) | Err(Error::Busy(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Ends a claim before its time, if it is this one yet.
    async fn drop_claim(&self, id: &LetterId, by: &str) {
        let dropped = self.change(id, |letter| {
            if letter.claim.as_ref().is_none_or(|claim| claim.by != by) {
                return Err(Error::Busy(letter.id.to_string()));
            }
            Ok(Letter { claim: None, ..letter.clone() })
        });
        match dropped.await {
            Ok(_) | Err(Error::Busy(_)) => {}
            Err(error) => {
                tracing::warn!(letter = %id, error = &error as &dyn std::error::Error, "a claim could not be dropped: it ends by itself");
            }
        }
    }

    /// Compares and sets until it is set.
    async fn change(&self, id: &LetterId, to: impl Fn(&Letter) -> Result<Letter, Error>) -> Result<Letter, Error> {
        loop {
            let Some(stored) = self.find(id).await? else { return Err(Error::NotFound(id.to_string())) };
            let mut changed = to(&stored)?;
            changed.version = stored.version + 1;
            if self.store.replace(&changed).await.map_err(|error| unreadable(id, error))? {
                return Ok(changed);
            }
        }
    }
}

/// A store that has no letter in a letter's place says so by the reader's error.
fn unreadable(id: &LetterId, error: StoreError) -> Error {
    if error.source().is_some_and(<dyn std::error::Error>::is::<serde_json::Error>) {
        return Error::Unreadable { id: id.to_string(), source: error };
    }
    error.into()
}

impl fmt::Debug for DeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetters")
            .field("sink", &self.sink.is_some())
            .field("enabled", &self.enabled)
            .field("most_replays", &self.most_replays)
            .field("retention", &self.retention)
            .finish_non_exhaustive()
    }
}
