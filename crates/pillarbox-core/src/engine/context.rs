//! What is known at the time of a write, and should be known at the delivery.

use std::{collections::BTreeMap, panic::AssertUnwindSafe, sync::Arc};

use super::calling::panic_text;
use crate::domain::{BoxError, Event, EventError};

/// Entries of a context: who asked, in which request, for which tenant. Sorted by name.
///
/// ```
/// # use pillarbox_core::{Outbox, engine::Context, port::Store};
/// # tokio::task_local! { static USER: String; }
/// # fn example<S: Store>(store: S) {
/// let outbox = Outbox::single_node(store)
///     .context(|| Ok(Context::new().with("user", USER.try_with(Clone::clone)?)));
/// # }
/// let context = Context::new().with("user", "ada");
/// assert_eq!(context.get("user"), Some("ada"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context(BTreeMap<String, String>);

impl Context {
    /// No entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an entry; a former value of that name is replaced.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }

    /// The value of an entry.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Context {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(entries: I) -> Self {
        Self(entries.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// Tells the context of a write. Every closure without arguments that returns a `Result` of a [`Context`] is one.
///
/// It runs in the task that writes, once for each call of `write` or `write_all`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a provider of context",
    note = "a provider is a closure such as `|| Ok(Context::new().with(\"user\", current_user()?))`, or a type that implements `ContextProvider`"
)]
pub trait ContextProvider: Send + Sync + 'static {
    /// The entries. A provider that fails is left out, and the write goes on.
    fn context(&self) -> Result<Context, BoxError>;
}

impl<F: Fn() -> Result<Context, BoxError> + Send + Sync + 'static> ContextProvider for F {
    fn context(&self) -> Result<Context, BoxError> {
        self()
    }
}

/// The providers of an outbox.
#[derive(Clone, Default)]
pub(crate) struct Providers(Vec<Arc<dyn ContextProvider>>);

impl Providers {
    pub(crate) fn add(&mut self, provider: impl ContextProvider) {
        self.0.push(Arc::new(provider));
    }

    /// Adds what the providers say to every event of a batch. Of two, the later one wins; what the event has itself
    /// comes before both.
    pub(crate) fn apply(&self, batch: &mut [Event]) -> Result<(), EventError> {
        if self.0.is_empty() || batch.is_empty() {
            return Ok(());
        }
        let mut context = BTreeMap::new();
        for provider in &self.0 {
            match std::panic::catch_unwind(AssertUnwindSafe(|| provider.context())) {
                Ok(Ok(entries)) => context.extend(entries.0),
                Ok(Err(error)) => {
                    tracing::error!(
                        error = &*error as &dyn std::error::Error,
                        "a provider of context failed: its entries are missing"
                    );
                }
                Err(panic) => {
                    tracing::error!(
                        error = panic_text(&*panic),
                        "a provider of context panicked: its entries are missing"
                    );
                }
            }
        }
        for event in batch {
            let missing = context.iter().filter(|(name, _)| event.headers().context(name).is_none());
            let builder = missing.fold(event.to_builder(), |builder, (name, value)| builder.context(name, value));
            *event = builder.build()?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Providers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} providers", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(providers: &Providers, event: Event) -> Vec<(String, String)> {
        let mut batch = [event];
        providers.apply(&mut batch).unwrap();
        batch[0].headers().contexts().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_last_provider_wins_and_the_events_own_word_over_all() {
        let mut providers = Providers::default();
        providers.add(|| Ok(Context::from_iter([("a", "1"), ("b", "1"), ("c", "1")])));
        providers.add(|| Ok(Context::from_iter([("b", "2"), ("c", "2")])));
        let event = Event::builder("e").json(&1).context("c", "3").header("b", "a header").build().unwrap();
        assert_eq!(entries(&providers, event), pairs(&[("a", "1"), ("b", "2"), ("c", "3")]));
    }

    #[test]
    fn a_provider_that_fails_or_panics_is_left_out() {
        let mut providers = Providers::default();
        providers.add(|| Err("nobody is logged in".into()));
        providers.add(|| std::panic::resume_unwind(Box::new("oh")));
        providers.add(|| Ok(Context::new().with("request", "r-7")));
        let event = Event::builder("e").json(&1).build().unwrap();
        assert_eq!(entries(&providers, event), pairs(&[("request", "r-7")]));
    }

    #[test]
    fn an_event_keeps_its_identity() {
        let mut providers = Providers::default();
        providers.add(|| Ok(Context::new().with("request", "r-7")));
        let event =
            Event::builder("e").json(&1).key("k").deliver_after(std::time::Duration::from_secs(1)).build().unwrap();
        let mut batch = [event.clone()];
        providers.apply(&mut batch).unwrap();
        assert_eq!(
            (batch[0].id(), batch[0].key(), batch[0].deliver_after()),
            (event.id(), event.key(), event.deliver_after())
        );
    }
}
