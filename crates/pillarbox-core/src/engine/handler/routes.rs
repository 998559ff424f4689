//! Which event goes to which handlers.

use std::{
    any::TypeId,
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use super::{
    BatchHandler, Fallback, Handler, Handlers, Registration, TxHandler, destination::Destination, registration::Scope,
};
use crate::{
    domain::{AggregateType, Codecs, Event, EventType, RetryPolicy, Route},
    engine::{calling::sound, error::OutboxError, settings::Settings},
};

/// What a node with handlers of every event publishes as a route.
const EVERY: &str = "*";

/// A handler of a running outbox.
pub(crate) struct Registered {
    pub(crate) id: Arc<str>,
    pub(crate) runs: Runs,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) fallback: Option<Arc<dyn Fallback>>,
    pub(crate) destination: Option<Arc<Destination>>,
}

impl Registered {
    /// Whether it is only ever called with several events at once.
    fn gathers(&self) -> bool {
        !matches!(self.runs, Runs::Each(_))
    }

    /// How many events it takes at once, where no other handler has them.
    pub(crate) fn at_once(&self, in_tx: usize) -> usize {
        match &self.runs {
            Runs::Each(handler) => sound(|| handler.at_once()).unwrap_or(1),
            Runs::Batch { most, .. } => *most,
            Runs::InTx(_) => in_tx,
        }
    }
}

/// How it is called.
pub(crate) enum Runs {
    /// With one event; or with several, if it says so and is alone with them.
    Each(Box<dyn Handler>),
    /// With so many at the most.
    Batch { most: usize, handler: Box<dyn BatchHandler> },
    /// In a transaction of the outbox's database.
    InTx(Box<dyn TxHandler>),
}

/// Gathers handlers; `build` checks them all.
#[derive(Debug, Default)]
pub(crate) struct RoutesBuilder(Handlers);

impl RoutesBuilder {
    pub(crate) fn add(&mut self, registration: Registration) {
        self.0.registrations.push(registration);
    }

    pub(crate) fn extend(&mut self, handlers: Handlers) {
        self.0.registrations.extend(handlers.registrations);
        self.0.fallbacks.extend(handlers.fallbacks);
    }

    pub(crate) fn build(self, codecs: &Codecs, settings: &Settings) -> Result<Routes, OutboxError> {
        let Handlers { registrations, fallbacks: of_types } = self.0;
        if registrations.is_empty() {
            return Err(OutboxError::NoHandler);
        }
        let mut fallbacks: HashMap<TypeId, Arc<dyn Fallback>> = HashMap::new();
        for (of, name, make) in of_types {
            let taken =
                |registration: &Registration| matches!(registration.scope, Scope::Typed(takes, _) if takes == of);
            if !registrations.iter().any(taken) {
                return Err(OutboxError::LoneFallback(name));
            }
            if fallbacks.insert(of, make(codecs)).is_some() {
                return Err(OutboxError::DuplicateFallback(name));
            }
        }
        let mut destinations: HashMap<Arc<str>, Arc<Destination>> = HashMap::new();
        let mut ids = BTreeSet::new();
        let mut raw = BTreeSet::new();
        let mut routes = Routes { group: settings.group.clone(), ..Routes::default() };
        for registration in registrations {
            let Registration { scope, id, retry, timeout, fallback, destination, make } = registration;
            if !ids.insert(id.clone()) {
                return Err(match scope {
                    Scope::Raw(route) if raw.contains(&route.to_string()) => {
                        OutboxError::DuplicateRoute(route.to_string())
                    }
                    _ => OutboxError::DuplicateHandler(id.to_string()),
                });
            }
            if let Some(policy) = &retry {
                policy.validate().map_err(|reason| OutboxError::setting(format!("retry policy of {id}: {reason}")))?;
            }
            let of_type = match &scope {
                Scope::Typed(of, _) => fallbacks.get(of).cloned(),
                Scope::Raw(_) | Scope::Every => None,
            };
            let fallback = fallback.map(|make| make(codecs)).or(of_type);
            let destination = destination.map(|name| {
                let of_name = || Arc::new(Destination::new(name.clone(), settings));
                destinations.entry(name.clone()).or_insert_with(of_name).clone()
            });
            let runs = make(codecs);
            let registered = Arc::new(Registered { id, runs, retry, timeout, fallback, destination });
            match scope {
                Scope::Raw(route) => {
                    if !raw.insert(route.to_string()) {
                        return Err(OutboxError::DuplicateRoute(route.to_string()));
                    }
                    routes.add(route, registered);
                }
                Scope::Typed(_, of) => of.into_iter().for_each(|route| routes.add(route, registered.clone())),
                Scope::Every => routes.every.push(registered),
            }
        }
        routes.finish();
        routes.check_alone()?;
        Ok(routes)
    }
}

/// The handlers of each route, in the order in which they run: first those of the route, then those of every event,
/// each as they were registered.
#[derive(Clone, Default)]
pub(crate) struct Routes {
    // By event type first, then by aggregate type: lookups borrow both names.
    of_route: BTreeMap<EventType, BTreeMap<AggregateType, Vec<Arc<Registered>>>>,
    every: Vec<Arc<Registered>>,
    /// Which group of consumers has them, if they have a name.
    pub(crate) group: Option<String>,
}

/// What a node publishes its group with, beside its routes.
const GROUP: &str = "@group=";

impl Routes {
    /// The group of a node, from what it has published.
    pub(crate) fn group_of(published: &[String]) -> Option<&str> {
        published.iter().find_map(|note| note.strip_prefix(GROUP))
    }

    fn add(&mut self, route: Route, handler: Arc<Registered>) {
        self.of_route.entry(route.event).or_default().entry(route.aggregate).or_default().push(handler);
    }

