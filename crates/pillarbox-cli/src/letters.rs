//! The outbox that operators work on, with the dead letters of its consumers and the way back to their broker.

use std::{path::PathBuf, sync::Arc, time::Duration};

use axum::body::Bytes;
use clap::Args;
use pillarbox::{
    AnyStore, MySqlInbox, PostgresInbox, SqliteInbox, StoreErrorKind,
    inbox::DeadLetters,
    port::{Actor, Deed, DeedPlace, DeedQuery, Letter, LetterId, LetterPlace, LetterQuery, Sink},
};
use pillarbox_admin::{Asked, LetterError, Letters};
use pillarbox_relay::config::{Settings, Source, broker};

use crate::{error::Error, store::Database};

/// How long a sink may take to say that it is there.
const CHECK_WITHIN: Duration = Duration::from_secs(10);

/// Which outbox, which consumers, and where replays go.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// A configuration as that of the relay: its outbox is the database, its sinks are where replayed letters go;
    /// `pillarbox config --reference` prints one with everything in it.
    #[arg(short, long, value_name = "FILE", env = "PILLARBOX_CONFIG")]
    config: Option<PathBuf>,
    /// The database, before what the configuration says: sqlite:FILE, postgres://..., mysql://... or mariadb://...
    #[arg(long, value_name = "URL", env = "PILLARBOX_DB", hide_env_values = true)]
    db: Option<String>,
    /// What the names of the outbox's tables begin with. Default: outbox_.
    #[arg(long, value_name = "NAME", env = "PILLARBOX_PREFIX")]
    prefix: Option<String>,
    /// The schema that the tables lie in; for MySQL and MariaDB the database. Default: the connection's own.
    #[arg(long, value_name = "NAME", env = "PILLARBOX_SCHEMA")]
    schema: Option<String>,
    /// What the names of the tables begin with that consumers in this database have their dead letters in. Default: inbox_.
    #[arg(long, value_name = "NAME", env = "PILLARBOX_INBOX_PREFIX")]
    inbox_prefix: Option<String>,
    /// The sink of the configuration that replayed letters go through, where it has several.
    #[arg(long, value_name = "NAME", env = "PILLARBOX_SINK")]
    sink: Option<String>,
    /// The broker that replayed letters go to, instead of a sink of the configuration: nats://..., redis://..., amqp://...,
    /// mqtt://... or http://...
    #[arg(long, value_name = "URL", env = "PILLARBOX_BROKER", hide_env_values = true, conflicts_with = "sink")]
    broker: Option<String>,
}

impl Place {
    /// Reads the configuration, the environment and the flags, each before the one that was named first.
    pub(crate) fn settings(&self) -> Result<Settings, Error> {
        let mut source = Source::new().environment();
        if let Some(file) = &self.config {
            source = source.file(file);
        }
        let flags = [
            ("outbox.url", &self.db),
            ("outbox.prefix", &self.prefix),
            ("outbox.schema", &self.schema),
            ("inbox.prefix", &self.inbox_prefix),
            ("dead_letters.sink", &self.sink),
        ];
        for (path, value) in flags {
            if let Some(value) = value {
                // As text, whatever it looks like.
                source = source.set_text(path, value);
            }
        }
        let advice = "pillarbox config --reference prints every setting with its default";
        Settings::read(&source)
            .map_err(|error| Error::new("the configuration is refused").caused_by(error).advice(advice))
    }

    /// The way back to the broker; none if none is named.
    pub(crate) fn way_back(&self, settings: &Settings) -> Result<Option<Arc<dyn Sink>>, Error> {
        match &self.broker {
            Some(url) => {
                let sink = broker(url).map_err(|error| Error::new("--broker is refused").caused_by(error))?;
                Ok(Some(sink.sink()))
            }
            None => settings.replays().map_err(|error| {
                Error::new("it is not clear where replayed letters go").caused_by(error).advice("--sink NAME")
            }),
        }
    }
}

/// Opens the outbox.
pub(crate) async fn open(settings: &Settings) -> Result<AnyStore, Error> {
    let outbox = &settings.outbox;
    if outbox.url().is_empty() {
        return Err(Error::new("no database is given")
            .advice("--db URL or PILLARBOX_DB, or --config FILE with a url in its [outbox]"));
    }
    let prefix = outbox.prefix().unwrap_or("outbox_");
    Database::new(outbox.url(), prefix, outbox.schema()).open_migrated().await
}

/// The consumers' queue in a database.
pub(crate) fn in_database(store: &AnyStore, settings: &Settings) -> Result<Option<DeadLetters>, Error> {
    let prefix = settings.inbox.prefix.as_str();
    let queue = match store {
        AnyStore::Sqlite(store) => SqliteInbox::with_prefix(store, prefix).map(DeadLetters::new),
        AnyStore::Postgres(store) => PostgresInbox::with_prefix(store, prefix).map(DeadLetters::new),
        AnyStore::MySql(store) => MySqlInbox::with_prefix(store, prefix).map(DeadLetters::new),
        _ => return Ok(None),
    };
    let refused = |error| Error::new("--inbox-prefix, or inbox.prefix, is refused").caused_by(error);
    Ok(Some(queue.map_err(refused)?.settings(&settings.dead_letters)))
}

/// A queue whose tables may be made later, by the first start of a consumer: until then it is empty.
pub(crate) struct Queue(pub(crate) DeadLetters);

/// What a queue without tables has.
fn or_none<T: Default>(answer: Result<T, LetterError>) -> Result<T, LetterError> {
    match answer {
        Err(LetterError::Store(error)) if error.kind() == StoreErrorKind::Schema => {
            tracing::debug!(error = &error as &dyn std::error::Error, "there are no dead letters");
            Ok(T::default())
        }
        answer => answer,
    }
}

impl Letters for Queue {
    fn list<'a>(
        &'a self,
        query: &'a LetterQuery,
        after: Option<&'a LetterPlace>,
        limit: u32,
    ) -> Asked<'a, Vec<Letter>> {
        Box::pin(async move { or_none(Letters::list(&self.0, query, after, limit).await) })
    }

    fn count<'a>(&'a self, query: &'a LetterQuery) -> Asked<'a, u64> {
        Box::pin(async move { or_none(Letters::count(&self.0, query).await) })
    }

    fn find<'a>(&'a self, id: &'a LetterId) -> Asked<'a, Option<Letter>> {
        Letters::find(&self.0, id)
    }

    fn deeds<'a>(&'a self, query: &'a DeedQuery, after: Option<&'a DeedPlace>, limit: u32) -> Asked<'a, Vec<Deed>> {
        Box::pin(async move { or_none(Letters::deeds(&self.0, query, after, limit).await) })
    }

    fn replay<'a>(&'a self, id: &'a LetterId, actor: &'a Actor) -> Asked<'a, ()> {
        Letters::replay(&self.0, id, actor)
    }

    fn discard<'a>(&'a self, id: &'a LetterId, actor: &'a Actor) -> Asked<'a, ()> {
        Letters::discard(&self.0, id, actor)
    }

    fn edit<'a>(&'a self, id: &'a LetterId, payload: Bytes, actor: &'a Actor) -> Asked<'a, ()> {
        Letters::edit(&self.0, id, payload, actor)
    }
}

/// Whether a sink answers.
pub(crate) async fn try_out(sink: &dyn Sink) -> Result<(), Error> {
    let failed = || Error::new("the sink that replayed letters go through does not answer");
    match tokio::time::timeout(CHECK_WITHIN, sink.check()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(failed().caused_by(error)),
        Err(_) => Err(failed().caused_by(format!("no answer within {CHECK_WITHIN:?}"))),
    }
}
