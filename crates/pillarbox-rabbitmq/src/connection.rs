//! The connection: opened when it is first needed, and again after it broke.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lapin::{Channel, ConnectionProperties, options::ConfirmSelectOptions, tcp::OwnedTLSConfig, uri::AMQPUri};
use pillarbox_core::port::SinkError;
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::{error, options};

/// After this time an attempt to connect is given up, and its socket with it.
const ATTEMPT: Duration = Duration::from_mins(1);

pub(crate) struct Connection {
    uri: AMQPUri,
    tls: OwnedTLSConfig,
    answer_within: Duration,
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Option<Arc<Open>>,
    // The client can't take back a connect in the middle of it: who comes next waits for the same one.
    attempt: Option<Attempt>,
}

struct Attempt {
    since: Instant,
    task: JoinHandle<Result<lapin::Connection, lapin::Error>>,
}

pub(crate) struct Open {
    connection: lapin::Connection,
    spare: Mutex<Vec<Channel>>,
}

/// A channel with confirms, for one batch at a time: what the server sends back can't be told from another batch's
/// otherwise. Closed when it is dropped.
pub(crate) struct Line {
    pub(crate) channel: Channel,
    open: Arc<Open>,
}

impl Connection {
    pub(crate) fn new(uri: AMQPUri, tls: OwnedTLSConfig, answer_within: Duration) -> Self {
        Self { uri, tls, answer_within, state: tokio::sync::Mutex::default() }
    }

    /// A line of one's own. Connects if need be.
    pub(crate) async fn line(&self, deadline: Instant) -> Result<Line, SinkError> {
        let late = |_| SinkError::unavailable(format_args!("no connection within {:?}", self.answer_within));
        let open = tokio::time::timeout_at(deadline, self.open()).await.map_err(late)??;
        let spare = || open.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        while let Some(channel) = spare() {
            if channel.status().connected() {
                return Ok(Line { channel, open });
            }
        }
        match tokio::time::timeout_at(deadline, open.channel()).await {
            Ok(Ok(channel)) => Ok(Line { channel, open }),
            Ok(Err(error)) => Err(error::unavailable(&error)),
            Err(late) => {
                self.forget(&open).await;
                Err(SinkError::unavailable(format_args!("no channel within {:?}: {late}", self.answer_within)))
            }
        }
    }

    /// A line without confirms, for one who receives. Connects if need be.
    pub(crate) async fn plain_line(&self, deadline: Instant) -> Result<Line, SinkError> {
        let late = |_| SinkError::unavailable(format_args!("no connection within {:?}", self.answer_within));
        let open = tokio::time::timeout_at(deadline, self.open()).await.map_err(late)??;
        match tokio::time::timeout_at(deadline, open.connection.create_channel()).await {
            Ok(Ok(channel)) => Ok(Line { channel, open }),
            Ok(Err(error)) => Err(error::unavailable(&error)),
            Err(late) => {
                self.forget(&open).await;
                Err(SinkError::unavailable(format_args!("no channel within {:?}: {late}", self.answer_within)))
            }
        }
    }

    /// The line was silent for too long: answers that come yet must not be taken for others'.
    pub(crate) async fn give_up(&self, line: Line) {
        self.forget(&line.open).await;
    }

    /// The same, of a line that others may have yet.
    pub(crate) async fn give_up_shared(&self, line: &Line) {
        self.forget(&line.open).await;
    }

    /// Ends the connection, and waits for the server to say so.
    pub(crate) async fn close(&self) {
        let open = self.state.lock().await.open.take();
        if let Some(open) = open {
            // It is over in any case.
            let _ = timeout(self.answer_within, open.connection.close(200, "OK".into())).await;
        }
    }

    async fn open(&self) -> Result<Arc<Open>, SinkError> {
        let mut state = self.state.lock().await;
        if let Some(open) = &state.open {
            if open.connection.status().connected() {
                return Ok(Arc::clone(open));
            }
            state.open = None;
        }
        if state.attempt.as_ref().is_some_and(|attempt| attempt.since.elapsed() > ATTEMPT) {
            state.attempt = None;
        }
        let attempt = state.attempt.get_or_insert_with(|| Attempt {
            since: Instant::now(),
            task: tokio::spawn(connect(self.uri.clone(), self.tls.clone())),
        });
        let connected = (&mut attempt.task).await;
        state.attempt = None;
        let connection = connected.map_err(SinkError::unavailable)?.map_err(|error| error::unavailable(&error))?;
        let open = Arc::new(Open { connection, spare: Mutex::default() });
        state.open = Some(Arc::clone(&open));
        Ok(open)
    }

    async fn forget(&self, open: &Arc<Open>) {
        let mut state = self.state.lock().await;
        if state.open.as_ref().is_some_and(|current| Arc::ptr_eq(current, open)) {
            state.open = None;
            tokio::spawn(retire(Arc::clone(open)));
        }
    }
}

impl Line {
    /// Everything on it has its answer: others may have it.
    pub(crate) fn give_back(self) {
        if self.channel.status().connected() {
            self.open.spare.lock().unwrap_or_else(PoisonError::into_inner).push(self.channel);
        }
    }

    /// Whether the connection lives, whatever became of the channel.
    pub(crate) fn is_connected(&self) -> bool {
        self.open.connection.status().connected()
    }

    /// The most bytes of a frame, if there is a limit.
    pub(crate) fn largest_frame(&self) -> Option<usize> {
        match self.open.connection.configuration().frame_max() {
            0 => None,
            bytes => usize::try_from(bytes).ok(),
        }
    }

    /// What it may wait for when it is silent.
    pub(crate) fn is_blocked(&self) -> bool {
        self.open.connection.status().blocked()
    }
}

impl Open {
    async fn channel(&self) -> Result<Channel, lapin::Error> {
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&options::server(&self.uri)).finish()
    }
}

async fn connect(uri: AMQPUri, tls: OwnedTLSConfig) -> Result<lapin::Connection, lapin::Error> {
    let properties = ConnectionProperties::default().with_connection_name("pillarbox".into());
    let runtime = lapin::runtime::default_runtime()?;
    lapin::Connection::connect_uri_with_config(uri, properties, tls, runtime).await
}

/// Ends a connection that may be dead. The client misses heartbeats on an open connection only, and waits for ever for
/// the answer to a close: first a question, which ends with an answer or with the heartbeats.
async fn retire(open: Arc<Open>) {
    let heartbeat = Duration::from_secs(u64::from(open.connection.configuration().heartbeat().max(1)));
    let _ = timeout(heartbeat * 3, open.connection.create_channel()).await;
    let _ = timeout(heartbeat, open.connection.close(200, "OK".into())).await;
}
