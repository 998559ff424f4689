//! Handlers that work in a transaction, with the inbox's entry in it.
//!
//! Many messages share a transaction: their ids are entered in one statement, the handlers of those that are new run one after
//! another, and all commits together. If one of them fails, everything is rolled back, and each has a transaction of its own:
//! no savepoint is paid for what hardly ever happens. A handler may so be called again whose work was rolled back with another's
//! failure, and no attempt is counted for it.
//!
//! A message whose handler's destination is down waits outside of any transaction, so that those of other handlers are not rolled
//! back with it. It is not looked up either: if it is known, that shows when the destination is back.
//!
//! When the process dies:
//! - before the commit: the database rolls back entries and work, and the messages come again as new;
//! - between the commit and its answer, or before the acknowledgement: the messages come again, and are known;
//! - while a fallback runs, or between its end and its message's entry: the message comes again as new, and handler and fallback
//!   have another round. The fallback works in no transaction, and its message is entered in one of its own right after it.

use pillarbox_core::{
    Outbox,
    domain::{Delivery, HandlerError},
    engine::{Calls, Worked, Working},
    port::{BoxFuture, InboxStore, InboxUpkeep, SettleStore, StoreError, StoreErrorKind, TransactStore},
};

use crate::{Error, Inbox};

/// Where transactions with an inbox are begun; workers see it without its store.
pub(super) trait Desk: Send + Sync {
    /// Runs messages in one transaction.
    fn run<'a>(
        &'a self,
        calls: &'a Calls,
        consumer: &'a str,
        messages: &'a [(&'a str, &'a Delivery)],
    ) -> BoxFuture<'a, Ended>;

    /// Enters a message that is dealt with, in a transaction of its own.
    fn enter<'a>(&'a self, consumer: &'a str, message: &'a str) -> BoxFuture<'a, Result<(), Error>>;

    /// See [`Inbox::rotate`].
    fn rotate(&self) -> BoxFuture<'_, Result<bool, Error>>;
}

/// How a transaction ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// Everything is durable; so many of the messages were known already.
    Committed { known: u64 },
    /// One of the messages has failed, and nothing is durable.
    Failed(Worked),
    /// The database failed, and nothing is durable, or it is not known.
    Database(StoreError),
}

pub(super) struct OfStore<S, I> {
    pub(super) outbox: Outbox<S>,
    pub(super) inbox: Inbox<I>,
}

impl<S, I> OfStore<S, I>
where
    S: SettleStore + 'static,
    I: InboxStore<<S as TransactStore>::Tx> + InboxUpkeep,
{
    async fn run_in(&self, calls: &Calls, consumer: &str, messages: &[(&str, &Delivery)]) -> Ended {
        let mut working = match self.outbox.begin_work().await {
            Ok(working) => working,
            Err(error) => return Ended::Database(error),
        };
        match self.work(&mut working, calls, consumer, messages).await {
            Ok(known) => match working.commit().await {
                Ok(()) => Ended::Committed { known },
                // The handlers' doing, as when a constraint is looked at when it commits. Whose it was is known if there was
                // one.
                Err(error) if !error.kind().is_transient() => Ended::Failed(HandlerError::from(error).into()),
                // If it is in effect after all, the messages are known the next time.
                Err(error) => Ended::Database(error),
            },
            Err(ended) => {
                working.rollback().await;
                ended
            }
        }
    }

    async fn enter_in(&self, consumer: &str, message: &str) -> Result<(), Error> {
        let mut working = self.outbox.begin_work().await?;
        let entered = match working.tx() {
            Ok(tx) => self.inbox.enter(tx, consumer, message).await,
            Err(error) => Err(error.into()),
        };
        match entered {
            Ok(_) => Ok(working.commit().await?),
            Err(error) => {
                working.rollback().await;
                Err(error)
            }
        }
    }

    /// How many of the messages were known already.
    async fn work(
        &self,
        working: &mut Working<S>,
        calls: &Calls,
        consumer: &str,
        messages: &[(&str, &Delivery)],
    ) -> Result<u64, Ended> {
        let ids: Vec<&str> = messages.iter().map(|(id, _)| *id).collect();
        let tx = working.tx().map_err(Ended::Database)?;
        let entered = self.inbox.enter_all(tx, consumer, &ids).await.map_err(|error| match error {
            // The database will never take one of them: whose fault it is shows when each goes alone.
            Error::Store(error) if error.kind() == StoreErrorKind::Rejected => {
                Ended::Failed(HandlerError::from(error).into())
            }
            Error::Store(error) => Ended::Database(error),
            other => Ended::Failed(HandlerError::from(other).into()),
        })?;
        let mut known = 0;
        for ((_, delivery), is_new) in messages.iter().zip(entered) {
            if !is_new {
                known += 1;
                continue;
            }
            let worked = calls.work(working, delivery).await;
            if !worked.is_done() {
                return Err(Ended::Failed(worked));
            }
        }
        Ok(known)
    }
}

impl<S, I> Desk for OfStore<S, I>
where
    S: SettleStore + 'static,
    I: InboxStore<<S as TransactStore>::Tx> + InboxUpkeep,
{
    fn run<'a>(
        &'a self,
        calls: &'a Calls,
        consumer: &'a str,
        messages: &'a [(&'a str, &'a Delivery)],
    ) -> BoxFuture<'a, Ended> {
        Box::pin(self.run_in(calls, consumer, messages))
    }

    fn enter<'a>(&'a self, consumer: &'a str, message: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.enter_in(consumer, message))
    }

    fn rotate(&self) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(self.inbox.rotate())
    }
}
