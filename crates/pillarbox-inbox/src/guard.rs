//! The idempotency guard: marks a message before it is dealt with.
//!
//! When the process dies:
//! - before the mark is stored: nothing has happened, and the next delivery is the first;
//! - **between the mark and the end of the work**: the mark stands, and until its time is over every further delivery is
//!   told "already". A consumer acknowledges it then, and the message is lost. That is the price of a guard, and why an
//!   [`Inbox`](crate::Inbox), whose mark commits with the work, is the better choice wherever the work is in a database;
//! - after the work: the mark stands, and the next delivery is told "already", as it should be.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use metrics::{Counter, counter};
use pillarbox_core::port::{GuardStore, NAME_LIMIT};

use crate::{Error, GuardSettings};

/// Tells the first delivery of a message from later ones. Cheap to clone.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use pillarbox_inbox::{Guard, MemoryGuard};
///
/// let guard = Guard::new(MemoryGuard::new());
/// assert!(guard.try_process("billing", "message-7").await?);
/// assert!(!guard.try_process("billing", "message-7").await?);
/// // Another consumer of the same message is not suppressed.
/// assert!(guard.try_process("shipping", "message-7").await?);
/// // The work has failed: the next delivery may try.
/// guard.release("billing", "message-7").await?;
/// # Ok(()) }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example()).unwrap();
/// ```
///
/// # Guard or inbox?
/// A guard asks no transaction of the work: it suits an effect outside of a database, such as a mail or a call of another
/// service. It is marked before the work, so a crash in the middle of the work leaves a mark that stands for the rest of its time
/// (1 h by default), and deliveries meanwhile, replays among them, are dropped. If the work is in a database, take an [`Inbox`](crate::Inbox):
/// there a crash leaves nothing, and nothing is lost.
#[derive(Clone)]
pub struct Guard {
    store: Arc<dyn GuardStore>,
    ttl: Duration,
    by: Arc<str>,
    hits: Counter,
    misses: Counter,
    enabled: bool,
}

/// How a guarded piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarded<T> {
    /// This was the first delivery, and this is what the work gave.
    Done(T),
    /// The message was, or is being, dealt with by another delivery.
    Already,
}

impl Guard {
    /// Marks stand for an hour.
    pub fn new(store: impl GuardStore) -> Self {
        Self::named(store, "pillarbox")
    }

    /// The same, with another prefix for the names of its metrics.
    pub fn named(store: impl GuardStore, metrics_prefix: &str) -> Self {
        let (hits, misses) =
            (format!("{metrics_prefix}_guard_hits_total"), format!("{metrics_prefix}_guard_misses_total"));
        metrics::describe_counter!(hits.clone(), "messages that a guard had seen before");
        metrics::describe_counter!(misses.clone(), "messages that a guard had not seen before");
        let (hits, misses) = (counter!(hits), counter!(misses));
        hits.absolute(0);
        misses.absolute(0);
        let by = pillarbox_core::new_id().to_string().into();
        let GuardSettings { enabled, ttl } = GuardSettings::default();
        Self { store: Arc::new(store), ttl, by, hits, misses, enabled }
    }

    /// Takes all settings from a file or the environment.
    #[must_use]
    pub fn settings(self, settings: &GuardSettings) -> Self {
        self.enabled(settings.enabled).ttl(settings.ttl)
    }

