//! Paths into a JSON document: `$.card.number`, `$.items[*].price`, `$..email`.

use std::{fmt, str::FromStr};

use serde_json::Value;

/// The part of JSONPath that names places: members, elements, all of them, and a name at any depth.
#[derive(Clone, PartialEq, Eq)]
pub struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    /// At this depth, or at any from here on.
    any_depth: bool,
    of: Of,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Of {
    Name(String),
    Place(usize),
    All,
}

impl JsonPath {
    /// Calls `change` with every value that the path leads to.
    pub(crate) fn each(&self, value: &mut Value, change: &mut impl FnMut(&mut Value)) {
        visit(&self.0, value, change);
    }
}

fn visit(steps: &[Step], value: &mut Value, change: &mut impl FnMut(&mut Value)) {
    let Some((step, rest)) = steps.split_first() else { return change(value) };
    if step.any_depth {
        // Below first: a value that is changed has nothing below it any more.
        match value {
            Value::Object(members) => members.values_mut().for_each(|below| visit(steps, below, change)),
            Value::Array(elements) => elements.iter_mut().for_each(|below| visit(steps, below, change)),
            _ => {}
        }
    }
    match (value, &step.of) {
        (Value::Object(members), Of::Name(name)) => {
            if let Some(member) = members.get_mut(name) {
                visit(rest, member, change);
            }
        }
        (Value::Object(members), Of::All) => members.values_mut().for_each(|member| visit(rest, member, change)),
        (Value::Array(elements), Of::All) => elements.iter_mut().for_each(|element| visit(rest, element, change)),
        (Value::Array(elements), Of::Place(place)) => {
            if let Some(element) = elements.get_mut(*place) {
                visit(rest, element, change);
            }
        }
        _ => {}
    }
}

/// Why a path is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path:?} is no path: {why}. A path is such as $.card.number, $.items[*].price, $['a b'][0] or $..email")]
pub struct PathError {
    path: String,
    why: &'static str,
}

impl FromStr for JsonPath {
    type Err = PathError;

    fn from_str(path: &str) -> Result<Self, PathError> {
        let refused = |why| PathError { path: path.to_owned(), why };
        let mut rest = path.strip_prefix('$').ok_or_else(|| refused("it begins with $"))?;
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let any_depth = rest.starts_with("..");
            let dotted = rest.starts_with('.');
            rest = rest
                .trim_start_matches('.')
                .get(..)
                .filter(|after| rest.len() - after.len() <= 2)
                .ok_or_else(|| refused("it has too many dots"))?;
            let of;
            if let Some(inside) = rest.strip_prefix('[').filter(|_| any_depth || !dotted) {
                (of, rest) = bracket(inside).map_err(refused)?;
            } else if dotted {
                let end = rest.find(['.', '[', ']']).unwrap_or(rest.len());
                let name = &rest[..end];
                rest = &rest[end..];
                of = match name {
                    "" => return Err(refused("a name is missing")),
                    "*" => Of::All,
                    name if name.contains(['\'', '"', '*', '?', '@', '(', ')', ',', ' ']) => {
                        return Err(refused("a name with such characters stands in brackets, as ['a b']"));
                    }
                    name => Of::Name(name.to_owned()),
                };
            } else {
                return Err(refused("a name comes after a dot or stands in brackets"));
            }
            steps.push(Step { any_depth, of });
        }
        if steps.is_empty() {
            return Err(refused("it leads nowhere"));
        }
        Ok(Self(steps))
    }
}

