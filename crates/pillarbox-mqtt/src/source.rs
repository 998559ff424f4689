//! The source itself.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pillarbox_core::port::{BoxFuture, Gives, Received, SinkError, Source, Ticket, Tickets};
use tokio::{task::JoinHandle, time::timeout};

use crate::{
    Subscription, message,
    session::{Arrival, Line, Session},
};

/// Tickets end with their connection, and are forgotten no sooner.
const FOR_EVER: Duration = Duration::from_secs(u64::MAX);

/// Receives messages that a server keeps for this client. Made by [`Options::subscribe`](crate::Options::subscribe).
pub struct MqttSource {
    session: Arc<Session>,
    subscription: Subscription,
    // One connects at a time: a second connection of the same client would end the first. A call that is dropped meanwhile
    // leaves it to the next one.
    connecting: tokio::sync::Mutex<Option<Connecting>>,
    // One receives at a time.
    reading: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

/// The task that connects; ends with this.
struct Connecting(JoinHandle<Result<Arc<Line>, SinkError>>);

struct State {
    // The connection that messages come by, and on which alone they can be acknowledged.
    line: Option<Arc<Line>>,
    // By their number on that connection.
    tickets: Tickets<u64, Arrival>,
}

impl MqttSource {
    pub(crate) fn new(session: Session, subscription: Subscription) -> Self {
        let state = Mutex::new(State { line: None, tickets: Tickets::new(FOR_EVER) });
        Self { session: Arc::new(session), subscription, connecting: <_>::default(), reading: <_>::default(), state }
    }

    async fn receive_batch(&self, most: usize) -> Result<Vec<Received>, SinkError> {
        if most == 0 {
            return Ok(Vec::new());
        }
        let _turn = self.reading.lock().await;
        if let Some(end) = self.look_back() {
            return Err(end);
        }
        let line = self.line().await?;
        let came = match line.wait(self.subscription.wait).await {
            // Silence may be the end of a connection, or of its server: it has to say something.
            Ok(false) => line.ask().await,
            other => other.map(drop),
        };
        if let Err(error) = came {
            self.lose(&line);
            return Err(error);
        }
        let mut state = self.state();
        // Numbers of one connection mean others on the next.
        if !state.is_at(&line) {
            return Err(SinkError::unavailable("the connection is lost"));
        }
        let received = line.take(most).into_iter().map(|arrival| Received {
            message: message::incoming(&arrival.publish),
            deliveries: arrival.deliveries,
            ticket: state.tickets.issue(arrival.number, arrival),
        });
        Ok(received.collect())
    }

    /// Connects if need be.
    async fn line(&self) -> Result<Arc<Line>, SinkError> {
        let mut connecting = self.connecting.lock().await;
        self.look_back();
        let current = self.state().line.clone();
        if let Some(line) = current {
            return Ok(line);
        }
        let line = loop {
            let task = connecting.get_or_insert_with(|| Connecting::to(&self.session));
            let was_over = task.0.is_finished();
            let line = task.line().await;
            *connecting = None;
            // What failed when nobody waited for it says nothing of the present.
            if line.is_ok() || !was_over {
                break line?;
            }
        };
        self.state().line = Some(Arc::clone(&line));
        Ok(line)
    }

    /// Why the connection has ended since it was used last, if so. Who receives has to hear of it: else two of one client id
    /// would throw each other out for ever, and nobody would know.
    fn look_back(&self) -> Option<SinkError> {
        let line = self.state().line.clone()?;
        let end = line.end()?;
        self.lose(&line);
        Some(end)
    }

    async fn acknowledge_batch(&self, tickets: &[Ticket]) -> Vec<Result<(), SinkError>> {
        let void = || SinkError::failed("the ticket is not good any more: the message comes again, or has come");
        let (line, arrivals) = {
            let mut state = self.state();
            let take = |ticket: &Ticket| state.tickets.take(*ticket).map(|(_, arrival)| arrival);
            let arrivals: Vec<_> = tickets.iter().map(take).collect();
            (state.line.clone(), arrivals)
        };
        let known: Vec<_> = arrivals.iter().flatten().collect();
        let told = match &line {
            Some(line) if !known.is_empty() => self.tell(line, &known).await,
            _ => Err(SinkError::unavailable("the connection is lost")),
        };
        arrivals.iter().map(|arrival| if arrival.is_some() { told.clone() } else { Err(void()) }).collect()
    }

