//! The identity of an event: a ULID, 26 characters, sortable by the millisecond in which it was made.

use std::{fmt, str::FromStr};

use ulid::Ulid;

/// Identifies an event from the writer to the last consumer.
///
/// Ids made in one process sort in the order in which they were made. They order nothing between processes:
/// the order of delivery is the database's own sequence, never the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(Ulid);

impl EventId {
    /// Wraps a ULID of the caller's own.
    pub fn from_ulid(ulid: Ulid) -> Self {
        Self(ulid)
    }

    /// The id as a ULID.
    pub fn as_ulid(self) -> Ulid {
        self.0
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for EventId {
    type Err = InvalidEventId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ulid::from_string(text).map(Self).map_err(|_| InvalidEventId)
    }
}

/// The text is not a ULID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event id has 26 characters of Crockford's base 32, such as 01ARZ3NDEKTSV4RRFFQ69G5FAV")]
pub struct InvalidEventId;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let id: EventId = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
        assert_eq!(id.to_string(), "01ARZ3NDEKTSV4RRFFQ69G5FAV");
        assert_eq!("not-an-id".parse::<EventId>(), Err(InvalidEventId));
        assert_eq!("".parse::<EventId>(), Err(InvalidEventId));
    }
}
