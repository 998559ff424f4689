//! The peers that are built in.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    Result,
    round::{self, Line},
};

/// The size of every payload.
pub(crate) const PAYLOAD: usize = 256;
/// How many events are queued at once, where the library leaves it to its user.
pub(crate) const CHUNK: u32 = 5_000;

/// A payload for libraries that store JSON: a string that has its size with its quotes.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Event(String);

impl Event {
    pub(crate) fn new() -> Self {
        Self("x".repeat(PAYLOAD - 2))
    }
}

macro_rules! peers {
    ($($name:literal, $feature:literal: $peer:ty, $($package:literal),+;)+) => {
        /// Names and versions.
        pub(crate) fn list() -> Vec<(&'static str, String)> {
            vec![$(#[cfg(feature = $feature)] ($name, versions(&[$($package),+])),)+]
        }

        /// Measures one round of the peer of this name.
        pub(crate) async fn measure(peer: &str, url: &str, events: u32, limit: Duration) -> Result<Line> {
            match peer {
                $(#[cfg(feature = $feature)]
                $name => {
                    let version = versions(&[$($package),+]);
                    round::measure::<$peer>($name, version, url, events, limit).await
                })+
                _ => Err(format!("{peer} is not built in: see --list, and README.md for how to build it").into()),
            }
        }
    };
}

#[cfg(feature = "apalis-postgres")]
mod apalis_postgres;
#[cfg(feature = "awa")]
mod awa;
#[cfg(feature = "cf-gears-toolkit-db")]
mod cf_gears_toolkit_db;
#[cfg(feature = "graphile_worker")]
mod graphile_worker;
#[cfg(feature = "obix")]
mod obix;
#[cfg(feature = "outbox-core")]
mod outbox_core;
#[cfg(feature = "pgmq")]
mod pgmq;

peers! {
    "apalis-postgres", "apalis-postgres": apalis_postgres::Peer, "apalis-postgres";
    "awa", "awa": awa::Peer, "awa";
    "cf-gears-toolkit-db", "cf-gears-toolkit-db": cf_gears_toolkit_db::Peer, "cf-gears-toolkit-db";
    "graphile_worker", "graphile_worker": graphile_worker::Peer, "graphile_worker";
    "graphile_worker-queues", "graphile_worker": graphile_worker::InQueues, "graphile_worker";
    "obix", "obix": obix::Peer, "obix";
    "outbox-core", "outbox-core": outbox_core::Peer, "outbox-core", "outbox-postgres";
    "pgmq", "pgmq": pgmq::Peer, "pgmq";
}

/// The version of the first package, and names and versions of others that belong to it, as they are locked.
fn versions(packages: &[&str]) -> String {
    let version = |package: &str| {
        let entry = format!("name = \"{package}\"\nversion = \"");
        let rest = include_str!("../Cargo.lock").split_once(&entry).map(|(_, rest)| rest);
        rest.and_then(|rest| rest.split_once('"')).map_or("unknown", |(version, _)| version)
    };
    let others = packages[1..].iter().map(|package| format!(", {package} {}", version(package)));
    version(packages[0]).to_owned() + &others.collect::<String>()
}
