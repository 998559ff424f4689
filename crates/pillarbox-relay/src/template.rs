//! Texts with places for what an event has: `orders.{tenant}.{event_type}`.

use std::fmt;

use pillarbox_core::Event;

use crate::{message::aggregate_type, near::nearest};

/// A text with places.
///
/// `{event_type}`, `{aggregate_type}`, `{aggregate_id}`, `{tenant}`, `{key}`, `{id}` and `{header.NAME}` stand for what the
/// event has; `{tenant|none}` says what stands there if it has none. `{{` and `}}` are braces.
#[derive(Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Place { field: Field, otherwise: Option<String> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Field {
    EventType,
    AggregateType,
    AggregateId,
    Tenant,
    Key,
    Id,
    Header(String),
}

const NAMES: [&str; 7] = ["event_type", "aggregate_type", "aggregate_id", "tenant", "key", "id", "header.NAME"];

impl Template {
    /// Reads a template; what is wrong with it is the error.
    pub fn new(text: impl Into<String>) -> Result<Self, String> {
        let text = text.into();
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                plain.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return Err(format!("{text:?} has a `}}` without a `{{`; a brace itself is written twice"));
            }
            let Some(end) = rest.find('}') else {
                return Err(format!("{text:?} has a `{{` without a `}}`; a brace itself is written twice"));
            };
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(Part::read(&rest[..end], &text)?);
            rest = &rest[end + 1..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self { text, parts })
    }

    /// As it was written.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Fills it in. What the event lacks is the error.
    pub fn fill(&self, event: &Event) -> Result<String, Lacking> {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Place { field, otherwise } => match field.of(event).or(otherwise.clone()) {
                    Some(value) => filled.push_str(&value),
                    None => return Err(Lacking { field: field.to_string() }),
                },
            }
        }
        Ok(filled)
    }
}

/// What an event would have to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    field: String,
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the event has no {0}; `{{{0}|...}}` would say what to put in its place", self.field)
    }
}

impl Part {
    fn read(place: &str, text: &str) -> Result<Self, String> {
        let (name, otherwise) = match place.split_once('|') {
            Some((name, otherwise)) => (name, Some(otherwise.to_owned())),
            None => (place, None),
        };
        let field = match name {
            "event_type" => Field::EventType,
            "aggregate_type" => Field::AggregateType,
            "aggregate_id" => Field::AggregateId,
            "tenant" => Field::Tenant,
            "key" => Field::Key,
            "id" => Field::Id,
            _ => match name.strip_prefix("header.") {
                Some(header) if !header.is_empty() => Field::Header(header.to_owned()),
                _ => {
                    let near =
                        nearest(name, NAMES).map(|near| format!(" Did you mean {{{near}}}?")).unwrap_or_default();
                    let known = NAMES.map(|name| format!("{{{name}}}")).join(", ");
                    return Err(format!("{text:?} has {{{name}}}, which nothing has.{near} There is {known}"));
                }
            },
        };
        Ok(Self::Place { field, otherwise })
    }
}

impl Field {
    fn of(&self, event: &Event) -> Option<String> {
        match self {
            Self::EventType => Some(event.event_type().to_string()),
            Self::AggregateType => aggregate_type(event).map(str::to_owned),
            Self::AggregateId => event.aggregate_id().map(str::to_owned),
            Self::Tenant => event.tenant_id().map(str::to_owned),
            Self::Key => event.key().map(ToString::to_string),
            Self::Id => Some(event.id().to_string()),
            Self::Header(name) => event.headers().get(name).map(str::to_owned),
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EventType => f.write_str("event_type"),
            Self::AggregateType => f.write_str("aggregate_type"),
            Self::AggregateId => f.write_str("aggregate_id"),
            Self::Tenant => f.write_str("tenant"),
            Self::Key => f.write_str("key"),
            Self::Id => f.write_str("id"),
            Self::Header(name) => write!(f, "header.{name}"),
        }
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed() -> Event {
        let event = Event::builder("OrderPlaced").aggregate("Order", "7").tenant("acme").key("order-7");
        event.header("region", "eu").json(&1).build().unwrap()
    }

    #[test]
    fn places_are_filled_from_the_event() {
        let event = placed();
        for (template, filled) in [
            ("orders", "orders".to_owned()),
            ("{event_type}", "OrderPlaced".into()),
            ("{tenant}.{aggregate_type}.{aggregate_id}", "acme.Order.7".into()),
            ("{key}/{header.region}", "order-7/eu".into()),
            ("{header.zone|none}", "none".into()),
            ("{header.zone|}", String::new()),
            ("{{{id}}}", format!("{{{}}}", event.id())),
            ("", String::new()),
        ] {
            assert_eq!(Template::new(template).unwrap().fill(&event).unwrap(), filled, "{template}");
        }
    }

    #[test]
    fn what_the_event_lacks_is_named() {
        let bare = Event::builder("x").json(&1).build().unwrap();
        let error = Template::new("{event_type}.{tenant}").unwrap().fill(&bare).unwrap_err().to_string();
        assert!(error.contains("no tenant") && error.contains("{tenant|...}"), "{error}");
        let error = Template::new("{aggregate_type}").unwrap().fill(&bare).unwrap_err().to_string();
        assert!(error.contains("no aggregate_type"), "{error}");
        assert_eq!(Template::new("{aggregate_type|none}").unwrap().fill(&bare).unwrap(), "none");
    }

    #[test]
    fn mistakes_are_told_with_what_there_is() {
        for (wrong, words) in [
            ("{evnt_type}", "Did you mean {event_type}?"),
            ("{}", "{tenant}"),
            ("{header.}", "{header.NAME}"),
            ("{tenant", "without a `}`"),
            ("tenant}", "without a `{`"),
        ] {
            let error = Template::new(wrong).unwrap_err();
            assert!(error.contains(words), "{wrong}: {error}");
        }
    }
}
