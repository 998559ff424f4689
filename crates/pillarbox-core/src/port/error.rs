//! What can go wrong at a store.

use std::{error::Error, fmt};

/// A failed call to a store: a kind that decides, words for a person, a source that explains.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What the caller can do about a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The database can't be reached or is busy: nothing was changed, and a later call may pass.
    Unavailable,
    /// The connection broke during a commit: it is not known whether the transaction is in effect.
    OutcomeUnknown,
    /// The transaction lost against another one and is rolled back; the caller may run it again.
    Conflict,
    /// The database has lost what was not stored yet, as by a crash of its server, and may give numbers out again: whatever
    /// a node remembers of it is void, its lease included. The node joins anew.
    Rewound,
    /// The database refused the statement; calling again changes nothing.
    Rejected,
    /// Tables of the outbox or the inbox are missing, or of another version than this program.
    Schema,
}

impl StoreErrorKind {
    /// Whether the engine tries the same call again.
    pub const fn is_transient(self) -> bool {
        match self {
            Self::Unavailable | Self::OutcomeUnknown | Self::Conflict | Self::Rewound => true,
            Self::Rejected | Self::Schema => false,
        }
    }
}

impl StoreError {
    /// An error of this kind, in lowercase words that name what to do.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Adds what caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}
