//! The API, put together.

use std::{fmt, sync::Arc};

use axum::Router;
use pillarbox_core::port::Store;
use tokio::sync::Semaphore;

use crate::{
    access::Access,
    letters::Letters,
    limits::{Buckets, Limits},
    redact::Redaction,
    router,
};

/// The operators' API of an outbox, as a router to nest in one's own service.
///
/// ```
/// use axum::Router;
/// use pillarbox_admin::{Access, Admin, Redaction, Role, Tokens};
///
/// # fn service(store: impl pillarbox_core::port::Store, secret: &str) -> Result<Router, Box<dyn std::error::Error>> {
/// let tokens = Tokens::new().with("ada", Role::Operator, secret)?;
/// let admin = Admin::new(store, Access::tokens(tokens)).redact(Redaction::new().path("$..email")?);
/// let service: Router = Router::new().nest("/api/admin", admin.router());
/// # Ok(service) }
/// ```
///
/// There is no way to forget who may come in: [`Access`] is asked for first.
#[must_use = "an API that is not served answers nobody"]
pub struct Admin {
    store: Option<Arc<dyn Store>>,
    access: Access,
    letters: Option<Arc<dyn Letters>>,
    redaction: Redaction,
    limits: Limits,
}

impl Admin {
    /// An API on a store, for those whom the access lets in.
    pub fn new(store: impl Store, access: Access) -> Self {
        Self { store: Some(Arc::new(store)), ..Self::of(access) }
    }

    /// An API on a queue of dead letters alone, for consumers in a service without an outbox.
    pub fn of_letters(letters: impl Letters, access: Access) -> Self {
        Self::of(access).letters(letters)
    }

    fn of(access: Access) -> Self {
        Self { store: None, access, letters: None, redaction: Redaction::default(), limits: Limits::default() }
    }

    /// Shows consumers' dead letters beside the outbox's dead events.
    pub fn letters(mut self, letters: impl Letters) -> Self {
        self.letters = Some(Arc::new(letters));
        self
    }

    /// Keeps values from the eyes of some.
    pub fn redact(mut self, redaction: Redaction) -> Self {
        self.redaction = redaction;
        self
    }

    /// Sets the limits.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The router. Its paths are relative: `/events`, `/dlq` and so on; nest it under `/api/admin`.
    pub fn router(self) -> Router {
        let desk = Desk {
            store: self.store,
            access: self.access,
            letters: self.letters,
            redaction: self.redaction,
            places: Semaphore::new(self.limits.at_once.clamp(1, Semaphore::MAX_PERMITS)),
            limits: self.limits,
            buckets: Buckets::default(),
        };
        router::router(Arc::new(desk))
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin")
            .field("outbox", &self.store.is_some())
            .field("access", &self.access)
            .field("letters", &self.letters.is_some())
            .field("redaction", &self.redaction)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// What every request needs.
pub(crate) struct Desk {
    pub(crate) store: Option<Arc<dyn Store>>,
    pub(crate) access: Access,
    pub(crate) letters: Option<Arc<dyn Letters>>,
    pub(crate) redaction: Redaction,
    pub(crate) limits: Limits,
    pub(crate) places: Semaphore,
    pub(crate) buckets: Buckets,
}
