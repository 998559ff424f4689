//! The connection: opened when it is first needed, and again after it was lost.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_nats::{
    Client, ConnectOptions, Event, ServerAddr, ServerError,
    jetstream::{
        Context,
        context::{ContextBuilder, GetStreamErrorKind},
        stream::{Config, Info, PersistenceMode, RetentionPolicy, StorageType, Stream as Found},
    },
};
use futures_util::TryStreamExt as _;
use pillarbox_core::port::SinkError;
use rustls::crypto::{CryptoProvider, ring};
use tokio::{sync::watch, time::Instant};

use crate::{Options, Stream, error};

/// So long a stream with retention `interest` is believed to have readers.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

const UNREAD: &str = "has retention interest and no durable consumer: it would drop what it confirms when nobody is there to \
                      read it; create one, or choose retention limits";

pub(crate) struct Connection {
    servers: Vec<ServerAddr>,
    // For people.
    names: String,
    options: Options,
    slot: Mutex<Slot>,
    // One at a time; the others wait for what it opens.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Slot {
    open: Option<Open>,
    // How many were opened so far.
    count: u64,
}

/// A connection that was open when last seen. Dropping all of its clones ends it.
#[derive(Clone)]
pub(crate) struct Open {
    number: u64,
    pub(crate) jetstream: Context,
    pub(crate) news: watch::Receiver<News>,
    // Streams that keep what they confirm, or of which nobody may know; and until when, if that may change.
    trusted: Arc<Mutex<HashMap<String, Option<Instant>>>>,
}

/// What the server said that is no answer to anything.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// The connection is lost, and why if it was said. The client would open another by itself, but then nobody would
    /// answer what is under way.
    pub(crate) lost: Option<String>,
    /// How often it was forbidden to publish to a subject.
    pub(crate) forbidden: HashMap<String, u64>,
}

