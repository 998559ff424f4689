//! The relay as a library in a process of its own, which tells when it had the broker's word on each message. The program
//! itself does not tell.

use std::{process::Stdio, sync::Arc, time::Duration};

use pillarbox_core::port::{Abilities, BoxFuture, Message, Pace, Sent, Sink};
use pillarbox_relay::{
    Relay,
    config::{Config, Source},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStderr, Command},
    time::{sleep, timeout},
};

use super::{arrivals::number_of, program, start::WAITING};
use crate::{
    Result,
    backend::{Database as _, postgres},
    moments::{Moments, now},
};

const PATIENCE: Duration = Duration::from_mins(1);
/// What it says when it is at work, and before the moments of all events.
const READY: &str = "ready";
const CONFIRMED: &str = "confirmed ";

/// The process.
#[derive(Debug)]
pub(super) struct Confirming {
    child: Child,
    /// Standard output may be the sink's.
    lines: Lines<BufReader<ChildStderr>>,
}

impl Confirming {
    /// Starts a relay from this database, and comes back when it owns all partitions and has sent what waited. It ends by
    /// itself with the last of so many events.
    pub(super) async fn start(database: &str, sink: &[String], output: Stdio, events: usize) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--as-relay", database, "--events", &events.to_string()])
            .args(program::SETTINGS.into_iter().chain(sink.iter().map(String::as_str)).flat_map(|set| ["--set", set]))
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stderr.take().ok_or("the relay can't be heard")?;
        let mut relay = Self { child, lines: BufReader::new(output).lines() };
        relay.told(READY).await?;
        Ok(relay)
    }

    /// When each event was confirmed, in the order of their numbers.
    pub(super) async fn moments(mut self) -> Result<Vec<u64>> {
        let moments = Moments::read(&self.told(CONFIRMED).await?)?;
        match self.child.wait().await? {
            status if status.success() => Ok(moments),
            status => Err(format!("the relay has ended: {status}").into()),
        }
    }

    /// The rest of the line that begins with this.
    async fn told(&mut self, what: &str) -> Result<String> {
        let mut said = Vec::new();
        loop {
            let line = timeout(PATIENCE, self.lines.next_line()).await.map_err(|_| "the relay says nothing")??;
            let Some(line) = line else {
                return Err(format!("the relay has ended too early; it said: {}", said.join(" | ")).into());
            };
            match line.strip_prefix(what) {
                Some(rest) => return Ok(rest.to_owned()),
                None => said.push(line),
            }
        }
    }
}

/// The process itself.
pub(crate) async fn child(address: &str, settings: &[String], events: usize) -> Result<()> {
    let mut source = Source::new().set_text("outbox.url", address);
    for setting in settings {
        let (path, value) = setting.split_once('=').ok_or("a setting has a path and a value")?;
        source = source.set(path, value);
    }
    let mut config = Config::read(&source)?;
    let confirmed = Arc::new(Moments::new(events));
    let noting = |sink| Arc::new(Noting { sink, confirmed: confirmed.clone() }) as Arc<dyn Sink>;
    config.sinks = config.sinks.into_iter().map(|(name, sink)| (name, sink.map(noting))).collect();
    let store = postgres::Database::at(address).store().await?;
    let relay = Relay::start(&config, store).await?;
    while relay.outbox().partitions_owned() < 256 || confirmed.missing() + WAITING > events {
        sleep(Duration::from_millis(5)).await;
    }
    eprintln!("{READY}");
    confirmed.all().await;
    eprintln!("{CONFIRMED}{}", confirmed.line());
    relay.shutdown().await;
    Ok(())
}

/// A sink whose answers are noted as the relay gets them: those of a batch together.
struct Noting {
    sink: Arc<dyn Sink>,
    confirmed: Arc<Moments>,
}

impl Sink for Noting {
    fn abilities(&self) -> Abilities {
        self.sink.abilities()
    }

    fn pace(&self) -> Pace {
        self.sink.pace()
    }

    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>> {
        Box::pin(async move {
            let sent = self.sink.send(batch).await;
            let now = now();
            for (message, _) in batch.iter().zip(&sent).filter(|(_, sent)| sent.is_ok()) {
                if let Some(number) = number_of(&message.payload) {
                    self.confirmed.note(number, now);
                }
            }
            sent
        })
    }

    fn check(&self) -> BoxFuture<'_, Sent> {
        self.sink.check()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.sink.close()
    }
}
