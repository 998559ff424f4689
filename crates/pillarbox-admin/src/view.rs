//! What is shown, to those who ask: redacted where a rule says so.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use pillarbox_core::{
    domain::{Payload, Record, Status},
    port::{Action, Deed, Fleet, Found, NodeStatus, Stats},
};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::{
    dead::OUTBOX,
    letters::stored,
    redact::{Eyes, Seen, Taken},
};

/// An event.
#[derive(Debug, Serialize)]
pub(crate) struct EventView {
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
    headers: BTreeMap<String, String>,
    #[serde(flatten)]
    body: Body,
}

/// A payload.
#[derive(Debug, Serialize)]
pub(crate) struct Body {
    content_type: String,
    payload_bytes: usize,
    /// `whole`, `redacted`, `hidden` by a rule, or `left_out` as it was asked.
    payload_shown: &'static str,
    /// JSON as it is, other text as a string.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    /// What is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl Body {
    /// The payload as it is seen, and what was taken out.
    pub(crate) fn of(payload: &Payload, eyes: Eyes<'_>, shown: bool) -> (Self, Taken) {
        let (seen, taken) = eyes.payload(payload);
        let mut body = Self {
            content_type: payload.content_type().to_owned(),
            payload_bytes: payload.len(),
            payload_shown: "hidden",
            payload: None,
            payload_base64: None,
        };
        match seen {
            _ if !shown => body.payload_shown = "left_out",
            Seen::Hidden => {}
            Seen::Redacted(value) => {
                body.payload_shown = "redacted";
                body.payload = to_raw_value(&value).ok();
            }
            Seen::Whole(payload) => {
                body.payload_shown = "whole";
                match std::str::from_utf8(payload.as_bytes()) {
                    Ok(text) => {
                        let json = payload.is_json().then(|| serde_json::from_str::<Box<RawValue>>(text).ok());
                        body.payload = json.flatten().or_else(|| to_raw_value(text).ok());
                    }
                    Err(_) => body.payload_base64 = Some(BASE64_STANDARD.encode(payload.as_bytes())),
                }
            }
        }
        (body, taken)
    }
}

impl EventView {
    /// `before` was taken out of the payloads that it had before: its error may be one of theirs.
    pub(crate) fn of(found: &Found, eyes: Eyes<'_>, payload: bool, before: Taken) -> Self {
        let (decoded, mut taken) = match &found.record {
            Ok(record) => {
                let (decoded, taken) = Decoded::of(record, eyes, payload);
                (Some(decoded), taken)
            }
            Err(_) => (None, eyes.unread()),
        };
        taken.add(before);
        Self {
            seq: found.seq.0,
            id: found.id.clone(),
            status: found.status.as_str(),
            attempts: found.attempts,
            available_at: found.available_at.map(|time| time.to_string()),
            done_at: found.done_at.map(|time| time.to_string()),
            last_error: found.last_error.as_ref().map(|error| eyes.error(error, &taken)),
            holds_key: found.holds_key,
            undecodable: found.record.as_ref().err().map(|reason| eyes.error(reason, &taken)),
            decoded,
        }
    }
}

impl Decoded {
    fn of(record: &Record, eyes: Eyes<'_>, payload: bool) -> (Self, Taken) {
        let event = &record.event;
        let (body, mut taken) = Body::of(event.payload(), eyes, payload);
        let mut header = |name: &str, value: &str| (name.to_owned(), eyes.header(name, value, &mut taken));
        let headers = event.headers().iter().map(|(name, value)| header(name, value)).collect();
        let decoded = Self {
            event_type: event.event_type().as_str().to_owned(),
            aggregate_type: event.aggregate_type().as_str().to_owned(),
            aggregate_id: event.aggregate_id().map(ToOwned::to_owned),
            tenant: event.tenant_id().map(ToOwned::to_owned),
            key: event.key().map(|key| key.as_str().to_owned()),
            partition: record.partition.0,
            inserted_at: record.created_at.to_string(),
            occurred_at: event.occurred_at().to_string(),
            headers,
            body,
        };
        (decoded, taken)
    }
}

