//! What the three services have in common: a database, an outbox that sends to NATS, and a consumer with an inbox.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use pillarbox::{
    SqliteInbox,
    inbox::{Builder, Consumer, DeadLetters, Inbox, OnUnknown, WithInbox},
    prelude::*,
};
use pillarbox_nats::{NatsSink, Options, Stream, Subscription};
use pillarbox_relay::{Outlet, Rule, Rules, Template};
use sqlx::SqlitePool;
use tokio::io::AsyncReadExt as _;

use crate::{
    Failure, duration,
    events::{Heard, Told},
    forgetful::Forgetful,
};

/// Where a service finds what it needs.
#[derive(Clone, Debug, Args)]
pub(crate) struct Place {
    /// The service's own database, a SQLite file.
    #[arg(long)]
    pub(crate) db: PathBuf,
    /// The broker.
    #[arg(long)]
    pub(crate) nats: String,
    /// The stream that all services tell their events to, and hear those of the others from.
    #[arg(long)]
    pub(crate) stream: String,
    /// How long an order may wait for its end.
    #[arg(long, value_parser = duration, default_value = "6s")]
    pub(crate) timeout: Duration,
    /// Does again what comes again, to show what the inbox is for.
    #[arg(long)]
    pub(crate) without_inbox: bool,
}

pub(crate) struct Service {
    pub(crate) outbox: Outbox<SqliteStore>,
    name: &'static str,
    store: SqliteStore,
    place: Place,
}

impl Service {
    /// Opens the database and starts the outbox.
    pub(crate) async fn start(name: &'static str, place: Place) -> Result<Self, Failure> {
        let store = SqliteStore::open(place.db.display().to_string()).await?;
        let rule = Rule {
            name: "all".into(),
            sinks: vec!["nats".into()],
            topic: Some(Template::new(format!("{}.{{event_type}}", place.stream))?),
            ..Rule::default()
        };
        let sink = Arc::new(sink(&place.nats, &place.stream)?);
        let outlet = Outlet::new("nats", sink, Arc::new(Rules::new([rule], []))).source(format!("/{name}"));
        let outbox = Outbox::single_node(store.clone())
            .handle_every(outlet)
            .workers(32)
            // Whoever is started after a kill goes on within a second.
            .lease(Duration::from_secs(1))
            // It is the driver that kills, not the events: they are not to be given up for it.
            .max_starts(100)
            .start()
            .await?;
        Ok(Self { outbox, name, store, place })
    }

    pub(crate) fn pool(&self) -> &SqlitePool {
        self.store.pool()
    }

    /// The consumer, to be given its handlers. It hears everything, and takes what it has a handler for.
    pub(crate) fn consumer(&self) -> Result<Builder<WithInbox<SqliteStore, SqliteInbox>>, Failure> {
        let Place { nats, stream, without_inbox, .. } = &self.place;
        let subscription = Subscription::new(stream, self.name)
            // What was in the hands of a process that was killed comes again after this.
            .again_after(Duration::from_secs(2))
            .wait(Duration::from_millis(500));
        let source = Forgetful(Options::new(nats).subscribe(subscription)?);
        let letters = dead_letters(&self.store, nats, stream)?;
        Ok(Consumer::builder(self.name, source, letters)
            .inbox(Inbox::new(SqliteInbox::new(&self.store)).enabled(!without_inbox), &self.outbox)
            .on_unknown(OnUnknown::Skip)
            .retry(
                RetryPolicy::exponential(Duration::from_millis(20))
                    .max_delay(Duration::from_millis(200))
                    .max_attempts(20),
            )
            .workers(4)
            .prefetch(100)
            // As with `max_starts`.
            .max_deliveries(100))
    }

    /// Runs until the driver closes the standard input, or has ended.
    pub(crate) async fn run(self, consumer: Consumer) -> Result<(), Failure> {
        let mut rest = Vec::new();
        tokio::io::stdin().read_to_end(&mut rest).await?;
        consumer.shutdown().await;
        self.outbox.shutdown().await;
        Ok(())
    }
}

/// A handler of one word, for the function that hears all words of a service.
pub(crate) fn hears<E, Fut>(
    hear: fn(Work<SqliteStore>, Heard) -> Fut,
) -> impl Fn(Work<SqliteStore>, E, Metadata) -> Fut + Send + Sync + 'static
where
    E: Told,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    move |work, event, metadata| hear(work, Heard::new(event, &metadata))
}

/// The way to the broker.
pub(crate) fn sink(nats: &str, stream: &str) -> Result<NatsSink, Failure> {
    let stream = Stream::named(stream).subjects([format!("{stream}.>")]);
    Ok(Options::new(nats).stream(stream).open()?)
}

/// What a service has given up, in its own database, with a way back to the broker.
pub(crate) fn dead_letters(store: &SqliteStore, nats: &str, stream: &str) -> Result<DeadLetters, Failure> {
    Ok(DeadLetters::new(SqliteInbox::new(store)).sink(Arc::new(sink(nats, stream)?)))
}
