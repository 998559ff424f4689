//! Rows become domain types.

use pillarbox_core::domain::{
    AggregateType, Event, EventType, Headers, Key, Partition, PartitionSet, Payload, Record, Seq, Timestamp,
};
use pillarbox_core::port::{Candidate, Hold, HoldKind, Row};
use sqlx::{Decode, MySql, Row as _, Type, mysql::MySqlRow};

/// What a read asks for, in the order of the ordinals below. Times come as microseconds.
pub(crate) const COLUMNS: &str = "seq, `partition`, event_key, event_id, event_type, aggregate_type, aggregate_id, \
     tenant_id, content_type, payload, payload_bytes, headers, attempts, starts, progress, \
     timestampdiff(microsecond, {epoch}, occurred_at), timestampdiff(microsecond, {epoch}, created_at)";

const SEQ: usize = 0;
const PARTITION: usize = 1;
const KEY: usize = 2;
const ID: usize = 3;
const EVENT_TYPE: usize = 4;
const AGGREGATE_TYPE: usize = 5;
const AGGREGATE_ID: usize = 6;
const TENANT_ID: usize = 7;
const CONTENT_TYPE: usize = 8;
const HEADERS: usize = 11;
const ATTEMPTS: usize = 12;
const STARTS: usize = 13;
const PROGRESS: usize = 14;
const OCCURRED_AT: usize = 15;
const CREATED_AT: usize = 16;
/// How many columns [`COLUMNS`] names; what a statement adds comes after them.
pub(crate) const WIDTH: usize = 17;

/// The row's number, and what the owner is asked about.
pub(crate) fn candidate(row: &MySqlRow) -> Result<Candidate<'_>, sqlx::Error> {
    Ok(Candidate {
        seq: Seq(row.try_get(SEQ)?),
        partition: partition(row, PARTITION)?,
        key: optional::<&str>(row, KEY, "event_key").unwrap_or_default(),
    })
}

/// The row as an event, or as a broken row with what is wrong in it.
pub(crate) fn decode(row: &MySqlRow) -> Result<Row, sqlx::Error> {
    let candidate = candidate(row)?;
    Ok(match record(row, candidate) {
        Ok(record) => Row::Event(record),
        Err(reason) => Row::Broken {
            seq: candidate.seq,
            partition: candidate.partition,
            key: candidate.key.filter(|key| !key.is_empty()).map(Key::from),
            reason,
        },
    })
}

pub(crate) fn decode_all(rows: &[MySqlRow]) -> Result<Vec<Row>, sqlx::Error> {
    rows.iter().map(decode).collect()
}

/// The row as an event. Its due time is the row's affair, and not the event's any more.
pub(crate) fn record(row: &MySqlRow, candidate: Candidate<'_>) -> Result<Record, String> {
    let id = required::<&str>(row, ID, "event_id")?;
    let id = id.parse().map_err(|error| format!("event_id {id:?}: {error}"))?;
    let occurred_at = Timestamp::from_micros(required(row, OCCURRED_AT, "occurred_at")?);
    let aggregate_type = required::<&str>(row, AGGREGATE_TYPE, "aggregate_type")?;
    let mut event = Event::builder(EventType::from(required::<&str>(row, EVENT_TYPE, "event_type")?))
        .aggregate_type(AggregateType::from(aggregate_type))
        .payload(payload(row)?);
    if let Some(aggregate_id) = optional::<&str>(row, AGGREGATE_ID, "aggregate_id")? {
        event = event.aggregate(aggregate_type, aggregate_id);
    }
    if let Some(tenant) = optional::<&str>(row, TENANT_ID, "tenant_id")? {
        event = event.tenant(tenant);
    }
    if let Some(key) = optional::<&str>(row, KEY, "event_key")? {
        event = event.key(key);
    }
    if let Some(headers) = optional::<&str>(row, HEADERS, "headers")? {
        let headers = Headers::from_json(headers).map_err(|error| format!("headers: {error}"))?;
        event = event.headers(headers);
    }
    Ok(Record {
        seq: candidate.seq,
        partition: candidate.partition,
        event: event.build_with(|| id, || occurred_at).map_err(|error| error.to_string())?,
        attempts: count(row, ATTEMPTS, "attempts")?,
        starts: count(row, STARTS, "starts")?,
        progress: optional::<&str>(row, PROGRESS, "progress")?.map(Into::into),
        created_at: Timestamp::from_micros(required(row, CREATED_AT, "created_at")?),
    })
}

