//! What a user reads when something does not work.

use std::{error::Error as StdError, fmt, io::Write as _};

use crate::{out::harmless, secret::untold};

/// What went wrong, why, and what to do about it.
#[derive(Debug)]
pub(crate) struct Error {
    what: String,
    cause: Option<Box<dyn StdError + Send + Sync>>,
    advice: Option<String>,
}

impl Error {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), cause: None, advice: None }
    }

    pub(crate) fn caused_by(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    pub(crate) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// As it may be shown: without what others could have put in, and without the credentials that were typed.
    pub(crate) fn for_terminal(&self) -> String {
        untold(&harmless(&self.to_string()))
    }

    /// Prints to stderr.
    pub(crate) fn print(&self) {
        // Nobody is left to tell if stderr is gone.
        let _ = writeln!(std::io::stderr(), "{}", self.for_terminal());
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.what)?;
        let mut cause = self.cause.as_deref().map(|cause| cause as &dyn StdError);
        let mut said = self.what.clone();
        while let Some(error) = cause {
            let text = error.to_string();
            // Wrappers that repeat what they wrap add nothing.
            if !said.contains(&text) {
                write!(f, "\n  because: {text}")?;
            }
            said = text;
            cause = error.source();
        }
        if let Some(advice) = &self.advice {
            write!(f, "\n  try: {advice}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_and_why_and_what_to_do() {
        let io = std::io::Error::other("disk full");
        let error = Error::new("the demo stopped").caused_by(io).advice("free some space");
        assert_eq!(error.to_string(), "error: the demo stopped\n  because: disk full\n  try: free some space");
    }
}