/// What stands in brackets, and what comes behind them.
fn bracket(inside: &str) -> Result<(Of, &str), &'static str> {
    if let Some(quote) = inside.chars().next().filter(|first| matches!(first, '\'' | '"')) {
        let mut name = String::new();
        let mut letters = inside.char_indices().skip(1);
        while let Some((at, letter)) = letters.next() {
            match letter {
                '\\' => name.extend(letters.next().map(|(_, letter)| letter)),
                letter if letter == quote => {
                    let after = inside[at + 1..].strip_prefix(']').ok_or("a bracket is not closed")?;
                    return Ok((Of::Name(name), after));
                }
                letter => name.push(letter),
            }
        }
        return Err("a quote is not closed");
    }
    let (word, after) = inside.split_once(']').ok_or("a bracket is not closed")?;
    match word {
        "*" => Ok((Of::All, after)),
        number if number.bytes().all(|digit| digit.is_ascii_digit()) => {
            number.parse().map(|place| (Of::Place(place), after)).map_err(|_| "a number is missing in brackets")
        }
        _ => Err("in brackets stands a number, * or a name in quotes"),
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("$")?;
        for step in &self.0 {
            if step.any_depth {
                f.write_str("..")?;
            }
            match &step.of {
                Of::Name(name) => write!(f, "['{}']", name.replace('\\', "\\\\").replace('\'', "\\'"))?,
                Of::Place(place) => write!(f, "[{place}]")?,
                Of::All => f.write_str("[*]")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn hidden(path: &str, mut value: Value) -> Value {
        path.parse::<JsonPath>().unwrap().each(&mut value, &mut |value| *value = json!("x"));
        value
    }

    #[test]
    fn paths_lead_to_members_elements_and_names_at_any_depth() {
        let order = || json!({"card": {"number": 4711}, "items": [{"price": 1, "email": "a"}, {"price": 2}], "email": {"email": "b"}, "a b": [1, 2]});
        let cases = [
            (
                "$.card.number",
                json!({"card": {"number": "x"}, "items": [{"price": 1, "email": "a"}, {"price": 2}], "email": {"email": "b"}, "a b": [1, 2]}),
            ),
            (
                "$.items[*].price",
                json!({"card": {"number": 4711}, "items": [{"price": "x", "email": "a"}, {"price": "x"}], "email": {"email": "b"}, "a b": [1, 2]}),
            ),
            (
                "$..email",
                json!({"card": {"number": 4711}, "items": [{"price": 1, "email": "x"}, {"price": 2}], "email": "x", "a b": [1, 2]}),
            ),
            (
                "$['a b'][1]",
                json!({"card": {"number": 4711}, "items": [{"price": 1, "email": "a"}, {"price": 2}], "email": {"email": "b"}, "a b": [1, "x"]}),
            ),
            ("$.*", json!({"card": "x", "items": "x", "email": "x", "a b": "x"})),
            (
                "$.items[0]",
                json!({"card": {"number": 4711}, "items": ["x", {"price": 2}], "email": {"email": "b"}, "a b": [1, 2]}),
            ),
            ("$.nothing[7].here", order()),
            (
                "$..[1]",
                json!({"card": {"number": 4711}, "items": [{"price": 1, "email": "a"}, "x"], "email": {"email": "b"}, "a b": [1, "x"]}),
            ),
        ];
        for (path, expected) in cases {
            assert_eq!(hidden(path, order()), expected, "{path}");
        }
        assert_eq!(hidden("$..a.b", json!({"a": {"b": 1, "a": {"b": 2}}})), json!({"a": {"b": "x", "a": {"b": "x"}}}));
        assert_eq!(hidden("$..*", json!([1, [2]])), json!(["x", "x"]));
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for path in [
            "",
            "$",
            "card",
            "$card",
            "$.",
            "$..",
            "$...a",
            "$.a.",
            "$[",
            "$[]",
            "$[a]",
            "$['a]",
            "$['a'",
            "$.a b",
            "$[-1]",
            "$[1:2]",
            "$.a[?(@.b)]",
            "$.[0]",
            "$[99999999999999999999999]",
            "$.a]",
        ] {
            assert!(path.parse::<JsonPath>().is_err(), "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}|[$.\\[\\]*'\"a0\\\\]{0,20}") {
            if let Ok(path) = text.parse::<JsonPath>() {
                prop_assert_eq!(path.to_string().parse::<JsonPath>().unwrap(), path);
            }
        }
    }
}
