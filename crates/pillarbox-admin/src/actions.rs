//! What was done to the outbox's events and to consumers' letters, by whom and why, in one list.

use axum::{Json, response::IntoResponse};
use pillarbox_core::{
    domain::{EventId, Payload, Timestamp},
    engine::EventRef,
    port::{Action, ActionQuery, Deed, DeedPlace, DeedQuery, LetterId},
};
use serde::Serialize;

use crate::{call::Call, dead::OUTBOX, events::store, letters::is_id, problem::Problem, view::ActionView};

#[derive(Serialize)]
struct Page {
    actions: Vec<ActionView>,
    next: Option<String>,
}

/// Each action of a page may have a payload beside it.
const READ: u32 = 50;

/// How far a list has come in each of the two.
struct Cursor {
    events: Option<i64>,
    letters: At,
}

#[derive(Clone)]
enum At {
    Start,
    After(DeedPlace),
    End,
}

/// The newest first, as far as each side keeps that order: events' by their number, letters' by their time.
pub(crate) async fn list(call: Call) -> Result<axum::response::Response, Problem> {
    call.params.only(&["origin", "event_id", "letter_id", "who", "limit", "cursor", "payloads"])?;
    let (events, letters) = queries(&call)?;
    let events = match events {
        Some(query) => Some(as_recorded(&call, query).await?),
        None => None,
    };
    let limit = call.params.limit(&call.desk)?;
    let payloads = call.params.flag("payloads", true)?;
    let start = Cursor { events: Some(i64::MAX), letters: At::Start };
    let cursor = call.params.text("cursor")?.map_or(Ok(start), |text| Cursor::read(&text))?;

    let (actions, next_action) = match (&events, cursor.events) {
        (Some(query), Some(from)) => actions(&call, query, from, limit).await?,
        _ => (Vec::new(), None),
    };
    let (deeds, next_deed) = match (&letters, cursor.letters.clone()) {
        (Some(query), At::Start) => deeds(&call, query, None, limit).await?,
        (Some(query), At::After(place)) => deeds(&call, query, Some(place), limit).await?,
        _ => (Vec::new(), None),
    };
    let mut views = Vec::new();
    let (mut of_events, mut of_letters) = (0, 0);
    while views.len() < limit as usize {
        let view = match (actions.get(of_events), deeds.get(of_letters)) {
            (Some(action), deed) if deed.is_none_or(|deed| action.at >= deed.action.at) => {
                of_events += 1;
                ActionView::of(action, call.eyes(), payloads)
            }
            (_, Some(deed)) => {
                of_letters += 1;
                ActionView::of_letter(deed, call.eyes(), payloads)
            }
            _ => break,
        };
        views.push(view);
    }
    let next = Cursor {
        events: actions.get(of_events).map(|action| action.number).or(next_action),
        letters: match (deeds.get(of_letters), of_letters.checked_sub(1).map(|last| &deeds[last])) {
            (Some(_), Some(last)) => At::After(DeedPlace::of(last)),
            // None was taken: the next page begins where this one did.
            (Some(_), None) => cursor.letters,
            (None, _) => next_deed.map_or(At::End, At::After),
        },
    };
    Ok(Json(Page { actions: views, next: next.write() }).into_response())
}

/// What is asked of each side; nothing of one that is ruled out.
fn queries(call: &Call) -> Result<(Option<ActionQuery>, Option<DeedQuery>), Problem> {
    let params = &call.params;
    let (origin, who) = (params.text("origin")?, params.text("who")?);
    let (event_id, letter_id) = (params.text("event_id")?, params.text("letter_id")?);
    let allowed = "an id of 32 hex digits";
    if letter_id.as_deref().is_some_and(|id| !is_id(id)) {
        return Err(Problem::bad_parameter("letter_id", "it is no letter's id", allowed));
    }
    let asks_outbox = origin.as_deref().is_none_or(|origin| origin == OUTBOX) && letter_id.is_none();
    let of_outbox = call.desk.store.is_some() && asks_outbox;
    let of_letters = call.desk.letters.is_some() && origin.as_deref() != Some(OUTBOX);
    let asked = ActionQuery { who: who.clone(), ..ActionQuery::default() };
    // Any text may be the id of an event: SQL writes what it likes.
    let asked = match event_id.as_deref().map(str::parse) {
        Some(Ok(EventRef::Number(seq))) => ActionQuery { seq: Some(seq), ..asked },
        _ => ActionQuery { event_id: event_id.clone(), ..asked },
    };
    let events = of_outbox.then_some(asked);
    let letter = letter_id.map(|id| LetterId(id.to_ascii_lowercase()));
    Ok((events, of_letters.then_some(DeedQuery { letter, event_id, consumer: origin, who })))
}

