//! What a source remembers of the messages that are out.

use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

use super::Ticket;

/// The tickets of an adapter's source that are out, each with what its broker knows the message by. For those who write a
/// [`Source`](super::Source).
///
/// A message has one ticket: when it comes again, the one before is void. Tickets that nobody comes back with are forgotten
/// after a time, so that they are not kept for ever.
#[derive(Debug)]
pub struct Tickets<M, H> {
    last: u64,
    out: HashMap<u64, Out<M, H>>,
    of: HashMap<M, u64>,
    forget_after: Duration,
    sweep_at: usize,
}

#[derive(Debug)]
struct Out<M, H> {
    message: M,
    handle: H,
    since: Instant,
}

/// Below this, it does not matter how many are out.
const FEW: usize = 1024;

impl<M: Clone + Eq + Hash, H: Clone> Tickets<M, H> {
    /// None are out. One that was not heard of for this time may be forgotten.
    pub fn new(forget_after: Duration) -> Self {
        Self { last: 0, out: HashMap::new(), of: HashMap::new(), forget_after, sweep_at: FEW }
    }

    /// A ticket for a message, with what else is needed to answer for it.
    pub fn issue(&mut self, message: M, handle: H) -> Ticket {
        self.last += 1;
        if let Some(before) = self.of.insert(message.clone(), self.last) {
            self.out.remove(&before);
        }
        self.out.insert(self.last, Out { message, handle, since: Instant::now() });
        if self.out.len() > self.sweep_at {
            self.sweep();
        }
        Ticket(self.last)
    }

    /// What a ticket stands for, if it is good.
    pub fn find(&self, ticket: Ticket) -> Option<(&M, &H)> {
        self.out.get(&ticket.0).map(|out| (&out.message, &out.handle))
    }

    /// Whether a message has a ticket.
    pub fn is_out(&self, message: &M) -> bool {
        self.of.contains_key(message)
    }

    /// How many are out.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether none is out.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// A ticket was heard of. What it stands for, if it is good.
    pub fn renew(&mut self, ticket: Ticket) -> Option<(M, H)> {
        let out = self.out.get_mut(&ticket.0)?;
        out.since = Instant::now();
        Some((out.message.clone(), out.handle.clone()))
    }

    /// A ticket has served its turn. What it stood for, if it was good.
    pub fn take(&mut self, ticket: Ticket) -> Option<(M, H)> {
        let out = self.out.remove(&ticket.0)?;
        self.of.remove(&out.message);
        Some((out.message, out.handle))
    }

    /// Those of other messages are void.
    pub fn retain(&mut self, is_kept: impl Fn(&M) -> bool) {
        self.out.retain(|_, out| is_kept(&out.message));
        self.of.retain(|message, _| is_kept(message));
    }

    /// All tickets are void.
    pub fn clear(&mut self) {
        self.out.clear();
        self.of.clear();
    }

    fn sweep(&mut self) {
        let forget_after = self.forget_after;
        self.out.retain(|_, out| out.since.elapsed() < forget_after);
        self.of.retain(|_, ticket| self.out.contains_key(ticket));
        // So that a sweep is paid for by those that were issued since the last.
        self.sweep_at = FEW.max(self.out.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_one_ticket() {
        let mut tickets = Tickets::new(Duration::from_mins(1));
        let first = tickets.issue("a", 1);
        let second = tickets.issue("a", 2);
        let other = tickets.issue("b", 3);
        assert!(tickets.find(first).is_none() && tickets.take(first).is_none());
        assert_eq!(tickets.find(second), Some((&"a", &2)));
        assert_eq!(tickets.renew(other), Some(("b", 3)));
        assert!(tickets.is_out(&"a"));
        assert_eq!(tickets.take(second), Some(("a", 2)));
        assert!(!tickets.is_out(&"a") && tickets.is_out(&"b"));
        assert_eq!(tickets.take(second), None);
        let third = tickets.issue("c", 4);
        tickets.retain(|message| *message == "b");
        assert!(tickets.find(third).is_none() && !tickets.is_out(&"c"));
        assert_eq!((tickets.len(), tickets.is_empty()), (1, false));
        tickets.clear();
        assert!(tickets.is_empty());
        assert_eq!((tickets.find(other), tickets.is_out(&"b")), (None, false));
        assert_ne!(tickets.issue("b", 4), other, "a number is not used twice");
    }

    #[test]
    fn tickets_that_nobody_comes_back_with_are_forgotten() {
        let mut brief = Tickets::new(Duration::ZERO);
        let mut long = Tickets::new(Duration::from_mins(10));
        for n in 0..10 * FEW {
            brief.issue(n, ());
            long.issue(n, ());
        }
        assert!(brief.out.len() <= FEW + 1 && brief.of.len() == brief.out.len(), "{}", brief.out.len());
        assert_eq!((long.out.len(), long.of.len()), (10 * FEW, 10 * FEW));
    }
}
