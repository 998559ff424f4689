//! The source's connection, and the session at the server that it continues: opened when it is first needed, and again after
//! it broke.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pillarbox_core::port::SinkError;
use rumqttc::{
    Outgoing,
    v5::{
        AsyncClient, ConnectionError, Event, EventLoop, MqttOptions, StateError,
        mqttbytes::{
            QoS,
            v5::{ConnAck, DisconnectReasonCode, Filter, Packet, Publish, SubAck, SubscribeReasonCode},
        },
    },
};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, timeout, timeout_at},
};

use crate::{
    Subscription,
    connection::{Driver, LARGEST_PACKET},
    error::{End, spoken},
};

/// How much may be handed to the client at once: an acknowledgement for every number that MQTT has, some questions, and the
/// goodbye.
const ROOM: usize = u16::MAX as usize + 64 + 1;

/// How many messages may wait here that the server does not wait for: those of quality of service 0 know no bound else.
const MOST_UNBOUND: usize = 10_000;

pub(crate) struct Session {
    settings: MqttOptions,
    shown: String,
    answer_within: Duration,
    filter: Filter,
    expiry: u32,
    /// This source has been connected before.
    has_been: AtomicBool,
}

/// One connection.
pub(crate) struct Line {
    client: AsyncClient,
    hall: Arc<Hall>,
    driver: Driver,
    filter: Filter,
    answer_within: Duration,
}

/// One message as it came by a line.
#[derive(Clone)]
pub(crate) struct Arrival {
    /// Which of this line it is.
    pub(crate) number: u64,
    pub(crate) publish: Arc<Publish>,
    pub(crate) deliveries: u32,
}

/// Where messages wait to be received, and others for an answer.
#[derive(Default)]
struct Hall {
    waiting: Mutex<Waiting>,
    /// Something has come, or the end.
    came: Notify,
}

#[derive(Default)]
struct Waiting {
    count: u64,
    messages: VecDeque<Arrival>,
    /// In the order of their questions, which is that of the answers.
    questions: VecDeque<oneshot::Sender<Result<(), SinkError>>>,
    end: Option<SinkError>,
}

impl Session {
    pub(crate) fn new(
        mut settings: MqttOptions,
        shown: String,
        answer_within: Duration,
        subscription: &Subscription,
    ) -> Self {
        let expiry = subscription.expiry();
        settings.set_clean_start(false).set_manual_acks(true);
        settings.set_session_expiry_interval(Some(expiry)).set_receive_maximum(Some(subscription.most_out));
        // Else the client takes 10 KB at most.
        settings.set_max_packet_size(u32::try_from(LARGEST_PACKET).ok());
        let (filter, has_been) = (subscription.filter(), AtomicBool::new(false));
        Self { settings, shown, answer_within, filter, expiry, has_been }
    }

    /// Connects, and subscribes.
    pub(crate) async fn open(&self) -> Result<Arc<Line>, SinkError> {
        let deadline = Instant::now() + self.answer_within;
        let (client, events) = AsyncClient::new(self.settings.clone(), ROOM);
        let (ready, welcome) = oneshot::channel();
        let hall = Arc::new(Hall::default());
        let driver = Driver::of(tokio::spawn(drive(events, Arc::clone(&hall), ready)));
        let late = |_| SinkError::unavailable(format_args!("no connection within {:?}", self.answer_within));
        let gone = |_| SinkError::unavailable("the client has ended");
        let welcome = timeout_at(deadline, welcome).await.map_err(late)?.map_err(gone)??;
        self.judge(&welcome)?;
        let line = Line { client, hall, driver, filter: self.filter.clone(), answer_within: self.answer_within };
        line.ask().await?;
        if self.has_been.swap(true, Ordering::Relaxed) && !welcome.session_present {
            tracing::error!(
                server = self.shown,
                client_id = self.settings.client_id(),
                "the server has lost the session: what it had for this consumer is lost, unless it has kept it elsewhere"
            );
        }
        Ok(Arc::new(line))
    }

    pub(crate) fn answer_within(&self) -> Duration {
        self.answer_within
    }

    /// A server that could lose messages is refused.
    fn judge(&self, welcome: &ConnAck) -> Result<(), SinkError> {
        let Some(properties) = &welcome.properties else { return Ok(()) };
        let refused = |words: &str| Err(SinkError::unavailable(words));
        match properties.session_expiry_interval {
            Some(0) => {
                return refused("the server keeps no sessions: what comes while nobody is connected would be lost");
            }
            Some(seconds) if seconds < self.expiry => {
                tracing::warn!(seconds, "the server keeps the session for a shorter time than keep_for asks");
            }
            _ => {}
        }
        if properties.max_qos == Some(0) {
            return refused("the server has no quality of service but 0: nothing could be acknowledged");
        }
        if properties.shared_subscription_available == Some(0) && self.filter.path.starts_with("$share/") {
            return refused(
                "the server has no shared subscriptions: leave `group` away, and let one consumer have all",
            );
        }
        Ok(())
    }
}

