//! What operators work on: an outbox, the dead letters of consumers, and the way back to their broker.

use std::{path::PathBuf, sync::Arc, time::Duration};

use axum::body::Bytes;
use clap::Args;
use pillarbox::{
    AnyStore, MySqlInbox, PostgresInbox, SqliteInbox, StoreErrorKind,
    inbox::DeadLetters,
    port::{
        ActionQuery, ActionStore as _, Actor, Deed, DeedPlace, DeedQuery, Letter, LetterId, LetterPlace, LetterQuery,
        Sink, UpkeepStore as _,
    },
};
use pillarbox_admin::{Access, Admin, Asked, LetterError, Letters};
use pillarbox_relay::config::{Settings, Source, broker};

use crate::{
    error::Error,
    store::{Database, unreadable},
};

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
    /// Where consumers have their dead letters, if that is no database: redis://... or nats://... An outbox beside them is
    /// that of --db, if there is one.
    #[arg(long, value_name = "URL", env = "PILLARBOX_LETTERS", hide_env_values = true, requires = "letters_name")]
    letters: Option<String>,
    /// What the keys of --letters begin with in Redis; in NATS the name of the bucket, which is made if it is missing.
    #[arg(long, value_name = "NAME", env = "PILLARBOX_LETTERS_NAME")]
    letters_name: Option<String>,
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

    /// Opens what is named: an outbox, dead letters, or both. None if nothing is.
    pub(crate) async fn open(&self, settings: &Settings) -> Result<Option<Opened>, Error> {
        let elsewhere = self.elsewhere(settings)?;
        let outbox = &settings.outbox;
        if outbox.url().is_empty() {
            return Ok(elsewhere.map(Opened::Letters));
        }
        let prefix = outbox.prefix().unwrap_or("outbox_");
        let store = Database::new(outbox.url(), prefix, outbox.schema()).open_there().await?;
        let checked = store.check().await;
        let letters = match elsewhere {
            None => in_database(&store, settings)?,
            elsewhere => elsewhere,
        };
        match (checked, letters) {
            (Ok(()), letters) => Ok(Some(Opened::Outbox(store, letters))),
            // Consumers have their tables beside an outbox or without one.
            (Err(error), Some(letters))
                if error.kind() == StoreErrorKind::Schema && has_none(&store).await && letters.are_there().await =>
            {
                eprintln!("there is no outbox with the prefix {prefix:?}: only dead letters are shown");
                Ok(Some(Opened::Letters(letters)))
            }
            (Err(error), _) => Err(unreadable(error, store.kind())),
        }
    }

    /// The queue that is in no database.
    fn elsewhere(&self, settings: &Settings) -> Result<Option<Queue>, Error> {
        let (Some(url), Some(name)) = (&self.letters, &self.letters_name) else { return Ok(None) };
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
        let queue = match scheme.as_str() {
            "redis" | "rediss" => pillarbox_redis::Options::new(url)
                // The consumers that park there ask for what they need; who looks must not be shut out.
                .persistence(pillarbox_redis::Persistence::EverySecond)
                .letters(name)
                .map(DeadLetters::new),
            "nats" | "tls" => {
                let bucket = pillarbox_nats::Bucket::named(name);
                pillarbox_nats::Options::new(url).letters(bucket).map(DeadLetters::new)
            }
            // It may hold a password, and is not repeated.
            _ => {
                return Err(Error::new("--letters is refused")
                    .caused_by("it begins with none of redis://, rediss://, nats:// and tls://")
                    .advice("dead letters in a database are those of --db"));
            }
        };
        let queue = queue.map_err(|error| Error::new("--letters is refused").caused_by(error))?;
        Ok(Some(Queue { letters: queue.settings(&settings.dead_letters), in_tables: false }))
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

/// What is there to work on.
pub(crate) enum Opened {
    Outbox(AnyStore, Option<Queue>),
    Letters(Queue),
}

impl Opened {
    pub(crate) fn has_letters(&self) -> bool {
        !matches!(self, Self::Outbox(_, None))
    }

    /// The API on it. Replayed letters go through the sink.
    pub(crate) fn admin(self, access: Access, sink: Option<&Arc<dyn Sink>>) -> Admin {
        match self {
            Self::Outbox(store, None) => Admin::new(store, access),
            Self::Outbox(store, Some(letters)) => Admin::new(store, access).letters(letters.through(sink)),
            Self::Letters(letters) => Admin::of_letters(letters.through(sink), access),
        }
    }
}

/// Whether a database has no tables of an outbox, rather than those of another version.
async fn has_none(store: &AnyStore) -> bool {
    let asked = store.actions(&ActionQuery::default(), None, 1).await;
    asked.is_err_and(|error| error.kind() == StoreErrorKind::Schema)
}

/// The consumers' queue in a database.
fn in_database(store: &AnyStore, settings: &Settings) -> Result<Option<Queue>, Error> {
    let prefix = settings.inbox.prefix.as_str();
    let queue = match store {
        AnyStore::Sqlite(store) => SqliteInbox::with_prefix(store, prefix).map(DeadLetters::new),
        AnyStore::Postgres(store) => PostgresInbox::with_prefix(store, prefix).map(DeadLetters::new),
        AnyStore::MySql(store) => MySqlInbox::with_prefix(store, prefix).map(DeadLetters::new),
        _ => return Ok(None),
    };
    let refused = |error| Error::new("--inbox-prefix, or inbox.prefix, is refused").caused_by(error);
    Ok(Some(Queue { letters: queue.map_err(refused)?.settings(&settings.dead_letters), in_tables: true }))
}

/// A queue whose tables, if it has any, may be made later, by the first start of a consumer: until then it is empty.
pub(crate) struct Queue {
    letters: DeadLetters,
    in_tables: bool,
}

impl Queue {
    fn through(mut self, sink: Option<&Arc<dyn Sink>>) -> Self {
        if let Some(sink) = sink {
            self.letters = self.letters.sink(Arc::clone(sink));
        }
        self
    }

    async fn are_there(&self) -> bool {
        self.letters.count(&LetterQuery::default()).await.is_ok()
    }

    /// What a queue without tables has.
    fn or_none<T: Default>(&self, answer: Result<T, LetterError>) -> Result<T, LetterError> {
        match answer {
            Err(LetterError::Store(error)) if self.in_tables && error.kind() == StoreErrorKind::Schema => {
                tracing::debug!(error = &error as &dyn std::error::Error, "there are no dead letters");
                Ok(T::default())
            }
            answer => answer,
        }
    }
}

impl Letters for Queue {
    fn list<'a>(
        &'a self,
        query: &'a LetterQuery,
        after: Option<&'a LetterPlace>,
        limit: u32,
    ) -> Asked<'a, Vec<Letter>> {
        Box::pin(async move { self.or_none(Letters::list(&self.letters, query, after, limit).await) })
    }

    fn count<'a>(&'a self, query: &'a LetterQuery) -> Asked<'a, u64> {
        Box::pin(async move { self.or_none(Letters::count(&self.letters, query).await) })
    }

    fn find<'a>(&'a self, id: &'a LetterId) -> Asked<'a, Option<Letter>> {
        Letters::find(&self.letters, id)
    }

    fn deeds<'a>(&'a self, query: &'a DeedQuery, after: Option<&'a DeedPlace>, limit: u32) -> Asked<'a, Vec<Deed>> {
        Box::pin(async move { self.or_none(Letters::deeds(&self.letters, query, after, limit).await) })
    }

    fn replay<'a>(&'a self, id: &'a LetterId, actor: &'a Actor) -> Asked<'a, ()> {
        Letters::replay(&self.letters, id, actor)
    }

    fn may_replay(&self, letter: &Letter) -> Result<(), LetterError> {
        Letters::may_replay(&self.letters, letter)
    }

    fn discard<'a>(&'a self, id: &'a LetterId, actor: &'a Actor) -> Asked<'a, ()> {
        Letters::discard(&self.letters, id, actor)
    }

    fn edit<'a>(&'a self, id: &'a LetterId, payload: Bytes, actor: &'a Actor) -> Asked<'a, ()> {
        Letters::edit(&self.letters, id, payload, actor)
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
