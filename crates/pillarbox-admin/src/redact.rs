//! What is kept from the eyes of some.
//!
//! Rules name places in payloads and names of headers. They hold for viewers, or for everybody. Where a rule holds:
//! - a payload that is JSON is shown with the named values replaced; any other payload is not shown at all, since
//!   nobody knows where in it the values are;
//! - the values that were replaced are replaced in the event's last error as well, and errors can be hidden altogether;
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

    /// The payload, and the texts that were taken out of it.
    pub(crate) fn payload(self, payload: &Payload) -> (Seen<'_>, Vec<String>) {
        let Some(rules) = self.0 else { return (Seen::Whole(payload), Vec::new()) };
        if rules.hide_payloads {
            return (Seen::Hidden, Vec::new());
        }
        if rules.paths.is_empty() {
            return (Seen::Whole(payload), Vec::new());
        }
        let Some(mut value) = payload.is_json().then(|| payload.to::<Value>().ok()).flatten() else {
            return (Seen::Hidden, Vec::new());
        };
        let mut taken = Vec::new();
        for path in &rules.paths {
            path.each(&mut value, &mut |value| {
                texts(value, &mut taken);
                *value = Value::from(REDACTED);
            });
        }
        taken.retain(|text| text.len() >= SHORTEST && text != REDACTED);
        // A text that holds another goes first.
        taken.sort_by_key(|text| std::cmp::Reverse(text.len()));
        taken.dedup();
        (Seen::Redacted(value), taken)
    }

    pub(crate) fn error(self, error: &str, taken: &[String]) -> String {
        match self.0 {
            None => error.to_owned(),
            Some(rules) if rules.hide_errors => REDACTED.to_owned(),
            Some(_) => taken.iter().fold(error.to_owned(), |error, text| error.replace(text.as_str(), REDACTED)),
        }
    }

    pub(crate) fn header(self, name: &str, value: &str) -> String {
        let hidden = self.0.is_some_and(|rules| rules.headers.iter().any(|hidden| name.eq_ignore_ascii_case(hidden)));
        if hidden { REDACTED.to_owned() } else { value.to_owned() }
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
        let (seen, taken) = viewer.payload(&payload);
        assert_eq!(seen, Seen::Redacted(json!({"card": REDACTED, "to": [{"email": REDACTED}], "n": 1})));
        assert_eq!(
            viewer.error("no mail to ada@example.org for card 12345", &taken),
            "no mail to [redacted] for card [redacted]"
        );
        assert_eq!(viewer.header("authorization", "Basic x"), REDACTED);
        assert_eq!(viewer.header("source", "web"), "web");
        assert!(!viewer.may_search());

        let operator = rules.eyes(&Identity::operator("o"));
        assert_eq!(operator.payload(&payload).0, Seen::Whole(&payload));
        assert_eq!(operator.header("authorization", "Basic x"), "Basic x");
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
            assert_eq!(viewer.payload(&payload).0, Seen::Hidden);
        }
        let errors = Redaction::new().hide_errors();
        assert_eq!(errors.eyes(&Identity::viewer("v")).error("secret", &[]), REDACTED);
        let headers = Redaction::new().header("a");
        let plain = Payload::bytes("text/plain", "x");
        assert_eq!(headers.eyes(&Identity::viewer("v")).payload(&plain).0, Seen::Whole(&plain));
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
