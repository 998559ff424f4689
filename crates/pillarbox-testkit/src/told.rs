//! What errors and logs tell: for tests of what they must not tell.

use std::{
    error::Error,
    fmt::Write as _,
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use pillarbox_core::{
    Delivery, Event, Outbox,
    engine::Heartbeat,
    port::{Store, TransactStore},
};
use tracing::{Level, subscriber::DefaultGuard};

use crate::{
    patience::{PATIENCE, within},
    servers::Proxy,
};

/// An error with all its causes, in the words for people and in those for programmers.
pub fn by(error: &dyn Error) -> String {
    let mut told = format!("{error} {error:?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(told, " {error} {error:?}");
        cause = error.source();
    }
    told
}

/// Everything that is logged in this thread while it lives, down to the last detail.
#[derive(Debug)]
pub struct Log {
    paper: Paper,
    _here: DefaultGuard,
}

#[derive(Clone, Debug, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Begins to write down what is logged.
    #[expect(clippy::new_without_default, reason = "it has an effect")]
    pub fn new() -> Self {
        let paper = Paper::default();
        let copy = paper.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .with_ansi(false)
            .with_writer(move || copy.clone())
            .finish();
        Self { paper, _here: tracing::subscriber::set_default(subscriber) }
    }

    /// What was logged so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.paper.0.lock()).into_owned()
    }

    /// Waits until something is logged.
    pub async fn until(&self, words: &str) {
        let seen = async {
            while !self.text().contains(words) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(within(PATIENCE, seen).await.is_some(), "waited for {words:?} in the log");
    }
}

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs an outbox that loses its database and gets it back, and returns all that was logged. The store goes through the
/// proxy, and logs its statements. It must be called in a runtime of one thread.
///
/// # Panics
/// When a step fails.
pub async fn in_trouble<S: Store + TransactStore>(store: S, proxy: &Proxy) -> String {
    let log = Log::new();
    let outbox = Outbox::single_node(store)
        .route("Told", |_: Delivery| async { Ok::<_, io::Error>(()) })
        .heartbeat_on(Heartbeat::SharedRuntime)
        .start()
        .await
        .expect("start");
    proxy.refuse();
    proxy.cut();
    log.until("tried again").await;
    tracing::info!(?outbox, "the application's own words");
    proxy.accept().expect("accept");
    let mut tx = outbox.begin().await.expect("begin");
    tx.write(Event::builder("Told").json(&1)).await.expect("write");
    tx.commit().await.expect("commit");
    outbox.shutdown().await;
    log.text()
}
