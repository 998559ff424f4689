//! Which event goes to which sinks, and as what.

use std::{collections::BTreeMap, sync::Arc};

use pillarbox_core::Event;
use serde_json::{Value, json};

use crate::{
    message::aggregate_type,
    template::{Lacking, Template},
};

/// The rules of a relay: the first that matches an event decides; an event that none matches goes to the default sinks,
/// to the topic of its type.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    default: Vec<Arc<str>>,
}

/// One rule.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    /// What a failure calls it.
    pub name: String,
    /// The events it is about.
    pub matches: Matches,
    /// Where they go; nowhere, if there is none.
    pub sinks: Vec<Arc<str>>,
    /// The topic. Default: the event type.
    pub topic: Option<Template>,
    /// The message's key. Default: the event's. One that lacks a value is left out.
    pub key: Option<Template>,
    /// Headers besides the event's own. One that lacks a value is left out.
    pub headers: Vec<(String, Template)>,
}

/// What an event must be like. What is not asked for does not matter; of several texts one has to match. A `*` stands for
/// any letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matches {
    /// The event type.
    pub event_type: Vec<String>,
    /// The aggregate type. An event without one matches nothing here, a `*` neither.
    pub aggregate_type: Vec<String>,
    /// The tenant; the same goes for it.
    pub tenant: Vec<String>,
    /// Headers: each of these.
    pub headers: BTreeMap<String, Vec<String>>,
}

/// What a message is to be made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where to.
    pub topic: Arc<str>,
    /// The key, if it is another than the event's.
    pub key: Option<Option<String>>,
    /// Headers besides the event's own.
    pub headers: Vec<(String, String)>,
}

/// An event that a rule can't deal with, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    rule: String,
    lacking: Lacking,
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the topic of rule {:?} can't be made: {}", self.rule, self.lacking)
    }
}

impl Rules {
    /// These rules, and where everything else goes.
    pub fn new(rules: impl IntoIterator<Item = Rule>, default: impl IntoIterator<Item = Arc<str>>) -> Self {
        Self { rules: rules.into_iter().collect(), default: default.into_iter().collect() }
    }

    /// Whether an event goes to a sink.
    pub fn lead_to(&self, sink: &str, event: &Event) -> bool {
        let sinks = self.of(event).map_or(&self.default, |rule| &rule.sinks);
        sinks.iter().any(|name| **name == *sink)
    }

    /// What an event becomes.
    pub fn target(&self, event: &Event) -> Result<Target, Unfit> {
        let Some(rule) = self.of(event) else {
            return Ok(Target { topic: event.event_type().as_str().into(), key: None, headers: Vec::new() });
        };
        let unfit = |lacking| Unfit { rule: rule.name.clone(), lacking };
        let topic = match &rule.topic {
            Some(template) => template.fill(event).map_err(unfit)?.into(),
            None => event.event_type().as_str().into(),
        };
        let key = rule.key.as_ref().map(|template| template.fill(event).ok());
        let header = |(name, template): &(String, Template)| Some((name.clone(), template.fill(event).ok()?));
        Ok(Target { topic, key, headers: rule.headers.iter().filter_map(header).collect() })
    }

    /// All that decides where events go and as what, and nothing else. In lists: their order is the same in every build.
    pub(crate) fn outline(&self) -> Value {
        let text = |template: &Option<Template>| template.as_ref().map(|template| template.as_str().to_owned());
        let rule = |rule: &Rule| {
            let Matches { event_type, aggregate_type, tenant, headers } = &rule.matches;
            let sinks: Vec<&str> = rule.sinks.iter().map(|name| &**name).collect();
            let set: Vec<_> = rule.headers.iter().map(|(name, template)| (name, template.as_str())).collect();
            json!([event_type, aggregate_type, tenant, headers, sinks, text(&rule.topic), text(&rule.key), set])
        };
        let default: Vec<&str> = self.default.iter().map(|name| &**name).collect();
        json!([self.rules.iter().map(rule).collect::<Vec<_>>(), default])
    }

    fn of(&self, event: &Event) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.matches.accept(event))
    }
}

impl Matches {
    fn accept(&self, event: &Event) -> bool {
        let any = |patterns: &[String], value: Option<&str>| {
            patterns.is_empty() || value.is_some_and(|value| patterns.iter().any(|pattern| is_like(pattern, value)))
        };
        any(&self.event_type, Some(event.event_type().as_str()))
            && any(&self.aggregate_type, aggregate_type(event))
            && any(&self.tenant, event.tenant_id())
            && self.headers.iter().all(|(name, patterns)| {
                let value = event.headers().get(name);
                value.is_some() && any(patterns, value)
            })
    }
}

