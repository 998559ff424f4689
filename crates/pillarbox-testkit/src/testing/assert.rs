//! Assertions about what was written.

use std::{collections::BTreeMap, fmt::Write as _, marker::PhantomData};

use pillarbox_core::{
    Event, Outbox, OutboxEvent,
    domain::Codecs,
    port::{Query, Store, StoreError},
};
use serde::Serialize;
use serde_json::Value;

use super::report::all;

/// Asserts that an event was written and committed, with fields of these values. Use it in an async function.
///
/// Named fields are compared, and no others. A value is anything that serialises as the field does: a `&str` for a
/// `String`, a number of another size. What stands for itself may be named alone, as in `OrderPlaced { order_id }`.
///
/// ```
/// # use pillarbox_testkit::testing::{self, assert_written};
/// # use serde::{Deserialize, Serialize};
/// # use pillarbox_macros::OutboxEvent;
/// # #[derive(Serialize, Deserialize, OutboxEvent)]
/// # #[outbox(crate = pillarbox_core)]
/// # struct OrderPlaced { order_id: String, total_cents: i64 }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let outbox = testing::outbox().start().await?;
/// # let mut tx = outbox.begin().await?;
/// # tx.write(&OrderPlaced { order_id: "7".into(), total_cents: 4_200 }).await?;
/// # tx.commit().await?;
/// assert_written!(outbox, OrderPlaced { order_id: "7", .. });
/// assert_written!(outbox, OrderPlaced { order_id: "7", total_cents: 4_200 });
/// assert_written!(outbox, OrderPlaced { .. }, times = 1);
/// # Ok(()) }
/// ```
///
/// It reads the table: what is rolled back, or not committed yet, is not there, and neither is what was purged, or
/// deleted by `OnSuccess::Delete`. An enum's variant is named with its path, as in `OrderEvent::Placed { .. }`.
#[macro_export]
macro_rules! assert_written {
    ($outbox:expr, $event:path { $($fields:tt)* } $(,)?) => {
        $crate::__assert_events!("assert_written", $outbox, AtLeastOnce, $event { $($fields)* })
    };
    ($outbox:expr, $event:path { $($fields:tt)* }, times = $times:expr $(,)?) => {
        $crate::__assert_events!("assert_written", $outbox, Exactly($times), $event { $($fields)* })
    };
}

/// Asserts that no event of a type was written and committed, or none with fields of these values; see
/// [`assert_written!`](crate::testing::assert_written).
///
/// ```
/// # use pillarbox_testkit::testing::{self, assert_not_written};
/// # use serde::{Deserialize, Serialize};
/// # use pillarbox_macros::OutboxEvent;
/// # #[derive(Serialize, Deserialize, OutboxEvent)]
/// # #[outbox(crate = pillarbox_core)]
/// # struct OrderPlaced { order_id: String, total_cents: i64 }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let outbox = testing::outbox().start().await?;
/// assert_not_written!(outbox, OrderPlaced);
/// assert_not_written!(outbox, OrderPlaced { order_id: "7", .. });
/// # Ok(()) }
/// ```
#[macro_export]
macro_rules! assert_not_written {
    ($outbox:expr, $event:path { $($fields:tt)* } $(,)?) => {
        $crate::__assert_events!("assert_not_written", $outbox, Never, $event { $($fields)* })
    };
    ($outbox:expr, $event:ty $(,)?) => {{
        let asked = $crate::testing::Asked::new(::core::stringify!($event), ::std::vec![], |_: &$event| {
            ::core::option::Option::Some(::std::vec![])
        });
        let times = $crate::testing::Times::Never;
        if let ::core::result::Result::Err(text) =
            $crate::testing::check("assert_not_written", &$outbox, asked, times).await
        {
            ::core::panic!("{text}");
        }
    }};
}

#[doc(hidden)]
#[macro_export]
macro_rules! __assert_events {
    ($name:literal, $outbox:expr, $times:ident $(($count:expr))?, $event:path { .. }) => {
        $crate::__assert_events!($name, $outbox, $times $(($count))?, $event { })
    };
    (
        $name:literal, $outbox:expr, $times:ident $(($count:expr))?,
        $event:path { $($field:ident $(: $value:expr)?),* $(, ..)? $(,)? }
    ) => {{
        // Before the pattern, whose names may be those of the caller's variables.
        let wanted = ::std::vec![$((
            ::core::stringify!($field),
            $crate::testing::value(&$crate::__wanted_value!($field $(: $value)?)),
        )),*];
        #[allow(unreachable_patterns, reason = "a struct has no other variant")]
        let asked = $crate::testing::Asked::new(::core::stringify!($event), wanted, |event| match event {
            $event { $($field,)* .. } => {
                ::core::option::Option::Some(::std::vec![$($crate::testing::value($field)),*])
            }
            _ => ::core::option::Option::None,
        });
        let times = $crate::testing::Times::$times $(($count))?;
        if let ::core::result::Result::Err(text) = $crate::testing::check($name, &$outbox, asked, times).await {
            ::core::panic!("{text}");
        }
    }};
}

#[doc(hidden)]
#[macro_export]
macro_rules! __wanted_value {
    ($field:ident) => {
        $field
    };
    ($field:ident : $value:expr) => {
        $value
    };
}

/// A value as it is compared.
#[doc(hidden)]
pub fn value<T: Serialize + ?Sized>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_else(|error| Value::String(format!("<{error}>")))
}

/// How often an event is to be there.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Once or more.
    AtLeastOnce,
    /// So often.
    Exactly(usize),
    /// Not at all.
    Never,
}

