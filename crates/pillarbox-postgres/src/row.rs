//! Rows become domain types.

use pillarbox_core::domain::{
    Event, EventType, Headers, JSON, Key, Partition, PartitionSet, Payload, Record, Seq, Timestamp,
};
use pillarbox_core::port::{Candidate, Hold, HoldKind, Row};
use sqlx::{
    Column as _, Decode, Encode, Postgres, Row as _, Type, TypeInfo as _,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgHasArrayType, PgRow, PgTypeInfo, PgValueRef, types::Oid},
};

use crate::writer::{EPOCH, since_2000};

/// What a read asks for, in the order of the ordinals below. What is nearly always the same is null then: a value that is sent
/// goes through a function and a buffer of its own on the server, and is decoded here.
pub(crate) const COLUMNS: &str = "seq, partition, event_key, event_id, event_type, \
     nullif(aggregate_type, '__GLOBAL__') as aggregate_type, aggregate_id, tenant_id, \
     nullif(content_type, 'application/json') as content_type, payload, payload_bytes, headers, \
     nullif(attempts, 0) as attempts, nullif(starts, 0) as starts, progress, occurred_at, created_at";

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
pub(crate) const CREATED_AT: usize = 16;
/// How many columns [`COLUMNS`] names; what a statement adds comes after them.
pub(crate) const WIDTH: usize = 17;

/// Whether a column can be read as the type that it is read as.
type Fits = fn(&PgTypeInfo) -> bool;

/// The types of [`COLUMNS`].
const FITS: [Fits; WIDTH] = {
    let (text, integer) = (<str as Type<Postgres>>::compatible as Fits, <i32 as Type<Postgres>>::compatible as Fits);
    let (bytes, time) = (<[u8] as Type<Postgres>>::compatible as Fits, <Time as Type<Postgres>>::compatible as Fits);
    let (seq, partition) = (<i64 as Type<Postgres>>::compatible as Fits, <i16 as Type<Postgres>>::compatible as Fits);
    [seq, partition, text, text, text, text, text, text, text, text, bytes, text, integer, integer, text, time, time]
};

/// Rows of one statement that begins with [`COLUMNS`], whose types are compared here once for all of them: in a backlog to
/// do it for each value takes longer than to read it.
pub(crate) fn checked(rows: Vec<PgRow>) -> Result<Vec<PgRow>, sqlx::Error> {
    rows.first().map_or(Ok(()), check).map(|()| rows)
}

/// The same for a single row.
pub(crate) fn check(row: &PgRow) -> Result<(), sqlx::Error> {
    fit(row, &FITS)
}

/// Sees to it that the first columns of a row have types that can be read so.
fn fit(row: &PgRow, types: &[Fits]) -> Result<(), sqlx::Error> {
    let wrong = row.columns().iter().zip(types).find(|(column, fits)| !fits(column.type_info()));
    wrong.map_or(Ok(()), |(column, _)| {
        let words = format!("its type is {}, and events are not kept in such a column", column.type_info().name());
        Err(sqlx::Error::ColumnDecode { index: column.name().to_owned(), source: words.into() })
    })
}

/// The number of a row that was checked.
pub(crate) fn seq(row: &PgRow) -> Result<Option<i64>, sqlx::Error> {
    row.try_get_unchecked(SEQ)
}

/// The row's number, and what the owner is asked about. The row was checked.
pub(crate) fn candidate(row: &PgRow) -> Result<Candidate<'_>, sqlx::Error> {
    Ok(Candidate {
        seq: Seq(row.try_get_unchecked(SEQ)?),
        partition: numbered(row.try_get_unchecked(PARTITION)?)?,
        key: row.try_get_unchecked(KEY)?,
    })
}

/// The row, which was checked, as an event, or as a broken row with what is wrong in it.
pub(crate) fn decode(row: &PgRow, candidate: Candidate<'_>) -> Row {
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
pub(crate) fn record(row: &PgRow, candidate: Candidate<'_>) -> Result<Record, String> {
    let id = required::<&str>(row, ID, "event_id")?;
    let id = id.parse().map_err(|error| format!("event_id {id:?}: {error}"))?;
    let occurred_at = required::<Time>(row, OCCURRED_AT, "occurred_at")?.0;
    let mut event =
        Event::builder(EventType::from(required::<&str>(row, EVENT_TYPE, "event_type")?)).payload(payload(row)?);
    if let Some(aggregate_type) = optional::<&str>(row, AGGREGATE_TYPE, "aggregate_type")? {
        event = event.aggregate_type(aggregate_type);
    }
    if let Some(aggregate_id) = optional::<&str>(row, AGGREGATE_ID, "aggregate_id")? {
        event = event.aggregate_id(aggregate_id);
    }
    if let Some(tenant) = optional::<&str>(row, TENANT_ID, "tenant_id")? {
        event = event.tenant(tenant);
    }
    if let Some(key) = candidate.key {
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
        created_at: required::<Time>(row, CREATED_AT, "created_at")?.0,
    })
}

