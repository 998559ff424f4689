//! A broker in memory.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use pillarbox_core::port::{
    Abilities, BoxFuture, Confirms, Gives, Incoming, Message, Received, Sent, Sink, SinkError, Source, Ticket,
};
use tokio::{sync::Notify, time::timeout};

/// Topics and groups of consumers, in memory. It keeps everything that was sent, gives each message to one consumer of every
/// group, and gives it again if that does not acknowledge it. Clones are the same broker.
///
/// ```
/// # use pillarbox_testkit::MemoryBroker;
/// let broker = MemoryBroker::new();
/// let billing = broker.source("orders", "billing");
/// ```
#[derive(Clone, Default)]
pub struct MemoryBroker(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    news: Notify,
}

#[derive(Default)]
struct State {
    topics: HashMap<String, Vec<Incoming>>,
    groups: HashMap<(String, String), Group>,
    is_down: bool,
    loses_acknowledgements: bool,
    next_ticket: u64,
}

#[derive(Default)]
struct Group {
    /// How many of the topic's messages were given out.
    given: usize,
    /// To be given again, by their place in the topic, with how often they were.
    again: BTreeMap<usize, u32>,
    open: HashMap<Ticket, (usize, u32)>,
    acknowledged: Vec<usize>,
}

impl MemoryBroker {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// A source for a group of consumers of a topic.
    pub fn source(&self, topic: &str, group: &str) -> MemorySource {
        MemorySource { broker: self.clone(), topic: topic.to_owned(), group: group.to_owned(), again_after: None }
    }

    /// Puts a message into a topic, whatever it is.
    pub fn publish(&self, message: Incoming) {
        self.0.state.lock().topics.entry(message.topic.clone()).or_default().push(message);
        self.0.news.notify_waiters();
    }

    /// Whether it answers at all.
    pub fn set_down(&self, is_down: bool) {
        self.0.state.lock().is_down = is_down;
        self.0.news.notify_waiters();
    }

    /// Whether acknowledgements get lost on their way, as when a consumer dies before it could send them.
    pub fn lose_acknowledgements(&self, loses: bool) {
        self.0.state.lock().loses_acknowledgements = loses;
    }

    /// Gives everything again that a group has received and not acknowledged, as after the end of its connections.
    pub fn reconnect(&self, topic: &str, group: &str) {
        let mut state = self.0.state.lock();
        if let Some(group) = state.groups.get_mut(&(topic.to_owned(), group.to_owned())) {
            let open = std::mem::take(&mut group.open);
            group.again.extend(open.into_values());
        }
        drop(state);
        self.0.news.notify_waiters();
    }

    /// How many messages of a topic a group has acknowledged.
    pub fn acknowledged(&self, topic: &str, group: &str) -> usize {
        let state = self.0.state.lock();
        state.groups.get(&(topic.to_owned(), group.to_owned())).map_or(0, |group| group.acknowledged.len())
    }

    /// Everything that was sent to a topic.
    pub fn sent(&self, topic: &str) -> Vec<Incoming> {
        self.0.state.lock().topics.get(topic).cloned().unwrap_or_default()
    }
}

impl Sink for MemoryBroker {
    fn abilities(&self) -> Abilities {
        Abilities { confirms: Confirms::Stored, largest: None, keeps_order: true, dedupes: false }
    }

    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>> {
        Box::pin(async move {
            if self.0.state.lock().is_down {
                return batch.iter().map(|_| Err(SinkError::unavailable("the broker is down"))).collect();
            }
            for message in batch {
                self.publish(Incoming {
                    topic: message.topic.to_string(),
                    key: message.key.clone(),
                    id: Some(message.id.to_string()),
                    content_type: message.content_type.to_string(),
                    attributes: message
                        .attributes
                        .iter()
                        .map(|(name, value)| (name.to_string(), value.clone()))
                        .collect(),
                    headers: message.headers.clone(),
                    payload: message.payload.clone(),
                });
            }
            vec![Ok(()); batch.len()]
        })
    }

