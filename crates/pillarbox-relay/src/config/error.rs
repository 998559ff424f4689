//! What is wrong with a configuration, and where.

use std::fmt;

use figment::error::Kind;

use crate::near::nearest;

/// What is wrong, and where. Never what a secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    path: String,
    what: String,
    wants_text: bool,
}

impl ConfigError {
    /// Something is wrong at a path.
    pub fn at(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self { path: path.into(), what: what.into(), wants_text: false }
    }

    /// The path, such as `outbox.workers`.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn what(&self) -> &str {
        &self.what
    }

    /// Whether a text is wanted where something else is.
    pub(super) fn wants_text(&self) -> bool {
        self.wants_text
    }

    /// From the reader's error, below a path.
    pub(super) fn below(path: &str, error: &figment::Error) -> Self {
        let mut keys: Vec<String> = path.split('.').filter(|key| !key.is_empty()).map(str::to_owned).collect();
        keys.extend(error.path.iter().cloned());
        let wants_text = matches!(&error.kind, Kind::InvalidType(_, wanted) if TEXTS.contains(&wanted.as_str()));
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
            Kind::InvalidType(_, expected) => format!("is of the wrong kind: {} is expected", in_words(expected)),
            Kind::InvalidValue(_, expected) => format!("has the wrong value: {} is expected", in_words(expected)),
            Kind::InvalidLength(length, expected) => format!("has {length} values: {} is expected", in_words(expected)),
            Kind::DuplicateField(field) => format!("has {field} twice"),
            Kind::ISizeOutOfRange(_) | Kind::USizeOutOfRange(_) => "is a number out of its range".to_owned(),
            Kind::Unsupported(_) | Kind::UnsupportedKey(..) => "is of a kind that can't be read here".to_owned(),
            // Of who reads a value, such as an address. None repeats it, since it may be a secret.
            Kind::Message(words) => words.clone(),
        };
        Self { path: keys.join("."), what, wants_text }
    }
}

/// How readers call what is a text, or may be one.
const TEXTS: [&str; 4] = ["a string", "string", "a borrowed string", ONE_OR_MANY];

/// What a list of texts may be written as.
pub(super) const ONE_OR_MANY: &str = "a text or a list of texts";

/// What a reader expects, for people who don't read Rust.
fn in_words(expected: &str) -> &str {
    match expected {
        "a string" | "string" | "a borrowed string" => "a text",
        "a boolean" | "bool" => "`true` or `false`",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more,",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a sequence" => "a list",
        "a map" => "a table",
        other => other,
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
