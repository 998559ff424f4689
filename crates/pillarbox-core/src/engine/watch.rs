//! The tasks of a node, watched: one that panics begins again.
//!
//! What users write is guarded where it is called, so a panic here is a defect of the engine, or of a store. Nobody waits for a
//! task before the shutdown, and without the reader or the settler a node would stand still for ever and keep its partitions:
//! its lease is renewed all the same. So it is told, and the task begins again. If it works on the node's memory, nobody
//! knows what it has left there: the lease is ended with it, and the node joins anew, with a memory that is read from the
//! table. That is as after a lapse: what was running is dropped or delivered once more, no attempt counts, and a settle that
//! was under way is either through before or finds its lease gone.

use std::{future::Future, sync::Arc};

use tokio::time::{Duration, Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    backoff::Backoff,
    calling::{caught, panic_text},
    shared::Shared,
};

/// A task that has run for so long begins again without delay.
const SOUND: Duration = Duration::from_mins(1);

/// What a task has to do with the node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Works {
    /// It reads there, or leaves a word for the others: whatever it has left is sound.
    Beside,
    /// It changes it.
    OnMemory,
}

/// Runs a task, and runs it again when it has panicked, until it ends or `stop` comes.
pub(crate) fn watched<F, B>(
    shared: &Arc<Shared>,
    task: &'static str,
    works: Works,
    stop: &CancellationToken,
    mut begin: B,
) -> impl Future<Output = ()> + Send + use<F, B>
where
    F: Future<Output = ()> + Send,
    B: FnMut(Arc<Shared>, CancellationToken) -> F + Send + 'static,
{
    let (shared, stop) = (shared.clone(), stop.clone());
    async move {
        let mut pause = Backoff::new(Duration::from_millis(20), Duration::from_secs(5));
        loop {
            let begun = Instant::now();
            let run = async { begin(shared.clone(), stop.clone()).await };
            let Err(panic) = caught(run).await else { return };
            shared.panicked(task, &panic_text(&*panic), works);
            if begun.elapsed() > SOUND {
                pause.reset();
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep(pause.next()) => {}
            }
        }
    }
}