    fn check(&self) -> BoxFuture<'_, Sent> {
        Box::pin(async { Ok(()) })
    }
}

/// What a group of consumers receives from a [`MemoryBroker`].
#[derive(Clone)]
pub struct MemorySource {
    broker: MemoryBroker,
    topic: String,
    group: String,
    again_after: Option<Duration>,
}

impl MemorySource {
    /// Says that a message comes again after this time unless it is held. It does not: that is for tests of the holding.
    #[must_use]
    pub fn again_after(mut self, span: Duration) -> Self {
        self.again_after = Some(span);
        self
    }

    fn take(&self, most: usize) -> Result<Vec<Received>, SinkError> {
        let mut state = self.broker.0.state.lock();
        if state.is_down {
            return Err(SinkError::unavailable("the broker is down"));
        }
        let State { topics, groups, next_ticket, .. } = &mut *state;
        let messages = topics.get(&self.topic).map(Vec::as_slice).unwrap_or_default();
        let group = groups.entry((self.topic.clone(), self.group.clone())).or_default();
        let mut received = Vec::new();
        while received.len() < most {
            let (place, deliveries) = match group.again.pop_first() {
                Some((place, before)) => (place, before + 1),
                None if group.given < messages.len() => {
                    group.given += 1;
                    (group.given - 1, 1)
                }
                None => break,
            };
            *next_ticket += 1;
            let ticket = Ticket(*next_ticket);
            group.open.insert(ticket, (place, deliveries));
            received.push(Received { ticket, deliveries, message: messages[place].clone() });
        }
        Ok(received)
    }
}

impl Source for MemorySource {
    fn name(&self) -> &str {
        &self.topic
    }

    fn gives(&self) -> Gives {
        Gives { order: true, again_after: self.again_after, counts: true }
    }

    fn receive(&self, most: usize) -> BoxFuture<'_, Result<Vec<Received>, SinkError>> {
        Box::pin(async move {
            loop {
                let mut news = std::pin::pin!(self.broker.0.news.notified());
                // Listening before the look: what comes in between is heard.
                news.as_mut().enable();
                let received = self.take(most)?;
                if !received.is_empty() {
                    return Ok(received);
                }
                if timeout(Duration::from_secs(1), news).await.is_err() {
                    return Ok(Vec::new());
                }
            }
        })
    }

    fn acknowledge<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, Vec<Result<(), SinkError>>> {
        Box::pin(async move {
            let mut state = self.broker.0.state.lock();
            let lost = state.is_down || state.loses_acknowledgements;
            let group = state.groups.entry((self.topic.clone(), self.group.clone())).or_default();
            let acknowledge = |ticket: &Ticket| {
                if lost {
                    return Err(SinkError::unavailable("the connection is lost"));
                }
                let (place, _) =
                    group.open.remove(ticket).ok_or_else(|| SinkError::failed("no such message is open"))?;
                group.acknowledged.push(place);
                Ok(())
            };
            tickets.iter().map(acknowledge).collect()
        })
    }

    fn give_back<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut state = self.broker.0.state.lock();
            let group = state.groups.entry((self.topic.clone(), self.group.clone())).or_default();
            for ticket in tickets {
                if let Some((place, deliveries)) = group.open.remove(ticket) {
                    group.again.insert(place, deliveries);
                }
            }
            drop(state);
            self.broker.0.news.notify_waiters();
        })
    }

    fn lag(&self) -> BoxFuture<'_, Result<Option<u64>, SinkError>> {
        Box::pin(async {
            let state = self.broker.0.state.lock();
            let sent = state.topics.get(&self.topic).map_or(0, Vec::len);
            let group = state.groups.get(&(self.topic.clone(), self.group.clone()));
            Ok(Some((sent - group.map_or(0, |group| group.acknowledged.len())) as u64))
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), SinkError>> {
        Box::pin(async { Ok(()) })
    }
}

impl fmt::Debug for MemoryBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBroker").field("topics", &self.0.state.lock().topics.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for MemorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySource").field("topic", &self.topic).field("group", &self.group).finish_non_exhaustive()
    }
}
