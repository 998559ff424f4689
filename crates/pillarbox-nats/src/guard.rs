//! Marks of messages that a consumer has begun to deal with, in a bucket.

use std::{fmt::Write as _, time::Duration};

use bytes::Bytes;
use futures_util::future::try_join_all;
use pillarbox_core::port::{BoxFuture, GuardStore, StoreError, StoreErrorKind};

use crate::bucket::Values;

/// How many questions are under way at once.
const AT_ONCE: usize = 64;

/// Marks in a bucket whose values end after the time of the marks. Made by [`Options::guard`](crate::Options::guard).
#[derive(Debug)]
pub struct NatsGuard {
    marks: Values,
}

impl NatsGuard {
    pub(crate) fn new(marks: Values) -> Self {
        Self { marks }
    }

    async fn take_one(&self, key: String, by: Bytes) -> Result<bool, StoreError> {
        self.marks.put(&key, by, 0).await
    }

    async fn release_one(&self, key: String, by: &str) -> Result<(), StoreError> {
        if let Some(mark) = self.marks.find(&key).await?
            && mark.bytes == by.as_bytes()
        {
            // By the number of the mark that was seen: one that somebody else has made since stays.
            self.marks.remove(&key, mark.revision).await?;
        }
        Ok(())
    }
}

impl GuardStore for NatsGuard {
    fn take<'a>(
        &'a self,
        consumer: &'a str,
        messages: &'a [&'a str],
        by: &'a str,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Vec<bool>, StoreError>> {
        Box::pin(async move {
            if messages.is_empty() {
                return Ok(Vec::new());
            }
            if self.marks.keep() != Some(ttl) {
                let words = format!(
                    "keeps marks for {:?}, and {ttl:?} are asked for: all marks of a bucket have the same time",
                    self.marks.keep().unwrap_or_default()
                );
                return Err(self.marks.told(StoreErrorKind::Rejected, &words));
            }
            let by = Bytes::copy_from_slice(by.as_bytes());
            let mut answers = Vec::with_capacity(messages.len());
            for some in messages.chunks(AT_ONCE) {
                let taking = some.iter().map(|message| self.take_one(key(consumer, message), by.clone()));
                answers.extend(try_join_all(taking).await?);
            }
            Ok(answers)
        })
    }

    fn release<'a>(
        &'a self,
        consumer: &'a str,
        messages: &'a [&'a str],
        by: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            for some in messages.chunks(AT_ONCE) {
                let releasing = some.iter().map(|message| self.release_one(key(consumer, message), by));
                try_join_all(releasing).await?;
            }
            Ok(())
        })
    }

    fn keeps(&self) -> Option<Duration> {
        self.marks.keep()
    }

    fn purge(&self, _most: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        // The bucket forgets them by itself.
        Box::pin(async { Ok(0) })
    }
}

/// The key of a mark: both names with a dot between, which is in neither.
fn key(consumer: &str, message: &str) -> String {
    format!("{}.{}", encode(consumer), encode(message))
}

/// A text in the letters that a key may have.
fn encode(text: &str) -> String {
    if text.is_empty() {
        return "=".into();
    }
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            encoded.push(char::from(byte));
        } else {
            // A string takes everything.
            let _ = write!(encoded, "={byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_that_of_one_consumer_and_one_message() {
        assert_eq!(key("billing", "m-1"), "billing.m-1");
        assert_eq!(key("a.b", "c d=>*"), "a=2Eb.c=20d=3D=3E=2A");
        assert_eq!(key("", "ü"), "=.=C3=BC");
        let names = ["", "a", "a.b", "b", "=", "=2E", ".", "A"];
        let keys: std::collections::BTreeSet<_> =
            names.iter().flat_map(|consumer| names.iter().map(move |message| key(consumer, message))).collect();
        assert_eq!(keys.len(), names.len() * names.len());
    }
}
