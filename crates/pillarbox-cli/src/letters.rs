//! The consumers' dead letters, in the database of an outbox.

use clap::Args;
use pillarbox::{
    AnyStore, MySqlInbox, PostgresInbox, SqliteInbox, StoreErrorKind,
    inbox::{self, DeadLetters},
    port::LetterQuery,
};

use crate::error::Error;

/// Which inbox.
#[derive(Debug, Args)]
pub(crate) struct Tables {
    /// What the names of the tables begin with that consumers in this database have their dead letters in.
    #[arg(long, value_name = "NAME", env = "PILLARBOX_INBOX_PREFIX", default_value = "inbox_")]
    inbox_prefix: String,
}

impl Tables {
    /// The queue in a database; none if it has no such tables. Without a way to the broker: letters can be looked at, edited
    /// and discarded, and replayed by the service that has the sink.
    pub(crate) async fn letters(&self, store: &AnyStore) -> Result<Option<DeadLetters>, Error> {
        let prefix = self.inbox_prefix.as_str();
        let queue = match store {
            AnyStore::Sqlite(store) => SqliteInbox::with_prefix(store, prefix).map(DeadLetters::new),
            AnyStore::Postgres(store) => PostgresInbox::with_prefix(store, prefix).map(DeadLetters::new),
            AnyStore::MySql(store) => MySqlInbox::with_prefix(store, prefix).map(DeadLetters::new),
            _ => return Ok(None),
        };
        let queue = queue.map_err(|error| Error::new("--inbox-prefix is refused").caused_by(error))?;
        match queue.list(&LetterQuery::default(), None, 1).await {
            Ok(_) => Ok(Some(queue)),
            Err(inbox::Error::Store(error)) if error.kind() == StoreErrorKind::Schema => Ok(None),
            Err(error) => Err(Error::new("the dead letters can't be read").caused_by(error)),
        }
    }
}
