//! A runtime of the outbox's own, on a thread of its own: whatever handlers do to theirs, what runs here goes on.
//!
//! The lease is renewed here. So is everything of the engine's that holds over several steps what a renewal may have to wait
//! for: on SQLite the write lock, on MySQL and MariaDB the node's row. These are the settles, the starts of suspects, the
//! purge, and what operators do by this process. On the runtime of the handlers they could begin, and stand still in the
//! middle as soon as a handler blocks it; the lease would lapse, for all that its own thread could do, and on SQLite nobody
//! could write meanwhile.
//!
//! A socket is driven by the runtime on which it was connected, so each of these calls connects here: the stores' own
//! connections know their runtime. What handlers and the application hold themselves is theirs: a transactional handler's
//! work, and an application's transaction, stay on the runtime that they were begun on.

use std::{future::Future, sync::mpsc as blocking};

use tokio::{
    runtime::{Builder, Handle},
    sync::mpsc,
    task::JoinHandle,
    time::{Duration, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{error::OutboxError, settings::Heartbeat};

/// How long the thread waits for what still runs when the lease is no longer renewed.
const LAST_CALLS: Duration = Duration::from_secs(10);

/// Where the lease is renewed.
#[derive(Clone, Debug)]
pub(crate) struct Apart {
    handle: Handle,
    /// The thread lives as long as somebody has this, or a task of it runs.
    alive: Option<mpsc::Sender<()>>,
}

impl Apart {
    /// Starts the thread, unless the handlers' runtime is asked for. `stop` says that the lease is renewed no longer.
    pub(crate) fn start(place: Heartbeat, stop: CancellationToken) -> Result<Self, OutboxError> {
        if place == Heartbeat::SharedRuntime {
            return Ok(Self { handle: Handle::current(), alive: None });
        }
        let failed = |error: std::io::Error| OutboxError::Thread(error.to_string());
        let (alive, mut ended) = mpsc::channel(1);
        let (tell, told) = blocking::sync_channel(1);
        // Made and dropped there: a runtime must not be dropped inside of another.
        let body = move || match Builder::new_current_thread().enable_all().build() {
            Err(error) => drop(tell.send(Err(error))),
            Ok(runtime) => {
                let _ = tell.send(Ok(runtime.handle().clone()));
                let over = async {
                    stop.cancelled().await;
                    sleep(LAST_CALLS).await;
                };
                runtime.block_on(async {
                    tokio::select! {
                        biased;
                        _ = ended.recv() => {}
                        () = over => {}
                    }
                });
            }
        };
        std::thread::Builder::new().name("pillarbox-lease".into()).spawn(body).map_err(failed)?;
        match told.recv() {
            Ok(handle) => Ok(Self { handle: handle.map_err(failed)?, alive: Some(alive) }),
            Err(_) => Err(OutboxError::Thread("it ended before it began".into())),
        }
    }

    /// Whether it is a runtime of its own.
    pub(crate) fn is_a_thread(&self) -> bool {
        self.alive.is_some()
    }

    /// Runs a task there.
    pub(crate) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        let alive = self.alive.clone();
        self.handle.spawn(async move {
            let answer = task.await;
            drop(alive);
            answer
        })
    }
}