impl Line {
    /// Waits for a message, for so long; tells whether there is one.
    pub(crate) async fn wait(&self, span: Duration) -> Result<bool, SinkError> {
        let coming = async {
            loop {
                let came = self.hall.came.notified();
                {
                    let waiting = self.hall.waiting();
                    if let Some(end) = &waiting.end {
                        return Err(end.clone());
                    }
                    if !waiting.messages.is_empty() {
                        return Ok(true);
                    }
                }
                came.await;
            }
        };
        timeout(span, coming).await.unwrap_or(Ok(false))
    }

    /// What is there, at most so many.
    pub(crate) fn take(&self, most: usize) -> Vec<Arrival> {
        let mut waiting = self.hall.waiting();
        let count = most.min(waiting.messages.len());
        waiting.messages.drain(..count).collect()
    }

    /// Messages that are to be received once more, in the order in which they came.
    pub(crate) fn put_back(&self, mut arrivals: Vec<Arrival>) {
        arrivals.sort_by_key(|arrival| arrival.number);
        let mut waiting = self.hall.waiting();
        for arrival in arrivals.into_iter().rev() {
            waiting.messages.push_front(Arrival { deliveries: arrival.deliveries.saturating_add(1), ..arrival });
        }
        self.hall.came.notify_waiters();
    }

    /// Hands acknowledgements to the client. One without a number needs none.
    pub(crate) fn acknowledge(&self, arrivals: &[&Arrival]) -> Result<(), SinkError> {
        for arrival in arrivals {
            let gone = |_| SinkError::unavailable("the client takes no acknowledgement: the connection is lost");
            self.client.try_ack(&arrival.publish).map_err(gone)?;
        }
        Ok(())
    }

    /// Asks the server for what it is to send already, and waits for the answer: it has taken what was said before.
    pub(crate) async fn ask(&self) -> Result<(), SinkError> {
        let (sender, answer) = oneshot::channel();
        {
            // Answers come in the order of the questions: nobody comes between.
            let mut waiting = self.hall.waiting();
            if let Some(end) = &waiting.end {
                return Err(end.clone());
            }
            let asked = self.client.try_subscribe_many([self.filter.clone()]);
            asked.map_err(|_| SinkError::unavailable("the client takes no question"))?;
            waiting.questions.push_back(sender);
        }
        let silent =
            |_| SinkError::unavailable(format_args!("no answer from the server within {:?}", self.answer_within));
        let gone =
            |_| self.hall.waiting().end.clone().unwrap_or_else(|| SinkError::unavailable("the connection is lost"));
        timeout(self.answer_within, answer).await.map_err(silent)?.map_err(gone)?
    }

    /// Why it can't be used any more, if so.
    pub(crate) fn end(&self) -> Option<SinkError> {
        self.hall.waiting().end.clone()
    }

    /// Nothing more comes by it, or goes.
    pub(crate) fn give_up(&self) {
        self.driver.abort();
        self.hall.end(SinkError::unavailable("the connection was given up"));
    }

    /// Takes leave of the server, which keeps the session.
    pub(crate) async fn close(&self) {
        if self.end().is_none() && self.client.try_disconnect().is_ok() {
            self.driver.finish(self.answer_within).await;
        }
        self.give_up();
    }
}

impl Hall {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn message(&self, publish: Publish) {
        let mut waiting = self.waiting();
        if publish.qos == QoS::AtMostOnce && waiting.messages.len() >= MOST_UNBOUND {
            tracing::warn!("a message of quality of service 0 is dropped: more come than are received");
            return;
        }
        waiting.count += 1;
        // There was another before, or more.
        let deliveries = if publish.dup { 2 } else { 1 };
        let number = waiting.count;
        waiting.messages.push_back(Arrival { number, publish: Arc::new(publish), deliveries });
        self.came.notify_waiters();
    }

    fn answer(&self, answer: &SubAck) {
        if let Some(asker) = self.waiting().questions.pop_front() {
            // Who was dropped does not wait.
            let _ = asker.send(granted(answer));
        }
    }

    fn end(&self, end: SinkError) {
        let mut waiting = self.waiting();
        waiting.end.get_or_insert(end);
        // They come again.
        waiting.messages.clear();
        waiting.questions.clear();
        self.came.notify_waiters();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.shown).finish()
    }
}

