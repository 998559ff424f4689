//! Consumers' dead letters.

use axum::{Json, body::Bytes, http::StatusCode, response::IntoResponse};
use pillarbox_core::{
    domain::{Payload, Timestamp},
    port::{
        Actor, BoxFuture, Deed, DeedPlace, DeedQuery, Letter, LetterId, LetterPlace, LetterQuery, LetterStatus,
        StoreError, StoreErrorKind,
    },
};
use serde::Serialize;
use serde_json::json;
use tokio::time::timeout;

use crate::{
    call::Call,
    events::new_payload,
    filter::{self, Words},
    problem::Problem,
    redact::Eyes,
    view::Body,
};

type Answer = Result<axum::response::Response, Problem>;

/// What a queue answers.
pub type Asked<'a, T> = BoxFuture<'a, Result<T, LetterError>>;

/// A queue of dead letters, and what is done to them. Every action is recorded in the letter's history.
pub trait Letters: Send + Sync + 'static {
    /// Letters that match, the newest first, after a place in that order.
    fn list<'a>(&'a self, query: &'a LetterQuery, after: Option<&'a LetterPlace>, limit: u32)
    -> Asked<'a, Vec<Letter>>;

    /// How many letters match.
    fn count<'a>(&'a self, query: &'a LetterQuery) -> Asked<'a, u64>;

    /// The letter of an id.
    fn find<'a>(&'a self, id: &'a LetterId) -> Asked<'a, Option<Letter>>;

    /// What was done to letters, the newest first, after a place in that order.
    fn deeds<'a>(&'a self, query: &'a DeedQuery, after: Option<&'a DeedPlace>, limit: u32) -> Asked<'a, Vec<Deed>>;

    /// Sends a pending letter again. If the future is dropped, because nobody waits for it any more, what was begun has to come to its
    /// end all the same: else a message may be sent without a trace.
    fn replay<'a>(&'a self, id: &'a LetterId, actor: &'a Actor) -> Asked<'a, ()>;

    /// Whether a pending letter could be sent again, as far as it can be told without doing so: what a dry run asks. What
    /// [`replay`](Self::replay) would answer to all or to a letter like this one is answered here too.
    fn may_replay(&self, letter: &Letter) -> Result<(), LetterError>;

    /// Puts a pending letter aside for good.
    fn discard<'a>(&'a self, id: &'a LetterId, actor: &'a Actor) -> Asked<'a, ()>;

    /// Gives a pending letter another payload, of the same content type. The one that was there is kept in the history.
    fn edit<'a>(&'a self, id: &'a LetterId, payload: Bytes, actor: &'a Actor) -> Asked<'a, ()>;
}

/// Why nothing was done to a letter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LetterError {
    /// There is none of this id.
    #[error("there is no dead letter {0}")]
    Unknown(LetterId),
    /// It is not pending, or somebody is at it; the words say which.
    #[error("{0}")]
    Refused(String),
    /// No letter can be sent from here; the words say what is missing.
    #[error("{0}")]
    NoWayBack(String),
    /// The payload is none that it may have.
    #[error("dead letter {id} can't be given this payload: {why}")]
    Payload {
        /// Which.
        id: LetterId,
        /// What is wrong with it.
        why: String,
    },
    /// It could not be sent; it stays pending.
    #[error("dead letter {id} could not be sent: {why}")]
    NotSent {
        /// Which.
        id: LetterId,
        /// What the broker said.
        why: String,
    },
    /// The store failed.
    #[error("the store of the dead letters failed")]
    Store(#[from] StoreError),
}

impl LetterError {
    /// Whether its store refuses to keep the letter so, as a bucket of NATS one that is too large.
    pub(crate) fn is_of_the_letter(&self) -> bool {
        matches!(self, Self::Store(error) if error.kind() == StoreErrorKind::Rejected)
    }

    /// The problem of who acts, and not only looks.
    pub(crate) fn of_action(self) -> Problem {
        match self {
            Self::Store(error) if error.kind() == StoreErrorKind::Rejected => {
                tracing::warn!(error = &error as &dyn std::error::Error, "a dead letter could not be stored");
                Problem::unprocessable(format!("the store of the dead letters does not take it: {error}"))
            }
            other => other.into(),
        }
    }
}

impl From<LetterError> for Problem {
    fn from(error: LetterError) -> Self {
        match error {
            LetterError::Unknown(id) => Self::not_found("dead letter", &id.0),
            LetterError::Refused(why) | LetterError::NoWayBack(why) => Self::conflict(why),
            LetterError::NotSent { ref id, .. } => {
                tracing::warn!(error = &error as &dyn std::error::Error, "a dead letter could not be sent again");
                Self::unavailable(format!("dead letter {id} could not be sent, and stays pending; the log says why"))
            }
            LetterError::Payload { .. } => Self::unprocessable(error.to_string()),
            LetterError::Store(error) if error.kind() == StoreErrorKind::Schema => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the dead letters can't be read");
                Self::unavailable(
                    "the inbox's tables, which hold the dead letters, are missing or of another version: run pillarbox \
                     migrate --inbox, or start a consumer, which makes them",
                )
            }
            LetterError::Store(error) => error.into(),
        }
    }
}

