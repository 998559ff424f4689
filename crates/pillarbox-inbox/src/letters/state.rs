//! From one state of a letter to the next: pure, for compare and set to obey.

use std::time::Duration;

use bytes::Bytes;
use pillarbox_core::{
    domain::{ERROR_LIMIT, Key, Timestamp, limit},
    port::{Actor, Claim, Letter, LetterAction, LetterId, LetterStatus, Message},
};
use sha2::{Digest as _, Sha256};

use super::Parked;
use crate::{Error, message};

/// The header of a replayed message that says for whom it is: other consumers of the topic have dealt with it.
pub const REPLAY_FOR: &str = "pillarbox-replay-for";
/// The header of a replayed message that says which replay it is.
pub const REPLAY_NUMBER: &str = "pillarbox-replay";
/// The header of a replayed message that says what the message was known by when it was given up. It may stand nowhere else: a
/// document that can't be read has no id, and the broker's own is another one each time.
pub const REPLAY_OF: &str = "pillarbox-replay-of";

/// How long a claim stands.
pub(super) const CLAIM: Duration = Duration::from_mins(1);

/// What stands in the history of a letter that was edited.
pub(super) const EDIT: &str = "edit";

/// Whether a header says something of a replay, and is none of the message's own.
pub(crate) fn is_of_replay(name: &str) -> bool {
    [REPLAY_FOR, REPLAY_NUMBER, REPLAY_OF].iter().any(|ours| name.eq_ignore_ascii_case(ours))
}