/// The event that an assertion is about.
#[doc(hidden)]
pub struct Asked<E, F> {
    name: &'static str,
    wanted: Vec<(&'static str, Value)>,
    /// The values of the wanted fields; none if it is another variant.
    fields: F,
    event: PhantomData<fn(E)>,
}

impl<E: OutboxEvent, F: Fn(&E) -> Option<Vec<Value>>> Asked<E, F> {
    /// An event of this type, whose fields have these values.
    pub fn new(name: &'static str, wanted: Vec<(&'static str, Value)>, fields: F) -> Self {
        Self { name, wanted, fields, event: PhantomData }
    }

    /// What is wrong with an event: nothing, or the fields that differ.
    fn look(&self, event: &E) -> Look {
        let Some(values) = (self.fields)(event) else { return Look::Another };
        let pairs = self.wanted.iter().zip(values).filter(|((_, wanted), value)| wanted != value);
        let differ: Vec<_> =
            pairs.map(|((field, wanted), value)| format!("{field} is {value}, and not {wanted}")).collect();
        if differ.is_empty() { Look::Same } else { Look::Differs(differ) }
    }
}

impl<E, F> Asked<E, F> {
    fn in_words(&self) -> String {
        let mut words = format!("{} {{ ", self.name);
        for (field, value) in &self.wanted {
            let _ = write!(words, "{field}: {value}, ");
        }
        words.push_str(".. }");
        words
    }
}

impl<E, F> std::fmt::Debug for Asked<E, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.in_words())
    }
}

enum Look {
    Same,
    Differs(Vec<String>),
    Another,
    Unreadable(String),
}

/// Says what is wrong, if anything is.
#[doc(hidden)]
pub async fn check<S: Store, E: OutboxEvent, F: Fn(&E) -> Option<Vec<Value>>>(
    assertion: &str,
    outbox: &Outbox<S>,
    asked: Asked<E, F>,
    times: Times,
) -> Result<(), String> {
    let events = of_type::<S, E>(outbox).await.map_err(|error| format!("{assertion}: {error}"))?;
    let codecs = outbox.codecs();
    let looks: Vec<(&Event, Look)> = events
        .iter()
        .map(|event| match E::decode(event, codecs) {
            Ok(decoded) => (event, asked.look(&decoded)),
            Err(error) => (event, Look::Unreadable(error.to_string())),
        })
        .collect();
    let found = looks.iter().filter(|(_, look)| matches!(look, Look::Same)).count();
    let verdict = match times {
        Times::AtLeastOnce if found == 0 => "no such event was written".to_owned(),
        Times::Exactly(count) if found != count => format!("written {found} times, and not {count}"),
        Times::Never if found > 0 => format!("written {found} times, and not wanted"),
        _ => return Ok(()),
    };
    let mut lines = vec![format!("{assertion}: {verdict}"), format!("  asked for: {}", asked.in_words())];
    if events.is_empty() {
        let others = others(outbox).await.map_err(|error| format!("{assertion}: {error}"))?;
        lines.push(format!("  written: {others}"));
        return Err(lines.join("\n"));
    }
    lines.push("  written of this type:".into());
    for (event, look) in looks {
        let mark = if matches!(look, Look::Same) { "  <- as asked for" } else { "" };
        lines.push(format!("    {}{mark}", shown(event, codecs)));
        match look {
            Look::Same | Look::Another => {}
            Look::Differs(fields) => lines.extend(fields.iter().map(|field| format!("      {field}"))),
            Look::Unreadable(error) => lines.push(format!("      it can't be read: {error}")),
        }
    }
    Err(lines.join("\n"))
}

/// The events that go where those of this type go, in the order of writing.
pub(super) async fn of_type<S: Store, E: OutboxEvent>(outbox: &Outbox<S>) -> Result<Vec<Event>, StoreError> {
    let mut found = BTreeMap::new();
    for route in E::routes() {
        let (aggregate, event) = (route.aggregate.as_str().to_owned(), route.event.as_str().to_owned());
        let query = Query { event_type: Some(event), aggregate_type: Some(aggregate), ..Query::default() };
        let rows = all(outbox.store(), &query).await?;
        found.extend(rows.into_iter().filter_map(|row| Some((row.seq, row.record.ok()?.event))));
    }
    Ok(found.into_values().collect())
}

/// What was written instead.
async fn others<S: Store>(outbox: &Outbox<S>) -> Result<String, StoreError> {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for found in all(outbox.store(), &Query::default()).await? {
        let kind = found.record.map_or_else(|_| "unreadable".into(), |record| record.event.event_type().to_string());
        *kinds.entry(kind).or_default() += 1;
    }
    if kinds.is_empty() {
        return Ok("nothing, in transactions that are committed".into());
    }
    let kinds: Vec<_> = kinds.into_iter().map(|(kind, count)| format!("{count} of {kind}")).collect();
    Ok(format!("none of this type, but {}", kinds.join(", ")))
}

/// The payload, as far as it can be shown: JSON as it was written.
fn shown(event: &Event, codecs: &Codecs) -> String {
    let payload = event.payload();
    let Ok(value) = codecs.decode::<Value>(payload) else {
        return format!("{} bytes of {}", payload.len(), payload.content_type());
    };
    let text = std::str::from_utf8(payload.as_bytes()).ok().filter(|_| payload.content_type() == "application/json");
    text.map_or_else(|| format!("{} {value}", event.event_type()), |text| format!("{} {text}", event.event_type()))
}
