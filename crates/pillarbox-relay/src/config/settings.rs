//! A configuration as services and operators' commands read it: without a relay's duties.

use std::{collections::BTreeMap, sync::Arc};

use pillarbox_core::port::Sink;
use pillarbox_inbox::{ConsumerSettings, DeadLetterSettings, GuardSettings, InboxSettings};

use super::{AdminConfig, ConfigError, OutboxConfig, SinkConfig, Source, error::unknown, sinks};

/// The sections that a service hands to its builders. Nothing has to be set: what is not has its default.
///
/// ```
/// use pillarbox_inbox::{Guard, MemoryGuard};
/// use pillarbox_relay::config::{Settings, Source};
///
/// let file = "[guard]\nttl = \"30m\"";
/// let settings = Settings::read(&Source::new().text(file).environment())?;
/// let guard = Guard::new(MemoryGuard::new()).settings(&settings.guard);
/// # Ok::<(), pillarbox_relay::config::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// The outbox.
    pub outbox: OutboxConfig,
    /// Where messages go, by name.
    pub sinks: BTreeMap<String, SinkConfig>,
    /// The idempotency guard.
    pub guard: GuardSettings,
    /// The inbox.
    pub inbox: InboxSettings,
    /// The consumer loop.
    pub consumer: ConsumerSettings,
    /// The dead letter queue.
    pub dead_letters: DeadLetterSettings,
    /// The operators' API.
    pub admin: AdminConfig,
}

impl Settings {
    /// Reads all sources, and refuses what is wrong.
    pub fn read(source: &Source) -> Result<Self, ConfigError> {
        source.read(|raw| {
            Ok(Self {
                outbox: raw.outbox,
                sinks: sinks::read(raw.sinks)?,
                guard: raw.guard,
                inbox: raw.inbox,
                consumer: raw.consumer,
                dead_letters: raw.dead_letters,
                admin: raw.admin,
            })
        })
    }

    /// The sink that replayed letters go through: that of `dead_letters.sink`, or the only one there is. None if there is
    /// none.
    pub fn replays(&self) -> Result<Option<Arc<dyn Sink>>, ConfigError> {
        let names: Vec<&str> = self.sinks.keys().map(String::as_str).collect();
        match (&self.dead_letters.sink, &names[..]) {
            (Some(name), _) => match self.sinks.get(name) {
                Some(sink) => Ok(Some(sink.sink())),
                None if names.is_empty() => {
                    let what = format!("{name:?} is no sink: there is no section [sinks.{name}]");
                    Err(ConfigError::at("dead_letters.sink", what))
                }
                None => {
                    let what = format!("{name:?} {}", unknown("sink", name, &names));
                    Err(ConfigError::at("dead_letters.sink", what))
                }
            },
            (None, []) => Ok(None),
            (None, [one]) => Ok(self.sinks.get(*one).map(SinkConfig::sink)),
            (None, several) => {
                let list = several.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                let what = format!("is missing: with several sinks it says which one replays go through: {list}");
                Err(ConfigError::at("dead_letters.sink", what))
            }
        }
    }
}
