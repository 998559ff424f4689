//! What a probe's handler does with which event.

use std::fmt;

use pillarbox_core::domain::{Answer, Delivery, EventId, Key};

use crate::Gate;

/// Picks deliveries: by the event's id, or by what it is.
pub struct Which(Box<dyn Fn(&Delivery) -> bool + Send>);

impl Which {
    /// Any.
    pub fn any() -> Self {
        Self::is(|_| true)
    }

    /// Those of a type of event.
    pub fn of_type(name: impl Into<String>) -> Self {
        let name = name.into();
        Self::is(move |delivery| delivery.event().event_type().as_str() == name)
    }

    /// Those of an ordering key.
    pub fn of_key(key: impl Into<Key>) -> Self {
        let key = key.into();
        Self::is(move |delivery| delivery.event().key() == Some(&key))
    }

    /// Those that the test says.
    pub fn is(picks: impl Fn(&Delivery) -> bool + Send + 'static) -> Self {
        Self(Box::new(picks))
    }
}

impl From<EventId> for Which {
    fn from(id: EventId) -> Self {
        Self::is(move |delivery| delivery.event().id() == id)
    }
}

impl fmt::Debug for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Which(..)")
    }
}

/// What the handler does.
#[derive(Clone)]
pub(super) enum Play {
    Succeed,
    Answer(Answer),
    Panic,
    Stop(Gate),
}

/// Scripted plays; of those that fit a delivery, the first is used up first.
#[derive(Default)]
pub(super) struct Script(Vec<(Which, usize, Play)>);

impl Script {
    pub(super) fn add(&mut self, which: Which, times: usize, play: Play) {
        if times > 0 {
            self.0.push((which, times, play));
        }
    }

    pub(super) fn next(&mut self, delivery: &Delivery) -> Play {
        let Some(at) = self.0.iter().position(|(which, ..)| which.0(delivery)) else {
            return Play::Succeed;
        };
        let (_, times, play) = &mut self.0[at];
        let next = play.clone();
        if *times != usize::MAX {
            *times -= 1;
        }
        if *times == 0 {
            self.0.remove(at);
        }
        next
    }
}
