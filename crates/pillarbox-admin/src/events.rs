//! The outbox's own events.

use axum::{Json, http::StatusCode, response::IntoResponse};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use pillarbox_core::{
    domain::{Payload, Seq, Status},
    engine::{Bulk, BulkDone, Dead, EventRef},
    port::{ActionKind, ActionQuery, Actor, Found, Query, Store},
};
use serde::Serialize;

use crate::{
    call::{Call, Fields},
    filter,
    problem::Problem,
    redact::Taken,
    view::{EventView, FleetView, StatsView},
};

type Answer = Result<axum::response::Response, Problem>;

/// So many rows are read at once: each may have a payload of a mebibyte.
const READ: u32 = 50;

#[derive(Serialize)]
struct Page {
    events: Vec<EventView>,
    next: Option<String>,
}

#[derive(Serialize)]
struct Count {
    count: u64,
}

/// What was done to one event.
#[derive(Serialize)]
struct Done<'a> {
    id: &'a str,
    action: &'static str,
}

/// What was done to many.
#[derive(Serialize)]
struct Many {
    changed: u64,
    dry_run: bool,
    next: Option<String>,
}

const LIST: &[&str] = &[
    "status",
    "type",
    "aggregate_type",
    "aggregate_id",
    "tenant",
    "key",
    "from",
    "until",
    "text",
    "order",
    "limit",
    "cursor",
    "payloads",
];

pub(crate) async fn list(call: Call) -> Answer {
    call.params.only(LIST)?;
    let query = Query {
        statuses: filter::statuses(&call.params)?,
        newest_first: filter::newest_first(&call.params)?,
        ..filter::query(&call.params, call.eyes())?
    };
    let limit = call.params.limit(&call.desk)?;
    let from = filter::cursor(call.params.text("cursor")?)?;
    let payloads = call.params.flag("payloads", true)?;
    let (found, next) = page(&call, &query, from, limit).await?;
    let mut events = Vec::new();
    for found in &found {
        events.push(view(&call, found, payloads).await?);
    }
    Ok(Json(Page { events, next: next.map(|next| next.to_string()) }).into_response())
}

/// A page that ends early where its payloads are too many bytes.
pub(crate) async fn page(
    call: &Call,
    query: &Query,
    from: Option<Seq>,
    limit: u32,
) -> Result<(Vec<Found>, Option<Seq>), Problem> {
    let first = if query.newest_first { Seq(i64::MAX) } else { Seq(0) };
    let (mut found, mut next, mut bytes) = (Vec::new(), Some(from.unwrap_or(first)), 0);
    while let Some(from) = next
        && found.len() < limit as usize
        && bytes < call.desk.limits.page_bytes
    {
        let left = limit - u32::try_from(found.len()).unwrap_or(limit);
        let listing = store(call)?.list(query, from, left.min(READ)).await?;
        let size = |found: &Found| found.record.as_ref().map_or(0, |record| record.event.payload().len());
        bytes += listing.events.iter().map(size).sum::<usize>();
        found.extend(listing.events);
        next = listing.next;
    }
    Ok((found, next))
}

pub(crate) async fn count(call: Call) -> Answer {
    call.params.only(&[
        "status",
        "type",
        "aggregate_type",
        "aggregate_id",
        "tenant",
        "key",
        "from",
        "until",
        "text",
    ])?;
    let query = Query { statuses: filter::statuses(&call.params)?, ..filter::query(&call.params, call.eyes())? };
    Ok(Json(Count { count: store(&call)?.count(&query).await? }).into_response())
}

pub(crate) async fn show(call: Call) -> Answer {
    call.params.only(&[])?;
    let found = named(&call, id(&call)?).await?;
    Ok(Json(view(&call, &found, true).await?).into_response())
}

async fn named(call: &Call, event: EventRef) -> Result<Found, Problem> {
    let (id, from) = match event {
        EventRef::Id(id) => (Some(id), Seq(0)),
        EventRef::Number(seq) => (None, seq),
    };
    let found = store(call)?.list(&Query { id, ..Query::default() }, from, 1).await?.events.pop();
    let found = found.filter(|found| id.is_some() || found.seq == from);
    found.ok_or_else(|| Problem::not_found("event", call.id()))
}

