//! The sink.

use std::{fmt, sync::Arc};

use pillarbox_core::port::{Abilities, BoxFuture, Confirms, Message, Sent, Sink, SinkError};
use rumqttc::v5::mqttbytes::v5::Publish;
use tokio::{
    sync::RwLock,
    time::{Instant, timeout_at},
};

use crate::{
    Options,
    connection::{Connection, Open, Outcome},
    error::End,
    message,
};

/// MQTT 5 with quality of service 1. A clone shares the connection.
#[derive(Clone)]
pub struct MqttSink {
    inner: Arc<Inner>,
}

struct Inner {
    connection: Connection,
    options: Options,
    /// Batches share the connection, but for one that looks for the message to blame.
    turns: RwLock<()>,
}

impl MqttSink {
    pub(crate) fn new(connection: Connection, options: Options) -> Self {
        Self { inner: Arc::new(Inner { connection, options, turns: RwLock::default() }) }
    }
}

impl Sink for MqttSink {
    fn abilities(&self) -> Abilities {
        Abilities {
            confirms: Confirms::Received,
            largest: self.inner.options.largest,
            keeps_order: true,
            dedupes: false,
        }
    }

    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>> {
        Box::pin(self.inner.send(batch))
    }

    fn check(&self) -> BoxFuture<'_, Sent> {
        Box::pin(self.inner.check())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.inner.connection.close())
    }
}

impl Inner {
    async fn send(&self, batch: &[Message]) -> Vec<Sent> {
        let deadline = Instant::now() + self.options.answer_within;
        let mut answers: Vec<Option<Sent>> = Vec::with_capacity(batch.len());
        let mut packets = Vec::with_capacity(batch.len());
        for (n, message) in batch.iter().enumerate() {
            match message::publish(message, self.options.retain, self.options.largest) {
                Ok(packet) => {
                    packets.push((n, packet));
                    answers.push(None);
                }
                Err(error) => answers.push(Some(Err(error))),
            }
        }
        let failed = self.deliver(packets, &mut answers, deadline).await;
        let unanswered = failed.err().unwrap_or_else(|| SinkError::unavailable("no answer"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unanswered.clone()))).collect()
    }

    /// An error is what all those have as their answer that have none yet.
    async fn deliver(
        &self,
        packets: Vec<(usize, Publish)>,
        answers: &mut [Option<Sent>],
        deadline: Instant,
    ) -> Result<(), SinkError> {
        if packets.is_empty() {
            return Ok(());
        }
        let turn = timeout_at(deadline, self.turns.read()).await.map_err(|_| self.silent())?;
        let open = self.connection.open(deadline).await?;
        let packets: Vec<_> = packets.into_iter().filter(|(n, packet)| fits(&open, packet, &mut answers[*n])).collect();
        let Some(end) = self.publish(&open, &packets, answers, deadline).await? else { return Ok(()) };
        drop(turn);
        // Some servers refuse a message, and cut the connection as well.
        let is_refused = packets.iter().any(|(n, _)| matches!(answers[*n], Some(Err(_))));
        if end.blame.is_none() && !end.is_cut && !is_refused {
            return Err(end.error);
        }
        tracing::debug!(error = %end.error, "the connection has ended, maybe for a message: they go one by one");
        let _turn = timeout_at(deadline, self.turns.write()).await.map_err(|_| self.silent())?;
        // What a batch left that was dropped may be on it, and to blame.
        self.connection.renew().await;
        let mut is_alive = false;
        let mut cut = Vec::new();
        for (at, (n, _)) in packets.iter().enumerate().filter(|(_, (n, _))| answers[*n].is_none()).collect::<Vec<_>>() {
            match self.publish_alone(&packets[at..=at], answers, deadline).await? {
                None => is_alive = true,
                Some(End { blame: Some(blame), .. }) => answers[*n] = Some(Err(blame)),
                Some(end) if end.is_cut => cut.push((*n, end.error)),
                Some(end) => return Err(end.error),
            }
        }
        for (n, error) in cut {
            // A server that takes others is not down. Else nobody is to blame, and all would fail with it in the end.
            let blame = || SinkError::failed(format_args!("the connection ends whenever this is sent: {error}"));
            answers[n] = Some(Err(if is_alive { blame() } else { error.clone() }));
        }
        Ok(())
    }

    /// One that is to blame ends the connection whenever it comes. What is but near when it ends does not. Tells the end, if
    /// there is no answer.
    async fn publish_alone(
        &self,
        packet: &[(usize, Publish)],
        answers: &mut [Option<Sent>],
        deadline: Instant,
    ) -> Result<Option<End>, SinkError> {
        let open = self.connection.open(deadline).await?;
        if self.publish(&open, packet, answers, deadline).await?.is_none() {
            return Ok(None);
        }
        let open = self.connection.open(deadline).await?;
        self.publish(&open, packet, answers, deadline).await
    }

    /// Hands all to the client, then takes the answers. Tells if the connection ended before there were any.
    async fn publish(
        &self,
        open: &Arc<Open>,
        packets: &[(usize, Publish)],
        answers: &mut [Option<Sent>],
        deadline: Instant,
    ) -> Result<Option<End>, SinkError> {
        let mut outcomes = Vec::with_capacity(packets.len());
        let mut ended = None;
        let taking = async {
            for (n, packet) in packets {
                outcomes.push((*n, open.publish(packet.clone()).await));
            }
            for (n, outcome) in &mut outcomes {
                match outcome.await {
                    Ok(Outcome::Answered(answer)) => answers[*n] = Some(answer),
                    Ok(Outcome::Ended(end)) => ended = Some(end),
                    Err(_) => ended = Some(End::new("the connection has ended")),
                }
            }
        };
        if timeout_at(deadline, taking).await.is_ok() {
            return Ok(ended);
        }
        // Those behind the one that was waited for may have theirs.
        for (n, outcome) in &mut outcomes {
            if let (None, Ok(Outcome::Answered(answer))) = (&answers[*n], outcome.try_recv()) {
                answers[*n] = Some(answer);
            }
        }
        self.connection.give_up(open).await;
        Err(self.silent())
    }

    async fn check(&self) -> Sent {
        let deadline = Instant::now() + self.options.answer_within;
        let open = self.connection.open(deadline).await?;
        if let Ok(answer) = timeout_at(deadline, open.question()).await {
            return answer;
        }
        self.connection.give_up(&open).await;
        Err(self.silent())
    }

    fn silent(&self) -> SinkError {
        SinkError::unavailable(format_args!("no answer from the server within {:?}", self.options.answer_within))
    }
}

impl fmt::Debug for MqttSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MqttSink").field("connection", &self.inner.connection).finish_non_exhaustive()
    }
}

/// The client would end the connection at what is larger than the server takes, with everything on it.
fn fits(open: &Open, packet: &Publish, answer: &mut Option<Sent>) -> bool {
    let (size, limit) = (message::size(packet), open.largest);
    if size > limit {
        let words = format_args!("the packet has {size} bytes, and the server takes {limit}");
        *answer = Some(Err(SinkError::unfit(words)));
    }
    size <= limit
}