impl Connection {
    pub(crate) fn new(servers: Vec<ServerAddr>, options: Options) -> Self {
        let names: Vec<_> = servers.iter().map(|server| format!("{}:{}", server.host(), server.port())).collect();
        let names = names.join(", ");
        Self { servers, names, options, slot: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    /// The open one, or a new one. Takes as long as it takes: the caller has the clock.
    pub(crate) async fn open(&self) -> Result<Open, SinkError> {
        if let Some(open) = self.slot().living() {
            return Ok(open);
        }
        let _turn = self.connecting.lock().await;
        if let Some(open) = self.slot().living() {
            return Ok(open);
        }
        let (jetstream, news) = self.connect().await?;
        let mut slot = self.slot();
        slot.count += 1;
        let open = Open { number: slot.count, jetstream, news, trusted: Arc::default() };
        slot.open = Some(open.clone());
        Ok(open)
    }

    /// Not to be used again; a newer one stays.
    pub(crate) fn discard(&self, lost: &Open) {
        self.slot().open.take_if(|open| open.number == lost.number);
    }

    pub(crate) fn close(&self) {
        self.slot().open = None;
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn names(&self) -> &str {
        &self.names
    }

    /// Whether the stream is there, if one was named; creates it if it may.
    pub(crate) async fn look_at_stream(&self, jetstream: &Context) -> Result<(), SinkError> {
        let Some(stream) = &self.options.stream else { return Ok(()) };
        let info = if stream.subjects.is_empty() {
            match jetstream.get_stream(&stream.name).await {
                Ok(found) => found.cached_info().clone(),
                Err(error) => {
                    let is_missing = matches!(error.kind(), GetStreamErrorKind::JetStream(told) if told.code() == 404);
                    let hint = if is_missing { "; create it, or give its subjects and it will be" } else { "" };
                    return Err(error::unreachable(&self.names, format_args!("stream {}: {error}{hint}", stream.name)));
                }
            }
        } else {
            let created = jetstream.get_or_create_stream(config(stream)).await;
            let told = |error| error::unreachable(&self.names, format_args!("stream {}: {error}", stream.name));
            created.map_err(told)?.cached_info().clone()
        };
        self.judge(&info)
    }

    /// Refuses a stream that has confirmed something, and does not keep it. Who does not tell is believed: for as long as
    /// the connection lasts, if nobody is there to tell, and this time, if there was an error. The answer: the stream, if it
    /// keeps things for its readers alone.
    pub(crate) async fn look_at_confirmer(&self, open: &Open, stream: &str) -> Result<Option<Found>, SinkError> {
        match open.jetstream.get_stream(stream).await {
            Ok(found) => {
                self.judge(found.cached_info())?;
                if found.cached_info().config.retention == RetentionPolicy::Interest {
                    return Ok(Some(found));
                }
            }
            Err(error) => {
                tracing::debug!(stream, %error, "a stream does not tell how it is set up, and is believed");
                if matches!(error.kind(), GetStreamErrorKind::JetStream(_)) {
                    return Ok(None);
                }
            }
        }
        open.trust(stream);
        Ok(None)
    }

    /// Refuses a stream that keeps what it confirms for its readers alone, if none of those is to stay. They may go at any
    /// time, so that it is believed for a moment.
    pub(crate) async fn look_at_readers(&self, open: &Open, stream: &Found) -> Result<(), SinkError> {
        let name = &stream.cached_info().config.name;
        let mut consumers = stream.consumers();
        loop {
            match consumers.try_next().await {
                Ok(Some(consumer)) if consumer.config.durable_name.is_none() => {}
                Ok(Some(_)) => break,
                Ok(None) => return Err(error::unreachable(&self.names, format_args!("stream {name} {UNREAD}"))),
                Err(error) => {
                    tracing::debug!(stream = name, %error, "a stream does not tell of its consumers, and is believed");
                    break;
                }
            }
        }
        open.trust_until(name, Instant::now() + LOOK_AGAIN);
        Ok(())
    }

    fn judge(&self, info: &Info) -> Result<(), SinkError> {
        let told = |reason| error::unreachable(&self.names, format_args!("stream {} {reason}", info.config.name));
        judge(&info.config, info.state.consumer_count).map_err(told)
    }

    /// The subject of a question to JetStream.
    pub(crate) fn api(&self, question: &str) -> String {
        match (&self.options.domain, &self.options.prefix) {
            (Some(domain), _) => format!("$JS.{domain}.API.{question}"),
            (None, Some(prefix)) => format!("{prefix}.{question}"),
            (None, None) => format!("$JS.API.{question}"),
        }
    }

    async fn connect(&self) -> Result<(Context, watch::Receiver<News>), SinkError> {
        if CryptoProvider::get_default().is_none() {
            // Another thread may have been faster, and that is as good.
            let _ = ring::default_provider().install_default();
        }
        let (sender, news) = watch::channel(News::default());
        let sender = Arc::new(sender);
        let options = self.login().await?.event_callback(move |event| {
            sender.send_modify(|news| news.take(event));
            std::future::ready(())
        });
        let client =
            options.connect(&self.servers[..]).await.map_err(|error| error::unreachable(&self.names, error))?;
        let jetstream = self.jetstream(client);
        let mut told = news.clone();
        tokio::select! {
            biased;
            looked = self.look_at_stream(&jetstream) => looked?,
            _ = told.wait_for(|news| !news.forbidden.is_empty()) => {
                let words = "this login may not look at the stream: give it leave, or the sink no option stream";
                return Err(error::unreachable(&self.names, words));
            }
        }
        tracing::debug!(servers = self.names, "connected");
        Ok((jetstream, news))
    }

    async fn login(&self) -> Result<ConnectOptions, SinkError> {
        let options = &self.options;
        let servers = u32::try_from(self.servers.len()).unwrap_or(u32::MAX - 1);
        let mut connect = ConnectOptions::new()
            .name("pillarbox")
            // Each server once: after that, the next send tries.
            .max_reconnects(self.servers.len())
            .reconnect_delay_callback(|_| Duration::ZERO)
            .ignore_discovered_servers()
            // So that there is time for the next if one does not answer.
            .connection_timeout(options.answer_within / (servers + 1))
            .request_timeout(Some(options.answer_within));
        if let (Some(user), Some(password)) = (&options.user, &options.password) {
            connect = connect.user_and_password(user.clone(), password.clone());
        }
        if let Some(token) = &options.token {
            connect = connect.token(token.clone());
        }
        if let Some(path) = &options.root_certificate {
            connect = connect.add_root_certificates(path.clone());
        }
        if let Some(path) = &options.credentials {
            let read = connect.credentials_file(path).await;
            connect = read.map_err(|error| {
                SinkError::unavailable(format_args!("nats: the credentials file {}: {error}", path.display()))
            })?;
        }
        Ok(connect)
    }

    fn jetstream(&self, client: Client) -> Context {
        let (builder, span) = (ContextBuilder::new(), self.options.answer_within);
        match (&self.options.domain, &self.options.prefix) {
            (Some(domain), _) => builder.domain(domain).timeout(span).build(client),
            (None, Some(prefix)) => builder.api_prefix(prefix).timeout(span).build(client),
            (None, None) => builder.timeout(span).build(client),
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn living(&mut self) -> Option<Open> {
        self.open.take_if(|open| open.is_lost());
        self.open.clone()
    }
}

impl Open {
    /// Whether it is the same one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.number == other.number
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.news.borrow().lost.is_some()
    }

    pub(crate) fn trusts(&self, stream: &str) -> bool {
        self.trusted().get(stream).is_some_and(|until| until.is_none_or(|until| Instant::now() < until))
    }

    /// For as long as the connection lasts.
    pub(crate) fn trust(&self, stream: &str) {
        self.trusted().insert(stream.to_owned(), None);
    }

    fn trust_until(&self, stream: &str, time: Instant) {
        self.trusted().insert(stream.to_owned(), Some(time));
    }

    fn trusted(&self) -> MutexGuard<'_, HashMap<String, Option<Instant>>> {
        self.trusted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl News {
    fn take(&mut self, event: Event) {
        match event {
            Event::Disconnected | Event::Closed => {
                self.lost.get_or_insert_with(|| "the connection is lost".into());
            }
            Event::ServerError(ServerError::Other(words)) => match forbidden(&words) {
                Some(subject) => *self.forbidden.entry(subject.to_owned()).or_default() += 1,
                // Without its inbox it would hear no answer.
                None if words.to_ascii_lowercase().contains("permissions violation for subscription") => {
                    self.lost = Some(words);
                }
                None => tracing::debug!(words, "the server complains"),
            },
            _ => {}
        }
    }
}

/// The subject of `Permissions Violation for Publish to "orders.placed"`.
fn forbidden(words: &str) -> Option<&str> {
    let what = "permissions violation for publish to ";
    let is_that = words.get(..what.len()).is_some_and(|start| start.eq_ignore_ascii_case(what));
    is_that.then(|| words[what.len()..].trim_matches('"'))
}

fn config(stream: &Stream) -> Config {
    Config {
        name: stream.name.clone(),
        subjects: stream.subjects.clone(),
        storage: StorageType::File,
        num_replicas: stream.replicas,
        duplicate_window: stream.duplicate_window,
        ..Config::default()
    }
}

/// Whether a stream that is set up like this, and has so many consumers, keeps what it confirms.
fn judge(config: &Config, consumers: usize) -> Result<(), &'static str> {
    if config.no_ack {
        return Err("has no_ack: it would never confirm a message");
    }
    if config.storage == StorageType::Memory {
        return Err("is kept in memory: the end of its server would lose what it has confirmed");
    }
    if config.persist_mode == Some(PersistenceMode::Async) {
        return Err("has persist_mode async: it would confirm what it has not stored");
    }
    if config.sealed {
        return Err("is sealed: it takes no messages any more");
    }
    if config.mirror.is_some() {
        return Err("is a mirror: it takes messages of its origin only");
    }
    if config.retention == RetentionPolicy::Interest && consumers == 0 {
        return Err(UNREAD);
    }
    Ok(())
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_open = self.slot().living().is_some();
        f.debug_struct("Connection").field("options", &self.options).field("is_open", &is_open).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_could_lose_messages_is_refused() {
        let ours = || config(&Stream::named("ORDERS").subjects(["orders.>"]));
        assert_eq!(judge(&ours(), 0), Ok(()));
        let interest = || Config { retention: RetentionPolicy::Interest, ..ours() };
        assert_eq!(judge(&interest(), 1), Ok(()));
        assert_eq!(judge(&Config { retention: RetentionPolicy::WorkQueue, ..ours() }, 0), Ok(()));
        for (config, reason) in [
            (Config { no_ack: true, ..ours() }, "never confirm"),
            (Config { storage: StorageType::Memory, ..ours() }, "memory"),
            (Config { persist_mode: Some(PersistenceMode::Async), ..ours() }, "not stored"),
            (Config { sealed: true, ..ours() }, "sealed"),
            (Config { mirror: Some(async_nats::jetstream::stream::Source::default()), ..ours() }, "mirror"),
            (interest(), "no durable consumer"),
        ] {
            assert!(judge(&config, 0).expect_err(reason).contains(reason));
        }
    }

    #[test]
    fn what_is_forbidden_is_read_from_the_servers_words() {
        assert_eq!(forbidden("Permissions Violation for Publish to \"orders.placed\""), Some("orders.placed"));
        assert_eq!(forbidden("Permissions Violation for Subscription to \"_INBOX.x\""), None);
        assert_eq!(forbidden("Stale Connection"), None);
        let mut news = News::default();
        news.take(Event::ServerError(ServerError::Other("Permissions Violation for Publish to \"a\"".into())));
        assert_eq!((news.forbidden["a"], &news.lost), (1, &None));
        news.take(Event::ServerError(ServerError::Other("Permissions Violation for Subscription to \"b\"".into())));
        assert!(news.lost.expect("lost").contains('b'));
    }
}
