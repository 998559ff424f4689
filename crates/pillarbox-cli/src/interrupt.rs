//! The end that a user asks for.

#[cfg(unix)]
use std::time::{Duration, Instant};

use crate::error::Error;

/// The exit code of work that was cut short, as shells give it.
pub(crate) const INTERRUPTED: u8 = 130;

/// A signal that comes so soon after the first is the same one, sent to the process and to its group, as `timeout` does.
#[cfg(unix)]
const SAME: Duration = Duration::from_secs(1);

/// Done at the first Ctrl-C or SIGTERM, which are listened to from the call on. The second ends the program
/// on the spot.
#[cfg(unix)]
pub(crate) fn interrupted() -> Result<impl Future<Output = ()>, Error> {
    use tokio::signal::unix::{SignalKind, signal};

    let listen = |kind| signal(kind).map_err(|error| Error::new("signals can't be listened to").caused_by(error));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let (first, waits) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut first = Some(first);
        let mut begun = None;
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            match first.take() {
                // Nobody waits for it any more when the run is over.
                Some(first) => {
                    begun = Some(Instant::now());
                    let _ = first.send(());
                }
                None if begun.is_some_and(|begun| begun.elapsed() < SAME) => {}
                None => std::process::exit(i32::from(INTERRUPTED)),
            }
        }
    });
    Ok(async { waits.await.unwrap_or_default() })
}

/// Done at the first Ctrl-C.
#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "other systems can fail here")]
pub(crate) fn interrupted() -> Result<impl Future<Output = ()>, Error> {
    Ok(async { tokio::signal::ctrl_c().await.unwrap_or_default() })
}
