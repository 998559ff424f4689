//! What is dead, wherever it died: the outbox's events and the consumers' letters, in one list.

use axum::{Json, response::IntoResponse};
use pillarbox_core::{
    domain::{Seq, Timestamp},
    port::{Found, Letter, LetterPlace, LetterQuery, LetterStatus, Query},
};
use serde::Serialize;

use crate::{
    call::Call,
    events, filter,
    letters::{self, LetterView, read_place, write_place},
    problem::Problem,
    view::EventView,
};

/// The origin of the outbox's own events; a letter's is its consumer.
pub(crate) const OUTBOX: &str = "outbox";

#[derive(Serialize)]
struct Page {
    dead: Vec<Item>,
    next: Option<String>,
}

#[derive(Serialize)]
struct Item {
    origin: String,
    /// When it was given up; of a row that can't be decoded, nobody knows.
    dead_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<EventView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    letter: Option<LetterView>,
}

/// How far a list has come in each of the two. No event to go on with is the end of the events.
struct Cursor {
    events: Option<Seq>,
    letters: At,
}

#[derive(Clone)]
enum At {
    Start,
    After(LetterPlace),
    End,
}

const FILTERS: &[&str] =
    &["origin", "type", "aggregate_type", "aggregate_id", "tenant", "key", "from", "until", "text"];

/// The newest first, as far as each side keeps that order: events by their number, letters by when they were given up.
pub(crate) async fn list(call: Call) -> Result<axum::response::Response, Problem> {
    call.params.only(&[FILTERS, &["limit", "cursor", "payloads"]].concat())?;
    let (events, letters) = queries(&call)?;
    let limit = call.params.limit(&call.desk)?;
    let payloads = call.params.flag("payloads", true)?;
    let start = Cursor { events: Some(Seq(i64::MAX)), letters: At::Start };
    let cursor = call.params.text("cursor")?.map_or(Ok(start), |text| Cursor::read(&text))?;

    let (found, next_event) = match (&events, cursor.events) {
        (Some(query), Some(from)) if call.desk.store.is_some() => events::page(&call, query, Some(from), limit).await?,
        _ => (Vec::new(), None),
    };
    let (written, next_letter) = match (&letters, &call.desk.letters, cursor.letters.clone()) {
        (Some(query), Some(queue), At::Start) => letters::page(&call, &**queue, query, None, limit).await?,
        (Some(query), Some(queue), At::After(place)) => {
            letters::page(&call, &**queue, query, Some(place), limit).await?
        }
        _ => (Vec::new(), None),
    };
    let Merged { taken, events: events_taken, letters: letters_taken } = merge(&found, &written, limit as usize);
    let next = Cursor {
        events: found.get(events_taken).map(|found| found.seq).or(next_event),
        letters: match (written.get(letters_taken), letters_taken.checked_sub(1).map(|last| &written[last])) {
            (Some(_), Some(last)) => At::After(LetterPlace::of(last)),
            // None was taken: the next page begins where this one did.
            (Some(_), None) => cursor.letters,
            (None, _) => next_letter.map_or(At::End, At::After),
        },
    };
    let mut dead = Vec::new();
    for side in taken {
        dead.push(side.item(&call, payloads).await?);
    }
    Ok(Json(Page { dead, next: next.write() }).into_response())
}

pub(crate) async fn count(call: Call) -> Result<axum::response::Response, Problem> {
    call.params.only(FILTERS)?;
    let (events, letters) = queries(&call)?;
    let outbox = match (&events, &call.desk.store) {
        (Some(query), Some(store)) => store.count(query).await?,
        _ => 0,
    };
    let consumers = match (&letters, &call.desk.letters) {
        (Some(query), Some(queue)) => queue.count(query).await?,
        _ => 0,
    };
    let count = outbox + consumers;
    Ok(Json(serde_json::json!({ "count": count, "outbox": outbox, "letters": consumers })).into_response())
}