    /// How long a mark stands. Default: 1 h. At least a millisecond.
    ///
    /// Longer than the broker takes to deliver a message again, as the default is with most: a message whose acknowledgement was
    /// lost is known, and one whose process died in the middle of the work is dropped. Shorter than that: the latter is done when it
    /// comes again, and the former is done twice. Copies that a sender or a replay makes are known for this time in either case.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl.max(Duration::from_millis(1));
        self
    }

    /// Switches it off, and every message is the first. Default: on.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Whether this is the first delivery of a message to a consumer, within the time of a mark. Atomic: of callers at once,
    /// in any processes, one is told `true`. After an error the mark may stand all the same: only its answer was lost.
    pub async fn try_process(&self, consumer: &str, message: &str) -> Result<bool, Error> {
        Ok(self.try_process_all(consumer, &[message]).await?[0])
    }

    /// The same for several messages, no one of them twice, in one go.
    pub async fn try_process_all(&self, consumer: &str, messages: &[&str]) -> Result<Vec<bool>, Error> {
        self.take(consumer, messages, &self.by).await
    }

    /// Takes the mark off again, because the work has failed. Only what this guard, or a clone of it, has marked, and nobody
    /// else since.
    pub async fn release(&self, consumer: &str, message: &str) -> Result<(), Error> {
        self.release_all(consumer, &[message]).await
    }

    /// The same for several messages.
    pub async fn release_all(&self, consumer: &str, messages: &[&str]) -> Result<(), Error> {
        if self.enabled {
            self.store.release(consumer, messages, &self.by).await?;
        }
        Ok(())
    }

    /// Does a piece of work unless the message was dealt with before. If the work fails, the mark is taken off. If this
    /// future is dropped in the middle of the work, the mark stands, as after a crash.
    ///
    /// ```
    /// # async fn send_mail() -> Result<(), std::io::Error> { Ok(()) }
    /// # async fn example(guard: pillarbox_inbox::Guard) -> Result<(), Box<dyn std::error::Error>> {
    /// guard.run("billing", "message-7", async { send_mail().await }).await??;
    /// # Ok(()) }
    /// ```
    pub async fn run<T, E>(
        &self,
        consumer: &str,
        message: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<Guarded<T>, E>, Error> {
        // Of this call alone: another one that comes after the mark's time is over is not freed by a late failure of this.
        let by = pillarbox_core::new_id().to_string();
        match self.take(consumer, &[message], &by).await {
            Ok(answers) if answers[0] => {}
            Ok(_) => return Ok(Ok(Guarded::Already)),
            Err(error) => {
                // The mark may have been made, and only the answer lost: it would keep the next call away.
                let _ = self.release_by(consumer, message, &by).await;
                return Err(error);
            }
        }
        match work.await {
            Ok(done) => Ok(Ok(Guarded::Done(done))),
            Err(error) => {
                self.release_by(consumer, message, &by).await?;
                Ok(Err(error))
            }
        }
    }

    /// Refuses a time that the store does not keep marks for: no message would pass.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.store.keeps().filter(|keeps| *keeps != self.ttl && self.enabled) {
            None => Ok(()),
            Some(keeps) => Err(Error::Setting(format!(
                "the guard's ttl is {:?}, and its store keeps marks for {keeps:?}: give both the same (the guard's is set by \
                 Guard::ttl or guard.ttl, a NATS bucket's by Options::guard)",
                self.ttl
            ))),
        }
    }

    /// Whether this is the first delivery, for a caller of this name alone.
    pub(crate) async fn take_by(&self, consumer: &str, message: &str, by: &str) -> Result<bool, Error> {
        Ok(self.take(consumer, &[message], by).await?[0])
    }

    /// Takes off a mark that a caller of this name has made, and nobody else since.
    pub(crate) async fn release_by(&self, consumer: &str, message: &str, by: &str) -> Result<(), Error> {
        if self.enabled {
            self.store.release(consumer, &[message], by).await?;
        }
        Ok(())
    }

    /// Removes marks whose time is over, a thousand at a time, and says how many. A consumer does it by itself.
    pub async fn purge(&self) -> Result<u64, Error> {
        let mut purged = 0;
        loop {
            let some = self.store.purge(1_000).await?;
            purged += some;
            if some < 1_000 {
                return Ok(purged);
            }
        }
    }

    async fn take(&self, consumer: &str, messages: &[&str], by: &str) -> Result<Vec<bool>, Error> {
        check("the consumer's name", consumer)?;
        messages.iter().try_for_each(|message| check("the message's id", message))?;
        if !self.enabled {
            return Ok(vec![true; messages.len()]);
        }
        let answers = self.store.take(consumer, messages, by, self.ttl).await?;
        let firsts = answers.iter().filter(|first| **first).count() as u64;
        self.misses.increment(firsts);
        self.hits.increment(answers.len() as u64 - firsts);
        Ok(answers)
    }
}

/// Whether a name can be stored as it is.
pub(crate) fn check(what: &'static str, name: &str) -> Result<(), Error> {
    if (1..=NAME_LIMIT).contains(&name.len()) {
        return Ok(());
    }
    Err(Error::Name { what, bytes: name.len(), most: NAME_LIMIT })
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("ttl", &self.ttl).field("enabled", &self.enabled).finish_non_exhaustive()
    }
}
