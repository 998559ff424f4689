//! What operators have done, and the one thing they change in an event.

use std::{fmt::Write as _, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Actor, BoxFuture, StoreError};
use crate::domain::{Payload, Seq, Timestamp};

/// What can be done to a dead event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActionKind {
    /// Made due again.
    Replay,
    /// Removed.
    Discard,
    /// Its key goes on without it.
    Skip,
    /// Given another payload.
    Edit,
}

impl ActionKind {
    /// The name in the table.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Replay => "REPLAY",
            Self::Discard => "DISCARD",
            Self::Skip => "SKIP",
            Self::Edit => "EDIT",
        }
    }
}

/// An action as it was recorded, in the same transaction as its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// Its number; later actions have higher ones.
    pub number: i64,
    /// When, by the database's clock.
    pub at: Timestamp,
    /// Who, and why.
    pub actor: Actor,
    /// What: the name of an [`ActionKind`].
    pub action: String,
    /// To which event.
    pub seq: Option<Seq>,
    /// Its id, as it stands in the table.
    pub event_id: Option<String>,
    /// Its type.
    pub event_type: Option<String>,
    /// The payload that an edit has replaced.
    pub before: Option<Payload>,
}

/// Picks actions; unset fields match everything.
#[derive(Clone, Debug, Default)]
pub struct ActionQuery {
    /// On the event of this id, as it stands in the table: what SQL has written need not be an id of ours.
    pub event_id: Option<String>,
    /// On the event of this number. No index serves it.
    pub seq: Option<Seq>,
    /// By this actor.
    pub who: Option<String>,
}

/// A page of actions, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// The actions.
    pub actions: Vec<Action>,
    /// Where the next page begins, if there is one.
    pub next: Option<i64>,
}

/// The operators' port beside [`AdminStore`](super::AdminStore), whose actions are recorded where this one reads.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store of an outbox",
    note = "open one by its URL, as in `SqliteStore::open(\"shop.db\")`, `PostgresStore::open(url)` or `AnyStore::open(url)`",
    note = "or on a pool of your own: `PostgresStore::from_pool(pool)`"
)]
pub trait ActionStore: Send + Sync {
    /// Gives a DEAD event another payload, content type included, and records the actor with the payload that was
    /// there, in one transaction. The event stays DEAD, its key held. Another status is left alone: `false`.
    ///
    /// The caller has checked the payload as the builder of an event does.
    fn edit<'a>(&'a self, seq: Seq, payload: &'a Payload, actor: &'a Actor) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// The actions that match, the newest first: those up to the number `from` where one is given.
    fn actions<'a>(
        &'a self,
        query: &'a ActionQuery,
        from: Option<i64>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Actions, StoreError>>;

    /// Removes actions that are older than this, a batch of the oldest at most. Returns how many. None that are too
    /// young are looked at, but for one batch.
    fn purge_actions(&self, older_than: Duration, batch: u32) -> BoxFuture<'_, Result<u64, StoreError>>;
}

/// What stands in the column for details.
#[derive(Serialize, Deserialize)]
struct Details {
    before: Before,
}

#[derive(Serialize, Deserialize)]
struct Before {
    content_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

/// The details of an edit as stores keep them: the payload that it replaces. Text stays readable.
pub fn details_of_edit(before: &Payload) -> String {
    let text = before.as_text().filter(|text| !text.contains('\0')).map(ToOwned::to_owned);
    let hex = text.is_none().then(|| {
        before.as_bytes().iter().fold(String::with_capacity(before.len() * 2), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    });
    let details = Details { before: Before { content_type: before.content_type().to_owned(), text, hex } };
    serde_json::to_string(&details).unwrap_or_default()
}

/// The payload that [`details_of_edit`] has kept.
pub fn payload_before(details: &str) -> Option<Payload> {
    let Details { before: Before { content_type, text, hex } } = serde_json::from_str(details).ok()?;
    if let Some(text) = text {
        return Some(Payload::stored(content_type, text, true));
    }
    let hex = hex?;
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let bytes = hex.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    Some(Payload::stored(content_type, bytes.collect::<Option<Vec<u8>>>()?, false))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_payload_before_an_edit_comes_back() {
        let text = Payload::json_text("{ \"a\": \"\\u0000 \\\"x\\\"\" }").unwrap();
        assert_eq!(payload_before(&details_of_edit(&text)), Some(text.clone()));
        assert!(details_of_edit(&text).contains("\"text\""), "text stays readable");
        assert_eq!(payload_before("{}"), None);
        assert_eq!(payload_before("{\"before\":{\"content_type\":\"a\",\"hex\":\"0\"}}"), None);
        assert_eq!(payload_before("{\"before\":{\"content_type\":\"a\",\"hex\":\"zz\"}}"), None);
    }

    proptest! {
        #[test]
        fn bytes_come_back_too(bytes: Vec<u8>, content_type in "[a-z]{1,5}/[a-z]{1,5}") {
            let payload = Payload::bytes(content_type, bytes);
            prop_assert_eq!(payload_before(&details_of_edit(&payload)), Some(payload));
        }
    }
}
