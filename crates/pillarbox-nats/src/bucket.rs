//! A bucket of keys and values, as JetStream's key-value stores have it: a stream that keeps the last message of each subject.
//!
//! What it is asked goes to the stream's leader, never to a copy that may be behind. A value is removed by its number, which
//! takes effect only if it is the one that was seen, and leaves nothing behind. Other programs, such as `nats kv del`, leave a
//! message that says that there is nothing: it is taken for that.

use std::{
    fmt,
    future::Future,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use async_nats::{
    HeaderValue,
    jetstream::{
        context::{PublishError, PublishErrorKind},
        message::{PublishMessage, StreamMessage},
        publish::PublishAck,
        stream::{
            Config, DeleteMessageErrorKind, DiscardPolicy, LastRawMessageError, LastRawMessageErrorKind, StorageType,
            Stream,
        },
    },
};
use bytes::Bytes;
use pillarbox_core::port::{SinkError, StoreError, StoreErrorKind};
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use crate::{
    connection::{Connection, Open},
    error,
    options::refused,
};

/// A bucket of JetStream's, which is created if it is not there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    name: String,
    #[serde(default = "one")]
    replicas: usize,
}

impl Bucket {
    /// Of this name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), replicas: one() }
    }

    /// On how many servers it is kept, if it is created. 1 unless told otherwise.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    pub(crate) fn judge(&self) -> Result<(), SinkError> {
        let is_name =
            |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        if !is_name(&self.name) {
            return Err(refused(format_args!(
                "{:?} is no name of a bucket: letters, digits, - and _ make one",
                self.name
            )));
        }
        if self.replicas == 0 {
            return Err(refused("replicas is 0: nobody would keep the bucket"));
        }
        Ok(())
    }
}

fn one() -> usize {
    1
}

/// What is in a bucket.
pub(crate) struct Values {
    connection: Connection,
    bucket: Bucket,
    // For how long values are kept; for ever if none.
    keep: Option<Duration>,
    // The connection on which the bucket was last looked at.
    seen: Mutex<Option<Open>>,
}

/// A value, and the number by which it is known.
pub(crate) struct Value {
    pub(crate) key: String,
    pub(crate) revision: u64,
    pub(crate) bytes: Bytes,
}

impl Value {
    fn of(message: StreamMessage) -> Self {
        // `$KV.{bucket}.{key}`
        let key = message.subject.splitn(3, '.').nth(2).unwrap_or_default().to_owned();
        Self { key, revision: message.sequence, bytes: message.payload }
    }
}

/// Whether a message says that a key has no value: of who has deleted or purged it, or of a server that has let it end.
fn is_deletion(message: &StreamMessage) -> bool {
    let header = |name: &str| message.headers.get(name).map(HeaderValue::as_str);
    matches!(header(KV_OPERATION), Some("DEL" | "PURGE")) || header(NATS_MARKER_REASON).is_some()
}

const KV_OPERATION: &str = "KV-Operation";
const NATS_MARKER_REASON: &str = "Nats-Marker-Reason";

impl Values {
    pub(crate) fn new(connection: Connection, bucket: Bucket, keep: Option<Duration>) -> Self {
        Self { connection, bucket, keep, seen: Mutex::default() }
    }

    pub(crate) fn keep(&self) -> Option<Duration> {
        self.keep
    }

