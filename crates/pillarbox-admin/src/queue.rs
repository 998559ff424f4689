//! The dead letter queue of `pillarbox-inbox`, as the API asks it.

use axum::body::Bytes;
use pillarbox_core::port::{Actor, Deed, DeedPlace, DeedQuery, Letter, LetterId, LetterPlace, LetterQuery};
use pillarbox_inbox::{DeadLetters, Error};

use crate::letters::{Asked, LetterError, Letters};

impl Letters for DeadLetters {
    fn list<'a>(
        &'a self,
        query: &'a LetterQuery,
        after: Option<&'a LetterPlace>,
        limit: u32,
    ) -> Asked<'a, Vec<Letter>> {
        Box::pin(async move { DeadLetters::list(self, query, after, limit).await.map_err(of_none) })
    }

    fn count<'a>(&'a self, query: &'a LetterQuery) -> Asked<'a, u64> {
        Box::pin(async move { DeadLetters::count(self, query).await.map_err(of_none) })
    }

    fn find<'a>(&'a self, id: &'a LetterId) -> Asked<'a, Option<Letter>> {
        Box::pin(async move { DeadLetters::find(self, id).await.map_err(|error| of(id, error)) })
    }

    fn deeds<'a>(&'a self, query: &'a DeedQuery, after: Option<&'a DeedPlace>, limit: u32) -> Asked<'a, Vec<Deed>> {
        Box::pin(async move { DeadLetters::deeds(self, query, after, limit).await.map_err(of_none) })
    }

    fn replay<'a>(&'a self, id: &'a LetterId, actor: &'a Actor) -> Asked<'a, ()> {
        Box::pin(async move { DeadLetters::replay(self, id, actor).await.map_err(|error| of(id, error)) })
    }

    fn may_replay(&self, letter: &Letter) -> Result<(), LetterError> {
        DeadLetters::may_replay(self, letter).map_err(|error| of(&letter.id, error))
    }

    fn discard<'a>(&'a self, id: &'a LetterId, actor: &'a Actor) -> Asked<'a, ()> {
        Box::pin(async move { DeadLetters::discard(self, id, actor).await.map_err(|error| of(id, error)) })
    }

    fn edit<'a>(&'a self, id: &'a LetterId, payload: Bytes, actor: &'a Actor) -> Asked<'a, ()> {
        Box::pin(async move { DeadLetters::edit(self, id, payload, actor).await.map_err(|error| of(id, error)) })
    }
}

fn of_none(error: Error) -> LetterError {
    of(&LetterId(String::new()), error)
}

fn of(id: &LetterId, error: Error) -> LetterError {
    let id = id.clone();
    match error {
        Error::Store(error) => LetterError::Store(error),
        Error::NotFound(_) => LetterError::Unknown(id),
        Error::Broker(error) => LetterError::NotSent { id, why: error.to_string() },
        Error::NoSink => LetterError::NoWayBack(error.to_string()),
        Error::NotPending { .. } | Error::TooManyReplays { .. } | Error::Busy(_) | Error::Unreadable { .. } => {
            LetterError::Refused(error.to_string())
        }
        error => LetterError::Payload { id, why: error.to_string() },
    }
}
