//! What is wrong with a configuration, and where.

use std::fmt;

use figment::error::Kind;

use crate::near::nearest;

/// What is wrong, and where. Never what a secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    path: String,
    what: String,
}

impl ConfigError {
    /// Something is wrong at a path.
    pub fn at(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self { path: path.into(), what: what.into() }
    }

    /// The path, such as `outbox.workers`.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn what(&self) -> &str {
        &self.what
    }

    /// From the reader's error, below a path.
    pub(super) fn below(path: &str, error: &figment::Error) -> Self {
        let mut keys: Vec<String> = path.split('.').filter(|key| !key.is_empty()).map(str::to_owned).collect();
        keys.extend(error.path.iter().cloned());
        let what = match &error.kind {
            Kind::UnknownField(field, allowed) => {
                // Some sources have it in their path already.
                if keys.last() != Some(field) {
                    keys.push(field.clone());
                }
                unknown("key", field, allowed)
            }
            Kind::UnknownVariant(value, allowed) => unknown("value", value, allowed),
            Kind::MissingField(field) => {
                keys.push(field.to_string());
                "is missing, and there is no default for it".to_owned()
            }
            Kind::InvalidType(_, expected) => format!("is of the wrong kind: {expected} is expected"),
            Kind::InvalidValue(_, expected) => format!("has the wrong value: {expected} is expected"),
            Kind::InvalidLength(length, expected) => format!("has {length} values: {expected} is expected"),
            Kind::DuplicateField(field) => format!("has {field} twice"),
            Kind::ISizeOutOfRange(_) | Kind::USizeOutOfRange(_) => "is a number out of its range".to_owned(),
            Kind::Unsupported(_) | Kind::UnsupportedKey(..) => "is of a kind that can't be read here".to_owned(),
            // Of who reads a value, such as an address. None repeats it, since it may be a secret.
            Kind::Message(words) => words.clone(),
        };
        Self { path: keys.join("."), what }
    }
}

/// What there is, and what may have been meant.
pub(super) fn unknown(what: &str, found: &str, allowed: &[&str]) -> String {
    let near = nearest(found, allowed.iter().copied()).map(|near| format!(" Did you mean `{near}`?"));
    let list = allowed.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    format!("is no {what} that is known here.{} Allowed: {list}", near.unwrap_or_default())
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.what) } else { write!(f, "{}: {}", self.path, self.what) }
    }
}

impl std::error::Error for ConfigError {}
