//! The sink.

use std::{fmt, sync::Arc};

use futures_util::{StreamExt, stream::FuturesUnordered};
use lapin::{
    Confirmation, ExchangeKind,
    message::BasicReturnMessage,
    options::{BasicPublishOptions, ExchangeDeclareOptions},
    types::{FieldTable, ShortString},
};
use pillarbox_core::port::{Abilities, BoxFuture, Confirms, Message, Sent, Sink, SinkError, SinkErrorKind};
use tokio::time::{Instant, timeout_at};

use crate::{
    Options,
    connection::{Connection, Line},
    error,
    message::Letter,
};

/// RabbitMQ, with publisher confirms. A clone shares the connection.
#[derive(Clone)]
pub struct RabbitMqSink {
    inner: Arc<Inner>,
}

struct Inner {
    connection: Connection,
    exchange: ShortString,
    options: Options,
}

/// How a round of publishing ended.
enum End {
    /// Everything has its answer.
    Complete,
    /// The server closed the channel: one of the messages is to blame.
    Refused(lapin::Error),
    /// The connection is gone.
    Lost(lapin::Error),
    /// Nobody answered in time.
    Silent,
}

impl RabbitMqSink {
    pub(crate) fn new(connection: Connection, options: Options) -> Self {
        let exchange = ShortString::try_new(options.exchange.as_str()).unwrap_or_default();
        Self { inner: Arc::new(Inner { connection, exchange, options }) }
    }
}

impl Sink for RabbitMqSink {
    fn abilities(&self) -> Abilities {
        Abilities {
            confirms: Confirms::Stored,
            largest: Some(self.inner.options.largest),
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
        let mut letters = Vec::with_capacity(batch.len());
        for (n, message) in batch.iter().enumerate() {
            match Letter::new(message, self.options.routing, self.options.largest) {
                Ok(letter) => {
                    letters.push((n, letter));
                    answers.push(None);
                }
                Err(error) => answers.push(Some(Err(error))),
            }
        }
        let failed = self.deliver(letters, &mut answers, deadline).await;
        let unanswered = failed.err().unwrap_or_else(|| SinkError::unavailable("no answer"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unanswered.clone()))).collect()
    }

