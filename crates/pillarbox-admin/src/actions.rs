//! What was done to the outbox's events, by whom and why.

use axum::{Json, response::IntoResponse};
use pillarbox_core::port::ActionQuery;
use serde::Serialize;

use crate::{call::Call, problem::Problem, view::ActionView};

#[derive(Serialize)]
struct Page {
    actions: Vec<ActionView>,
    next: Option<String>,
}

/// Each action of a page may have a payload beside it.
const READ: u32 = 50;

pub(crate) async fn list(call: Call) -> Result<axum::response::Response, Problem> {
    call.params.only(&["event_id", "who", "limit", "cursor", "payloads"])?;
    let event_id = call.params.text("event_id")?;
    let event_id = event_id.map(|id| {
        let allowed = "an id of 26 letters and digits";
        id.parse().map_err(|_| Problem::bad_parameter("event_id", "it is no event's id", allowed))
    });
    let query = ActionQuery { event_id: event_id.transpose()?, who: call.params.text("who")? };
    let limit = call.params.limit(&call.desk)?;
    let payloads = call.params.flag("payloads", true)?;
    let cursor = call.params.parsed::<i64>("cursor", "`next` of the page before")?;
    let (mut actions, mut next, mut bytes) = (Vec::new(), Some(cursor.unwrap_or(i64::MAX)), 0);
    while let Some(from) = next
        && actions.len() < limit as usize
        && bytes < call.desk.limits.page_bytes
    {
        let left = limit - u32::try_from(actions.len()).unwrap_or(limit);
        let page = call.desk.store.actions(&query, Some(from), left.min(READ)).await?;
        bytes += page
            .actions
            .iter()
            .filter_map(|action| action.before.as_ref())
            .map(pillarbox_core::domain::Payload::len)
            .sum::<usize>();
        actions.extend(page.actions);
        next = page.next;
    }
    let actions = actions.iter().map(|action| ActionView::of(action, call.eyes(), payloads)).collect();
    Ok(Json(Page { actions, next: next.map(|next| next.to_string()) }).into_response())
}
