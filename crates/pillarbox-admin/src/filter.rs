//! Which events: the same words in a query and in the body of a bulk request.

use pillarbox_core::{
    domain::{Seq, Status, Timestamp},
    port::Query,
};

use crate::{
    call::{Fields, Params},
    problem::Problem,
    redact::Eyes,
};

/// What narrows dead events.
pub(crate) const NAMES: &[&str] = &["type", "aggregate_type", "aggregate_id", "tenant", "key", "from", "until", "text"];

const TIME: &str = "a time such as 2026-11-15T08:30:00Z, or a date";

/// Where a value comes from.
pub(crate) trait Words {
    fn word(&self, name: &'static str) -> Result<Option<String>, Problem>;
}

impl Words for Params {
    fn word(&self, name: &'static str) -> Result<Option<String>, Problem> {
        self.text(name)
    }
}

impl Words for Fields<'_> {
    fn word(&self, name: &'static str) -> Result<Option<String>, Problem> {
        self.text(name)
    }
}

pub(crate) fn query(words: &impl Words, eyes: Eyes<'_>) -> Result<Query, Problem> {
    Ok(Query {
        event_type: words.word("type")?,
        aggregate_type: words.word("aggregate_type")?,
        aggregate_id: words.word("aggregate_id")?,
        tenant_id: words.word("tenant")?,
        key: words.word("key")?,
        from: time(words, "from")?,
        until: time(words, "until")?,
        text: text(words, eyes)?,
        ..Query::default()
    })
}

pub(crate) fn time(words: &impl Words, name: &'static str) -> Result<Option<Timestamp>, Problem> {
    let Some(text) = words.word(name)? else { return Ok(None) };
    text.parse().map(Some).map_err(|_| Problem::bad_parameter(name, "it is no time", TIME))
}

/// Whoever sees payloads by rules can't search in them.
pub(crate) fn text(words: &impl Words, eyes: Eyes<'_>) -> Result<Option<String>, Problem> {
    let text = words.word("text")?;
    if text.is_some() && !eyes.may_search() {
        return Err(Problem::forbidden(
            "text can't be searched for where values are redacted: who may search may find them out",
        ));
    }
    Ok(text)
}

/// `status=NEW,RETRY`.
pub(crate) fn statuses(params: &Params) -> Result<Vec<Status>, Problem> {
    let Some(text) = params.text("status")? else { return Ok(Vec::new()) };
    let allowed = "NEW, RETRY, DONE or DEAD; several with commas";
    let status = |name: &str| {
        let read = name.trim().to_ascii_uppercase().parse::<Status>();
        read.map_err(|_| Problem::bad_parameter("status", format!("{name:?} is no status"), allowed))
    };
    let mut statuses = text.split(',').map(status).collect::<Result<Vec<_>, _>>()?;
    statuses.sort_unstable_by_key(|status| *status as usize);
    statuses.dedup();
    Ok(statuses)
}

/// `order=oldest`; without it, the newest come first.
pub(crate) fn newest_first(params: &Params) -> Result<bool, Problem> {
    match params.text("order")?.as_deref() {
        None | Some("newest") => Ok(true),
        Some("oldest") => Ok(false),
        Some(_) => Err(Problem::bad_parameter("order", "it is no order", "newest or oldest")),
    }
}

/// Where a page begins; `next` of the page before.
pub(crate) fn cursor(text: Option<String>) -> Result<Option<Seq>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let seq = text.parse().map(Seq);
    seq.map(Some).map_err(|_| Problem::bad_parameter("cursor", "it is no cursor", "`next` of the page before"))
}