    /// An error is what all those have as their answer that have none yet.
    async fn deliver(
        &self,
        letters: Vec<(usize, Letter<'_>)>,
        answers: &mut [Option<Sent>],
        deadline: Instant,
    ) -> Result<(), SinkError> {
        if letters.is_empty() {
            return Ok(());
        }
        let line = self.connection.line(deadline).await?;
        let letters: Vec<_> = letters.into_iter().filter(|(n, letter)| fits(&line, letter, &mut answers[*n])).collect();
        let error = match self.publish(&line, &letters, answers, deadline).await {
            End::Complete => {
                line.give_back();
                return Ok(());
            }
            End::Lost(error) => return Err(error::unavailable(&error)),
            End::Silent => return Err(self.silent(line).await),
            End::Refused(error) => error,
        };
        tracing::debug!(%error, "RabbitMQ has closed the channel: what has no answer is sent one by one");
        drop(line);
        for (at, (n, letter)) in letters.iter().enumerate() {
            if answers[*n].is_some() {
                continue;
            }
            let line = self.connection.line(deadline).await?;
            match self.publish(&line, &letters[at..=at], answers, deadline).await {
                End::Complete => line.give_back(),
                End::Lost(error) => return Err(error::unavailable(&error)),
                End::Silent => return Err(self.silent(line).await),
                End::Refused(error) => {
                    let refusal = error::refusal(&error);
                    if refusal.kind() == SinkErrorKind::Unavailable {
                        return Err(refusal);
                    }
                    tracing::debug!(routing_key = letter.routing_key.as_str(), %error, "RabbitMQ has refused a message");
                    answers[*n] = Some(Err(refusal));
                }
            }
        }
        Ok(())
    }

    /// Publishes all, then takes the answers as they come.
    async fn publish(
        &self,
        line: &Line,
        letters: &[(usize, Letter<'_>)],
        answers: &mut [Option<Sent>],
        deadline: Instant,
    ) -> End {
        let under_way = letters.iter().map(|(n, letter)| async move { (*n, self.publish_one(line, letter).await) });
        let mut under_way: FuturesUnordered<_> = under_way.collect();
        let mut returned = Vec::new();
        let mut trouble: Option<lapin::Error> = None;
        let mut is_silent = false;
        loop {
            match timeout_at(deadline, under_way.next()).await {
                Ok(Some((n, Ok(Confirmation::Ack(message))))) => {
                    answers[n] = Some(Ok(()));
                    returned.extend(message);
                }
                Ok(Some((n, Ok(Confirmation::Nack(message))))) => {
                    answers[n] = Some(Err(error::nack()));
                    returned.extend(message);
                }
                Ok(Some((n, Ok(Confirmation::NotRequested)))) => {
                    answers[n] = Some(Err(SinkError::failed("the channel has no confirms")));
                }
                Ok(Some((_, Err(error)))) => {
                    // The first word may be that the channel is closed, and the second why.
                    if trouble.as_ref().is_none_or(|known| !known.is_amqp_error()) {
                        trouble = Some(error);
                    }
                }
                Ok(None) => break,
                Err(_) => {
                    is_silent = true;
                    break;
                }
            }
        }
        let is_complete = trouble.is_none() && !is_silent;
        self.send_back(letters, &returned, answers, is_complete);
        match trouble {
            _ if is_silent => End::Silent,
            None => End::Complete,
            Some(error) if error::is_refusal(&error) => End::Refused(error),
            Some(error) if error.is_amqp_error() || error.is_io_error() || !line.is_connected() => End::Lost(error),
            Some(error) => End::Refused(error),
        }
    }

    async fn publish_one(&self, line: &Line, letter: &Letter<'_>) -> Result<Confirmation, lapin::Error> {
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let (exchange, key) = (self.exchange.clone(), letter.routing_key.clone());
        let properties = letter.properties.clone();
        line.channel.basic_publish(exchange, key, options, letter.payload, properties).await?.await
    }

    /// What came back was not stored, though the server has acknowledged it.
    ///
    /// The client hands out what came back with whichever acknowledgement comes next, be it another message's: the id tells
    /// whose it is. Each comes before its own acknowledgement, so that once all are answered, all that came back are known.
    /// Before that, one may be hidden behind another whose own answer is missing: then no "yes" is to be trusted.
    fn send_back(
        &self,
        letters: &[(usize, Letter<'_>)],
        returned: &[BasicReturnMessage],
        answers: &mut [Option<Sent>],
        is_complete: bool,
    ) {
        let mut is_doubtful = false;
        for message in returned {
            let id = message.delivery.properties.message_id().as_ref();
            for (n, _) in letters.iter().filter(|(_, letter)| letter.is(id, &message.delivery.routing_key)) {
                is_doubtful |= answers[*n].is_none();
                answers[*n] = Some(Err(error::unroutable(message, self.options.unroutable)));
            }
        }
        if is_doubtful && !is_complete {
            for (n, _) in letters {
                answers[*n].take_if(|answer| answer.is_ok());
            }
        }
    }

    async fn silent(&self, line: Line) -> SinkError {
        let reason = if line.is_blocked() { ": it has blocked the connection, for want of memory or disk" } else { "" };
        self.connection.give_up(line).await;
        SinkError::unavailable(format_args!("no answer from RabbitMQ within {:?}{reason}", self.options.answer_within))
    }

    async fn check(&self) -> Sent {
        let deadline = Instant::now() + self.options.answer_within;
        let line = self.connection.line(deadline).await?;
        if self.options.exchange.is_empty() {
            line.give_back();
            return Ok(());
        }
        let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
        let declare = line.channel.exchange_declare(
            self.exchange.clone(),
            ExchangeKind::default(),
            passive,
            FieldTable::default(),
        );
        match timeout_at(deadline, declare).await {
            Ok(Ok(())) => {
                line.give_back();
                Ok(())
            }
            Ok(Err(error)) => Err(error::unavailable(&error)),
            Err(_) => Err(self.silent(line).await),
        }
    }
}

impl fmt::Debug for RabbitMqSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqSink")
            .field("connection", &self.inner.connection)
            .field("exchange", &self.inner.options.exchange)
            .finish_non_exhaustive()
    }
}

/// A header that is larger than a frame would end the connection, with everything on it.
fn fits(line: &Line, letter: &Letter<'_>, answer: &mut Option<Sent>) -> bool {
    match line.largest_frame() {
        Some(limit) if letter.header > limit => {
            let size = letter.header;
            *answer = Some(Err(SinkError::unfit(format_args!(
                "the headers have {size} bytes, and RabbitMQ takes {limit} (its frame_max)"
            ))));
            false
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lapin::message::Delivery;
    use pillarbox_core::Event;

    use super::*;

    fn message() -> Message {
        let id = Event::builder("OrderPlaced").json(&()).build().expect("an event").id();
        Message {
            topic: "orders".into(),
            key: None,
            id,
            content_type: "application/json".into(),
            attributes: Vec::new(),
            headers: Vec::new(),
            payload: Bytes::new(),
        }
    }

    fn came_back(message: &Message) -> BasicReturnMessage {
        let mut delivery = Delivery::mock(0, "".into(), "orders".into(), false, Vec::new());
        delivery.properties = delivery.properties.with_message_id(message.id.to_string().into());
        BasicReturnMessage { delivery, reply_code: 312, reply_text: "NO_ROUTE".into() }
    }

    #[test]
    fn a_yes_is_not_trusted_while_another_message_may_hide_behind_it() {
        let sink = Options::new("amqp://localhost").open().expect("a sink");
        let batch = [message(), message(), message()];
        let letter = |n: usize| Letter::new(&batch[n], sink.inner.options.routing, 10).expect("a letter");
        let letters: Vec<_> = (0..batch.len()).map(|n| (n, letter(n))).collect();
        // The first has no answer yet, and came back with the acknowledgement of the third.
        for (is_complete, first, third) in [(false, None, None), (true, Some(Ok(())), Some(Ok(())))] {
            let mut answers = [first, Some(Err(error::nack())), Some(Ok(()))];
            sink.inner.send_back(&letters, &[came_back(&batch[0])], &mut answers, is_complete);
            assert!(answers[0].as_ref().is_some_and(|answer| answer.clone().is_err_and(|error| {
                error.kind() == SinkErrorKind::Failed && error.to_string().contains("NO_ROUTE")
            })));
            assert_eq!(answers[1], Some(Err(error::nack())));
            assert_eq!(answers[2], third);
        }
        // All that came back have their answers: nobody hides.
        let mut answers = [Some(Ok(())), None, Some(Ok(()))];
        sink.inner.send_back(&letters, &[came_back(&batch[0])], &mut answers, false);
        assert_eq!((&answers[1], &answers[2]), (&None, &Some(Ok(()))));
    }
}
