//! What is kept from the eyes of some.
//!
//! Rules name places in payloads and names of headers. They hold for viewers, or for everybody. Where a rule holds:
//! - a payload that is JSON is shown with the named values replaced; any other payload is not shown at all, since
//!   nobody knows where in it the values are;
//! - of a CloudEvent in structured mode, paths lead into its data as well, for it is what the payload would be otherwise;
//! - the values that were replaced, and those of headers, are replaced in the event's last error as well, also those of
//!   payloads that edits have replaced; where a payload can't be read the error is not shown, and errors can be hidden altogether;
//! - nothing can be searched for by its text, since to try one text after another is a way to read.

use pillarbox_core::domain::Payload;
use serde_json::Value;

use crate::{
    access::{Identity, Role},
    path::{JsonPath, PathError},
};

/// What stands in the place of a value.
pub const REDACTED: &str = "[redacted]";

/// Values shorter than this are not looked for in errors: a `1` would be found everywhere.
const SHORTEST: usize = 4;

/// The content type of a CloudEvent in structured mode, and that of several.
const STRUCTURED: &str = "application/cloudevents+json";
const BATCH: &str = "application/cloudevents-batch+json";

/// The rules. Without any, everybody sees everything.
///
/// ```
/// use pillarbox_admin::Redaction;
///
/// let redaction = Redaction::new().path("$.card.number")?.path("$..email")?.header("authorization");
/// # Ok::<(), pillarbox_admin::PathError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Redaction {
    paths: Vec<JsonPath>,
    headers: Vec<String>,
    hide_errors: bool,
    hide_payloads: bool,
    everybody: bool,
}

impl Redaction {
    /// No rule.
    pub fn new() -> Self {
        Self::default()
    }

    /// Hides the values that a path leads to, such as `$.card.number`, `$.items[*].price` or `$..email`.
    pub fn path(mut self, path: &str) -> Result<Self, PathError> {
        self.paths.push(path.parse()?);
        Ok(self)
    }

    /// Hides the value of a header, in whatever case its name is written.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>) -> Self {
        self.headers.push(name.into().to_ascii_lowercase());
        self
    }

    /// Hides errors: they may quote payloads.
    #[must_use]
    pub fn hide_errors(mut self) -> Self {
        self.hide_errors = true;
        self
    }

    /// Hides payloads altogether.
    #[must_use]
    pub fn hide_payloads(mut self) -> Self {
        self.hide_payloads = true;
        self
    }

    /// Holds for operators too. Without it, for viewers.
    #[must_use]
    pub fn for_everybody(mut self) -> Self {
        self.everybody = true;
        self
    }

    fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.headers.is_empty() && !self.hide_errors && !self.hide_payloads
    }

    /// How somebody sees.
    pub(crate) fn eyes(&self, identity: &Identity) -> Eyes<'_> {
        let holds = !self.is_empty() && (self.everybody || identity.role == Role::Viewer);
        Eyes(holds.then_some(self))
    }
}

/// How somebody sees: everything, or by the rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Eyes<'a>(Option<&'a Redaction>);

/// A payload as somebody sees it.
#[derive(Debug, PartialEq)]
pub(crate) enum Seen<'a> {
    Whole(&'a Payload),
    Redacted(Value),
    Hidden,
}

impl Eyes<'_> {
    /// Whether text may be searched for.
    pub(crate) fn may_search(self) -> bool {
        self.0.is_none()
    }

    /// Whether values are taken out of payloads.
    pub(crate) fn takes_out(self) -> bool {
        self.0.is_some_and(|rules| !rules.paths.is_empty())
    }

    /// The payload, and what was taken out of it.
    pub(crate) fn payload(self, payload: &Payload) -> (Seen<'_>, Taken) {
        let Some(rules) = self.0 else { return (Seen::Whole(payload), Taken::default()) };
        let (seen, taken) = if rules.paths.is_empty() {
            (Seen::Whole(payload), Taken::default())
        } else {
            match payload.is_json().then(|| payload.to::<Value>().ok()).flatten() {
                Some(mut value) => {
                    let taken = rules.take(payload.content_type(), &mut value);
                    (Seen::Redacted(value), taken)
                }
                None => (Seen::Hidden, Taken { texts: Vec::new(), unread: true }),
            }
        };
        // What the paths take is no less a secret where nothing of the payload is shown.
        (if rules.hide_payloads { Seen::Hidden } else { seen }, taken)
    }

    /// What was taken out of a payload that can't be looked at.
    pub(crate) fn unread(self) -> Taken {
        let unread = self.0.is_some_and(|rules| !rules.paths.is_empty() || !rules.headers.is_empty());
        Taken { texts: Vec::new(), unread }
    }

    pub(crate) fn error(self, error: &str, taken: &Taken) -> String {
        match self.0 {
            None => error.to_owned(),
            Some(rules) if rules.hide_errors || taken.unread => REDACTED.to_owned(),
            Some(_) => taken.out_of(error),
        }
    }

    /// The value of a header; one that is not shown is taken.
    pub(crate) fn header(self, name: &str, value: &str, taken: &mut Taken) -> String {
        let hidden = self.0.is_some_and(|rules| rules.headers.iter().any(|hidden| name.eq_ignore_ascii_case(hidden)));
        if !hidden {
            return value.to_owned();
        }
        taken.texts.push(value.to_owned());
        REDACTED.to_owned()
    }
}