fn payload(row: &MySqlRow) -> Result<Payload, String> {
    payload_at(row, CONTENT_TYPE)
}

/// A payload from three columns that follow each other: its content type, its text, its bytes.
pub(crate) fn payload_at(row: &MySqlRow, first: usize) -> Result<Payload, String> {
    let content_type = required::<&str>(row, first, "content_type")?;
    if let Some(text) = optional::<&str>(row, first + 1, "payload")? {
        return Ok(Payload::stored(content_type, text.as_bytes().to_vec(), true));
    }
    let bytes = required::<&[u8]>(row, first + 2, "payload_bytes")?;
    Ok(Payload::stored(content_type, bytes.to_vec(), false))
}

fn count(row: &MySqlRow, column: usize, name: &str) -> Result<u32, String> {
    let count: i64 = required(row, column, name)?;
    u32::try_from(count).map_err(|_| format!("{name} is {count}, and a count is expected"))
}

fn required<'r, T: Decode<'r, MySql> + Type<MySql>>(row: &'r MySqlRow, column: usize, name: &str) -> Result<T, String> {
    optional(row, column, name)?.ok_or_else(|| format!("{name} is null"))
}

fn optional<'r, T: Decode<'r, MySql> + Type<MySql>>(
    row: &'r MySqlRow,
    column: usize,
    name: &str,
) -> Result<Option<T>, String> {
    row.try_get(column).map_err(|error| format!("{name}: {error}"))
}

/// A partition's number; the table's own check keeps others out.
pub(crate) fn partition(row: &MySqlRow, column: usize) -> Result<Partition, sqlx::Error> {
    let number: i64 = row.try_get(column)?;
    u8::try_from(number).map(Partition).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// Text from a column of bytes.
pub(crate) fn text(row: &MySqlRow, column: usize) -> Result<&str, sqlx::Error> {
    let bytes: &[u8] = row.try_get_unchecked(column)?;
    std::str::from_utf8(bytes).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// A JSON array of numbers, to be opened by `json_table`.
pub(crate) fn json_numbers(numbers: impl IntoIterator<Item = Seq>) -> String {
    let mut json = String::from("[");
    for number in numbers {
        if json.len() > 1 {
            json.push(',');
        }
        json.push_str(&number.0.to_string());
    }
    json.push(']');
    json
}

/// A set of partitions as 256 letters: `substring(?, partition + 1, 1) = '1'` is whether one is in it.
pub(crate) fn letters(partitions: &PartitionSet) -> String {
    Partition::all().map(|partition| if partitions.contains(partition) { '1' } else { '0' }).collect()
}

/// The name of a kind of hold in the table.
pub(crate) fn hold_kind(kind: HoldKind) -> &'static str {
    match kind {
        HoldKind::DeadHead => "DEAD_HEAD",
        HoldKind::Overflow => "OVERFLOW",
    }
}

/// A hold from its partition, name, kind and number.
pub(crate) fn hold(row: &MySqlRow) -> Result<Hold, sqlx::Error> {
    Ok(Hold {
        partition: partition(row, 0)?,
        key: Key::from(text(row, 1)?),
        kind: match row.try_get(2)? {
            "DEAD_HEAD" => HoldKind::DeadHead,
            "OVERFLOW" => HoldKind::Overflow,
            other => return Err(sqlx::Error::Decode(format!("unknown kind of hold {other:?}").into())),
        },
        from: Seq(row.try_get(3)?),
    })
}