/// A letter as it is shown.
#[derive(Debug, Serialize)]
pub(crate) struct LetterView {
    id: String,
    consumer: String,
    status: &'static str,
    event_id: String,
    #[serde(rename = "type")]
    event_type: String,
    topic: String,
    key: Option<String>,
    source: Option<String>,
    saga_id: Option<String>,
    correlation_id: Option<String>,
    attempts: u32,
    replays: u32,
    reason: String,
    dead_at: String,
    finished_at: Option<String>,
    headers: Vec<(String, String)>,
    #[serde(flatten)]
    body: Body,
    history: Vec<DeedView>,
}

#[derive(Debug, Serialize)]
struct DeedView {
    at: String,
    action: String,
    who: String,
    why: Option<String>,
    /// What an edit has replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Body>,
}

impl LetterView {
    pub(crate) fn of(letter: &Letter, eyes: Eyes<'_>, payload: bool) -> Self {
        let (body, mut taken) = Body::of(&payload_of(letter), eyes, payload);
        let headers = letter.attributes.iter().chain(&letter.headers);
        let headers = headers.map(|(name, value)| (name.clone(), eyes.header(name, value, &mut taken))).collect();
        let mut history = Vec::new();
        for deed in &letter.history {
            let before =
                deed.before.as_ref().map(|before| Body::of(&stored(&letter.content_type, before), eyes, payload));
            let (before, of_before) = before.unzip();
            let (at, action, who) = (deed.at.to_string(), deed.what.clone(), deed.who.clone());
            history.push(DeedView { at, action, who, why: deed.why.clone(), before });
            // The reason may quote what was there before an edit. Letters of older versions have not kept it.
            match of_before {
                Some(of_before) => taken.add(of_before),
                None if deed.what == "edit" => taken.add(eyes.unread()),
                None => {}
            }
        }
        Self {
            id: letter.id.to_string(),
            consumer: letter.consumer.clone(),
            status: letter.status.as_str(),
            event_id: letter.event_id.clone(),
            event_type: letter.event_type.clone(),
            topic: letter.topic.clone(),
            key: letter.key.clone(),
            source: letter.source.clone(),
            saga_id: letter.saga_id.clone(),
            correlation_id: letter.correlation_id.clone(),
            attempts: letter.attempts,
            replays: letter.replays,
            reason: eyes.error(&letter.reason, &taken),
            dead_at: letter.dead_at.to_string(),
            finished_at: letter.finished_at.map(|time| time.to_string()),
            headers,
            body,
            history,
        }
    }
}

fn payload_of(letter: &Letter) -> Payload {
    stored(&letter.content_type, &letter.payload)
}

pub(crate) fn stored(content_type: &str, payload: &Bytes) -> Payload {
    Payload::stored(content_type, payload.clone(), std::str::from_utf8(payload).is_ok())
}

#[derive(Serialize)]
struct Page {
    letters: Vec<LetterView>,
    next: Option<String>,
}

const FILTERS: &[&str] =
    &["status", "consumer", "type", "topic", "event_id", "saga_id", "correlation_id", "from", "until", "text"];

/// What narrows pending letters.
pub(crate) const NAMES: &[&str] =
    &["consumer", "type", "topic", "event_id", "saga_id", "correlation_id", "from", "until", "text"];

pub(crate) fn narrowed(words: &impl Words, eyes: Eyes<'_>) -> Result<LetterQuery, Problem> {
    Ok(LetterQuery {
        consumer: words.word("consumer")?,
        event_type: words.word("type")?,
        topic: words.word("topic")?,
        event_id: words.word("event_id")?,
        saga_id: words.word("saga_id")?,
        correlation_id: words.word("correlation_id")?,
        from: filter::time(words, "from")?,
        until: filter::time(words, "until")?,
        text: filter::text(words, eyes)?,
        ..LetterQuery::default()
    })
}

fn query(call: &Call) -> Result<LetterQuery, Problem> {
    let params = &call.params;
    let status = match params.text("status")?.as_deref() {
        // What waits for a person is what one looks for.
        None => Some(LetterStatus::Pending),
        Some("ALL" | "all") => None,
        Some(name) => {
            let allowed = "PENDING (the default), REPLAYED, DISCARDED or ALL";
            let read = name.parse::<LetterStatus>();
            Some(read.map_err(|error| Problem::bad_parameter("status", error, allowed))?)
        }
    };
    Ok(LetterQuery { status, ..narrowed(params, call.eyes())? })
}

/// So many are read at once.
const READ: u32 = 50;

pub(crate) async fn list(call: Call) -> Answer {
    call.params.only(&[FILTERS, &["limit", "cursor", "payloads"]].concat())?;
    let query = query(&call)?;
    let limit = call.params.limit(&call.desk)?;
    let after = call.params.text("cursor")?.map(|text| read_place(&text)).transpose()?;
    let payloads = call.params.flag("payloads", true)?;
    let (letters, next) = page(&call, letters(&call)?, &query, after, limit).await?;
    let letters = letters.iter().map(|letter| LetterView::of(letter, call.eyes(), payloads)).collect();
    Ok(Json(Page { letters, next: next.as_ref().map(write_place) }).into_response())
}