/// What the rules took out of payloads, which must not stand in an error either.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    texts: Vec<String>,
    /// There was a payload of which nobody knows where in it the values are.
    unread: bool,
}

impl Taken {
    pub(crate) fn add(&mut self, other: Self) {
        self.texts.extend(other.texts);
        self.unread |= other.unread;
    }

    fn out_of(&self, error: &str) -> String {
        let long = |text: &&String| text.len() >= SHORTEST && *text != REDACTED;
        let mut texts: Vec<&String> = self.texts.iter().filter(long).collect();
        // A text that holds another goes first.
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        texts.into_iter().fold(error.to_owned(), |error, text| error.replace(text.as_str(), REDACTED))
    }
}

impl Redaction {
    /// Takes out of a payload what the paths lead to.
    fn take(&self, content_type: &str, value: &mut Value) -> Taken {
        let mut taken = Taken::default();
        self.take_at(value, &mut taken);
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        let events = match value {
            event @ Value::Object(_) if essence.eq_ignore_ascii_case(STRUCTURED) => std::slice::from_mut(event),
            Value::Array(events) if essence.eq_ignore_ascii_case(BATCH) => events,
            _ => return taken,
        };
        for event in events.iter_mut().filter_map(Value::as_object_mut) {
            let kind = event.get("datacontenttype").and_then(Value::as_str);
            let is_json = kind.is_none_or(|kind| Payload::bytes(kind, "").is_json());
            // As of a payload that is no JSON, nobody knows where in it the values are.
            let opaque = if is_json { ["data_base64"].as_slice() } else { &["data", "data_base64"] };
            for name in opaque {
                if let Some(data) = event.get_mut(*name) {
                    *data = Value::from(REDACTED);
                    taken.unread = true;
                }
            }
            if let Some(data) = event.get_mut("data") {
                self.take_at(data, &mut taken);
            }
        }
        taken
    }

    fn take_at(&self, value: &mut Value, taken: &mut Taken) {
        for path in &self.paths {
            path.each(value, &mut |value| {
                texts(value, &mut taken.texts);
                *value = Value::from(REDACTED);
            });
        }
    }
}

