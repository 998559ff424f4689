//! What travels beside the payload, unchanged from the writer to the handler.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What the names of the context's entries begin with: they are headers like all others, so that they travel with the
/// event through every database and broker.
const CONTEXT: &str = "context.";

/// Names and values that accompany an event; sorted by name.
///
/// ```
/// use pillarbox_core::domain::Headers;
///
/// let mut headers: Headers = [("source", "web")].into_iter().collect();
/// headers.set_context("user", "ada");
/// assert_eq!(headers.get("source"), Some("web"));
/// assert_eq!(headers.context("user"), Some("ada"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// No headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a header; a former value of that name is replaced.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    /// The value of a header.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Every name with its value, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Sets an entry of the context.
    pub fn set_context(&mut self, name: &str, value: impl Into<String>) {
        self.0.insert(format!("{CONTEXT}{name}"), value.into());
    }

    /// The value of an entry of the context.
    pub fn context(&self, name: &str) -> Option<&str> {
        self.get(&format!("{CONTEXT}{name}"))
    }

    /// Every entry of the context with its value, by name.
    pub fn contexts(&self) -> impl Iterator<Item = (&str, &str)> {
        let from = self.0.range(CONTEXT.to_owned()..);
        from.map_while(|(name, value)| Some((name.strip_prefix(CONTEXT)?, value.as_str())))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The stored form: a JSON object of strings.
    pub fn to_json(&self) -> String {
        // A map of strings always has a JSON form.
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    /// Reads the stored form back.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(entries: I) -> Self {
        Self(entries.into_iter().map(|(n, v)| (n.into(), v.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_context_is_apart_from_other_headers() {
        let mut headers = Headers::from_iter([("a", "1"), ("contexts", "2"), ("z", "3")]);
        headers.set_context("user", "ann");
        headers.set_context("request", "r-7");
        assert_eq!(headers.contexts().collect::<Vec<_>>(), [("request", "r-7"), ("user", "ann")]);
        assert_eq!((headers.context("user"), headers.context("a")), (Some("ann"), None));
    }

    proptest! {
        #[test]
        fn stored_form_gives_back_what_was_set(entries in proptest::collection::btree_map(".*", ".*", 0..8)) {
            let headers: Headers = entries.clone().into_iter().collect();
            prop_assert_eq!(Headers::from_json(&headers.to_json()).unwrap(), headers);
        }
    }
}
