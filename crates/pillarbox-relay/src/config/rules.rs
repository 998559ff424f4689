//! Rules as they are written.

use std::{collections::BTreeMap, sync::Arc};

use super::{ConfigError, SinkConfig, error::unknown};
use crate::{Matches, Rule, Rules, Template};

/// A rule as it is written.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleConfig {
    name: Option<String>,
    #[serde(default, rename = "match")]
    matches: MatchConfig,
    /// Where to; a rule says this or `drop`.
    sinks: Option<Vec<String>>,
    #[serde(default)]
    drop: bool,
    topic: Option<String>,
    key: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MatchConfig {
    event_type: OneOrMany,
    aggregate_type: OneOrMany,
    tenant: OneOrMany,
    headers: BTreeMap<String, OneOrMany>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Default for OneOrMany {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl From<OneOrMany> for Vec<String> {
    fn from(texts: OneOrMany) -> Self {
        match texts {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) => texts,
        }
    }
}

/// Checks rules against the sinks there are.
pub(super) fn read(
    rules: Vec<RuleConfig>,
    default: Option<Vec<String>>,
    sinks: &BTreeMap<String, SinkConfig>,
) -> Result<Rules, ConfigError> {
    let known: Vec<&str> = sinks.keys().map(String::as_str).collect();
    let named = |path: &str, names: Vec<String>| {
        let names = names.into_iter().enumerate().map(|(n, name)| {
            if known.contains(&name.as_str()) {
                return Ok(Arc::from(name));
            }
            let what = unknown("sink", &name, &known);
            Err(ConfigError::at(format!("{path}.{n}"), format!("{name:?} {what}")))
        });
        names.collect::<Result<Vec<Arc<str>>, _>>()
    };
    let default = match default {
        Some(names) => named("messages.unmatched", names)?,
        None => match known[..] {
            [] => {
                return Err(ConfigError::at(
                    "sinks",
                    "is empty: a relay needs at least one, such as [sinks.out] with type = \"stdout\"",
                ));
            }
            [one] => vec![one.into()],
            _ if rules.iter().any(RuleConfig::matches_everything) => Vec::new(),
            _ => {
                let what =
                    "is missing: with several sinks it has to say where events go that no rule matches; [] drops them";
                return Err(ConfigError::at("messages.unmatched", what));
            }
        },
    };
    let mut read = Vec::new();
    for (n, rule) in rules.into_iter().enumerate() {
        let path = format!("rules.{n}");
        let sinks = match (rule.sinks, rule.drop) {
            (Some(names), false) if !names.is_empty() => named(&format!("{path}.sinks"), names)?,
            (None, true) => Vec::new(),
            (None, false) if default.len() == 1 => default.clone(),
            _ => {
                let what =
                    "says neither or both: `sinks = [...]` is where its events go, `drop = true` that they go nowhere";
                return Err(ConfigError::at(path, what));
            }
        };
        let template = |key: &str, text: String| {
            Template::new(text).map_err(|error| ConfigError::at(format!("{path}.{key}"), error))
        };
        let headers = rule.headers.into_iter().map(|(name, text)| {
            let text = template(&format!("headers.{name}"), text)?;
            Ok((name, text))
        });
        read.push(Rule {
            name: rule.name.unwrap_or_else(|| format!("rules.{n}")),
            matches: Matches {
                event_type: rule.matches.event_type.into(),
                aggregate_type: rule.matches.aggregate_type.into(),
                tenant: rule.matches.tenant.into(),
                headers: rule.matches.headers.into_iter().map(|(name, texts)| (name, texts.into())).collect(),
            },
            sinks,
            topic: rule.topic.map(|text| template("topic", text)).transpose()?,
            key: rule.key.map(|text| template("key", text)).transpose()?,
            headers: headers.collect::<Result<_, _>>()?,
        });
    }
    Ok(Rules::new(read, default))
}

impl RuleConfig {
    fn matches_everything(&self) -> bool {
        let none = |texts: &OneOrMany| matches!(texts, OneOrMany::Many(texts) if texts.is_empty());
        let MatchConfig { event_type, aggregate_type, tenant, headers } = &self.matches;
        none(event_type) && none(aggregate_type) && none(tenant) && headers.is_empty()
    }
}