/// An event as the caller sees it.
pub(crate) async fn view(call: &Call, found: &Found, payloads: bool) -> Result<EventView, Problem> {
    let before = taken_before(call, found).await?;
    Ok(EventView::of(found, call.eyes(), payloads, before))
}

/// What is taken out of the payloads that edits have replaced, as far as the record goes back. Only who sees by paths makes
/// the store look for them, and only where there is an error.
async fn taken_before(call: &Call, found: &Found) -> Result<Taken, Problem> {
    let (eyes, mut taken) = (call.eyes(), Taken::default());
    if found.last_error.is_none() || !eyes.takes_out() {
        return Ok(taken);
    }
    // By the text that the row and the record of it share: SQL may have written an id in small letters.
    let query = ActionQuery { event_id: Some(found.id.clone()), ..ActionQuery::default() };
    let mut from = None;
    loop {
        let page = store(call)?.actions(&query, from, READ).await?;
        for action in page.actions.iter().filter(|action| action.action == ActionKind::Edit.as_str()) {
            taken.add(action.before.as_ref().map_or_else(|| eyes.unread(), |before| eyes.payload(before).1));
        }
        from = page.next;
        if from.is_none() {
            return Ok(taken);
        }
    }
}

/// By its number where its id is none of ours.
fn id(call: &Call) -> Result<EventRef, Problem> {
    call.id().parse().map_err(|_| Problem::no_event(call.id()))
}

fn done(call: &Call, action: &'static str) -> axum::response::Response {
    tracing::info!(who = call.identity.name, action, event = call.id(), "an operator acted");
    Json(Done { id: call.id(), action }).into_response()
}

pub(crate) fn store(call: &Call) -> Result<&dyn Store, Problem> {
    let none = "this service has no outbox, only dead letters";
    call.desk.store.as_deref().ok_or_else(|| Problem::missing(none))
}

fn dead(call: &Call) -> Result<Dead<'_>, Problem> {
    Ok(Dead::of(store(call)?))
}

pub(crate) async fn replay(call: Call) -> Answer {
    let actor = call.plain_actor()?;
    dead(&call)?.replay(id(&call)?, &actor).await?;
    Ok(done(&call, "replay"))
}

pub(crate) async fn skip(call: Call) -> Answer {
    let actor = call.plain_actor()?;
    dead(&call)?.skip(id(&call)?, &actor).await?;
    Ok(done(&call, "skip"))
}

