//! The life of an event's row.

use std::{fmt, str::FromStr};

/// Where an event stands. The names are what the table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Written, and not yet tried.
    New,
    /// Tried or deferred, and due again later.
    Retry,
    /// Delivered.
    Done,
    /// Given up. Final until a person replays or discards it.
    Dead,
}

impl Status {
    /// Every status, in the order of an event's life.
    pub const ALL: [Self; 4] = [Self::New, Self::Retry, Self::Done, Self::Dead];

    /// The name in the table.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "NEW",
            Self::Retry => "RETRY",
            Self::Done => "DONE",
            Self::Dead => "DEAD",
        }
    }

    /// Whether the event still waits for its delivery.
    pub const fn is_pending(self) -> bool {
        matches!(self, Self::New | Self::Retry)
    }

    /// Whether a row may go from this status to `next`. A settle reaches every status but NEW, and only
    /// from a pending one; DEAD is left by a replay alone, and DONE never.
    pub const fn may_become(self, next: Self) -> bool {
        match self {
            Self::New | Self::Retry => !matches!(next, Self::New),
            Self::Dead => matches!(next, Self::New),
            Self::Done => false,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Status {
    type Err = UnknownStatus;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|status| status.as_str() == name).ok_or_else(|| UnknownStatus(name.to_owned()))
    }
}

/// A status that no version of Pillarbox has written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("status {0:?} is none of NEW, RETRY, DONE, DEAD")]
pub struct UnknownStatus(String);

#[cfg(test)]
mod tests {
    use super::{Status::*, *};

    #[test]
    fn names_and_back() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
        }
        assert!("done".parse::<Status>().is_err());
    }

    #[test]
    fn only_these_changes_are_allowed() {
        let allowed =
            [(New, Retry), (New, Done), (New, Dead), (Retry, Retry), (Retry, Done), (Retry, Dead), (Dead, New)];
        for from in Status::ALL {
            for to in Status::ALL {
                assert_eq!(from.may_become(to), allowed.contains(&(from, to)), "{from} to {to}");
            }
        }
    }
}
