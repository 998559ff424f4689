//! Standard output: no broker at all, so that the relay's own part is seen.

use std::{
    io::{BufRead as _, BufReader, PipeReader},
    process::Stdio,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use pillarbox_core::port::Message;

use super::{Arrivals, Broker, Names, sink};
use crate::Result;

/// What stands before a payload in a line.
const BEFORE: &str = "\"payload\":\"";

/// A pipe that somebody reads.
#[derive(Debug, Default)]
pub(in crate::relay) struct Stdout {
    read: Mutex<Option<PipeReader>>,
}

impl Broker for Stdout {
    const NAMES: Names =
        Names { rate: "relay_stdout", memory: "stdout_memory", latency: "stdout_latency", start: "stdout_start" };
    const WINDOWS: &'static [usize] = &[];
    const KEEPS: bool = false;
    const IS_REAL: bool = false;
    const CONFIRM: &'static str = "the end of the write";
    const SEEN: &'static str = "seen by who reads the pipe";

    async fn start() -> Result<Self> {
        Ok(Self::default())
    }

    fn place(&self) -> Result<String> {
        Ok("lines of JSON into a pipe".into())
    }

    fn sink(&self) -> Vec<String> {
        sink("stdout", &[])
    }

    fn output(&self) -> Result<Stdio> {
        let (read, write) = std::io::pipe()?;
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
        Ok(write.into())
    }

    async fn clear(&self) -> Result<()> {
        Ok(())
    }

    async fn limit(&self, _: &[Message], _: usize) -> Result<Duration> {
        Err("there is no client".into())
    }

    async fn listen(&self) -> Result<Arrivals> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or("there is no pipe")?;
        let (inbox, arrivals) = Arrivals::channel();
        // It ends with the pipe, whose other end is the relay's.
        thread::spawn(move || {
            for line in BufReader::new(read).lines().map_while(std::io::Result::ok) {
                let payload = line.split_once(BEFORE).map(|(_, rest)| rest).unwrap_or_default();
                inbox.put(payload.as_bytes());
            }
        });
        Ok(arrivals)
    }
}