fn payload(row: &PgRow) -> Result<Payload, String> {
    payload_at(row, CONTENT_TYPE)
}

/// The payload of a row that has nothing but content type, text and bytes, and was not checked.
pub(crate) fn payload_alone(row: &PgRow) -> Result<Payload, String> {
    fit(row, &FITS[CONTENT_TYPE..CONTENT_TYPE + 3]).map_err(|error| error.to_string())?;
    payload_at(row, 0)
}

/// A payload from three columns that follow each other: its content type, its text, its bytes. The row was checked.
fn payload_at(row: &PgRow, first: usize) -> Result<Payload, String> {
    let content_type = optional::<&str>(row, first, "content_type")?.unwrap_or(JSON);
    if let Some(text) = optional::<&str>(row, first + 1, "payload")? {
        return Ok(Payload::stored(content_type, text.to_owned(), true));
    }
    let bytes = required::<&[u8]>(row, first + 2, "payload_bytes")?;
    Ok(Payload::stored(content_type, bytes.to_vec(), false))
}

fn count(row: &PgRow, column: usize, name: &str) -> Result<u32, String> {
    let count: i32 = optional(row, column, name)?.unwrap_or_default();
    u32::try_from(count).map_err(|_| format!("{name} is {count}, and a count is expected"))
}

fn required<'r, T: Decode<'r, Postgres>>(row: &'r PgRow, column: usize, name: &str) -> Result<T, String> {
    optional(row, column, name)?.ok_or_else(|| format!("{name} is null"))
}

fn optional<'r, T: Decode<'r, Postgres>>(row: &'r PgRow, column: usize, name: &str) -> Result<Option<T>, String> {
    row.try_get_unchecked(column).map_err(|error| format!("{name}: {error}"))
}

/// A partition's number; the table's own check keeps others out.
pub(crate) fn partition(row: &PgRow, column: usize) -> Result<Partition, sqlx::Error> {
    numbered(row.try_get(column)?)
}

fn numbered(number: i16) -> Result<Partition, sqlx::Error> {
    u8::try_from(number).map(Partition).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// A set of partitions as the bits that `get_bit` counts: a look-up costs the same for one and for all.
pub(crate) fn bits(partitions: &PartitionSet) -> Vec<u8> {
    let mut bits = vec![0; Partition::COUNT / 8];
    for Partition(number) in partitions.iter() {
        bits[usize::from(number / 8)] |= 1 << (number % 8);
    }
    bits
}

pub(crate) fn numbers(seqs: &[Seq]) -> Vec<i64> {
    seqs.iter().map(|seq| seq.0).collect()
}

/// The name of a kind of hold in the table.
pub(crate) fn hold_kind(kind: HoldKind) -> &'static str {
    match kind {
        HoldKind::DeadHead => "DEAD_HEAD",
        HoldKind::Overflow => "OVERFLOW",
    }
}

/// A hold from its partition, name, kind and number.
pub(crate) fn hold(row: &PgRow) -> Result<Hold, sqlx::Error> {
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

/// A `timestamptz`, which counts microseconds from 2000 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Timestamp);

impl Type<Postgres> for Time {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1184))
    }

    fn compatible(ty: &PgTypeInfo) -> bool {
        ty.name() == "TIMESTAMPTZ"
    }
}

impl PgHasArrayType for Time {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1185))
    }
}

impl Encode<'_, Postgres> for Time {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Postgres>::encode(since_2000(self.0), buffer)
    }
}

impl<'r> Decode<'r, Postgres> for Time {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let micros = i64::from_be_bytes(value.as_bytes()?.try_into()?);
        Ok(Self(Timestamp::from_micros(micros.saturating_add(EPOCH))))
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::domain::AggregateType;

    use super::*;

    #[test]
    fn what_is_read_as_null_is_what_null_is_taken_for() {
        assert!(COLUMNS.contains(&format!("nullif(aggregate_type, '{}')", AggregateType::default().as_str())));
        assert!(COLUMNS.contains(&format!("nullif(content_type, '{JSON}')")));
    }

    #[test]
    fn bits_are_counted_from_the_right_of_each_byte() {
        let bits = bits(&[0, 9, 255].into_iter().map(Partition).collect());
        assert_eq!((bits[0], bits[1], bits[31], bits.len()), (1, 2, 128, 32));
    }
}
