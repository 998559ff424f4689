//! Values as SeaORM can bind them.
//!
//! Its arrays have no nulls, and its times need a crate for times. Both go as text in the form that PostgreSQL reads,
//! and the statements cast them.

use pillarbox_core::domain::Timestamp;
use pillarbox_postgres::writer::Value;

pub(crate) fn bind(value: Value<'_>) -> sea_orm::Value {
    match value {
        Value::SmallInt(value) => value.into(),
        Value::BigInt(value) => value.into(),
        Value::Text(value) => value.map(String::from).into(),
        Value::Bytea(value) => value.map(<[u8]>::to_vec).into(),
        Value::Timestamptz(value) => value.map(time).into(),
        Value::SmallIntArray(values) => array(values, |text, value| text.push_str(&value.to_string())).into(),
        Value::BigIntArray(values) => array(values, |text, value| match value {
            Some(value) => text.push_str(&value.to_string()),
            None => text.push_str(NULL),
        })
        .into(),
        Value::TextArray(values) => array(values, |text, value| match value {
            Some(value) => quote(text, &value),
            None => text.push_str(NULL),
        })
        .into(),
        Value::ByteaArray(values) => array(values, |text, value| match value {
            Some(bytes) => hex(text, bytes),
            None => text.push_str(NULL),
        })
        .into(),
        Value::TimestamptzArray(values) => array(values, |text, value| match value {
            Some(value) => quote(text, &time(value)),
            None => text.push_str(NULL),
        })
        .into(),
    }
}

const NULL: &str = "NULL";

fn array<T>(values: Vec<T>, push: impl Fn(&mut String, T)) -> String {
    let mut text = String::from("{");
    for (index, value) in values.into_iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        push(&mut text, value);
    }
    text.push('}');
    text
}

fn quote(text: &mut String, value: &str) {
    text.push('"');
    for letter in value.chars() {
        if matches!(letter, '"' | '\\') {
            text.push('\\');
        }
        text.push(letter);
    }
    text.push('"');
}

fn hex(text: &mut String, bytes: &[u8]) {
    text.reserve(2 * bytes.len() + 6);
    text.push_str(r#""\\x"#);
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
        }
    }
    text.push('"');
}

/// Times before the year 1 become its first moment. PostgreSQL holds the last that can be.
fn time(time: Timestamp) -> String {
    const FIRST: Timestamp = Timestamp::from_micros(-62_135_596_800_000_000);
    time.max(FIRST).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: Value<'_>) -> String {
        match bind(value) {
            sea_orm::Value::String(Some(text)) => text,
            other => panic!("{other:?} is no text"),
        }
    }

    #[test]
    fn arrays_read_as_postgresql_writes_them() {
        assert_eq!(text(Value::SmallIntArray(vec![1, -2])), "{1,-2}");
        assert_eq!(text(Value::BigIntArray(vec![None, Some(7)])), "{NULL,7}");
        let texts = [Some(""), None, Some("NULL"), Some(r#"a,"b"\{c}"#)];
        let texts = texts.into_iter().map(|text| text.map(Into::into)).collect();
        assert_eq!(text(Value::TextArray(texts)), r#"{"",NULL,"NULL","a,\"b\"\\{c}"}"#);
        assert_eq!(text(Value::ByteaArray(vec![Some(&[0, 255]), None, Some(&[])])), r#"{"\\x00ff",NULL,"\\x"}"#);
        assert_eq!(text(Value::TextArray(Vec::new())), "{}");
    }

    #[test]
    fn the_farthest_times_are_held_at_those_that_have_a_form() {
        let farthest = [i64::MIN, -1, i64::MAX].map(|micros| Some(Timestamp::from_micros(micros)));
        assert_eq!(
            text(Value::TimestamptzArray(farthest.to_vec())),
            r#"{"0001-01-01T00:00:00.000000Z","1969-12-31T23:59:59.999999Z","294247-01-10T04:00:54.775807Z"}"#
        );
    }
}