/// A page that ends early where its payloads are too many bytes.
pub(crate) async fn page(
    call: &Call,
    letters: &dyn Letters,
    query: &LetterQuery,
    mut after: Option<LetterPlace>,
    limit: u32,
) -> Result<(Vec<Letter>, Option<LetterPlace>), Problem> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    loop {
        let left = limit - u32::try_from(found.len()).unwrap_or(limit);
        // One more than asked for tells whether there is a next page.
        let read = left.min(READ);
        let mut some = letters.list(query, after.as_ref(), read + 1).await?;
        let more = some.len() > read as usize;
        some.truncate(read as usize);
        bytes += some.iter().map(|letter| letter.payload.len()).sum::<usize>();
        after = some.last().map(LetterPlace::of);
        found.extend(some);
        if !more {
            return Ok((found, None));
        }
        if found.len() >= limit as usize || bytes >= call.desk.limits.page_bytes {
            return Ok((found, after));
        }
    }
}

pub(crate) async fn count(call: Call) -> Answer {
    call.params.only(FILTERS)?;
    let count = letters(&call)?.count(&query(&call)?).await?;
    Ok(Json(json!({ "count": count })).into_response())
}

pub(crate) async fn show(call: Call) -> Answer {
    call.params.only(&[])?;
    let id = id(&call)?;
    let letter = letters(&call)?.find(&id).await?;
    let letter = letter.ok_or_else(|| Problem::not_found("dead letter", call.id()))?;
    Ok(Json(LetterView::of(&letter, call.eyes(), true)).into_response())
}

pub(crate) async fn replay(call: Call) -> Answer {
    let actor = call.plain_actor()?;
    let (id, queue) = (id(&call)?, letters(&call)?);
    // Before the request's own time is over, whose end says nothing of what goes on.
    let Ok(replayed) = timeout(call.desk.limits.time.mul_f32(0.9), queue.replay(&id, &actor)).await else {
        tracing::info!(
            who = call.identity.name,
            action = "replay",
            letter = call.id(),
            "an operator acted: it is under way"
        );
        return Err(Problem::under_way(&id.0));
    };
    replayed.map_err(LetterError::of_action)?;
    tracing::info!(who = call.identity.name, action = "replay", letter = call.id(), "an operator acted");
    Ok(Json(json!({ "id": call.id(), "action": "replay" })).into_response())
}

pub(crate) async fn discard(call: Call) -> Answer {
    let actor = call.plain_actor()?;
    letters(&call)?.discard(&id(&call)?, &actor).await.map_err(LetterError::of_action)?;
    tracing::info!(who = call.identity.name, action = "discard", letter = call.id(), "an operator acted");
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(crate) async fn edit(call: Call) -> Answer {
    call.actor(None)?;
    call.params.only(&[])?;
    let fields = call.fields(&["payload", "payload_base64", "because"])?;
    let actor = call.actor(fields.because()?)?;
    let (id, queue) = (id(&call)?, letters(&call)?);
    let letter = queue.find(&id).await?.ok_or_else(|| Problem::not_found("dead letter", call.id()))?;
    let payload = new_payload(&fields, letter.content_type)?;
    queue.edit(&id, payload.as_bytes().clone(), &actor).await.map_err(LetterError::of_action)?;
    tracing::info!(who = call.identity.name, action = "edit", letter = call.id(), "an operator acted");
    Ok(Json(json!({ "id": call.id(), "action": "edit" })).into_response())
}

pub(crate) fn letters(call: &Call) -> Result<&dyn Letters, Problem> {
    let none = "this service has no dead letter queue: its database has no inbox's tables, which a consumer makes when it \
                starts, or pillarbox migrate --inbox; a program of your own gives it one with Admin::letters";
    call.desk.letters.as_deref().ok_or_else(|| Problem::missing(none))
}

/// What can't be an id is not asked for.
fn id(call: &Call) -> Result<LetterId, Problem> {
    let id = call.id();
    is_id(id).then(|| LetterId(id.to_ascii_lowercase())).ok_or_else(|| Problem::not_found("dead letter", id))
}

pub(crate) fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

pub(crate) fn write_place(place: &LetterPlace) -> String {
    format!("{}-{}", place.dead_at.as_micros(), place.id)
}

pub(crate) fn read_place(text: &str) -> Result<LetterPlace, Problem> {
    let refused = || Problem::bad_parameter("cursor", "it is no cursor", "`next` of the page before");
    // From the end: a time before 1970 begins with the same sign.
    let (micros, id) = text.rsplit_once('-').ok_or_else(refused)?;
    let dead_at = micros.parse().map(Timestamp::from_micros).ok().filter(|_| is_id(id)).ok_or_else(refused)?;
    Ok(LetterPlace { dead_at, id: LetterId(id.to_owned()) })
}
