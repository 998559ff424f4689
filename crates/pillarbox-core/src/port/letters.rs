//! Dead letters: messages that a consumer has given up.

use std::{cmp::Ordering, fmt};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{BoxFuture, DeedStore, StoreError};
use crate::domain::Timestamp;

/// Keeps dead letters. What may be done to a letter is decided above this port; a store only compares and sets. The exam that
/// every adapter passes is `pillarbox_testkit::letters`.
pub trait LetterStore: DeedStore {
    /// Stores a new letter. `false`, and nothing is changed, if there is one of this id.
    fn insert<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Stores a letter in place of its [predecessor](Letter::version). `false`, and nothing is changed, if that is not what
    /// is stored.
    fn replace<'a>(&'a self, letter: &'a Letter) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// The letter of an id.
    fn find<'a>(&'a self, id: &'a LetterId) -> BoxFuture<'a, Result<Option<Letter>, StoreError>>;

    /// Letters that match, the newest first, then by id, after a place in that order. With
    /// [`oldest_first`](LetterQuery::oldest_first) the other way round, ids included.
    fn list<'a>(
        &'a self,
        query: &'a LetterQuery,
        after: Option<&'a LetterPlace>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Letter>, StoreError>>;

    /// How many letters match.
    fn count<'a>(&'a self, query: &'a LetterQuery) -> BoxFuture<'a, Result<u64, StoreError>>;

    /// Removes letters that were finished before a time, at most so many, and says how many. Pending ones never.
    fn purge(&self, finished_before: Timestamp, most: u32) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// The store's time.
    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>>;
}

/// The id of a dead letter: that of a consumer and a message, so that a message that dies again is the same letter. 32 hex
/// digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LetterId(pub String);

impl fmt::Display for LetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a dead letter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LetterStatus {
    /// It waits for a person.
    Pending,
    /// It was sent again, and has not come back.
    Replayed,
    /// A person has said that it does not matter.
    Discarded,
}

impl LetterStatus {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pending, Self::Replayed, Self::Discarded];

    /// As it stands in tables and documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Replayed => "REPLAYED",
            Self::Discarded => "DISCARDED",
        }
    }
}

impl fmt::Display for LetterStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for LetterStatus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|status| status.as_str().eq_ignore_ascii_case(text));
        found.ok_or_else(|| format!("{text:?} is no status: there are PENDING, REPLAYED and DISCARDED"))
    }
}

/// A message that a consumer has given up, with everything that is needed to send it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Letter {
    /// Of the consumer and the message.
    pub id: LetterId,
    /// Counts the changes, from 0: a letter takes the place of the one before.
    pub version: u64,
    /// Which consumer gave it up.
    pub consumer: String,
    /// The event's id, as it was sent.
    pub event_id: String,
    /// The event's type.
    pub event_type: String,
    /// Where it was sent to, and where a replay goes.
    pub topic: String,
    /// What had to stay in order.
    pub key: Option<String>,
    /// Of the payload.
    pub content_type: String,
    /// CloudEvents attributes that travelled beside the payload.
    pub attributes: Vec<(String, String)>,
    /// All other headers.
    pub headers: Vec<(String, String)>,
    /// The body, to the byte.
    #[serde(with = "body")]
    pub payload: Bytes,
    /// Why it was given up, the last time.
    pub reason: String,
    /// How often it was tried, the last time.
    pub attempts: u32,
    /// When it was given up, the last time.
    #[serde(with = "micros")]
    pub dead_at: Timestamp,
    /// The service that sent it.
    pub source: Option<String>,
    /// The saga it belongs to.
    pub saga_id: Option<String>,
    /// What it is an answer to, or part of.
    pub correlation_id: Option<String>,
    /// How often it was sent again.
    pub replays: u32,
    /// Where it stands.
    pub status: LetterStatus,
    /// When it was replayed or discarded.
    #[serde(with = "micros::optional")]
    pub finished_at: Option<Timestamp>,
    /// Who is sending it again right now.
    pub claim: Option<Claim>,
    /// What people have done to it, oldest first.
    pub history: Vec<LetterAction>,
}

/// Somebody is about to do something to a letter, and others keep away until then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Of this call alone.
    pub by: String,
    /// After this time the claim is void: its owner has died on the way.
    #[serde(with = "micros")]
    pub until: Timestamp,
}

/// What a person has done to a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterAction {
    /// When.
    #[serde(with = "micros")]
    pub at: Timestamp,
    /// What: `replay`, `discard`, `edit`.
    pub what: String,
    /// Who.
    pub who: String,
    /// Why.
    pub why: Option<String>,
    /// The payload that an edit has replaced, to the byte.
    #[serde(with = "body::optional", default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Bytes>,
}

