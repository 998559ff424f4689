//! Code around every delivery.

use super::Report;
use crate::{
    domain::{Delivery, HandlerError},
    port::BoxFuture,
};

/// Runs around every handler: `before` in the order of registration, `after` in reverse.
///
/// ```
/// use pillarbox_core::{Delivery, HandlerError, engine::{Interceptor, Report}, port::BoxFuture};
///
/// struct Journal;
///
/// impl Interceptor for Journal {
///     fn after<'a>(&'a self, delivery: &'a Delivery, report: &'a Report) -> BoxFuture<'a, Result<(), HandlerError>> {
///         println!("{}: {report:?}", delivery.event().id());
///         Box::pin(async { Ok(()) })
///     }
/// }
/// ```
pub trait Interceptor: Send + Sync + 'static {
    /// Runs before the handler. An error counts as a failure of the delivery, and neither the later
    /// interceptors nor the handler are called.
    fn before<'a>(&'a self, delivery: &'a Delivery) -> BoxFuture<'a, Result<(), HandlerError>> {
        let _ = delivery;
        Box::pin(async { Ok(()) })
    }

    /// Runs after the handler, for each interceptor whose `before` was called. An error is logged only.
    fn after<'a>(&'a self, delivery: &'a Delivery, report: &'a Report) -> BoxFuture<'a, Result<(), HandlerError>> {
        let _ = (delivery, report);
        Box::pin(async { Ok(()) })
    }
}