/// Asks by an id as it is written where there is one like that in the record, and else as ids are written by us.
async fn as_recorded(call: &Call, query: ActionQuery) -> Result<ActionQuery, Problem> {
    let ours = query.event_id.as_deref().and_then(|id| Some((id, id.parse::<EventId>().ok()?.to_string())));
    let Some(ours) = ours.and_then(|(id, ours)| (id != ours).then_some(ours)) else { return Ok(query) };
    let literal = ActionQuery { who: None, ..query.clone() };
    let is_recorded = !store(call)?.actions(&literal, None, 1).await?.actions.is_empty();
    Ok(if is_recorded { query } else { ActionQuery { event_id: Some(ours), ..query } })
}

/// A page that ends early where the payloads beside it are too many bytes.
async fn actions(
    call: &Call,
    query: &ActionQuery,
    from: i64,
    limit: u32,
) -> Result<(Vec<Action>, Option<i64>), Problem> {
    let Some(store) = &call.desk.store else { return Ok((Vec::new(), None)) };
    let (mut actions, mut next, mut bytes) = (Vec::new(), Some(from), 0);
    while let Some(from) = next
        && actions.len() < limit as usize
        && bytes < call.desk.limits.page_bytes
    {
        let left = limit - u32::try_from(actions.len()).unwrap_or(limit);
        let page = store.actions(query, Some(from), left.min(READ)).await?;
        let before = page.actions.iter().filter_map(|action| action.before.as_ref());
        bytes += before.map(Payload::len).sum::<usize>();
        actions.extend(page.actions);
        next = page.next;
    }
    Ok((actions, next))
}

/// The same for letters.
async fn deeds(
    call: &Call,
    query: &DeedQuery,
    mut after: Option<DeedPlace>,
    limit: u32,
) -> Result<(Vec<Deed>, Option<DeedPlace>), Problem> {
    let Some(letters) = call.desk.letters.as_deref() else { return Ok((Vec::new(), None)) };
    let (mut deeds, mut bytes) = (Vec::new(), 0);
    loop {
        let left = limit - u32::try_from(deeds.len()).unwrap_or(limit);
        // One more than asked for tells whether there is a next page.
        let read = left.min(READ);
        let mut some = letters.deeds(query, after.as_ref(), read + 1).await?;
        let more = some.len() > read as usize;
        some.truncate(read as usize);
        bytes += some.iter().filter_map(|deed| deed.action.before.as_ref()).map(axum::body::Bytes::len).sum::<usize>();
        after = some.last().map(DeedPlace::of);
        deeds.extend(some);
        if !more {
            return Ok((deeds, None));
        }
        if deeds.len() >= limit as usize || bytes >= call.desk.limits.page_bytes {
            return Ok((deeds, after));
        }
    }
}

impl Cursor {
    /// `events~letters`; what has come to its end is a `.`, what has not begun is empty.
    fn write(&self) -> Option<String> {
        if self.events.is_none() && matches!(self.letters, At::End) {
            return None;
        }
        let events = self.events.map_or_else(|| ".".to_owned(), |number| number.to_string());
        let letters = match &self.letters {
            At::End => ".".to_owned(),
            At::Start => String::new(),
            At::After(DeedPlace { at, letter, number }) => format!("{}-{letter}-{number}", at.as_micros()),
        };
        Some(format!("{events}~{letters}"))
    }

    fn read(text: &str) -> Result<Self, Problem> {
        let refused = || Problem::bad_parameter("cursor", "it is no cursor", "`next` of the page before");
        let (events, letters) = text.split_once('~').ok_or_else(refused)?;
        let events = match events {
            "." => None,
            number => Some(number.parse().map_err(|_| refused())?),
        };
        let letters = match letters {
            "." => At::End,
            "" => At::Start,
            place => At::After(read_place(place).ok_or_else(refused)?),
        };
        Ok(Self { events, letters })
    }
}

fn read_place(text: &str) -> Option<DeedPlace> {
    // From the end: a time before 1970 begins with the same sign.
    let (rest, number) = text.rsplit_once('-')?;
    let (micros, letter) = rest.rsplit_once('-')?;
    let at = Timestamp::from_micros(micros.parse().ok()?);
    is_id(letter).then_some(DeedPlace { at, letter: LetterId(letter.to_owned()), number: number.parse().ok()? })
}