    /// Stores a value in place of the one of this number, or of none if that is 0. `false` if another one is there.
    pub(crate) async fn put(&self, key: &str, value: Bytes, before: u64) -> Result<bool, StoreError> {
        let open = self.open().await?;
        let mut expected = before;
        loop {
            let message = PublishMessage::build().payload(value.clone()).expected_last_subject_sequence(expected);
            match self.publish(&open, self.subject(key), message).await? {
                Ok(_) => return Ok(true),
                Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => {}
                Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                    return Err(self.told(StoreErrorKind::Rejected, &error));
                }
                Err(error) => return Err(self.told(StoreErrorKind::OutcomeUnknown, &error)),
            }
            if before > 0 {
                return Ok(false);
            }
            // What says that there is nothing has a number, too.
            match self.last(key).await? {
                Some(last) if is_deletion(&last) && last.sequence > expected => expected = last.sequence,
                Some(_) | None => return Ok(false),
            }
        }
    }

    /// Stores a value in place of any, and tells the time at which the server did so, or a later one.
    pub(crate) async fn touch(&self, key: &str) -> Result<SystemTime, StoreError> {
        let open = self.open().await?;
        let subject = self.subject(key);
        let sent = self.publish(&open, subject.clone(), PublishMessage::build()).await?;
        sent.map_err(|error| self.told(StoreErrorKind::Unavailable, &error))?;
        let stream = self.stream(&open).await?;
        let written = self.within(&open, stream.get_last_raw_message_by_subject(&subject)).await?;
        let written = written.map_err(|error| self.told(StoreErrorKind::Unavailable, &error))?;
        Ok(written.time.into())
    }

    pub(crate) async fn find(&self, key: &str) -> Result<Option<Value>, StoreError> {
        Ok(self.last(key).await?.filter(|last| !is_deletion(last)).map(Value::of))
    }

    /// Removes a value if it is the one of this number yet. Says whether it did.
    pub(crate) async fn remove(&self, key: &str, revision: u64) -> Result<bool, StoreError> {
        let open = self.open().await?;
        let stream = self.stream(&open).await?;
        match self.within(&open, stream.delete_message(revision)).await? {
            Ok(is_done) => Ok(is_done),
            Err(error) if matches!(error.kind(), DeleteMessageErrorKind::JetStream(_)) => {
                // It says so too if there is none of this number any more.
                let is_there = self.find(key).await?.is_some_and(|value| value.revision == revision);
                if is_there { Err(self.told(StoreErrorKind::Rejected, &error)) } else { Ok(false) }
            }
            Err(error) => Err(self.told(StoreErrorKind::OutcomeUnknown, &error)),
        }
    }

    /// The next value, in the order in which they were stored, of the keys that match, after a number.
    pub(crate) async fn next(&self, keys: &str, mut after: u64) -> Result<Option<Value>, StoreError> {
        let open = self.open().await?;
        let stream = self.stream(&open).await?;
        loop {
            let asked = stream.raw_message_builder().sequence(after + 1).next_by_subject(self.subject(keys));
            let found = self.within(&open, asked.send()).await?;
            match self.unless_none(found)? {
                Some(next) if is_deletion(&next) => after = next.sequence,
                next => return Ok(next.map(Value::of)),
            }
        }
    }

    /// The last message of a key, be it a value or not.
    async fn last(&self, key: &str) -> Result<Option<StreamMessage>, StoreError> {
        let open = self.open().await?;
        let (stream, subject) = (self.stream(&open).await?, self.subject(key));
        let found = self.within(&open, stream.get_last_raw_message_by_subject(&subject)).await?;
        self.unless_none(found)
    }

    /// Stores a message. A bucket that was created a moment ago may be there, and not listen yet: then nothing was stored.
    async fn publish(
        &self,
        open: &Open,
        subject: String,
        message: PublishMessage,
    ) -> Result<Result<PublishAck, PublishError>, StoreError> {
        let mut tries = 1;
        loop {
            let sending = async { open.jetstream.send_publish(subject.clone(), message.clone()).await?.await };
            match self.within(open, sending).await? {
                Err(error) if error.kind() == PublishErrorKind::StreamNotFound && tries < TRIES => {
                    tries += 1;
                    sleep(BETWEEN_TRIES).await;
                }
                told => return Ok(told),
            }
        }
    }

    fn unless_none(
        &self,
        found: Result<StreamMessage, LastRawMessageError>,
    ) -> Result<Option<StreamMessage>, StoreError> {
        match found {
            Ok(message) => Ok(Some(message)),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(self.told(StoreErrorKind::Unavailable, &error)),
        }
    }

    /// A connection on which the bucket is there.
    async fn open(&self) -> Result<Open, StoreError> {
        let opened = timeout(self.connection.options().answer_within, self.connection.open()).await;
        let opened = opened.unwrap_or_else(|_| Err(error::silent(self.connection.names())));
        let open = opened.map_err(|error| self.told(StoreErrorKind::Unavailable, &error))?;
        let is_seen = |seen: &Option<Open>| seen.as_ref().is_some_and(|seen| seen.is(&open));
        if is_seen(&self.seen()) {
            return Ok(open);
        }
        let mut tries = 1;
        let config = loop {
            match self.within(&open, open.jetstream.get_or_create_stream(self.config())).await? {
                Ok(stream) => break stream.cached_info().config.clone(),
                // Of many who create it at once, or while others are deleted, some are refused: it is there a moment later.
                Err(_) if tries < TRIES => {
                    tries += 1;
                    sleep(BETWEEN_TRIES).await;
                }
                Err(error) => return Err(self.told(StoreErrorKind::Unavailable, &error)),
            }
        };
        judge(&config, self.keep).map_err(|reason| self.told(StoreErrorKind::Rejected, &reason))?;
        *self.seen() = Some(open.clone());
        Ok(open)
    }

    async fn stream(&self, open: &Open) -> Result<Stream<()>, StoreError> {
        let stream = open.jetstream.get_stream_no_info(format!("KV_{}", self.bucket.name)).await;
        stream.map_err(|error| self.told(StoreErrorKind::Unavailable, &error))
    }

    /// Waits for an answer, until the time is over or the connection lost.
    async fn within<T>(&self, open: &Open, asked: impl Future<Output = T>) -> Result<T, StoreError> {
        let mut news = open.news.clone();
        tokio::select! {
            biased;
            answer = timeout(self.connection.options().answer_within, asked) => {
                if let Ok(answer) = answer {
                    return Ok(answer);
                }
            }
            _ = news.wait_for(|news| news.lost.is_some()) => {}
        }
        self.connection.discard(open);
        let words = match &open.news.borrow().lost {
            Some(why) => why.clone(),
            None => "no answer in time".into(),
        };
        Err(self.told(StoreErrorKind::OutcomeUnknown, &words))
    }

    fn config(&self) -> Config {
        Config {
            name: format!("KV_{}", self.bucket.name),
            subjects: vec![self.subject(">")],
            max_messages_per_subject: 1,
            discard: DiscardPolicy::New,
            storage: StorageType::File,
            max_age: self.keep.unwrap_or_default(),
            duplicate_window: self.keep.unwrap_or(TWO_MINUTES).min(TWO_MINUTES),
            num_replicas: self.bucket.replicas,
            allow_rollup: true,
            ..Config::default()
        }
    }

    fn subject(&self, key: &str) -> String {
        format!("$KV.{}.{key}", self.bucket.name)
    }

    pub(crate) fn told(&self, kind: StoreErrorKind, error: &dyn fmt::Display) -> StoreError {
        StoreError::new(kind, format!("nats at {}, bucket {}: {error}", self.connection.names(), self.bucket.name))
    }

    fn seen(&self) -> MutexGuard<'_, Option<Open>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often a bucket is asked for, and when again.
