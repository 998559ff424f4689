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

/// Text of others, without the characters that would move the cursor or change colours; line ends stay.
pub(crate) fn harmless(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_event_says_does_not_reach_the_terminal_as_a_command() {
        assert_eq!(harmless("a\u{1b}[2Jb\r\nc\td"), "a\u{fffd}[2Jb\u{fffd}\nc\td");
    }
}
