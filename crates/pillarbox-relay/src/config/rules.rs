//! Rules as they are written.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor, value::SeqAccessDeserializer};

use super::{
    ConfigError, SinkConfig,
    error::{ONE_OR_MANY, unknown},
};
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

/// A list of texts; one alone may stand without brackets.
#[derive(Debug, Default)]
struct OneOrMany(Vec<String>);

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;

        impl<'de> Visitor<'de> for Texts {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(ONE_OR_MANY)
            }

            fn visit_str<E>(self, text: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, texts: A) -> Result<OneOrMany, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(texts)).map(OneOrMany)
            }
        }

        deserializer.deserialize_any(Texts)
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
                event_type: rule.matches.event_type.0,
                aggregate_type: rule.matches.aggregate_type.0,
                tenant: rule.matches.tenant.0,
                headers: rule.matches.headers.into_iter().map(|(name, texts)| (name, texts.0)).collect(),
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
        let none = |texts: &OneOrMany| texts.0.is_empty();
        let MatchConfig { event_type, aggregate_type, tenant, headers } = &self.matches;
        none(event_type) && none(aggregate_type) && none(tenant) && headers.is_empty()
    }
}
