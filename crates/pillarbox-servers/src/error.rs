//! Why a server can't be had.

use std::{error, fmt, io, path::Path};

/// What went wrong, in words for a person, and what is to be done about it where that is known.
#[derive(Debug)]
pub struct Error {
    words: String,
    source: Option<io::Error>,
}

impl Error {
    pub(crate) fn new(words: impl Into<String>) -> Self {
        Self { words: words.into(), source: None }
    }

    /// For an operation on a file or a program: `attempt("copy", path)`.
    pub(crate) fn of(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let words = format!("{what}: {}", path.display());
        |source| Self { words, source: Some(source) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)?;
        // Tests unwrap this error and xtask prints it: neither walks the chain of sources.
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl error::Error for Error {}
