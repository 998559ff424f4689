//! An event as scripts read it.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use pillarbox::{Found, Payload, Record, Timestamp};
use serde::Serialize;
use serde_json::value::RawValue;

use super::json;
use crate::{error::Error, status::seconds};

/// The names are those of the JSON.
#[derive(Debug, Serialize)]
pub(super) struct View {
    seq: i64,
    id: String,
    status: &'static str,
    attempts: u32,
    available_at: Option<String>,
    done_at: Option<String>,
    last_error: Option<String>,
    /// Whether its key waits until an operator acts on it.
    holds_key: bool,
    /// Why the rest is missing, where the row can't be decoded.
    undecodable: Option<String>,
    #[serde(flatten)]
    decoded: Option<Decoded>,
}

#[derive(Debug, Serialize)]
struct Decoded {
    #[serde(rename = "type")]
    event_type: String,
    aggregate_type: String,
    aggregate_id: Option<String>,
    tenant: Option<String>,
    key: Option<String>,
    partition: u8,
    inserted_at: String,
    occurred_at: String,
    age_seconds: f64,
    headers: BTreeMap<String, String>,
    content_type: String,
    payload_bytes: usize,
    /// JSON as it is, other text as a string.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    /// What is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

/// What a payload turns out to be.
pub(super) enum Body<'a> {
    Json(&'a str),
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> Body<'a> {
    pub(super) fn of(payload: &'a Payload) -> Self {
        let Ok(text) = std::str::from_utf8(payload.as_bytes()) else { return Self::Bytes(payload.as_bytes()) };
        let subtype = payload.content_type().split(';').next().unwrap_or_default().trim();
        let says_json = subtype == "application/json" || subtype.ends_with("+json");
        if says_json && serde_json::from_str::<&RawValue>(text).is_ok() {
            Self::Json(text)
        } else if text.contains(|c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) {
            Self::Bytes(payload.as_bytes())
        } else {
            Self::Text(text)
        }
    }
}

impl View {
    /// Its age is told at a time of the database's.
    pub(super) fn of(found: &Found, now: Timestamp) -> Self {
        Self {
            seq: found.seq.0,
            id: found.id.clone(),
            status: found.status.as_str(),
            attempts: found.attempts,
            available_at: found.available_at.map(|time| time.to_string()),
            done_at: found.done_at.map(|time| time.to_string()),
            last_error: found.last_error.clone(),
            holds_key: found.holds_key,
            undecodable: found.record.as_ref().err().cloned(),
            decoded: found.record.as_ref().ok().map(|record| Decoded::of(record, now)),
        }
    }

    /// On one line, with its end.
    pub(super) fn as_line(&self) -> Result<String, Error> {
        let line = serde_json::to_string(self);
        line.map(|line| line + "\n").map_err(|error| Error::new("an event can't be written as JSON").caused_by(error))
    }
}

impl Decoded {
    fn of(record: &Record, now: Timestamp) -> Self {
        let event = &record.event;
        let (payload, payload_base64) = match Body::of(event.payload()) {
            Body::Json(text) => (RawValue::from_string(json::compact(text)).ok(), None),
            Body::Text(text) => (serde_json::value::to_raw_value(text).ok(), None),
            Body::Bytes(bytes) => (None, Some(BASE64_STANDARD.encode(bytes))),
        };
        Self {
            event_type: event.event_type().as_str().to_owned(),
            aggregate_type: event.aggregate_type().as_str().to_owned(),
            aggregate_id: event.aggregate_id().map(ToOwned::to_owned),
            tenant: event.tenant_id().map(ToOwned::to_owned),
            key: event.key().map(|key| key.as_str().to_owned()),
            partition: record.partition.0,
            inserted_at: record.created_at.to_string(),
            occurred_at: event.occurred_at().to_string(),
            age_seconds: seconds(record.created_at, now),
            headers: event.headers().iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            content_type: event.payload().content_type().to_owned(),
            payload_bytes: event.payload().len(),
            payload,
            payload_base64,
        }
    }
}