/// Which replay a message of this consumer is, by its own word; 0 if it is none.
pub(super) fn replay_number(parked: &Parked<'_>) -> u32 {
    let message = parked.message;
    let is_ours = message.header(REPLAY_FOR) == Some(parked.consumer);
    let number = message.header(REPLAY_NUMBER).filter(|_| is_ours);
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// A new letter.
pub(super) fn letter(parked: &Parked<'_>, now: Timestamp) -> Letter {
    let Parked { consumer, message, reason, attempts } = *parked;
    let facts = message::facts(message);
    let mut reason = reason.to_owned();
    if let Some((end, _)) = reason.char_indices().nth(ERROR_LIMIT) {
        reason.truncate(end);
    }
    Letter {
        id: id_of(consumer, &facts.id),
        version: 0,
        consumer: consumer.to_owned(),
        event_id: facts.id,
        event_type: facts.event_type,
        topic: message.topic.clone(),
        key: message.key.as_ref().map(ToString::to_string),
        content_type: message.content_type.clone(),
        attributes: message.attributes.clone(),
        headers: message.headers.iter().filter(|(name, _)| !is_of_replay(name)).cloned().collect(),
        payload: message.payload.clone(),
        reason,
        attempts,
        dead_at: now,
        source: facts.source,
        saga_id: facts.saga_id,
        correlation_id: facts.correlation_id,
        replays: 0,
        status: LetterStatus::Pending,
        finished_at: None,
        claim: None,
        history: Vec::new(),
    }
}

/// A letter that is pending again: its replays count on. The message may be back before its sender has counted it, and takes the
/// claim away under which it was sent: so it counts itself, but no further than one, for it may say anything.
///
/// What a person has put into the letter stays when the message of before comes again, whose acknowledgement was lost. One with
/// another payload is news.
pub(super) fn again(stored: &Letter, new: &Letter, replay: u32) -> Letter {
    let was_edited = |action: &LetterAction| action.what == EDIT && action.before.as_ref() == Some(&new.payload);
    let payload = if stored.history.iter().any(was_edited) { stored.payload.clone() } else { new.payload.clone() };
    let replays = stored.replays.max(replay.min(stored.replays.saturating_add(1)));
    let history = stored.history.clone();
    Letter { version: stored.version, replays, payload, history, ..new.clone() }
}

/// The id of the letter of a consumer and a message.
pub fn id_of(consumer: &str, event_id: &str) -> LetterId {
    let mut hash = Sha256::new();
    // The length keeps the two apart.
    hash.update((consumer.len() as u64).to_be_bytes());
    hash.update(consumer.as_bytes());
    hash.update(event_id.as_bytes());
    LetterId(message::hex(&hash.finalize()[..16]))
}

/// Whether a letter waits for a person, and nobody else is at it.
pub(super) fn free(letter: &Letter, now: Timestamp, action: &'static str) -> Result<(), Error> {
    if letter.status != LetterStatus::Pending {
        return Err(Error::NotPending { id: letter.id.to_string(), status: letter.status, action });
    }
    if letter.claim.as_ref().is_some_and(|claim| now < claim.until) {
        return Err(Error::Busy(letter.id.to_string()));
    }
    Ok(())
}

pub(super) fn within(letter: &Letter, most_replays: u32) -> Result<(), Error> {
    if letter.replays >= most_replays {
        return Err(Error::TooManyReplays { id: letter.id.to_string(), replays: letter.replays });
    }
    Ok(())
}

pub(super) fn claimed(letter: &Letter, now: Timestamp, by: &str, most_replays: u32) -> Result<Letter, Error> {
    free(letter, now, "replayed")?;
    within(letter, most_replays)?;
    let claim = Claim { by: by.to_owned(), until: now.saturating_add(CLAIM) };
    Ok(Letter { claim: Some(claim), ..letter.clone() })
}

/// A letter whose message the broker has. It may have died again already: then it is pending, and this replay counts, once.
pub(super) fn sent(letter: &Letter, now: Timestamp, by: &str, replay: u32, actor: &Actor) -> Letter {
    let is_ours = letter.claim.as_ref().is_some_and(|claim| claim.by == by);
    let letter = Letter { replays: letter.replays.max(replay), ..acted(letter, now, "replay", actor) };
    if is_ours {
        Letter { status: LetterStatus::Replayed, finished_at: Some(now), claim: None, ..letter }
    } else {
        letter
    }
}

pub(super) fn acted(letter: &Letter, now: Timestamp, what: &str, actor: &Actor) -> Letter {
    let mut history = letter.history.clone();
    let (who, why) = (actor.who.clone(), actor.why.clone());
    history.push(LetterAction { at: now, what: what.to_owned(), who, why, before: None });
    Letter { history, ..letter.clone() }
}

pub(super) fn check_payload(content_type: &str, payload: &Bytes) -> Result<(), Error> {
    if payload.len() > limit::PAYLOAD {
        return Err(Error::Payload(format!("it has {} bytes, and {} are the most", payload.len(), limit::PAYLOAD)));
    }
    if message::is_json(content_type)
        && let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(payload)
    {
        return Err(Error::Payload(format!("it is not JSON, as its content type {content_type:?} says: {error}")));
    }
    Ok(())
}

/// The message of a replay: what it was, under a new id for the broker, which may drop a second one of the old id. What it is known
/// by is in a header of ours.
pub(super) fn replayed_message(letter: &Letter) -> Message {
    let mut headers = letter.headers.clone();
    headers.push((REPLAY_FOR.into(), letter.consumer.clone()));
    headers.push((REPLAY_NUMBER.into(), (letter.replays + 1).to_string()));
    headers.push((REPLAY_OF.into(), letter.event_id.clone()));
    let mut attributes: Vec<_> =
        letter.attributes.iter().map(|(name, value)| (name.clone().into(), value.clone())).collect();
    let is_structured = letter.content_type.starts_with(message::STRUCTURED);
    if !is_structured && !letter.attributes.iter().any(|(name, _)| name == "id") {
        // No CloudEvent: its id was the broker's. Readers without this crate would not know it again.
        attributes.push(("id".into(), letter.event_id.clone()));
    }
    Message {
        topic: letter.topic.as_str().into(),
        key: letter.key.as_deref().map(Key::from),
        id: pillarbox_core::new_id(),
        content_type: letter.content_type.as_str().into(),
        attributes,
        headers,
        payload: letter.payload.clone(),
    }
}
