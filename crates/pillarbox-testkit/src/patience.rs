//! Waiting with an end: a test that waits for what never comes must say so instead of hanging.

use std::{
    future::Future,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use futures_util::future::{Either, select};
use tokio::sync::oneshot;

/// How long tests wait for a signal: far longer than it takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for a future, at most `limit` of real time. Not tokio's timers: where a test has paused them, they
/// would run out at once.
pub(crate) async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    // Most waits are over before they begin; those need no thread.
    if let Some(output) = futures_util::FutureExt::now_or_never(&mut future) {
        return Some(output);
    }
    let (_alive, ended) = mpsc::channel::<()>();
    let (ring, alarm) = oneshot::channel();
    thread::spawn(move || {
        if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            // Nobody listens if the wait has just ended.
            let _ = ring.send(());
        }
    });
    match select(future, alarm).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn real_time_counts_also_where_tokio_time_is_paused() {
        assert_eq!(within(Duration::from_millis(5), pending::<()>()).await, None);
        assert_eq!(within(Duration::ZERO, ready(7)).await, Some(7));
        let hour = tokio::time::sleep(Duration::from_hours(1));
        assert_eq!(within(PATIENCE, hour).await, Some(()));
    }
}
