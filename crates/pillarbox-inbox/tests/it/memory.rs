//! The exams of the stores in memory.

use std::{sync::Arc, time::Duration};

use pillarbox_inbox::{MemoryGuard, MemoryLetters};
use pillarbox_testkit::ManualClock;

struct Guards(MemoryGuard, Arc<ManualClock>);

impl pillarbox_testkit::guards::Place for Guards {
    type Store = MemoryGuard;

    async fn fresh() -> Self {
        let clock = Arc::new(ManualClock::new());
        Self(MemoryGuard::with_clock(clock.clone()), clock)
    }

    fn store(&self) -> MemoryGuard {
        self.0.clone()
    }

    async fn pass(&self) {
        self.1.advance(Duration::from_hours(1));
    }
}

mod guard {
    use super::Guards;

    pillarbox_testkit::guards!(Guards);
}

struct Letters(MemoryLetters);

impl pillarbox_testkit::letters::Place for Letters {
    type Store = MemoryLetters;

    async fn fresh() -> Self {
        Self(MemoryLetters::new())
    }

    fn store(&self) -> MemoryLetters {
        self.0.clone()
    }
}

mod letters {
    use super::Letters;

    pillarbox_testkit::letters!(Letters);
}
