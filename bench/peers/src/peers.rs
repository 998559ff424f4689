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
    ($($feature:literal: $module:ident, $($name:literal),+;)+) => {
        $(#[cfg(feature = $feature)] mod $module;)+

        /// Names and versions.
        pub(crate) fn list() -> Vec<(&'static str, String)> {
            vec![$(#[cfg(feature = $feature)] ($feature, versions(&[$($name),+])),)+]
        }

        /// Measures one round of the peer of this name.
        pub(crate) async fn measure(peer: &str, url: &str, events: u32, limit: Duration) -> Result<Line> {
            match peer {
                $(#[cfg(feature = $feature)]
                $feature => {
                    let version = versions(&[$($name),+]);
                    round::measure::<$module::Peer>($feature, version, url, events, limit).await
                })+
                _ => Err(format!("{peer} is not built in: see --list, and README.md for how to build it").into()),
            }
        }
    };
}

peers! {
    "apalis-postgres": apalis_postgres, "apalis-postgres";
    "awa": awa, "awa";
    "cf-gears-toolkit-db": cf_gears_toolkit_db, "cf-gears-toolkit-db";
    "graphile_worker": graphile_worker, "graphile_worker";
    "obix": obix, "obix";
    "outbox-core": outbox_core, "outbox-core", "outbox-postgres";
    "pgmq": pgmq, "pgmq";
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