    async fn tell(&self, line: &Arc<Line>, arrivals: &[&Arrival]) -> Result<(), SinkError> {
        let mut told = line.acknowledge(arrivals);
        if told.is_ok() {
            // An acknowledgement has no answer: this has one, and the server takes one after the other.
            told = line.ask().await;
        }
        if told.is_err() {
            self.lose(line);
        }
        told
    }

    /// Puts messages where the next receive finds them: MQTT has no word for it.
    fn put_back(&self, tickets: &[Ticket]) {
        let mut state = self.state();
        let arrivals = tickets.iter().filter_map(|ticket| state.tickets.take(*ticket)).map(|(_, arrival)| arrival);
        let arrivals: Vec<_> = arrivals.collect();
        if let Some(line) = &state.line {
            line.put_back(arrivals);
        }
    }

    async fn look(&self) -> Result<(), SinkError> {
        let line = self.line().await?;
        let answer = line.ask().await;
        if answer.is_err() {
            self.lose(&line);
        }
        answer
    }

    /// The connection is not to be used again: messages that came by it come again, and their tickets are void.
    fn lose(&self, line: &Arc<Line>) {
        line.give_up();
        let mut state = self.state();
        if state.is_at(line) {
            state.tickets.clear();
            state.line = None;
        }
    }

    async fn leave(&self) {
        let mut connecting = self.connecting.lock().await;
        let mut line = {
            let mut state = self.state();
            state.tickets.clear();
            state.line.take()
        };
        let within = self.session.answer_within();
        if let Some(mut connecting) = connecting.take() {
            line = timeout(within, connecting.line()).await.ok().and_then(Result::ok);
        }
        if let Some(line) = line {
            // It is over in any case.
            let _ = timeout(within, line.close()).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connecting {
    fn to(session: &Arc<Session>) -> Self {
        let session = Arc::clone(session);
        Self(tokio::spawn(async move { session.open().await }))
    }

    /// Waits for the connection. Who is dropped meanwhile ends nothing.
    async fn line(&mut self) -> Result<Arc<Line>, SinkError> {
        (&mut self.0).await.unwrap_or_else(|_| Err(SinkError::unavailable("the client has ended")))
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl State {
    fn is_at(&self, line: &Arc<Line>) -> bool {
        self.line.as_ref().is_some_and(|current| Arc::ptr_eq(current, line))
    }
}

impl Source for MqttSource {
    fn name(&self) -> &str {
        &self.subscription.topic
    }

    fn gives(&self) -> Gives {
        Gives { order: true, again_after: None, counts: false }
    }

    fn receive(&self, most: usize) -> BoxFuture<'_, Result<Vec<Received>, SinkError>> {
        Box::pin(self.receive_batch(most))
    }

    fn acknowledge<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, Vec<Result<(), SinkError>>> {
        Box::pin(self.acknowledge_batch(tickets))
    }

    fn give_back<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, ()> {
        self.put_back(tickets);
        Box::pin(async {})
    }

    fn check(&self) -> BoxFuture<'_, Result<(), SinkError>> {
        Box::pin(self.look())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.leave())
    }
}

impl fmt::Debug for MqttSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MqttSource");
        shown.field("session", &self.session).field("subscription", &self.subscription).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::Options;

    #[tokio::test]
    async fn a_failure_that_nobody_waited_for_is_not_told_later() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("mqtt://{}", listener.local_addr().expect("an address"));
        let source = Options::new(url).subscribe(Subscription::new("orders", "billing-0")).expect("a source");
        let accepts = async || drop(listener.accept().await.expect("a connection"));
        tokio::select! {
            came = source.receive(1) => panic!("{came:?} of a server that says nothing"),
            () = accepts() => {}
        }
        while !source.connecting.lock().await.as_ref().expect("a task").0.is_finished() {
            tokio::task::yield_now().await;
        }
        let (told, ()) = tokio::join!(source.check(), accepts());
        assert!(told.is_err(), "the second has ended as well");
        assert!(source.connecting.lock().await.is_none());
    }
}