/// Picks letters; unset fields match everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterQuery {
    /// In this status.
    pub status: Option<LetterStatus>,
    /// Of this consumer.
    pub consumer: Option<String>,
    /// Of this event type.
    pub event_type: Option<String>,
    /// Of this topic.
    pub topic: Option<String>,
    /// Of this event.
    pub event_id: Option<String>,
    /// Of this saga.
    pub saga_id: Option<String>,
    /// Of this correlation.
    pub correlation_id: Option<String>,
    /// Given up at this time or later.
    pub from: Option<Timestamp>,
    /// Given up before this time.
    pub until: Option<Timestamp>,
    /// With this text in the reason or the payload; letters of the alphabet in either case.
    pub text: Option<String>,
    /// From old to new, instead of from new to old. Counts don't care.
    pub oldest_first: bool,
}

impl LetterQuery {
    /// The order of a list: for stores that can't ask their database.
    pub fn order(&self, one: &Letter, other: &Letter) -> Ordering {
        let newest_first = (other.dead_at, &one.id).cmp(&(one.dead_at, &other.id));
        if self.oldest_first { newest_first.reverse() } else { newest_first }
    }

    /// Whether a letter comes after a place in the order of a list: for stores that can't ask their database.
    pub fn is_after(&self, letter: &Letter, place: &LetterPlace) -> bool {
        let newest_first = (letter.dead_at, &place.id).cmp(&(place.dead_at, &letter.id));
        newest_first == if self.oldest_first { Ordering::Greater } else { Ordering::Less }
    }

    /// Whether a letter matches: for stores that can't ask their database.
    pub fn matches(&self, letter: &Letter) -> bool {
        let is = |asked: &Option<String>, has: &str| asked.as_ref().is_none_or(|asked| asked == has);
        let has = |asked: &Option<String>, has: &Option<String>| asked.is_none() || asked == has;
        self.status.is_none_or(|status| status == letter.status)
            && is(&self.consumer, &letter.consumer)
            && is(&self.event_type, &letter.event_type)
            && is(&self.topic, &letter.topic)
            && is(&self.event_id, &letter.event_id)
            && has(&self.saga_id, &letter.saga_id)
            && has(&self.correlation_id, &letter.correlation_id)
            && self.from.is_none_or(|from| letter.dead_at >= from)
            && self.until.is_none_or(|until| letter.dead_at < until)
            && self.text.as_ref().is_none_or(|text| {
                let text = text.to_ascii_lowercase();
                let holds = |in_text: &str| in_text.to_ascii_lowercase().contains(&text);
                holds(&letter.reason) || holds(&String::from_utf8_lossy(&letter.payload))
            })
    }
}

/// A place in the order of a list of letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterPlace {
    /// When the letter there was given up.
    pub dead_at: Timestamp,
    /// Its id.
    pub id: LetterId,
}

impl LetterPlace {
    /// The place of a letter.
    pub fn of(letter: &Letter) -> Self {
        Self { dead_at: letter.dead_at, id: letter.id.clone() }
    }
}

impl Letter {
    /// The letter as one document, for stores that keep such.
    pub fn to_json(&self) -> Vec<u8> {
        // Texts, numbers and lists of them: there is nothing that could not be written.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// A letter from its document.
    pub fn from_json(document: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(document)
    }
}

/// Text as it is, and other bytes in hex.
mod body {
    use std::fmt::Write as _;

    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Body {
        Text(String),
        Hex(String),
    }

