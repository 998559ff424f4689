//! A running relay: an outbox whose handlers are sinks.

use std::{fmt, sync::Arc, time::Duration};

use pillarbox_core::{
    Outbox,
    engine::{Handler, OutboxError},
    port::{Sent, Sink, SinkError, Store, Tracer},
};

use crate::{
    Outlet,
    config::{Config, SinkConfig},
};

/// What may be under way is in so many hands, where there is one sink: while some wait for the sink's word, others gather.
const HANDS: usize = 4;

/// How long a check waits for a sink.
const CHECK_WITHIN: Duration = Duration::from_secs(10);

/// A running relay. Several on one outbox share its partitions.
pub struct Relay<S> {
    outbox: Outbox<S>,
    sinks: Vec<Arc<dyn Sink>>,
}

impl<S: Store> Relay<S> {
    /// Joins the relays of this outbox, and begins to send. A sink that is down is no error: its events wait.
    pub async fn start(config: &Config, store: S) -> Result<Self, OutboxError> {
        Self::start_with(config, store, None).await
    }

    /// The same, and messages continue the traces of their events: the span of each is a child of the write's, and
    /// the message's headers lead to it.
    pub async fn start_with(config: &Config, store: S, tracer: Option<Arc<dyn Tracer>>) -> Result<Self, OutboxError> {
        let mut builder = config.outbox.of_relay(Outbox::multi_node(store)).group(group(config));
        // As they were given: the workers are shared out below.
        builder.validate()?;
        if let Some(tracer) = tracer {
            builder = builder.tracer(tracer);
        }
        for (name, sink) in &config.sinks {
            let mut outlet = Outlet::new(name, sink.sink(), config.rules.clone())
                .source(config.messages.source.as_str())
                .mode(config.messages.mode)
                .batch(config.messages.batch);
            if let Some(timeout) = config.outbox.handler_timeout() {
                outlet = outlet.timeout(timeout);
            }
            if config.sinks.len() == 1 {
                let deliveries = config.outbox.under_way();
                outlet = outlet.at_once(deliveries / HANDS);
                let workers = deliveries.div_ceil(Handler::at_once(&outlet));
                // More would wait in line.
                builder = builder.workers(outlet.places().map_or(workers, |places| workers.min(places)));
            }
            builder = builder.handle_every(outlet);
        }
        let outbox = builder.start().await?;
        Ok(Self { outbox, sinks: config.sinks.values().map(SinkConfig::sink).collect() })
    }

    /// Checks the settings of its outbox, as [`start`](Self::start) does. Nothing is opened.
    pub fn validate(config: &Config, store: S) -> Result<(), OutboxError> {
        config.outbox.of_relay(Outbox::multi_node(store)).validate()
    }

    /// The outbox it reads.
    pub fn outbox(&self) -> &Outbox<S> {
        &self.outbox
    }

    /// Sends what is under way, hands over what is owned, and closes the sinks.
    pub async fn shutdown(&self) {
        self.outbox.shutdown().await;
        futures_util::future::join_all(self.sinks.iter().map(|sink| sink.close())).await;
    }
}

impl<S> fmt::Debug for Relay<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("sinks", &self.sinks.len()).finish_non_exhaustive()
    }
}

/// What the relays of an outbox are called. A node of another group has other handlers or other routes, and the two would
/// take each other's events.
fn group(config: &Config) -> String {
    let sinks: Vec<_> = config.sinks.iter().map(|(name, sink)| (name, sink.kind())).collect();
    let routes = serde_json::json!([sinks, config.rules.outline()]);
    format!("relay (routes {:016x})", fingerprint(routes.to_string().as_bytes()))
}

/// FNV-1a: the same in every build, on every machine.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Tries every sink, all at once: its name, and what it says.
pub async fn check_sinks(config: &Config) -> Vec<(String, Sent)> {
    let tried = config.sinks.iter().map(async |(name, sink)| {
        let sink = sink.sink();
        let said = tokio::time::timeout(CHECK_WITHIN, sink.check()).await;
        let late = || SinkError::unavailable(format!("no answer within {CHECK_WITHIN:?}"));
        (name.clone(), said.unwrap_or_else(|_| Err(late())))
    });
    futures_util::future::join_all(tried).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;

    fn group_of(text: &str) -> String {
        let text = format!("outbox.url = \"sqlite:x.db\"\n[sinks.out]\ntype = \"stdout\"\n{text}");
        group(&Config::read(&Source::new().text(text)).unwrap())
    }

    #[test]
    fn relays_are_one_group_if_they_have_the_same_sinks_and_rules() {
        let plain = group_of("");
        assert_eq!(plain, "relay (routes 55a685a9dbea0bba)", "the same in every build");
        // What does not decide where events go.
        assert_eq!(plain, group_of("[messages]\nbatch = 7\nsource = \"/shop\""));
        let named = group_of("[[rules]]\nname = \"a\"\ntopic = \"{tenant}\"");
        assert_eq!(named, group_of("[[rules]]\nname = \"b\"\ntopic = \"{tenant}\""));
        let others = [
            plain,
            named,
            group_of("[[rules]]\ntopic = \"x\""),
            group_of("[[rules]]\nkey = \"x\""),
            group_of("[[rules]]\nheaders = { x = \"x\" }"),
            group_of("[[rules]]\ndrop = true"),
            group_of("[[rules]]\nmatch = { event_type = \"x\" }"),
            group_of("[[rules]]\nmatch = { aggregate_type = \"x\" }"),
            group_of("[[rules]]\nmatch = { tenant = \"x\" }"),
            group_of("[[rules]]\nmatch = { headers = { x = [\"x\"] } }"),
            group_of("[messages]\nunmatched = []"),
            group_of("[sinks.second]\ntype = \"stdout\"\n[messages]\nunmatched = [\"out\"]"),
        ];
        let different: std::collections::BTreeSet<_> = others.iter().collect();
        assert_eq!(different.len(), others.len(), "{others:?}");
    }
}
