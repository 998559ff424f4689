//! From the sources to one tree, and from there to values.

use std::{collections::BTreeMap, fs, path::PathBuf};

use figment::{
    Figment,
    providers::{Env, Format as _, Serialized, Toml},
    value::{Dict, Tag, Value},
};
use pillarbox_inbox::{ConsumerSettings, DeadLetterSettings, GuardSettings, InboxSettings, Refused};
use serde::de::DeserializeOwned;

use super::{AdminConfig, ConfigError, Http, Log, Messages, OutboxConfig, Telemetry, rules::RuleConfig};

/// What variables of the environment begin with.
const ENVIRONMENT: &str = "PILLARBOX__";

/// Where a configuration comes from.
#[derive(Clone, Debug, Default)]
pub struct Source {
    file: Option<PathBuf>,
    text: Option<String>,
    environment: bool,
    set: Vec<(String, String)>,
    texts: Vec<(String, String)>,
}

/// The sections as they are written.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    #[serde(default)]
    pub(super) outbox: OutboxConfig,
    #[serde(default)]
    pub(super) messages: Messages,
    #[serde(default)]
    pub(super) sinks: BTreeMap<String, Dict>,
    #[serde(default)]
    pub(super) rules: Vec<RuleConfig>,
    #[serde(default)]
    pub(super) http: Http,
    #[serde(default)]
    pub(super) telemetry: Telemetry,
    #[serde(default)]
    pub(super) log: Log,
    #[serde(default)]
    pub(super) guard: GuardSettings,
    #[serde(default)]
    pub(super) inbox: InboxSettings,
    #[serde(default)]
    pub(super) consumer: ConsumerSettings,
    #[serde(default)]
    pub(super) dead_letters: DeadLetterSettings,
    #[serde(default)]
    pub(super) admin: AdminConfig,
}

impl Raw {
    /// Refuses values that can't be, in sections that this program may not even use: one file serves several.
    fn check(&self) -> Result<(), ConfigError> {
        let at = |section: &str| {
            let section = section.to_owned();
            move |refused: Refused| ConfigError::at(format!("{section}.{}", refused.key), refused.what)
        };
        self.guard.check().map_err(at("guard"))?;
        self.inbox.check().map_err(at("inbox"))?;
        self.consumer.check().map_err(at("consumer"))?;
        self.dead_letters.check().map_err(at("dead_letters"))?;
        self.outbox.check()?;
        self.admin.check()
    }
}

impl Source {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A TOML file.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// TOML itself.
    #[must_use]
    pub fn text(mut self, toml: impl Into<String>) -> Self {
        self.text = Some(toml.into());
        self
    }

    /// The variables `PILLARBOX__SECTION__KEY`.
    #[must_use]
    pub fn environment(mut self) -> Self {
        self.environment = true;
        self
    }

    /// One value, by its path. It is read as TOML, and as text where it is none.
    #[must_use]
    pub fn set(mut self, path: impl Into<String>, value: impl Into<String>) -> Self {
        self.set.push((path.into(), value.into()));
        self
    }

    /// One value that is text, whatever it looks like.
    #[must_use]
    pub fn set_text(mut self, path: impl Into<String>, text: impl Into<String>) -> Self {
        self.texts.push((path.into(), text.into()));
        self
    }

    /// Reads all sources and makes something of them.
    ///
    /// What the environment and `set` give is text, and a number or a flag is known by its look. Where a text is wanted, it
    /// is the text again: a password may be 007.
    pub(super) fn read<T>(&self, make: impl Fn(Raw) -> Result<T, ConfigError>) -> Result<T, ConfigError> {
        let mut as_text = BTreeMap::new();
        loop {
            let made = self.read_unchecked(&as_text).and_then(|raw| {
                raw.check()?;
                make(raw)
            });
            match made {
                Err(error) if error.wants_text() && !as_text.contains_key(error.path()) => {
                    let Some(text) = self.typed(error.path()) else { return Err(error) };
                    as_text.insert(error.path().to_owned(), text);
                }
                made => return made,
            }
        }
    }

    /// What stands for a path in the source that decides it, if it looks like a number or a flag.
    fn typed(&self, path: &str) -> Option<String> {
        let set = self.set.iter().rfind(|(set, _)| set == path).map(|(_, text)| text.clone());
        let name = format!("{ENVIRONMENT}{}", path.replace('.', "__"));
        let of_environment = || {
            let mut variables = std::env::vars_os().filter_map(|(name, text)| Some((name.into_string().ok()?, text)));
            let (_, text) = variables.find(|(variable, _)| variable.eq_ignore_ascii_case(&name))?;
            text.into_string().ok()
        };
        let text = set.or_else(|| self.environment.then(of_environment).flatten())?;
        let Ok(value) = text.parse::<Value>();
        matches!(value, Value::Num(..) | Value::Bool(..)).then_some(text)
    }