    fn hex(body: &Bytes) -> String {
        body.iter().fold(String::with_capacity(body.len() * 2), |mut hex, byte| {
            // A text takes everything.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }

    pub(super) fn serialize<S: Serializer>(body: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(body) {
            Ok(text) => Body::Text(text.to_owned()),
            Err(_) => Body::Hex(hex(body)),
        }
        .serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        match Body::deserialize(from)? {
            Body::Text(text) => Ok(text.into()),
            Body::Hex(hex) => {
                let byte =
                    |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
                let bytes: Option<Vec<u8>> = hex.as_bytes().chunks(2).map(byte).collect();
                Ok(bytes.ok_or_else(|| D::Error::custom("the payload is not in hex"))?.into())
            }
        }
    }

    pub(super) mod optional {
        use bytes::Bytes;
        use serde::{Deserializer, Serializer};

        #[expect(clippy::ref_option, reason = "the shape that serde asks for")]
        pub(in super::super) fn serialize<S: Serializer>(body: &Option<Bytes>, to: S) -> Result<S::Ok, S::Error> {
            match body {
                Some(body) => super::serialize(body, to),
                None => to.serialize_none(),
            }
        }

        /// Who has none leaves it out.
        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
            super::deserialize(from).map(Some)
        }
    }
}

/// Times as microseconds since 1970.
mod micros {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::domain::Timestamp;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
    pub(super) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        time.as_micros().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        i64::deserialize(from).map(Timestamp::from_micros)
    }

    pub(super) mod optional {
        use serde::{Deserialize, Deserializer, Serialize, Serializer};

        use crate::domain::Timestamp;

        #[expect(clippy::ref_option, reason = "the shape that serde asks for")]
        pub(in super::super) fn serialize<S: Serializer>(time: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
            time.map(Timestamp::as_micros).serialize(to)
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
            Ok(Option::<i64>::deserialize(from)?.map(Timestamp::from_micros))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(payload: &'static [u8]) -> Letter {
        Letter {
            id: LetterId("0f".repeat(16)),
            version: 3,
            consumer: "billing".into(),
            event_id: "e-1".into(),
            event_type: "OrderPlaced".into(),
            topic: "orders".into(),
            key: Some("order-7".into()),
            content_type: "application/json".into(),
            attributes: vec![("id".into(), "e-1".into())],
            headers: vec![("h".into(), "ä\n".into())],
            payload: Bytes::from_static(payload),
            reason: "Card Declined".into(),
            attempts: 10,
            dead_at: Timestamp::from_micros(17),
            source: None,
            saga_id: Some("s".into()),
            correlation_id: None,
            replays: 1,
            status: LetterStatus::Pending,
            finished_at: Some(Timestamp::from_micros(16)),
            claim: Some(Claim { by: "x".into(), until: Timestamp::from_micros(18) }),
            history: vec![LetterAction {
                at: Timestamp::from_micros(16),
                what: "replay".into(),
                who: "ada".into(),
                why: None,
                before: Some(Bytes::from_static(payload)),
            }],
        }
    }

    #[test]
    fn a_document_gives_the_letter_back() {
        for payload in [&b"{\"a\": 1}"[..], b"", b"\xff\x00\x80", "grün".as_bytes()] {
            let letter = letter(payload);
            assert_eq!(Letter::from_json(&letter.to_json()).unwrap(), letter);
        }
        assert!(Letter::from_json(b"{}").is_err());
        // As it was written before edits kept what they replaced.
        let action = serde_json::from_str::<LetterAction>(r#"{"at": 1, "what": "edit", "who": "ada", "why": null}"#);
        assert_eq!(action.unwrap().before, None);
    }

    #[test]
    fn a_query_asks_for_everything_that_is_set() {
        let letter = letter(b"{\"card\": \"4711\"}");
        assert!(LetterQuery::default().matches(&letter));
        let some = |text: &str| Some(text.to_owned());
        let matching = LetterQuery {
            status: Some(LetterStatus::Pending),
            consumer: some("billing"),
            event_type: some("OrderPlaced"),
            topic: some("orders"),
            event_id: some("e-1"),
            saga_id: some("s"),
            correlation_id: None,
            from: Some(Timestamp::from_micros(17)),
            until: Some(Timestamp::from_micros(18)),
            text: some("declined"),
            oldest_first: true,
        };
        assert!(matching.matches(&letter));
        assert!(LetterQuery { text: some("CARD"), ..matching.clone() }.matches(&letter));
        for other in [
            LetterQuery { status: Some(LetterStatus::Replayed), ..matching.clone() },
            LetterQuery { consumer: some("shipping"), ..matching.clone() },
            LetterQuery { event_type: some("x"), ..matching.clone() },
            LetterQuery { topic: some("x"), ..matching.clone() },
            LetterQuery { event_id: some("x"), ..matching.clone() },
            LetterQuery { saga_id: some("x"), ..matching.clone() },
            LetterQuery { correlation_id: some("x"), ..matching.clone() },
            LetterQuery { from: Some(Timestamp::from_micros(18)), ..matching.clone() },
            LetterQuery { until: Some(Timestamp::from_micros(17)), ..matching.clone() },
            LetterQuery { text: some("nothing of the kind"), ..matching.clone() },
        ] {
            assert!(!other.matches(&letter), "{other:?}");
        }
    }

    #[test]
    fn a_list_goes_from_new_to_old_and_then_by_id_or_the_other_way_round() {
        let here = letter(b"");
        let place = LetterPlace::of(&here);
        let older = Letter { dead_at: Timestamp::from_micros(16), ..here.clone() };
        let newer = Letter { dead_at: Timestamp::from_micros(18), ..here.clone() };
        let greater = Letter { id: LetterId("ff".repeat(16)), ..here.clone() };
        let lesser = Letter { id: LetterId("00".repeat(16)), ..here.clone() };
        let newest_first = LetterQuery::default();
        let oldest_first = LetterQuery { oldest_first: true, ..LetterQuery::default() };
        for (letter, after) in [(&here, None), (&older, Some(true)), (&newer, Some(false))] {
            assert_eq!(newest_first.is_after(letter, &place), after == Some(true));
            assert_eq!(oldest_first.is_after(letter, &place), after == Some(false));
        }
        for (letter, after) in [(&greater, true), (&lesser, false)] {
            assert_eq!(newest_first.is_after(letter, &place), after);
            assert_eq!(oldest_first.is_after(letter, &place), !after);
        }
        let mut all = [&here, &older, &newer, &greater, &lesser];
        all.sort_by(|one, other| newest_first.order(one, other));
        assert_eq!(all, [&newer, &lesser, &here, &greater, &older]);
        all.sort_by(|one, other| oldest_first.order(one, other));
        assert_eq!(all, [&older, &greater, &here, &lesser, &newer]);
    }
}