const TRIES: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// Of ids, of which a bucket makes no use.
const TWO_MINUTES: Duration = Duration::from_mins(2);

/// Whether a bucket that is set up like this keeps its values, each for its time.
fn judge(config: &Config, keep: Option<Duration>) -> Result<(), String> {
    let told = |words: &str| Err(words.to_owned());
    if config.storage == StorageType::Memory {
        return told("is kept in memory: the end of its server would lose it; create it anew in a file");
    }
    if config.max_messages_per_subject != 1 {
        return told("has a history: what is removed would leave the value before; set its history to 1");
    }
    if config.deny_delete {
        return told("has deny_delete: nothing could be removed; delete it and it will be created as it has to be");
    }
    if config.discard == DiscardPolicy::Old && (config.max_messages > 0 || config.max_bytes > 0) {
        return told(
            "has a limit and discards old values when it is full: set its discard policy to new, or its limits to -1",
        );
    }
    if config.max_age != keep.unwrap_or_default() {
        return Err(match keep {
            Some(keep) => {
                format!("keeps values for {:?}, and {keep:?} are asked for: change one of them", config.max_age)
            }
            None => format!("keeps values for {:?} only: set its max_age to 0", config.max_age),
        });
    }
    Ok(())
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Values");
        shown.field("connection", &self.connection).field("bucket", &self.bucket).field("keep", &self.keep);
        shown.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    #[test]
    fn a_bucket_that_could_lose_values_is_refused() {
        let connection = Options::new("nats://localhost").connection().expect("a connection");
        let values = Values::new(connection, Bucket::named("marks"), None);
        let ours = || values.config();
        assert_eq!(judge(&ours(), None), Ok(()));
        let hour = Duration::from_hours(1);
        for (config, keep, reason) in [
            (Config { storage: StorageType::Memory, ..ours() }, None, "memory"),
            (Config { max_messages_per_subject: 5, ..ours() }, None, "history"),
            (Config { deny_delete: true, ..ours() }, None, "deny_delete"),
            (Config { discard: DiscardPolicy::Old, max_messages: 7, ..ours() }, None, "discards old"),
            (Config { max_age: hour, ..ours() }, None, "max_age to 0"),
            (ours(), Some(hour), "asked for"),
        ] {
            let told = judge(&config, keep).expect_err(reason);
            assert!(told.contains(reason), "{told}");
        }
        assert_eq!(judge(&Config { max_age: hour, ..ours() }, Some(hour)), Ok(()));
    }

    #[test]
    fn what_is_no_bucket_is_refused() {
        let options = || Options::new("nats://localhost");
        for bucket in [Bucket::named(""), Bucket::named("a.b"), Bucket::named("grün"), Bucket::named("a").replicas(0)]
        {
            assert!(options().letters(bucket.clone()).is_err(), "{bucket:?}");
            assert!(options().guard(bucket.clone(), Duration::from_hours(1)).is_err(), "{bucket:?}");
        }
        assert!(options().guard(Bucket::named("marks"), Duration::ZERO).is_err());
        assert!(options().letters(Bucket::named("dead-letters_1")).is_ok());
    }
}
