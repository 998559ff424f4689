//! Making ids and finishing events: where the process's clock and randomness enter the domain.

use std::time::SystemTime;

use parking_lot::Mutex;
use ulid::Generator;

use crate::domain::{Event, EventBuilder, EventError, EventId};

// One for the process: ids made within one millisecond must sort in order, whichever outbox asks.
static GENERATOR: Mutex<Generator> = Mutex::new(Generator::new());

/// A new id, greater than every id this process has made before.
pub fn new_id() -> EventId {
    let mut generator = GENERATOR.lock();
    // The 80 random bits of one millisecond are used up once in 2^79 milliseconds; going on with the next
    // millisecond keeps the order even then.
    EventId::from_ulid(generator.generate().unwrap_or_else(ulid::Overflow::commit_overflow_increment))
}

impl EventBuilder {
    /// Checks every field and makes the event; the id is a new ULID and `occurred_at` is now, unless set.
    pub fn build(self) -> Result<Event, EventError> {
        self.build_with(new_id, || SystemTime::now().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_many_threads_are_unique_and_rise_in_each() {
        let made: Vec<Vec<EventId>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..5_000).map(|_| new_id()).collect::<Vec<_>>())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for ids in &made {
            assert!(ids.is_sorted_by(|a, b| a < b));
        }
        let mut all: Vec<_> = made.concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 20_000);
    }
}