/// Whether a text is like a pattern, in which `*` stands for any letters.
fn is_like(pattern: &str, text: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(begin) else { return false };
    let mut parts: Vec<_> = rest.split('*').collect();
    let Some(end) = parts.pop() else { return true };
    for part in parts {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event_type: &str) -> Event {
        let event = Event::builder(event_type).aggregate("Order", "7").tenant("acme").header("region", "eu");
        event.json(&1).build().unwrap()
    }

    fn rule(name: &str, event_type: &[&str], sinks: &[&str]) -> Rule {
        Rule {
            name: name.into(),
            matches: Matches { event_type: event_type.iter().map(ToString::to_string).collect(), ..Matches::default() },
            sinks: sinks.iter().map(|sink| (*sink).into()).collect(),
            ..Rule::default()
        }
    }

    #[test]
    fn a_star_stands_for_any_letters() {
        for (pattern, text, like) in [
            ("OrderPlaced", "OrderPlaced", true),
            ("OrderPlaced", "OrderPlacedAgain", false),
            ("Order*", "Order", true),
            ("Order*", "OrderPlaced", true),
            ("*Placed", "OrderPlaced", true),
            ("*Placed", "OrderPlaced2", false),
            ("O*P*d", "OrderPlaced", true),
            ("*", "", true),
            ("a*a", "a", false),
            ("*aba*", "ab", false),
            ("ä*ö", "äüö", true),
        ] {
            assert_eq!(is_like(pattern, text), like, "{pattern} {text}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let rules = Rules::new([rule("one", &["Order*"], &["a", "b"]), rule("two", &["*"], &["c"])], ["d".into()]);
        assert!(rules.lead_to("a", &event("OrderPlaced")) && rules.lead_to("b", &event("OrderPlaced")));
        assert!(!rules.lead_to("c", &event("OrderPlaced")) && !rules.lead_to("d", &event("OrderPlaced")));
        assert!(rules.lead_to("c", &event("Paid")));
    }

    #[test]
    fn what_no_rule_matches_goes_to_the_default_and_the_topic_of_its_type() {
        let rules = Rules::new([rule("one", &["Order*"], &["a"])], ["d".into()]);
        assert!(rules.lead_to("d", &event("Paid")) && !rules.lead_to("a", &event("Paid")));
        assert_eq!(&*rules.target(&event("Paid")).unwrap().topic, "Paid");
    }

    #[test]
    fn a_rule_without_sinks_drops() {
        let rules = Rules::new([rule("noise", &["Ping"], &[])], ["d".into()]);
        assert!(!rules.lead_to("d", &event("Ping")));
    }

    #[test]
    fn aggregates_are_told_apart_by_their_type() {
        let mut one = rule("one", &[], &["a"]);
        one.matches.aggregate_type = vec!["Order".into(), "Invoice*".into()];
        let rules = Rules::new([one], ["d".into()]);
        for (aggregate, sink, other) in
            [("Order", "a", "d"), ("InvoiceLine", "a", "d"), ("Orders", "d", "a"), ("order", "d", "a")]
        {
            let event = Event::builder("Placed").aggregate(aggregate, "7").json(&1).build().unwrap();
            assert!(rules.lead_to(sink, &event) && !rules.lead_to(other, &event), "{aggregate}");
        }
    }

    #[test]
    fn an_event_without_an_aggregate_or_tenant_is_not_asked_for_by_a_star() {
        let none = Event::builder("Placed").json(&1).build().unwrap();
        for pattern in ["*", "__GLOBAL__", "__*"] {
            let mut by_type = rule("type", &[], &["a"]);
            by_type.matches.aggregate_type = vec![pattern.into()];
            let mut by_tenant = rule("tenant", &[], &["a"]);
            by_tenant.matches.tenant = vec![pattern.into()];
            let rules = Rules::new([by_type, by_tenant], ["d".into()]);
            assert!(rules.lead_to("d", &none) && !rules.lead_to("a", &none), "{pattern}");
        }
    }

    #[test]
    fn everything_that_is_asked_for_has_to_match() {
        let mut one = rule("one", &["Order*"], &["a"]);
        one.matches.tenant = vec!["acme".into(), "evil*".into()];
        one.matches.headers.insert("region".into(), vec!["e*".into()]);
        let rules = Rules::new([one], []);
        assert!(rules.lead_to("a", &event("OrderPlaced")));
        let other = event("OrderPlaced").to_builder().tenant("other").build().unwrap();
        assert!(!rules.lead_to("a", &other));
        let nowhere = Event::builder("OrderPlaced").tenant("acme").json(&1).build().unwrap();
        assert!(!rules.lead_to("a", &nowhere));
    }

    #[test]
    fn templates_make_topic_key_and_headers() {
        let mut one = rule("one", &["*"], &["a"]);
        one.topic = Some(Template::new("{tenant}.{event_type}").unwrap());
        one.key = Some(Template::new("{aggregate_id}").unwrap());
        one.headers = vec![
            ("x-region".into(), Template::new("{header.region}").unwrap()),
            ("x-zone".into(), Template::new("{header.zone}").unwrap()),
        ];
        let rules = Rules::new([one], []);
        let target = rules.target(&event("Paid")).unwrap();
        assert_eq!(&*target.topic, "acme.Paid");
        assert_eq!(target.key, Some(Some("7".into())));
        assert_eq!(target.headers, [("x-region".to_owned(), "eu".to_owned())]);
        let bare = Event::builder("Paid").json(&1).build().unwrap();
        let error = rules.target(&bare).unwrap_err().to_string();
        assert!(error.contains("\"one\"") && error.contains("tenant"), "{error}");
    }
}
