//! The sink's connection: opened when it is first needed, and again after it broke. Each has a session of its own, which begins and
//! ends with it: the client sends nothing again by itself.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pillarbox_core::port::{Sent, SinkError};
use rumqttc::{
    Outgoing,
    v5::{
        AsyncClient, Event, EventLoop, MqttOptions,
        mqttbytes::{
            QoS,
            v5::{ConnAck, Packet, Publish},
        },
    },
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    task::{AbortHandle, JoinHandle},
    time::{Instant, timeout, timeout_at},
};

use crate::{
    Options, Unroutable,
    error::{self, End},
};

/// How many messages may wait for their answers at once.
const ROOM: usize = 1000;

/// The most bytes that MQTT has room for in a packet.
pub(crate) const LARGEST_PACKET: usize = 268_435_455;

pub(crate) struct Connection {
    settings: MqttOptions,
    shown: String,
    answer_within: Duration,
    retain: bool,
    unroutable: Unroutable,
    open: tokio::sync::Mutex<Option<Arc<Open>>>,
}

pub(crate) struct Open {
    client: AsyncClient,
    desk: Arc<Desk>,
    room: Arc<Semaphore>,
    /// The most bytes of a packet.
    pub(crate) largest: usize,
    driver: Driver,
}

/// What becomes of a message.
pub(crate) enum Outcome {
    Answered(Sent),
    /// The connection has ended before there was an answer.
    Ended(End),
}

/// Who waits for what.
struct Desk {
    papers: Mutex<Papers>,
    unroutable: Unroutable,
}

#[derive(Default)]
struct Papers {
    /// In the order in which they were handed to the client, and have no number yet.
    unnumbered: VecDeque<Waiting>,
    /// By the numbers of their packets.
    numbered: HashMap<u16, Waiting>,
    /// For any sign of life.
    signs: Vec<oneshot::Sender<()>>,
    end: Option<End>,
}

struct Waiting {
    answer: oneshot::Sender<Outcome>,
    _room: OwnedSemaphorePermit,
}

/// The task that drives a client; ends with this.
pub(crate) struct Driver(AbortHandle, Mutex<Option<JoinHandle<()>>>);

impl Connection {
    pub(crate) fn new(mut settings: MqttOptions, shown: String, options: &Options) -> Self {
        settings.set_clean_start(true);
        let Options { answer_within, retain, .. } = *options;
        let unroutable = options.for_unroutable();
        Self { settings, shown, answer_within, retain, unroutable, open: tokio::sync::Mutex::default() }
    }

    /// Connects if need be.
    pub(crate) async fn open(&self, deadline: Instant) -> Result<Arc<Open>, SinkError> {
        let late = |_| SinkError::unavailable(format_args!("no connection within {:?}", self.answer_within));
        timeout_at(deadline, self.connect()).await.map_err(late)?
    }

    /// Answers that come yet must not be taken for others'.
    pub(crate) async fn give_up(&self, open: &Arc<Open>) {
        self.open.lock().await.take_if(|current| Arc::ptr_eq(current, open));
        open.give_up();
    }

    /// The next connection is another one.
    pub(crate) async fn renew(&self) {
        if let Some(open) = self.open.lock().await.take() {
            open.give_up();
        }
    }

    /// Takes leave of the server.
    pub(crate) async fn close(&self) {
        let open = self.open.lock().await.take();
        if let Some(open) = open
            && open.client.try_disconnect().is_ok()
        {
            open.driver.finish(self.answer_within).await;
        }
    }

    async fn connect(&self) -> Result<Arc<Open>, SinkError> {
        let mut current = self.open.lock().await;
        if let Some(open) = current.take_if(|open| open.desk.papers().end.is_none()) {
            *current = Some(Arc::clone(&open));
            return Ok(open);
        }
        *current = None;
        // One more for the goodbye, and one for a question.
        let (client, events) = AsyncClient::new(self.settings.clone(), ROOM + 2);
        let (ready, welcome) = oneshot::channel();
        let desk = Arc::new(Desk { papers: Mutex::default(), unroutable: self.unroutable });
        let driver = Driver::of(tokio::spawn(drive(events, Arc::clone(&desk), ready)));
        let gone = |_| SinkError::unavailable("the client has ended");
        let welcome = welcome.await.map_err(gone)?.map_err(|end| end.error)?;
        let properties = welcome.properties.as_ref();
        if properties.and_then(|properties| properties.max_qos) == Some(0) {
            return Err(SinkError::unavailable("the server has no quality of service but 0: it confirms nothing"));
        }
        if self.retain && properties.and_then(|properties| properties.retain_available) == Some(0) {
            return Err(SinkError::unavailable("the server retains nothing: turn `retain` off"));
        }
        let limit = properties.and_then(|properties| properties.max_packet_size);
        let largest = limit.map_or(LARGEST_PACKET, |limit| usize::try_from(limit).unwrap_or(LARGEST_PACKET));
        let room = Arc::new(Semaphore::new(ROOM));
        let open = Arc::new(Open { client, desk, room, largest: largest.min(LARGEST_PACKET), driver });
        *current = Some(Arc::clone(&open));
        Ok(open)
    }
}

