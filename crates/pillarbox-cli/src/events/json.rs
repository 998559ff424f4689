//! JSON as its writer wrote it, but for the space between: a number keeps its digits, an object its order.

/// How wide a step of the indentation is.
const STEP: usize = 2;

/// On one line.
pub(super) fn compact(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    tokens(json, |token, _| text.push(token));
    text
}

/// With a line for each member.
pub(super) fn pretty(json: &str) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    let (mut depth, mut opened) = (0_usize, false);
    let line = |text: &mut String, depth: usize| {
        text.push('\n');
        text.extend(std::iter::repeat_n(' ', depth * STEP));
    };
    tokens(json, |token, in_string| {
        let closes = !in_string && matches!(token, '}' | ']');
        if closes {
            depth = depth.saturating_sub(1);
        }
        // What is empty stays together.
        if opened != closes && (opened || closes) {
            line(&mut text, depth);
        }
        opened = false;
        text.push(token);
        match token {
            _ if in_string => {}
            '{' | '[' => {
                depth += 1;
                opened = true;
            }
            ',' => line(&mut text, depth),
            ':' => text.push(' '),
            _ => {}
        }
    });
    text
}

/// Gives every character but the space between tokens, and whether it belongs to a string.
fn tokens(json: &str, mut take: impl FnMut(char, bool)) {
    let (mut in_string, mut escaped) = (false, false);
    for c in json.chars() {
        if in_string {
            take(c, true);
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
        } else if !c.is_ascii_whitespace() {
            in_string = c == '"';
            take(c, in_string);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_space_between_changes() {
        let json = "{ \"b\" : [1.10, 12345678901234567890123, {}, [ ]],\n\"a\":\"x, \\\" {y} \\\\\", \"c\": null}";
        let one = r#"{"b":[1.10,12345678901234567890123,{},[]],"a":"x, \" {y} \\","c":null}"#;
        assert_eq!(compact(json), one);
        let many = "{\n  \"b\": [\n    1.10,\n    12345678901234567890123,\n    {},\n    []\n  ],\n  \"a\": \"x, \\\" {y} \\\\\",\n  \"c\": null\n}";
        assert_eq!(pretty(json), many);
        assert_eq!(compact(many), one);
        assert_eq!(pretty("7"), "7");
    }
}
