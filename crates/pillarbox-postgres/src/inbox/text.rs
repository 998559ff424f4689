//! Any text in a column of PostgreSQL, which can't hold the character NUL.
//!
//! It becomes `ESCAPE` and `0`, and `ESCAPE` itself becomes two: different texts stay different, and every text that people
//! write stays as it is.

use std::borrow::Cow;

/// SUBSTITUTE, which nobody uses.
const ESCAPE: char = '\u{1a}';

/// A text as its column holds it.
pub(crate) fn kept(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', ESCAPE]) {
        return text.into();
    }
    let mut kept = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        match letter {
            '\0' => kept.extend([ESCAPE, '0']),
            ESCAPE => kept.extend([ESCAPE, ESCAPE]),
            other => kept.push(other),
        }
    }
    kept.into()
}

/// A text from its column. What a person has written there by hand is taken as it is.
pub(crate) fn whole(kept: String) -> String {
    if !kept.contains(ESCAPE) {
        return kept;
    }
    let mut whole = String::with_capacity(kept.len());
    let mut letters = kept.chars();
    while let Some(letter) = letters.next() {
        whole.push(letter);
        if letter == ESCAPE {
            match letters.next() {
                Some('0') => {
                    whole.pop();
                    whole.push('\0');
                }
                Some(ESCAPE) | None => {}
                Some(other) => whole.push(other),
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_comes_back_and_has_no_nul(text in "([\0\u{1a}0aä]|.){0,40}") {
            let kept = kept(&text).into_owned();
            prop_assert!(!kept.contains('\0'));
            prop_assert_eq!(whole(kept), text);
        }
    }

    #[test]
    fn ordinary_text_is_not_touched() {
        for text in ["", "a\\0", "grün\n\t'\"", "\u{fffd}"] {
            assert!(matches!(kept(text), Cow::Borrowed(kept) if kept == text));
        }
    }
}
