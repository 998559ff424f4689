//! The inbox: a message is entered in the transaction of its work.
//!
//! When the process dies before the commit, neither the work nor the entry is there, and the next delivery is the first. After
//! it both are there, and the next delivery is told so. There is nothing in between.

use std::{fmt, time::Duration};

use pillarbox_core::{
    engine::Horizon,
    port::{InboxStore, InboxUpkeep},
};

use crate::{Error, InboxSettings, guard::check};

/// Tells the first delivery of a message from later ones, in the transaction of the work. Cheap to clone if its store is.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use pillarbox_inbox::Inbox;
/// use pillarbox_sqlite::{SqliteInbox, SqliteStore};
///
/// let store = SqliteStore::open("billing.db").await?;
/// let inbox = Inbox::new(SqliteInbox::new(&store)).start().await?;
///
/// let mut tx = store.pool().begin().await?;
/// if inbox.enter(&mut tx, "billing", "message-7").await? {
///     sqlx::query("update accounts set cents = cents - 4200 where id = 7").execute(&mut *tx).await?;
/// }
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// # The window
/// Ids are kept for at least the window (24 h by default) and at most two, and then forgotten whole buckets at a time. A redelivery
/// after that is taken for the first: the window must be longer than a message can be under way. [`for_retries`](Self::for_retries)
/// checks that against a retry policy; a consumer does it by itself.
///
/// A transaction must not stay open for longer than ten minutes (or half of the window, if that is less) after it has
/// entered a message.
#[derive(Clone)]
pub struct Inbox<I> {
    store: I,
    window: Duration,
    enabled: bool,
    migrate: bool,
}

impl<I: InboxUpkeep> Inbox<I> {
    /// An inbox with a window of 24 h.
    pub fn new(store: I) -> Self {
        let InboxSettings { enabled, window, migrate, .. } = InboxSettings::default();
        Self { store, window, enabled, migrate }
    }

    /// Takes all settings from a file or the environment; the prefix is the store's.
    #[must_use]
    pub fn settings(self, settings: &InboxSettings) -> Self {
        self.enabled(settings.enabled).window(settings.window).migrate(settings.migrate)
    }

    /// How long messages are remembered, at least. All consumers of one inbox have one window: that of the first start.
    #[must_use]
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Switches it off, and every message is the first. Default: on.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Whether `start` makes the tables (default), or expects them.
    #[must_use]
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Refuses a window that is shorter than a message can be under way: what this consumer's handlers may take with all
    /// their retries, and how long the sender and the broker may hold it back.
    pub fn for_retries(self, horizon: &Horizon, under_way: Duration) -> Result<Self, Error> {
        let needed = horizon.total().saturating_add(under_way);
        if self.window >= needed || !self.enabled {
            return Ok(self);
        }
        let Horizon { attempts, handling, pauses, .. } = horizon;
        let arithmetic = format!(
            "{attempts} attempts take up to {handling:?}, the pauses between them up to {pauses:?}, and the sender and the broker \
             may hold a message back for {under_way:?}"
        );
        Err(Error::Window { window: self.window, horizon: needed, arithmetic })
    }

    /// Makes the tables, and agrees on the window.
    pub async fn start(self) -> Result<Self, Error> {
        if self.migrate {
            self.store.migrate().await?;
        }
        let agreed = self.store.agree(self.window).await?;
        if agreed < self.window {
            return Err(Error::OtherWindow { agreed, asked: self.window });
        }
        Ok(self)
    }

    /// Whether this is the first delivery of a message to a consumer, within the window. If so, it is entered in the
    /// transaction: it counts when that commits, and leaves nothing when it does not.
    pub async fn enter<Tx>(&self, tx: &mut Tx, consumer: &str, message: &str) -> Result<bool, Error>
    where
        I: InboxStore<Tx>,
        Tx: ?Sized,
    {
        Ok(self.enter_all(tx, consumer, &[message]).await?[0])
    }

    /// The same for several messages, no one of them twice, in one statement.
    pub async fn enter_all<Tx>(&self, tx: &mut Tx, consumer: &str, messages: &[&str]) -> Result<Vec<bool>, Error>
    where
        I: InboxStore<Tx>,
        Tx: ?Sized,
    {
        check("the consumer's name", consumer)?;
        messages.iter().try_for_each(|message| check("the message's id", message))?;
        if !self.enabled {
            return Ok(vec![true; messages.len()]);
        }
        Ok(self.store.enter(tx, consumer, messages).await?)
    }

    /// Makes room, if it is time to. A consumer does it by itself; who enters messages by hand calls it some times in half
    /// of the window.
    pub async fn rotate(&self) -> Result<bool, Error> {
        Ok(self.store.rotate().await?)
    }

    /// The store behind it.
    pub fn store(&self) -> &I {
        &self.store
    }
}

impl<I> fmt::Debug for Inbox<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox")
            .field("window", &self.window)
            .field("enabled", &self.enabled)
            .field("migrate", &self.migrate)
            .finish_non_exhaustive()
    }
}