    fn finish(&mut self) {
        for handlers in self.of_route.values_mut().flat_map(BTreeMap::values_mut) {
            handlers.extend_from_slice(&self.every);
        }
    }

    /// Handlers of several events at once run beside no other: what each of several has achieved is stored by event.
    fn check_alone(&self) -> Result<(), OutboxError> {
        let lists = self.of_route.values().flat_map(BTreeMap::values);
        for handlers in lists.filter(|handlers| handlers.len() > 1) {
            if let Some(gathers) = handlers.iter().find(|handler| handler.gathers()) {
                let others = handlers.iter().map(|handler| handler.id.to_string()).filter(|id| **id != *gathers.id);
                return Err(OutboxError::NotAlone { handler: gathers.id.to_string(), others: others.collect() });
            }
        }
        Ok(())
    }

    /// The one handler of an event that is called with several events, if it has such a one.
    pub(crate) fn gathering(&self, event: &Event) -> Option<&Arc<Registered>> {
        match self.find(event) {
            [alone] if alone.at_once(usize::MAX) > 1 => Some(alone),
            _ => None,
        }
    }

    /// Every handler, some of them several times.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Registered> {
        self.of_route.values().flat_map(BTreeMap::values).flatten().chain(&self.every).map(|handler| &**handler)
    }

    /// The most events that one worker may be given at once.
    pub(crate) fn most_at_once(&self, in_tx: usize) -> usize {
        self.all().map(|handler| handler.at_once(in_tx)).max().unwrap_or(1)
    }

    /// The handlers of an event; none if there is no route.
    pub(crate) fn find(&self, event: &Event) -> &[Arc<Registered>] {
        let of_route = self.of_route.get(event.event_type()).and_then(|routes| routes.get(event.aggregate_type()));
        of_route.unwrap_or(&self.every)
    }

    /// The routes as nodes publish them.
    pub(crate) fn names(&self) -> Vec<String> {
        let of_route = self.of_route.iter().flat_map(|(event, routes)| {
            routes.keys().map(|aggregate| Route { aggregate: aggregate.clone(), event: event.clone() }.to_string())
        });
        let every = (!self.every.is_empty()).then(|| EVERY.to_owned());
        let group = self.group.as_ref().map(|group| format!("{GROUP}{group}"));
        of_route.chain(every).chain(group).collect()
    }

    /// Whether published routes have one for the event.
    pub(crate) fn are_among(published: &std::collections::HashSet<String>, route: &str) -> bool {
        published.contains(route) || published.contains(EVERY)
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Delivery, HandlerExt as _};

    async fn noop(_: Delivery) {}

    fn event(aggregate: &str, event_type: &str) -> Event {
        Event::builder(event_type).aggregate_type(aggregate).json(&1).build().unwrap()
    }

    fn build(registrations: impl IntoIterator<Item = Registration>) -> Result<Routes, OutboxError> {
        let mut routes = RoutesBuilder::default();
        registrations.into_iter().for_each(|registration| routes.add(registration));
        routes.build(&Codecs::default(), &Settings::default())
    }

    fn ids(handlers: &[Arc<Registered>]) -> Vec<&str> {
        handlers.iter().map(|handler| &*handler.id).collect()
    }

    #[test]
    fn an_event_finds_the_handler_of_its_own_route_alone() {
        let routes = build([Route::new("a:b", "c"), Route::from("c")].map(|route| Registration::raw(route, noop)));
        let routes = routes.unwrap();
        assert_eq!(routes.find(&event("a:b", "c")).len(), 1);
        assert_eq!(routes.find(&event("__GLOBAL__", "c")).len(), 1);
        assert_eq!(routes.find(&event("a", "b:c")).len(), 0);
        assert_eq!(routes.names().len(), 2);
    }

    #[test]
    fn handlers_of_every_event_come_after_those_of_the_route() {
        let routes = build([
            Registration::every(noop.with_id("audit")),
            Registration::raw(Route::from("Placed"), noop.with_id("ship")),
            Registration::every(noop.with_id("count")),
        ]);
        let routes = routes.unwrap();
        assert_eq!(ids(routes.find(&event("__GLOBAL__", "Placed"))), ["ship", "audit", "count"]);
        assert_eq!(ids(routes.find(&event("x", "y"))), ["audit", "count"]);
        assert!(Routes::are_among(&routes.names().into_iter().collect(), "anything"));
    }

    #[test]
    fn a_second_handler_of_a_route_is_an_error_that_names_it() {
        let route = || Route::new("Order", "Placed");
        for second in [Registration::raw(route(), noop), Registration::raw(route(), noop.with_id("other"))] {
            let error = build([Registration::raw(route(), noop), second]).unwrap_err().to_string();
            assert!(error.contains("(\"Order\", \"Placed\")"), "{error}");
        }
    }

    #[test]
    fn a_second_handler_of_an_id_is_an_error_that_says_what_to_do() {
        let one = Registration::raw(Route::from("a"), noop.with_id("x"));
        let other = Registration::every(noop.with_id("x"));
        let error = build([one, other]).unwrap_err().to_string();
        assert!(error.contains("\"x\"") && error.contains("id"), "{error}");
    }

    #[test]
    fn no_handler_is_an_error_that_says_what_to_do() {
        let error = build([]).unwrap_err().to_string();
        assert!(error.contains("writer_only"), "{error}");
    }

    #[test]
    fn a_handlers_bad_policy_is_refused_with_its_name() {
        let handler = noop.with_retry(RetryPolicy::never().max_attempts(0));
        let error = build([Registration::raw(Route::from("Placed"), handler)]).unwrap_err().to_string();
        assert!(error.contains("Placed"), "{error}");
    }
}
