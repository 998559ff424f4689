//! Rows become domain types.

use pillarbox_core::domain::{
    AggregateType, Event, EventType, Headers, Key, Partition, PartitionSet, Payload, Record, Seq, Timestamp,
};
use pillarbox_core::port::{Candidate, Hold, HoldKind, Row};
use sqlx::{Decode, Row as _, Sqlite, Type, TypeInfo as _, ValueRef as _, sqlite::SqliteRow};

/// What a read asks for, in the order of the ordinals below.
pub(crate) const COLUMNS: &str = "seq, partition, event_key, event_id, event_type, aggregate_type, aggregate_id, \
     tenant_id, content_type, payload, headers, attempts, starts, progress, occurred_at, created_at";

const SEQ: usize = 0;
const PARTITION: usize = 1;
const KEY: usize = 2;
const ID: usize = 3;
const EVENT_TYPE: usize = 4;
const AGGREGATE_TYPE: usize = 5;
const AGGREGATE_ID: usize = 6;
const TENANT_ID: usize = 7;
const CONTENT_TYPE: usize = 8;
const PAYLOAD: usize = 9;
const HEADERS: usize = 10;
const ATTEMPTS: usize = 11;
const STARTS: usize = 12;
const PROGRESS: usize = 13;
const OCCURRED_AT: usize = 14;
const CREATED_AT: usize = 15;
/// How many columns [`COLUMNS`] names; what a statement adds comes after them.
pub(crate) const WIDTH: usize = 16;

/// The row's number, and what the owner is asked about.
pub(crate) fn candidate(row: &SqliteRow) -> Result<Candidate<'_>, sqlx::Error> {
    Ok(Candidate {
        seq: Seq(row.try_get_unchecked(SEQ)?),
        partition: partition(row, PARTITION)?,
        // A key of another type than text has no lane; `decode` says what is wrong with it.
        key: optional::<&str>(row, KEY, "event_key").unwrap_or_default(),
    })
}

/// When the row was inserted.
pub(crate) fn created_at(row: &SqliteRow) -> Timestamp {
    Timestamp::from_micros(required(row, CREATED_AT, "created_at").unwrap_or(0))
}

/// The row as an event, or as a broken row with what is wrong in it.
pub(crate) fn decode(row: &SqliteRow, candidate: Candidate<'_>) -> Row {
    match record(row, candidate) {
        Ok(record) => Row::Event(record),
        Err(reason) => Row::Broken {
            seq: candidate.seq,
            partition: candidate.partition,
            key: candidate.key.filter(|key| !key.is_empty()).map(Key::from),
            reason,
        },
    }
}

/// The row as an event. Its due time is the row's affair, and not the event's any more.
pub(crate) fn record(row: &SqliteRow, candidate: Candidate<'_>) -> Result<Record, String> {
    let id = required::<&str>(row, ID, "event_id")?;
    let id = id.parse().map_err(|error| format!("event_id {id:?}: {error}"))?;
    let occurred_at = Timestamp::from_micros(required(row, OCCURRED_AT, "occurred_at")?);
    let mut event = Event::builder(EventType::from(required::<&str>(row, EVENT_TYPE, "event_type")?))
        .aggregate_type(AggregateType::from(required::<&str>(row, AGGREGATE_TYPE, "aggregate_type")?))
        .payload(payload(row)?);
    if let Some(aggregate_id) = optional::<&str>(row, AGGREGATE_ID, "aggregate_id")? {
        event = event.aggregate(required::<&str>(row, AGGREGATE_TYPE, "aggregate_type")?, aggregate_id);
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

fn payload(row: &SqliteRow) -> Result<Payload, String> {
    payload_at(row, CONTENT_TYPE, PAYLOAD)
}

/// A payload from the columns of its content type and its body.
pub(crate) fn payload_at(row: &SqliteRow, content_type: usize, body: usize) -> Result<Payload, String> {
    let content_type = required::<&str>(row, content_type, "content_type")?;
    let value = row.try_get_raw(body).map_err(|error| error.to_string())?;
    let text = match value.type_info().name() {
        "TEXT" => true,
        "BLOB" => false,
        other => return Err(format!("payload is of type {other}, and text or blob is expected")),
    };
    let body = <&[u8] as Decode<Sqlite>>::decode(value).map_err(|error| error.to_string())?;
    Ok(Payload::stored(content_type, body.to_vec(), text))
}

fn count(row: &SqliteRow, column: usize, name: &str) -> Result<u32, String> {
    let count: i64 = required(row, column, name)?;
    u32::try_from(count).map_err(|_| format!("{name} is {count}, and a count is expected"))
}

fn required<'r, T: Decode<'r, Sqlite> + Type<Sqlite>>(
    row: &'r SqliteRow,
    column: usize,
    name: &str,
) -> Result<T, String> {
    optional(row, column, name)?.ok_or_else(|| format!("{name} is null"))
}

fn optional<'r, T: Decode<'r, Sqlite> + Type<Sqlite>>(
    row: &'r SqliteRow,
    column: usize,
    name: &str,
) -> Result<Option<T>, String> {
    row.try_get(column).map_err(|error| format!("{name}: {error}"))
}

/// A partition's number; the table's own check keeps others out.
pub(crate) fn partition(row: &SqliteRow, column: usize) -> Result<Partition, sqlx::Error> {
    let number: i64 = row.try_get(column)?;
    u8::try_from(number).map(Partition).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// A JSON array of numbers, to be opened by `json_each`.
pub(crate) fn json_numbers(numbers: impl IntoIterator<Item = i64>) -> String {
    let mut json = String::from("[");
    for number in numbers {
        if json.len() > 1 {
            json.push(',');
        }
        json.push_str(&number.to_string());
    }
    json.push(']');
    json
}

/// A JSON array of numbers of partitions.
pub(crate) fn json_partitions(partitions: &PartitionSet) -> String {
    json_numbers(partitions.iter().map(|partition| i64::from(partition.0)))
}

/// The name of a kind of hold in the table.
pub(crate) fn hold_kind(kind: HoldKind) -> &'static str {
    match kind {
        HoldKind::DeadHead => "DEAD_HEAD",
        HoldKind::Overflow => "OVERFLOW",
    }
}

/// A hold from its partition, name, kind and number.
pub(crate) fn hold(row: &SqliteRow) -> Result<Hold, sqlx::Error> {
    Ok(Hold {
        partition: partition(row, 0)?,
        key: Key::from(row.try_get::<&str, _>(1)?),
        kind: match row.try_get(2)? {
            "DEAD_HEAD" => HoldKind::DeadHead,
            "OVERFLOW" => HoldKind::Overflow,
            other => return Err(sqlx::Error::Decode(format!("unknown kind of hold {other:?}").into())),
        },
        from: Seq(row.try_get(3)?),
    })
}
