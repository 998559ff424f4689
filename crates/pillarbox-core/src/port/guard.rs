//! Marks of messages that a consumer has begun to deal with.

use std::time::Duration;

use super::{BoxFuture, StoreError};

/// Keeps marks, each for a time. The exam that every adapter passes is `pillarbox_testkit::guards`.
///
/// Consumers and messages are texts of at most [`NAME_LIMIT`] bytes; who calls has checked that.
pub trait GuardStore: Send + Sync + 'static {
    /// Marks messages, no one of them twice in a call, for a time by the store's clock. Answers in their order: `true`
    /// where there was no mark of this consumer, or its time is over. Each is atomic: of callers at once one is told `true`.
    /// Empty input touches nothing.
    ///
    /// After an error some of them may be marked, by this caller.
    fn take<'a>(
        &'a self,
        consumer: &'a str,
        messages: &'a [&'a str],
        by: &'a str,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Vec<bool>, StoreError>>;

    /// Removes those of the marks that `by` has made, and that nobody else has made since.
    fn release<'a>(
        &'a self,
        consumer: &'a str,
        messages: &'a [&'a str],
        by: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// The only time for which it keeps marks, if it has no other: who asks for another is refused. Unless told otherwise, any will do.
    fn keeps(&self) -> Option<Duration> {
        None
    }

    /// Removes marks whose time is over, at most so many, and says how many. A store that removes them by itself answers 0.
    fn purge(&self, most: u32) -> BoxFuture<'_, Result<u64, StoreError>>;
}

/// The most bytes of a consumer's name, and of a message's id.
pub const NAME_LIMIT: usize = 200;
