//! Looks at a state of the user's choice after the first run of a handler, and after the second.

use std::{
    fmt::{self, Debug},
    future::Future,
};

use parking_lot::Mutex;
use pillarbox_core::port::BoxFuture;

/// That every handler runs twice, and what is compared.
pub(super) struct Twice(Option<Box<dyn Compare>>);

/// No state is looked at.
pub(super) fn without_comparison() -> Twice {
    Twice(None)
}

/// Looks at what the closure gives.
pub(super) fn compare<F, Fut>(snapshot: F) -> Twice
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output: PartialEq + Debug + Send> + Send + 'static,
{
    Twice(Some(Box::new(State { snapshot, first: Mutex::new(None) })))
}

impl Twice {
    /// After the first run.
    pub(super) async fn first(&self) {
        if let Some(state) = &self.0 {
            state.first().await;
        }
    }

    /// After the second: both states in words, if they differ.
    pub(super) async fn difference(&self) -> Option<(String, String)> {
        match &self.0 {
            Some(state) => state.difference().await,
            None => None,
        }
    }
}

impl Debug for Twice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Twice").field("compares", &self.0.is_some()).finish()
    }
}

/// A state whose type is the closure's affair.
trait Compare: Send + Sync {
    fn first(&self) -> BoxFuture<'_, ()>;
    fn difference(&self) -> BoxFuture<'_, Option<(String, String)>>;
}

struct State<F, T> {
    snapshot: F,
    first: Mutex<Option<T>>,
}

impl<F, Fut> Compare for State<F, Fut::Output>
where
    F: Fn() -> Fut + Send + Sync,
    Fut: Future<Output: PartialEq + Debug + Send> + Send,
{
    fn first(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let state = (self.snapshot)().await;
            *self.first.lock() = Some(state);
        })
    }

    fn difference(&self) -> BoxFuture<'_, Option<(String, String)>> {
        Box::pin(async {
            let second = (self.snapshot)().await;
            let first = self.first.lock().take()?;
            (first != second).then(|| (format!("{first:#?}"), format!("{second:#?}")))
        })
    }
}