/// What somebody did.
#[derive(Debug, Serialize)]
pub(crate) struct ActionView {
    /// `outbox`, or the consumer whose letter it was.
    origin: String,
    /// Its number in the outbox's record.
    number: Option<i64>,
    at: String,
    who: String,
    why: Option<String>,
    action: String,
    seq: Option<i64>,
    letter_id: Option<String>,
    event_id: Option<String>,
    event_type: Option<String>,
    /// What an edit has replaced.
    before: Option<Body>,
}

impl ActionView {
    pub(crate) fn of(action: &Action, eyes: Eyes<'_>, payload: bool) -> Self {
        Self {
            origin: OUTBOX.to_owned(),
            number: Some(action.number),
            at: action.at.to_string(),
            who: action.actor.who.clone(),
            why: action.actor.why.clone(),
            action: action.action.to_ascii_lowercase(),
            seq: action.seq.map(|seq| seq.0),
            letter_id: None,
            event_id: action.event_id.clone(),
            event_type: action.event_type.clone(),
            before: action.before.as_ref().map(|before| Body::of(before, eyes, payload).0),
        }
    }

    pub(crate) fn of_letter(deed: &Deed, eyes: Eyes<'_>, payload: bool) -> Self {
        let before = deed.action.before.as_ref().map(|before| stored(&deed.content_type, before));
        Self {
            origin: deed.consumer.clone(),
            number: None,
            at: deed.action.at.to_string(),
            who: deed.action.who.clone(),
            why: deed.action.why.clone(),
            action: deed.action.what.clone(),
            seq: None,
            letter_id: Some(deed.letter.to_string()),
            event_id: Some(deed.event_id.clone()),
            event_type: Some(deed.event_type.clone()),
            before: before.map(|before| Body::of(&before, eyes, payload).0),
        }
    }
}

/// The outbox in numbers.
#[derive(Debug, Serialize)]
pub(crate) struct StatsView {
    now: String,
    pending: u64,
    live_nodes: u64,
    by_status: Vec<StatusLine>,
    worst_partition: Option<WorstPartition>,
}

#[derive(Debug, Serialize)]
struct StatusLine {
    status: &'static str,
    events: u64,
    oldest: Option<String>,
}

#[derive(Debug, Serialize)]
struct WorstPartition {
    partition: u8,
    pending: u64,
}

impl StatsView {
    pub(crate) fn of(stats: &Stats) -> Self {
        let line = |status: Status| StatusLine {
            status: status.as_str(),
            events: stats.count(status),
            oldest: stats.oldest(status).map(|time| time.to_string()),
        };
        Self {
            now: stats.now.to_string(),
            pending: stats.pending(),
            live_nodes: stats.live_nodes,
            by_status: Status::ALL.map(line).into(),
            worst_partition: stats
                .worst_partition
                .map(|(partition, pending)| WorstPartition { partition: partition.0, pending }),
        }
    }
}

/// The nodes.
#[derive(Debug, Serialize)]
pub(crate) struct FleetView {
    now: String,
    nodes: Vec<NodeView>,
    free_partitions: Vec<u8>,
}

#[derive(Debug, Serialize)]
struct NodeView {
    name: String,
    incarnation: i64,
    live: bool,
    started_at: String,
    lease_until: String,
    routes: Vec<String>,
    mark: Option<i64>,
    partitions: Vec<u8>,
}

impl FleetView {
    pub(crate) fn of(fleet: &Fleet) -> Self {
        let node = |node: &NodeStatus| NodeView {
            name: node.node.to_string(),
            incarnation: node.incarnation.0,
            live: node.is_live(fleet.now),
            started_at: node.started_at.to_string(),
            lease_until: node.until.to_string(),
            routes: node.routes.clone(),
            mark: node.mark.map(|mark| mark.0),
            partitions: node.partitions.iter().map(|partition| partition.0).collect(),
        };
        Self {
            now: fleet.now.to_string(),
            nodes: fleet.nodes.iter().map(node).collect(),
            free_partitions: fleet.free.iter().map(|partition| partition.0).collect(),
        }
    }
}