pub(crate) async fn discard(call: Call) -> Answer {
    let actor = call.plain_actor()?;
    dead(&call)?.discard(id(&call)?, &actor).await?;
    done(&call, "discard");
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(crate) async fn edit(call: Call) -> Answer {
    call.actor(None)?;
    call.params.only(&[])?;
    let fields = call.fields(&["payload", "payload_base64", "content_type", "because"])?;
    let actor = call.actor(fields.because()?)?;
    let id = id(&call)?;
    let content_type = match fields.text("content_type")? {
        Some(content_type) => content_type,
        None => content_type_of(&call, id).await?,
    };
    let payload = new_payload(&fields, content_type)?;
    dead(&call)?.edit(id, payload, &actor).await?;
    Ok(done(&call, "edit"))
}

/// Its own, unless another is given.
async fn content_type_of(call: &Call, event: EventRef) -> Result<String, Problem> {
    let record = named(call, event).await?.record.map_err(|_| {
        Problem::bad_parameter("content_type", "the event can't be decoded, so it has to be given", "a content type")
    })?;
    Ok(record.event.payload().content_type().to_owned())
}

pub(crate) fn new_payload(fields: &Fields<'_>, content_type: String) -> Result<Payload, Problem> {
    let encoded = fields.parsed::<String>("payload_base64", "bytes in base64")?;
    let bytes = match (fields.given("payload"), encoded) {
        (Some(_), Some(_)) | (None, None) => {
            return Err(Problem::bad_body("give either `payload` or `payload_base64`"));
        }
        (None, Some(encoded)) => BASE64_STANDARD
            .decode(encoded)
            .map_err(|error| Problem::bad_parameter("payload_base64", error.to_string(), "bytes in base64"))?,
        (Some(raw), None) => {
            let json = Payload::bytes(content_type.as_str(), "").is_json();
            if json {
                // As it was sent, to the byte.
                raw.get().as_bytes().to_vec()
            } else {
                let text = serde_json::from_str::<String>(raw.get());
                let allowed = "a text, since the content type is not JSON; or payload_base64";
                text.map_err(|_| Problem::bad_parameter("payload", "it is no text", allowed))?.into_bytes()
            }
        }
    };
    // Text stays text in the table, for people to read; what is no JSON is told by the check of the event.
    let text = String::from_utf8(bytes.clone()).ok().filter(|_| content_type == pillarbox_core::domain::JSON);
    match text.and_then(|text| Payload::json_text(text).ok()) {
        Some(payload) => Ok(payload),
        None => Ok(Payload::bytes(content_type, bytes)),
    }
}

const BULK: &[&str] = &["filter", "all", "rate", "limit", "cursor", "dry_run", "because"];

pub(crate) async fn replay_many(call: Call) -> Answer {
    let (bulk, actor) = bulk(&call)?;
    let done = bulk.replay(&actor).await?;
    many(&call, "replay many", done)
}

pub(crate) async fn discard_many(call: Call) -> Answer {
    let (bulk, actor) = bulk(&call)?;
    let done = bulk.discard(&actor).await?;
    many(&call, "discard many", done)
}

fn bulk(call: &Call) -> Result<(Bulk<'_>, Actor), Problem> {
    call.actor(None)?;
    call.params.only(&[])?;
    let fields = call.fields(BULK)?;
    let actor = call.actor(fields.because()?)?;
    let wanted = fields.object("filter", filter::NAMES)?;
    let all = fields.parsed::<bool>("all", "true or false")?.unwrap_or(false);
    if wanted.is_empty() != all {
        return Err(Problem::bad_body("give a `filter`, or `\"all\": true` for every dead event; not both"));
    }
    let query = filter::query(&wanted, call.eyes())?;
    let (limits, limit) = (&call.desk.limits, call.bulk_limit(&fields)?);
    let rate = fields.parsed::<std::num::NonZeroU32>("rate", "events a second, 1 or more")?;
    // Half the time of a request, so that its last batch comes to its end.
    let mut bulk = dead(call)?.all(&query).at_most(limit).dry_run(dry_run(call)?).within(limits.time / 2);
    if let Some(rate) = rate {
        bulk = bulk.rate(rate);
    }
    if let Some(from) = filter::cursor(fields.text("cursor")?)? {
        bulk = bulk.from(from);
    }
    Ok((bulk, actor))
}

fn dry_run(call: &Call) -> Result<bool, Problem> {
    Ok(call.fields(BULK)?.parsed::<bool>("dry_run", "true or false")?.unwrap_or(false))
}

fn many(call: &Call, action: &'static str, done: BulkDone) -> Answer {
    let (BulkDone { changed, next }, dry_run) = (done, dry_run(call)?);
    tracing::info!(who = call.identity.name, action, changed, dry_run, "an operator acted");
    Ok(Json(Many { changed, dry_run, next: next.map(|next| next.to_string()) }).into_response())
}

pub(crate) async fn stats(call: Call) -> Answer {
    call.params.only(&[])?;
    Ok(Json(StatsView::of(&store(&call)?.stats().await?)).into_response())
}

pub(crate) async fn fleet(call: Call) -> Answer {
    call.params.only(&[])?;
    Ok(Json(FleetView::of(&store(&call)?.fleet().await?)).into_response())
}

/// Only those.
pub(crate) fn only_dead(query: Query) -> Query {
    Query { statuses: vec![Status::Dead], ..query }
}