/// What is asked of each side; nothing of one that the origin rules out.
fn queries(call: &Call) -> Result<(Option<Query>, Option<LetterQuery>), Problem> {
    let params = &call.params;
    let query = filter::query(params, call.eyes())?;
    let origin = params.text("origin")?;
    let letters = LetterQuery {
        status: Some(LetterStatus::Pending),
        consumer: origin.clone().filter(|origin| origin != OUTBOX),
        event_type: query.event_type.clone(),
        from: query.from,
        until: query.until,
        text: query.text.clone(),
        ..LetterQuery::default()
    };
    // Letters don't know of these.
    let of_events = [&query.aggregate_type, &query.aggregate_id, &query.tenant_id, &query.key];
    let of_events = of_events.into_iter().any(Option::is_some);
    let events = Query { newest_first: true, ..events::only_dead(query) };
    Ok(match origin.as_deref() {
        None => (Some(events), (!of_events).then_some(letters)),
        Some(OUTBOX) => (Some(events), None),
        Some(_) => (None, (!of_events).then_some(letters)),
    })
}

enum Side<'a> {
    Event(&'a Found),
    Letter(&'a Letter),
}

impl Side<'_> {
    async fn item(&self, call: &Call, payloads: bool) -> Result<Item, Problem> {
        Ok(match self {
            Self::Event(found) => Item {
                origin: OUTBOX.to_owned(),
                dead_at: died(found).map(|time| time.to_string()),
                event: Some(events::view(call, found, payloads).await?),
                letter: None,
            },
            Self::Letter(letter) => Item {
                origin: letter.consumer.clone(),
                dead_at: Some(letter.dead_at.to_string()),
                event: None,
                letter: Some(LetterView::of(letter, call.eyes(), payloads)),
            },
        })
    }
}

fn died(found: &Found) -> Option<Timestamp> {
    found.done_at.or_else(|| found.record.as_ref().ok().map(|record| record.created_at))
}

struct Merged<'a> {
    taken: Vec<Side<'a>>,
    events: usize,
    letters: usize,
}

/// Takes the newer of the two heads, again and again. Each side keeps its own order, so a page can go on from a place
/// in each.
fn merge<'a>(found: &'a [Found], written: &'a [Letter], limit: usize) -> Merged<'a> {
    let mut merged = Merged { taken: Vec::new(), events: 0, letters: 0 };
    while merged.taken.len() < limit {
        let side = match (found.get(merged.events), written.get(merged.letters)) {
            (Some(event), Some(letter)) if died(event).is_none_or(|died| died >= letter.dead_at) => Side::Event(event),
            (_, Some(letter)) => Side::Letter(letter),
            (Some(event), None) => Side::Event(event),
            (None, None) => break,
        };
        match side {
            Side::Event(_) => merged.events += 1,
            Side::Letter(_) => merged.letters += 1,
        }
        merged.taken.push(side);
    }
    merged
}

impl Cursor {
    /// `events~letters`; what has come to its end is a `.`, what has not begun is empty.
    fn write(&self) -> Option<String> {
        if self.events.is_none() && matches!(self.letters, At::End) {
            return None;
        }
        let events = self.events.map_or_else(|| ".".to_owned(), |seq| seq.to_string());
        let letters = match &self.letters {
            At::End => ".".to_owned(),
            At::Start => String::new(),
            At::After(place) => write_place(place),
        };
        Some(format!("{events}~{letters}"))
    }

    fn read(text: &str) -> Result<Self, Problem> {
        let refused = || Problem::bad_parameter("cursor", "it is no cursor", "`next` of the page before");
        let (events, letters) = text.split_once('~').ok_or_else(refused)?;
        Ok(Self {
            events: match events {
                "." => None,
                seq => Some(Seq(seq.parse().map_err(|_| refused())?)),
            },
            letters: match letters {
                "." => At::End,
                "" => At::Start,
                place => At::After(read_place(place)?),
            },
        })
    }
}
