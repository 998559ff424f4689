//! What is written down.

use std::fmt;

/// What the application has committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Numbers of orders with one key rise in the order of their commits.
    pub number: i64,
    /// The id of its event.
    pub id: String,
    /// The key of its event.
    pub key: Option<String>,
}

/// The number, the id and the key, or `-`.
impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.number, self.id, self.key.as_deref().unwrap_or("-"))
    }
}

/// One line of a ledger. What does not apply is 0, or `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// One of the words of the module.
    pub what: String,
    /// Which process. One that is started again has another name.
    pub node: String,
    /// Microseconds, of one clock for all.
    pub at: u128,
    /// The epoch of a partition: the fencing token of a delivery.
    pub epoch: i64,
    /// The partition of a delivery.
    pub partition: u8,
    /// The id of the event.
    pub id: String,
    /// The key of the event.
    pub key: Option<String>,
    /// The number of the order.
    pub order: i64,
}

impl Line {
    /// Reads a line as [`Display`](fmt::Display) writes it; `None` if it is torn.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut next = || words.next();
        let line = Self {
            what: next()?.into(),
            node: next()?.into(),
            at: next()?.parse().ok()?,
            epoch: next()?.parse().ok()?,
            partition: next()?.parse().ok()?,
            id: next()?.into(),
            key: Some(next()?).filter(|key| *key != "-").map(Into::into),
            order: next()?.parse().ok()?,
        };
        next().is_none().then_some(line)
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, node, at, epoch, partition, id, key, order } = self;
        write!(f, "{what} {node} {at} {epoch} {partition} {id} {} {order}", key.as_deref().unwrap_or("-"))
    }
}