    /// Everything is of its kind, and may be out of its range.
    pub(super) fn read_unchecked(&self, as_text: &BTreeMap<String, String>) -> Result<Raw, ConfigError> {
        let mut figment = Figment::new();
        if let Some(path) = &self.file {
            let text = fs::read_to_string(path)
                .map_err(|error| ConfigError::at("", format!("{} can't be read: {error}", path.display())))?;
            let named = |error| ConfigError::at("", format!("{}: {error}", path.display()));
            figment = figment.merge(toml(&text).map_err(named)?);
        }
        if let Some(text) = &self.text {
            figment = figment.merge(toml(text).map_err(|error| ConfigError::at("", error))?);
        }
        if self.environment {
            figment = figment.merge(Env::prefixed(ENVIRONMENT).split("__"));
        }
        for (path, value) in &self.set {
            // Reading a value can't fail: what is nothing else is text.
            let Ok(value) = value.parse::<Value>();
            figment = figment.merge((path.as_str(), value));
        }
        for (path, text) in self.texts.iter().map(|(path, text)| (path, text)).chain(as_text) {
            figment = figment.merge((path.as_str(), text));
        }
        let mut tree: Dict = figment.extract().map_err(|error| ConfigError::below("", &error))?;
        for (key, value) in &mut tree {
            resolve(key, value)?;
        }
        extract("", tree).map_err(with_range)
    }
}

/// A count that is no number is told what it may be, as one that is out of its range is.
fn with_range(error: ConfigError) -> ConfigError {
    match error.path().strip_prefix("outbox.").and_then(OutboxConfig::most) {
        Some(most) => {
            ConfigError::at(error.path(), format!("is of the wrong kind: a whole number from 1 to {most} is expected"))
        }
        None => error,
    }
}

/// Reads TOML; the reader's own words say what is wrong. Its picture of the line is left out: there may be a secret in it.
fn toml(text: &str) -> Result<Figment, String> {
    let tree = Toml::from_str::<Dict>(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.split('\n').count();
        let column = before.rsplit('\n').next().map_or(1, |line| line.chars().count() + 1);
        format!("line {line}, column {column}: {}", error.message().replace('\n', ", "))
    })?;
    Ok(Figment::from(Serialized::defaults(tree)))
}

/// A part of the tree as a value, with paths that begin at its root.
pub(super) fn extract<T: DeserializeOwned>(path: &str, dict: Dict) -> Result<T, ConfigError> {
    Figment::from(Serialized::defaults(dict)).extract().map_err(|error| ConfigError::below(path, &error))
}

/// Puts what `{ file = "..." }` and `{ env = "..." }` stand for in their place.
fn resolve(path: &str, value: &mut Value) -> Result<(), ConfigError> {
    match value {
        Value::Dict(_, dict) => {
            if let Some(secret) = secret(path, dict)? {
                *value = Value::String(Tag::Default, secret);
                return Ok(());
            }
            dict.iter_mut().try_for_each(|(key, value)| resolve(&format!("{path}.{key}"), value))
        }
        Value::Array(_, values) => {
            let mut numbered = values.iter_mut().enumerate();
            numbered.try_for_each(|(n, value)| resolve(&format!("{path}.{n}"), value))
        }
        _ => Ok(()),
    }
}

fn secret(path: &str, dict: &Dict) -> Result<Option<String>, ConfigError> {
    let mut entries = dict.iter();
    let (Some((key, Value::String(_, from))), None) = (entries.next(), entries.next()) else { return Ok(None) };
    // A table is wanted there, and that is the name of a header.
    if path == "headers" || path.ends_with(".headers") {
        return Ok(None);
    }
    // The secret itself, most likely, which is not repeated.
    if from.contains("://") && matches!(key.as_str(), "file" | "env") {
        let what = format!("is to be read from the {key} of a name that is a URL: give the URL as a text, or the name");
        return Err(ConfigError::at(path, what));
    }
    match key.as_str() {
        "file" => {
            let text = fs::read_to_string(from)
                .map_err(|error| ConfigError::at(path, format!("is to be read from {from}, which fails: {error}")))?;
            Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
        }
        "env" => match std::env::var(from) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(ConfigError::at(path, format!("is to be read from the variable {from}, which is not set"))),
        },
        _ => Ok(None),
    }
}