impl Open {
    /// Hands a message to the client as soon as there is room, and tells where its outcome will come.
    pub(crate) async fn publish(&self, publish: Publish) -> oneshot::Receiver<Outcome> {
        let (answer, outcome) = oneshot::channel();
        // It is never closed.
        let Ok(room) = Arc::clone(&self.room).acquire_owned().await else { return outcome };
        // The client numbers messages in the order in which it gets them: nobody comes between.
        let mut papers = self.desk.papers();
        if let Some(end) = &papers.end {
            let _ = answer.send(Outcome::Ended(end.clone()));
            return outcome;
        }
        let topic = String::from_utf8_lossy(&publish.topic).into_owned();
        let properties = publish.properties.unwrap_or_default();
        let handed = self.client.try_publish_with_properties(
            topic,
            QoS::AtLeastOnce,
            publish.retain,
            publish.payload,
            properties,
        );
        let _ = match handed {
            Ok(()) => {
                papers.unnumbered.push_back(Waiting { answer, _room: room });
                Ok(())
            }
            Err(_) => answer.send(Outcome::Ended(End::new("the client takes no message"))),
        };
        outcome
    }

    fn give_up(&self) {
        self.driver.abort();
        self.desk.end(&End::new("the connection was given up: a message had no answer in time"));
    }

    /// Waits for a sign of life: taking back a subscription that is not there is answered, and changes nothing.
    pub(crate) async fn question(&self) -> Result<(), SinkError> {
        let (sign, seen) = oneshot::channel();
        {
            let mut papers = self.desk.papers();
            if let Some(end) = &papers.end {
                return Err(end.error.clone());
            }
            papers.signs.push(sign);
        }
        // If there is no room for the question, enough is under way that has to be answered.
        let _ = self.client.try_unsubscribe("pillarbox/check");
        let ended = || self.desk.papers().end.as_ref().map(|end| end.error.clone());
        seen.await.map_err(|_| ended().unwrap_or_else(|| SinkError::unavailable("the connection has ended")))
    }
}

impl Desk {
    fn papers(&self) -> MutexGuard<'_, Papers> {
        self.papers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn numbered(&self, number: u16) {
        let mut papers = self.papers();
        if let Some(waiting) = papers.unnumbered.pop_front() {
            papers.numbered.insert(number, waiting);
        }
    }

    fn answered(&self, number: u16, answer: Sent) {
        if let Some(waiting) = self.papers().numbered.remove(&number) {
            // Who was dropped does not wait.
            let _ = waiting.answer.send(Outcome::Answered(answer));
        }
    }

    /// Everybody learns of it. What comes later is about nobody.
    fn end(&self, end: &End) {
        let mut papers = self.papers();
        if papers.end.is_none() {
            papers.end = Some(end.clone());
        }
        let Papers { unnumbered, numbered, signs, .. } = &mut *papers;
        for waiting in unnumbered.drain(..).chain(numbered.drain().map(|(_, waiting)| waiting)) {
            let _ = waiting.answer.send(Outcome::Ended(end.clone()));
        }
        signs.clear();
    }
}

impl Driver {
    pub(crate) fn of(task: JoinHandle<()>) -> Self {
        Self(task.abort_handle(), Mutex::new(Some(task)))
    }

    pub(crate) fn abort(&self) {
        self.0.abort();
    }

    /// Waits for its end, which has to be in sight.
    pub(crate) async fn finish(&self, within: Duration) {
        let task = self.1.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // It is over in any case.
            let _ = timeout(within, task).await;
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.abort();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.shown).finish()
    }
}

/// Drives the client until the connection ends: it would connect again by itself, as if nothing had been.
async fn drive(mut events: EventLoop, desk: Arc<Desk>, ready: oneshot::Sender<Result<ConnAck, End>>) {
    let mut ready = Some(ready);
    let end = loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(welcome))) => {
                if let Some(ready) = ready.take() {
                    let _ = ready.send(Ok(welcome));
                }
            }
            Ok(Event::Outgoing(Outgoing::Disconnect)) => break End::new("the connection was closed"),
            Ok(event) => take(&desk, &event),
            Err(error) => {
                // What it has read before the error counts.
                for event in std::mem::take(&mut events.state.events) {
                    take(&desk, &event);
                }
                break End::of(&error);
            }
        }
    };
    desk.end(&end);
    if let Some(ready) = ready {
        let _ = ready.send(Err(end));
    }
}

fn take(desk: &Desk, event: &Event) {
    match event {
        Event::Outgoing(Outgoing::Publish(number)) => desk.numbered(*number),
        Event::Incoming(packet) => {
            if let Packet::PubAck(ack) = packet {
                desk.answered(ack.pkid, error::answer(ack, desk.unroutable));
            }
            for sign in desk.papers().signs.drain(..) {
                let _ = sign.send(());
            }
        }
        Event::Outgoing(_) => {}
    }
}
