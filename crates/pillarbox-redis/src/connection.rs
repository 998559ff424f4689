//! The connection: opened when it is first needed, and again after it was lost.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use pillarbox_core::port::SinkError;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, aio::MultiplexedConnection};
use rustls::crypto::{CryptoProvider, ring};

use crate::{Options, Persistence, error};

pub(crate) struct Connection {
    client: Client,
    options: Options,
    // Whether what it writes has a time to live.
    is_mortal: bool,
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

/// A connection that was open when last seen. Dropping all of its clones ends it, with whatever is under way.
#[derive(Clone)]
pub(crate) struct Open {
    number: u64,
    pub(crate) connection: MultiplexedConnection,
}

impl Connection {
    pub(crate) fn new(client: Client, options: Options) -> Self {
        Self { client, options, is_mortal: false, slot: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    /// For what has a time to live, which more servers throw out when their memory is full.
    pub(crate) fn with_mortals(self) -> Self {
        Self { is_mortal: true, ..self }
    }

    /// The open one, or a new one. Takes as long as it takes: the caller has the clock.
    pub(crate) async fn open(&self) -> Result<Open, SinkError> {
        if let Some(open) = self.slot().open.clone() {
            return Ok(open);
        }
        let _turn = self.connecting.lock().await;
        if let Some(open) = self.slot().open.clone() {
            return Ok(open);
        }
        let connection = self.connect().await?;
        let mut slot = self.slot();
        slot.count += 1;
        let open = Open { number: slot.count, connection };
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

    pub(crate) fn addr(&self) -> &ConnectionAddr {
        self.client.get_connection_info().addr()
    }

    async fn connect(&self) -> Result<MultiplexedConnection, SinkError> {
        if matches!(self.addr(), ConnectionAddr::TcpTls { .. }) && CryptoProvider::get_default().is_none() {
            // Another thread may have been faster, and that is as good.
            let _ = ring::default_provider().install_default();
        }
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = connection.map_err(|error| error::unreachable(self.addr(), &error))?;
        self.ask_for_persistence(&mut connection).await?;
        tracing::debug!(server = %self.addr(), "connected");
        Ok(connection)
    }

    async fn ask_for_persistence(&self, connection: &mut MultiplexedConnection) -> Result<(), SinkError> {
        let required = self.options.persistence;
        if required == Persistence::Unchecked {
            return Ok(());
        }
        // Before Redis 7, a question is about one name.
        let mut settings = self.ask(connection, "append*").await?;
        settings.extend(self.ask(connection, "maxmemory-policy").await?);
        let setting = |name: &str| settings.get(name).map_or("unknown", String::as_str);
        judge(required, setting("appendonly"), setting("appendfsync"), setting("maxmemory-policy"), self.is_mortal)
            .map_err(|reason| SinkError::unavailable(format_args!("redis at {}: {reason}", self.addr())))
    }

    async fn ask(
        &self,
        connection: &mut MultiplexedConnection,
        names: &str,
    ) -> Result<HashMap<String, String>, SinkError> {
        match redis::cmd("CONFIG").arg("GET").arg(names).query_async(connection).await {
            Ok(settings) => Ok(settings),
            Err(error) if error.code().is_some_and(|code| code != "LOADING") => {
                let told = error::unreachable(self.addr(), &error);
                Err(SinkError::unavailable(format_args!(
                    "{told}; so it does not tell whether it keeps what it confirms: set persistence to unchecked if you \
                     know that it does"
                )))
            }
            Err(error) => Err(error::unreachable(self.addr(), &error)),
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a server with these settings keeps what it confirms.
fn judge(
    required: Persistence,
    appendonly: &str,
    appendfsync: &str,
    eviction: &str,
    is_mortal: bool,
) -> Result<(), String> {
    let (is_kept, enough) = match required {
        Persistence::Always => (appendonly == "yes" && appendfsync == "always", "always"),
        Persistence::EverySecond => (appendonly == "yes" && matches!(appendfsync, "always" | "everysec"), "everysec"),
        Persistence::Unchecked => return Ok(()),
    };
    if !is_kept {
        return Err(format!(
            "appendonly is {appendonly} and appendfsync is {appendfsync}, so that it could lose what it has confirmed: set \
             appendonly to yes and appendfsync to {enough}, or ask for less with the option persistence"
        ));
    }
    // A stream or a letter has no time to live, and only what has one is thrown out by the others: a guard's mark.
    if eviction != "noeviction" && (is_mortal || !eviction.starts_with("volatile-")) {
        return Err(format!(
            "maxmemory-policy is {eviction}, so that it could throw out what it has confirmed when its memory is full: set \
             maxmemory-policy to noeviction, or ask for less with the option persistence"
        ));
    }
    Ok(())
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_open = self.slot().open.is_some();
        f.debug_struct("Connection").field("options", &self.options).field("is_open", &is_open).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_could_lose_entries_is_refused() {
        use Persistence::{Always, EverySecond, Unchecked};
        for (required, appendonly, appendfsync, eviction, is_kept) in [
            (Always, "yes", "always", "noeviction", true),
            (Always, "yes", "everysec", "noeviction", false),
            (Always, "no", "always", "noeviction", false),
            (EverySecond, "yes", "always", "noeviction", true),
            (EverySecond, "yes", "everysec", "noeviction", true),
            (EverySecond, "yes", "no", "noeviction", false),
            (EverySecond, "no", "everysec", "noeviction", false),
            (EverySecond, "unknown", "unknown", "noeviction", false),
            (Unchecked, "no", "no", "noeviction", true),
            (Always, "yes", "always", "volatile-lru", true),
            (EverySecond, "yes", "everysec", "volatile-ttl", true),
            (Always, "yes", "always", "allkeys-lru", false),
            (EverySecond, "yes", "everysec", "allkeys-lfu", false),
            (EverySecond, "yes", "everysec", "allkeys-random", false),
            (EverySecond, "yes", "everysec", "unknown", false),
            (Unchecked, "yes", "always", "allkeys-lru", true),
        ] {
            let judged = judge(required, appendonly, appendfsync, eviction, false);
            assert_eq!(judged.is_ok(), is_kept, "{required:?} {appendonly} {appendfsync} {eviction}");
        }
        let reason = judge(Always, "yes", "everysec", "noeviction", false).expect_err("not always");
        assert!(reason.contains("appendfsync is everysec") && reason.contains("to always"), "{reason}");
        let reason = judge(Always, "yes", "always", "allkeys-lru", false).expect_err("evicted");
        assert!(reason.contains("maxmemory-policy is allkeys-lru") && reason.contains("to noeviction"), "{reason}");
    }

    #[test]
    fn a_server_that_throws_out_what_has_a_time_to_live_is_none_for_marks() {
        let judged = |required, eviction| judge(required, "yes", "always", eviction, true);
        for eviction in ["volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl", "allkeys-lru", "unknown"] {
            for required in [Persistence::Always, Persistence::EverySecond] {
                let reason = judged(required, eviction).expect_err("evicted");
                assert!(reason.contains(eviction) && reason.contains("to noeviction"), "{reason}");
            }
            assert_eq!(judged(Persistence::Unchecked, eviction), Ok(()));
        }
        assert_eq!(judged(Persistence::EverySecond, "noeviction"), Ok(()));
    }
}
