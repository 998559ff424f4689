//! What guard and letters have in common: questions to Redis that are answered as those to a store.

use std::fmt;

use pillarbox_core::port::{SinkError, SinkErrorKind, StoreError, StoreErrorKind};
use redis::{Pipeline, RedisError, RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use crate::{connection::Connection, error};

#[derive(Debug)]
pub(crate) struct Store {
    connection: Connection,
}

impl Store {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection }
    }

    /// Asks all of the pipeline's questions in one go, and gives one answer each. The first that failed is the error.
    pub(crate) async fn ask(&self, mut pipeline: Pipeline) -> Result<Vec<Value>, StoreError> {
        let options = self.connection.options();
        let deadline = Instant::now() + options.answer_within;
        let silent = || error::silent(self.connection.addr());
        let opened = timeout_at(deadline, self.connection.open()).await.unwrap_or_else(|_| Err(silent()));
        let mut open = opened.map_err(|error| of(&error))?;
        let asked = pipeline.ignore_errors().query_async::<Vec<RedisResult<Value>>>(&mut open.connection);
        let lost = match timeout_at(deadline, asked).await {
            Ok(Ok(answers)) if answers.len() == pipeline.len() => {
                let answers: Result<_, _> = answers.into_iter().collect();
                return answers.map_err(|error| {
                    let told = self.told(&error);
                    if told.kind() == StoreErrorKind::Unavailable {
                        // The server's name may lead to a better one by now.
                        self.connection.discard(&open);
                    }
                    told
                });
            }
            Ok(Err(error)) => error::unreachable(self.connection.addr(), &error),
            Ok(Ok(_)) | Err(_) => silent(),
        };
        self.connection.discard(&open);
        Err(StoreError::new(StoreErrorKind::OutcomeUnknown, lost.to_string()))
    }

    /// What was answered is not what was asked.
    pub(crate) fn strange(&self, answer: &dyn fmt::Debug) -> StoreError {
        let words = format!("redis at {} answers with {answer:?}", self.connection.addr());
        StoreError::new(StoreErrorKind::Rejected, words)
    }

    fn told(&self, error: &RedisError) -> StoreError {
        let told = of(&error::answer(error));
        StoreError::new(told.kind(), format!("redis at {}: {told}", self.connection.addr()))
    }
}

fn of(error: &SinkError) -> StoreError {
    let kind = match error.kind() {
        SinkErrorKind::Unavailable => StoreErrorKind::Unavailable,
        SinkErrorKind::Failed | SinkErrorKind::Rejected => StoreErrorKind::Rejected,
    };
    StoreError::new(kind, error.to_string())
}
