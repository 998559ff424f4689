//! Marks of messages that a consumer has begun to deal with, a key each.

use std::time::Duration;

use pillarbox_core::port::{BoxFuture, GuardStore, StoreError};
use redis::{Pipeline, Value};

use crate::store::Store;

/// Removes a mark if it is the one of who asks.
const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// Marks in Redis. Made by [`Options::guard`](crate::Options::guard).
#[derive(Debug)]
pub struct RedisGuard {
    store: Store,
    prefix: String,
}

impl RedisGuard {
    pub(crate) fn new(store: Store, prefix: String) -> Self {
        Self { store, prefix }
    }

    /// The length says where the consumer's name ends.
    fn key(&self, consumer: &str, message: &str) -> String {
        format!("{}guard:{}:{consumer}:{message}", self.prefix, consumer.len())
    }
}

impl GuardStore for RedisGuard {
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
            let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
            let mut pipeline = Pipeline::with_capacity(messages.len());
            for message in messages {
                pipeline.cmd("SET").arg(self.key(consumer, message)).arg(by).arg("NX").arg("PX").arg(millis);
            }
            let is_first = |answer| match answer {
                Value::Okay => Ok(true),
                Value::Nil => Ok(false),
                other => Err(self.store.strange(&other)),
            };
            self.store.ask(pipeline).await?.into_iter().map(is_first).collect()
        })
    }

    fn release<'a>(
        &'a self,
        consumer: &'a str,
        messages: &'a [&'a str],
        by: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            if messages.is_empty() {
                return Ok(());
            }
            let mut pipeline = Pipeline::with_capacity(messages.len());
            for message in messages {
                pipeline.cmd("EVAL").arg(RELEASE).arg(1).arg(self.key(consumer, message)).arg(by);
            }
            self.store.ask(pipeline).await.map(drop)
        })
    }

    fn purge(&self, _most: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        // Redis forgets them by itself.
        Box::pin(async { Ok(0) })
    }
}