/// Every text and number in a value, as it would stand in an error.
fn texts(value: &Value, taken: &mut Vec<String>) {
    match value {
        Value::String(text) => {
            taken.push(text.clone());
            // As JSON writes it.
            if let Ok(quoted) = serde_json::to_string(text) {
                taken.extend(quoted.get(1..quoted.len() - 1).map(ToOwned::to_owned));
            }
        }
        Value::Number(number) => taken.push(number.to_string()),
        Value::Array(elements) => elements.iter().for_each(|element| texts(element, taken)),
        Value::Object(members) => members.values().for_each(|member| texts(member, taken)),
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn card() -> Redaction {
        Redaction::new().path("$.card").unwrap().path("$..email").unwrap().header("Authorization")
    }

    #[test]
    fn viewers_see_by_the_rules_and_operators_everything() {
        let payload =
            Payload::json(&json!({"card": {"number": 12345}, "to": [{"email": "ada@example.org"}], "n": 1})).unwrap();
        let rules = card();
        let viewer = rules.eyes(&Identity::viewer("v"));
        let (seen, mut taken) = viewer.payload(&payload);
        assert_eq!(seen, Seen::Redacted(json!({"card": REDACTED, "to": [{"email": REDACTED}], "n": 1})));
        assert_eq!(viewer.header("authorization", "Basic x", &mut taken), REDACTED);
        assert_eq!(viewer.header("source", "web", &mut taken), "web");
        assert_eq!(
            viewer.error("no mail to ada@example.org for card 12345 by Basic x of web", &taken),
            "no mail to [redacted] for card [redacted] by [redacted] of web"
        );
        assert!(!viewer.may_search());

        let operator = rules.eyes(&Identity::operator("o"));
        assert_eq!(operator.payload(&payload).0, Seen::Whole(&payload));
        assert_eq!(operator.header("authorization", "Basic x", &mut taken), "Basic x");
        assert!(operator.may_search());
        assert!(!card().for_everybody().eyes(&Identity::operator("o")).may_search());
        assert!(Redaction::new().for_everybody().eyes(&Identity::viewer("v")).may_search());
    }

    #[test]
    fn what_is_no_json_is_hidden_as_a_whole() {
        let rules = card();
        let viewer = rules.eyes(&Identity::viewer("v"));
        for payload in [
            Payload::bytes("text/plain", "card 12345"),
            Payload::bytes("application/json", "{\"card\": 1"),
            Payload::bytes("application/octet-stream", "{\"card\": 1}"),
        ] {
            let (seen, taken) = viewer.payload(&payload);
            assert_eq!((seen, viewer.error("card 12345", &taken)), (Seen::Hidden, REDACTED.to_owned()));
        }
        let errors = Redaction::new().hide_errors();
        assert_eq!(errors.eyes(&Identity::viewer("v")).error("secret", &Taken::default()), REDACTED);
        let headers = Redaction::new().header("a");
        let plain = Payload::bytes("text/plain", "x");
        assert_eq!(headers.eyes(&Identity::viewer("v")).payload(&plain).0, Seen::Whole(&plain));
    }

    #[test]
    fn paths_lead_into_the_data_of_a_cloudevent_in_structured_mode() {
        let rules = Redaction::new().path("$.card.number").unwrap();
        let viewer = rules.eyes(&Identity::viewer("v"));
        let event = |data: Value| json!({"specversion": "1.0", "type": "Placed", "data": data});
        let (open, closed) = (json!({"card": {"number": "4711-0815"}}), json!({"card": {"number": REDACTED}}));
        let text = json!({"datacontenttype": "text/xml", "data": "<card>4711-0815</card>"});
        let bytes = json!({"datacontenttype": "application/json", "data_base64": "NDcxMS0wODE1"});
        let error = "no card 4711-0815";
        for (kind, whole, shown, told) in [
            (STRUCTURED, event(open.clone()), event(closed.clone()), "no card [redacted]"),
            (
                "Application/CloudEvents+JSON; charset=utf-8",
                event(open.clone()),
                event(closed.clone()),
                "no card [redacted]",
            ),
            (BATCH, json!([event(open.clone())]), json!([event(closed.clone())]), "no card [redacted]"),
            (STRUCTURED, text, json!({"datacontenttype": "text/xml", "data": REDACTED}), REDACTED),
            (STRUCTURED, bytes, json!({"datacontenttype": "application/json", "data_base64": REDACTED}), REDACTED),
            ("application/json", json!({"data": open}), json!({"data": open}), error),
        ] {
            let payload = Payload::bytes(kind, whole.to_string());
            let (seen, taken) = viewer.payload(&payload);
            assert_eq!(seen, Seen::Redacted(shown), "{kind}");
            assert_eq!(viewer.error(error, &taken), told, "{kind}: {whole}");
        }
    }

    #[test]
    fn paths_clean_errors_where_payloads_are_hidden() {
        let rules = Redaction::new().path("$.card").unwrap().hide_payloads();
        let viewer = rules.eyes(&Identity::viewer("v"));
        let payload = Payload::json(&json!({"card": "4711-0815"})).unwrap();
        let (seen, taken) = viewer.payload(&payload);
        assert_eq!((seen, viewer.error("no 4711-0815", &taken)), (Seen::Hidden, "no [redacted]".to_owned()));
    }

    proptest! {
        #[test]
        fn a_redacted_value_is_in_nothing_that_is_shown(secret in "[a-zA-Z0-9@\"\\\\/é ]{6,20}", before in "[a-z ]{0,9}") {
            prop_assume!(!before.contains(&secret) && !REDACTED.contains(&secret));
            let value = json!({"card": [secret, {"x": secret}], "deep": {"email": secret}});
            let rules = card();
            let eyes = rules.eyes(&Identity::viewer("v"));
            let payload = Payload::json(&value).unwrap();
            let (seen, taken) = eyes.payload(&payload);
            let Seen::Redacted(shown) = seen else { panic!("{seen:?}") };
            let quoted = serde_json::to_string(&secret).unwrap();
            let inside = &quoted[1..quoted.len() - 1];
            for error in [format!("{before}{secret}"), format!("bad {value}"), format!("{quoted} is refused")] {
                let error = eyes.error(&error, &taken);
                prop_assert!(!error.contains(&secret) && !error.contains(inside), "{}", error);
            }
            prop_assert!(!shown.to_string().contains(inside));
        }
    }
}