/// Drives the client until the connection ends: it would connect again by itself, and acknowledge by old numbers.
async fn drive(mut events: EventLoop, hall: Arc<Hall>, ready: oneshot::Sender<Result<ConnAck, SinkError>>) {
    let mut ready = Some(ready);
    let end = loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(welcome))) => {
                if let Some(ready) = ready.take() {
                    let _ = ready.send(Ok(welcome));
                }
            }
            Ok(Event::Incoming(Packet::Publish(publish))) => hall.message(publish),
            Ok(Event::Incoming(Packet::SubAck(answer))) => hall.answer(&answer),
            Ok(Event::Outgoing(Outgoing::Disconnect)) => break SinkError::unavailable("the connection was closed"),
            Ok(_) => {}
            Err(error) => break why(&error),
        }
    };
    hall.end(end.clone());
    if let Some(ready) = ready {
        let _ = ready.send(Err(end));
    }
}

fn why(error: &ConnectionError) -> SinkError {
    match error {
        ConnectionError::MqttState(StateError::ServerDisconnect {
            reason_code: DisconnectReasonCode::SessionTakenOver,
            ..
        }) => SinkError::unavailable(
            "session taken over (0x8E): another one has connected by this client_id; give each consumer its own",
        ),
        error => End::of(error).error,
    }
}

/// What the server says to a question.
fn granted(answer: &SubAck) -> Result<(), SinkError> {
    match answer.return_codes.first() {
        Some(SubscribeReasonCode::Success(QoS::AtLeastOnce | QoS::ExactlyOnce)) => Ok(()),
        Some(SubscribeReasonCode::Success(QoS::AtMostOnce)) => Err(SinkError::unavailable(
            "the server grants the subscription quality of service 0 alone: nothing could be acknowledged",
        )),
        Some(refusal) => {
            let explained = answer.properties.as_ref().and_then(|properties| properties.reason_string.as_deref());
            let explained = explained.map(|words| format!(": {words}")).unwrap_or_default();
            Err(SinkError::unavailable(format_args!(
                "the server refuses the subscription: {}{explained}",
                spoken(refusal)
            )))
        }
        None => Err(SinkError::unavailable("the server does not say whether it grants the subscription")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_is_good_if_it_can_be_acknowledged() {
        use SubscribeReasonCode as R;
        let of = |code| granted(&SubAck { pkid: 1, return_codes: vec![code], properties: None });
        assert_eq!(of(R::Success(QoS::AtLeastOnce)), Ok(()));
        for (code, words) in [
            (R::Success(QoS::AtMostOnce), "quality of service 0"),
            (R::NotAuthorized, "not authorized"),
            (R::SharedSubscriptionsNotSupported, "shared subscriptions not supported"),
        ] {
            assert!(of(code).expect_err(words).to_string().contains(words));
        }
        assert!(granted(&SubAck { pkid: 1, return_codes: Vec::new(), properties: None }).is_err());
    }

    #[test]
    fn who_was_thrown_out_is_told_by_whom() {
        let goodbye = |reason_code| {
            why(&ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, reason_string: None }))
        };
        assert!(goodbye(DisconnectReasonCode::SessionTakenOver).to_string().contains("client_id"));
        assert!(goodbye(DisconnectReasonCode::ServerShuttingDown).to_string().contains("server shutting down"));
    }

    #[test]
    fn what_is_put_back_comes_next_and_in_its_order() {
        let (client, events) = AsyncClient::new(MqttOptions::new("a", "localhost", 1), 1);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let driver = Driver::of(runtime.spawn(async { drop(events) }));
        let hall = Arc::<Hall>::default();
        let filter = Filter::new("t", QoS::AtLeastOnce);
        let line = Line { client, hall: Arc::clone(&hall), driver, filter, answer_within: Duration::from_secs(1) };
        for body in ["1", "2", "3", "4"] {
            hall.message(Publish::new("t", QoS::AtLeastOnce, body, None));
        }
        let mut first = line.take(3);
        first.swap(0, 2);
        first.remove(1);
        line.put_back(first);
        let shown: Vec<_> =
            line.take(9).into_iter().map(|arrival| (arrival.publish.payload.clone(), arrival.deliveries)).collect();
        assert_eq!(shown, [("1".into(), 2), ("3".into(), 2), ("4".into(), 1)]);
    }

    #[test]
    fn messages_that_nobody_waits_for_do_not_fill_the_memory() {
        let hall = Hall::default();
        for _ in 0..MOST_UNBOUND + 10 {
            hall.message(Publish::new("t", QoS::AtMostOnce, "1", None));
        }
        assert_eq!(hall.waiting().messages.len(), MOST_UNBOUND);
        hall.message(Publish::new("t", QoS::AtLeastOnce, "1", None));
        assert_eq!(hall.waiting().messages.len(), MOST_UNBOUND + 1);
    }
}
