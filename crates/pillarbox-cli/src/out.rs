//! What is written to stdout by commands that go on for long, or whose reader may leave.

use std::io::{ErrorKind, IsTerminal as _, Write as _};

use crate::error::Error;

/// Whether somebody still reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a reader who has left is no error, but nothing is left to do"]
pub(crate) enum Reader {
    Stays,
    /// The pipe is closed, as by `head`.
    Left,
}

/// Writes at once.
pub(crate) fn print(bytes: impl AsRef<[u8]>) -> Result<Reader, Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes.as_ref()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::Stays),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Left),
        Err(error) => Err(Error::new("the output can't be written").caused_by(error)),
    }
}

pub(crate) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// The rows and columns of the terminal; none where the output is kept or read by a program, and nothing is cut.
pub(crate) fn size() -> Option<(usize, usize)> {
    let (rows, columns) = console::Term::stdout().size_checked().filter(|_| is_terminal())?;
    Some((rows.into(), columns.into()))
}

/// Text of others, without the characters that would move the cursor, change colours or turn the direction of writing;
/// line ends stay.
pub(crate) fn harmless(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let shown = |c: char| if c.is_control() && c != '\n' && c != '\t' || turns(c) { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

/// The same on one line, for a place within a line.
pub(crate) fn one_line(text: &str) -> String {
    harmless(text).replace(['\n', '\t'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_event_says_does_not_reach_the_terminal_as_a_command() {
        assert_eq!(harmless("a\u{1b}[2Jb\r\nc\td"), "a\u{fffd}[2Jb\u{fffd}\nc\td");
        assert_eq!(one_line("a\u{9b}31m\nb\u{202e}"), "a\u{fffd}31m b\u{fffd}");
    }
}
