//! X1, X2, X4, X5, X6, H4, D14: what becomes of events on their way to sinks that do this and that.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pillarbox_core::{
    Event, Outbox, RetryPolicy,
    domain::{CircuitPolicy, EventBuilder, Status},
    engine::{Builder, mode::MultiNode},
    port::{Abilities, AdminStore as _, BoxFuture, Confirms, Found, Message, Query, Sent, Sink, SinkError},
};
use pillarbox_relay::{Matches, Outlet, Rule, Rules, Template};
use pillarbox_testkit::MemoryStore;

const PATIENCE: Duration = Duration::from_secs(20);

/// One by one, and several by one worker.
const AT_ONCE: [usize; 2] = [1, 20];

type Answer = Arc<Mutex<dyn FnMut(&Message) -> Sent + Send>>;

/// A broker that answers as it is told, and keeps what it took.
#[derive(Clone)]
struct Broker {
    answer: Answer,
    taken: Arc<Mutex<Vec<Message>>>,
    batches: Arc<Mutex<Vec<usize>>>,
    largest: Option<usize>,
    pause: Duration,
}

impl Broker {
    fn new(answer: impl FnMut(&Message) -> Sent + Send + 'static) -> Self {
        Self {
            answer: Arc::new(Mutex::new(answer)),
            taken: Arc::default(),
            batches: Arc::default(),
            largest: None,
            pause: Duration::from_millis(1),
        }
    }

    fn good() -> Self {
        Self::new(|_| Ok(()))
    }

    fn topics(&self) -> Vec<String> {
        self.taken.lock().iter().map(|message| message.topic.to_string()).collect()
    }

    async fn has(&self, count: usize) {
        until("messages", || (self.taken.lock().len() >= count).then_some(())).await;
    }
}

impl Sink for Broker {
    fn abilities(&self) -> Abilities {
        Abilities { confirms: Confirms::Stored, largest: self.largest, keeps_order: true, dedupes: false }
    }

    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>> {
        Box::pin(async {
            self.batches.lock().push(batch.len());
            tokio::time::sleep(self.pause).await;
            let answer = |message: &Message| {
                let sent = (self.answer.lock())(message);
                if sent.is_ok() {
                    self.taken.lock().push(message.clone());
                }
                sent
            };
            batch.iter().map(answer).collect()
        })
    }

    fn check(&self) -> BoxFuture<'_, Sent> {
        Box::pin(async { Ok(()) })
    }
}

pub(crate) async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("waited for {what}"))
}

fn to(sinks: &[&str]) -> Arc<Rules> {
    Arc::new(Rules::new([], sinks.iter().map(|name| (*name).into())))
}

fn builder(store: &MemoryStore) -> Builder<MemoryStore, MultiNode> {
    let circuit =
        CircuitPolicy { failures: 2, shortest: Duration::from_millis(20), longest: Duration::from_millis(50) };
    let retry = RetryPolicy::fixed(Duration::from_millis(5)).max_attempts(3);
    Outbox::multi_node(store.clone()).workers(64).circuit(circuit).retry(retry)
}

pub(crate) async fn write(outbox: &Outbox<MemoryStore>, events: impl IntoIterator<Item = EventBuilder>) {
    let mut tx = outbox.begin().await.expect("a transaction");
    for event in events {
        tx.write(event.json(&1)).await.expect("to write");
    }
    tx.commit().await.expect("to commit");
}

pub(crate) async fn found(store: &MemoryStore, status: Status) -> Vec<Found> {
    let query = Query { statuses: vec![status], ..Query::default() };
    store.list(&query, pillarbox_core::domain::Seq(0), 10_000).await.expect("a list").events
}

pub(crate) async fn until_found(store: &MemoryStore, status: Status, count: usize) -> Vec<Found> {
    let looking = async {
        loop {
            let found = found(store, status).await;
            if found.len() >= count {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("waited for {count} {status}"))
}

#[tokio::test]
async fn a_backlog_goes_out_in_batches_and_each_key_in_order() {
    for at_once in AT_ONCE {
        let (store, broker) = (MemoryStore::new(), Broker::good());
        let writer = Outbox::writer_only(store.clone()).start().await.unwrap();
        write(
            &writer,
            (0..1_000).map(|n| Event::builder("Placed").key(format!("k{}", n % 50)).header("n", n.to_string())),
        )
        .await;
        let outlet = Outlet::new("broker", Arc::new(broker.clone()), to(&["broker"])).at_once(at_once);
        let outbox = builder(&store).handle_every(outlet).start().await.unwrap();
        until_found(&store, Status::Done, 1_000).await;
        outbox.shutdown().await;
        let taken = broker.taken.lock().clone();
        assert_eq!(taken.len(), 1_000);
        let mut last: BTreeMap<String, u32> = BTreeMap::new();
        for message in &taken {
            let number = message.headers.iter().find(|(name, _)| name == "n").unwrap().1.parse().unwrap();
            let before = last.insert(message.key.as_ref().unwrap().to_string(), number);
            assert!(before.is_none_or(|before| before < number), "{message:?} after {before:?}");
        }
        let batches = broker.batches.lock().clone();
        assert!(batches.len() < 500, "{} batches for 1,000 messages", batches.len());
    }
}

#[tokio::test]
async fn a_sink_that_is_down_uses_up_nothing_and_the_other_goes_on() {
    let store = MemoryStore::new();
    let up = Arc::new(Mutex::new(false));
    let down = Broker::new({
        let up = up.clone();
        move |_| if *up.lock() { Ok(()) } else { Err(SinkError::unavailable("nobody answers")) }
    });
    let other = Broker::good();
    let rules = Arc::new(Rules::new(
        [
            Rule { name: "both".into(), matches: of("Both"), sinks: vec!["a".into(), "b".into()], ..Rule::default() },
            Rule { name: "other".into(), matches: of("Other"), sinks: vec!["b".into()], ..Rule::default() },
        ],
        ["a".into()],
    ));
    let outbox = builder(&store)
        .handle_every(Outlet::new("a", Arc::new(down.clone()), rules.clone()))
        .handle_every(Outlet::new("b", Arc::new(other.clone()), rules))
        .start()
        .await
        .unwrap();
    write(&outbox, (0..20).map(|_| Event::builder("Default"))).await;
    write(&outbox, (0..20).map(|_| Event::builder("Both"))).await;
    write(&outbox, (0..20).map(|_| Event::builder("Other"))).await;
    // Those that only concern the other are done, those of both have had their part there.
    other.has(40).await;
    until_found(&store, Status::Done, 20).await;
    // And nobody is left out who could be: the closed door was tried again and again.
    let tried = down.batches.lock().len();
    until("further tries", || (down.batches.lock().len() >= tried + 3).then_some(())).await;
    assert_eq!(found(&store, Status::Done).await.len(), 20);
    assert_eq!(found(&store, Status::Dead).await.len(), 0);
    assert!(found(&store, Status::Retry).await.iter().all(|event| event.attempts == 0));
    *up.lock() = true;
    until_found(&store, Status::Done, 60).await;
    outbox.shutdown().await;
    assert_eq!(down.taken.lock().len(), 40);
    // No second message to the one that had its part.
    assert_eq!(other.taken.lock().len(), 40);
}

#[tokio::test]
async fn what_is_rejected_for_good_is_dead_with_the_brokers_words() {
    for at_once in AT_ONCE {
        let store = MemoryStore::new();
        let broker = Broker::new(|message| match &*message.topic {
            "Bad" => Err(SinkError::rejected("403 not for you")),
            "Shaky" => Err(SinkError::failed("this time not")),
            _ => Ok(()),
        });
        let outlet = Outlet::new("broker", Arc::new(broker.clone()), to(&["broker"])).at_once(at_once);
        let outbox = builder(&store).handle_every(outlet).start().await.unwrap();
        write(&outbox, ["Bad", "Good", "Shaky"].map(Event::builder)).await;
        let dead = until_found(&store, Status::Dead, 2).await;
        let of = |event_type: &str| {
            dead.iter().find(|found| found.record.as_ref().unwrap().event.event_type().as_str() == event_type).unwrap()
        };
        assert_eq!(of("Bad").attempts, 1);
        assert!(
            of("Bad").last_error.as_ref().unwrap().contains("broker: 403 not for you"),
            "{:?}",
            of("Bad").last_error
        );
        assert_eq!(of("Shaky").attempts, 3);
        until_found(&store, Status::Done, 1).await;
        outbox.shutdown().await;
        assert_eq!(broker.topics(), ["Good"]);
    }
}

#[tokio::test]
async fn what_is_too_large_is_dead_and_says_so() {
    for at_once in AT_ONCE {
        let store = MemoryStore::new();
        let broker = Broker { largest: Some(3), ..Broker::good() };
        let outlet = Outlet::new("broker", Arc::new(broker.clone()), to(&["broker"])).at_once(at_once);
        let outbox = builder(&store).handle_every(outlet).start().await.unwrap();
        let mut tx = outbox.begin().await.unwrap();
        tx.write(Event::builder("Large").json_text("12345")).await.unwrap();
        tx.commit().await.unwrap();
        let dead = until_found(&store, Status::Dead, 1).await;
        outbox.shutdown().await;
        let error = dead[0].last_error.clone().unwrap();
        assert!(error.contains("5 bytes") && error.contains('3'), "{error}");
        assert!(broker.batches.lock().is_empty());
    }
}

#[tokio::test]
async fn rules_choose_rename_and_drop() {
    for at_once in AT_ONCE {
        let (store, broker) = (MemoryStore::new(), Broker::good());
        let renamed = Rule {
            name: "renamed".into(),
            matches: of("Order*"),
            sinks: vec!["broker".into()],
            topic: Some(Template::new("{tenant}.orders").unwrap()),
            ..Rule::default()
        };
        let noise = Rule { name: "noise".into(), matches: of("Ping"), ..Rule::default() };
        let rules = Arc::new(Rules::new([renamed, noise], ["broker".into()]));
        let outlet = Outlet::new("broker", Arc::new(broker.clone()), rules).at_once(at_once);
        let outbox = builder(&store).handle_every(outlet).start().await.unwrap();
        let order = || Event::builder("OrderPlaced");
        write(&outbox, [order().tenant("acme"), Event::builder("Ping"), Event::builder("Paid"), order()]).await;
        until_found(&store, Status::Done, 3).await;
        let dead = until_found(&store, Status::Dead, 1).await;
        outbox.shutdown().await;
        let mut topics = broker.topics();
        topics.sort();
        assert_eq!(topics, ["Paid", "acme.orders"]);
        let error = dead[0].last_error.clone().unwrap();
        assert!(error.contains("\"renamed\"") && error.contains("tenant"), "{error}");
    }
}

#[tokio::test]
async fn a_sink_that_panics_or_forgets_an_answer_stops_nothing() {
    for at_once in AT_ONCE {
        let store = MemoryStore::new();
        let panics = Arc::new(Mutex::new(2));
        let broker = Broker::new(move |_| {
            let mut left = panics.lock();
            if *left > 0 {
                *left -= 1;
                drop(left);
                panic!("a bug in a sink");
            }
            Ok(())
        });
        let outlet = Outlet::new("broker", Arc::new(broker.clone()), to(&["broker"])).at_once(at_once);
        let outbox = builder(&store).handle_every(outlet).start().await.unwrap();
        write(&outbox, [Event::builder("Placed")]).await;
        until_found(&store, Status::Done, 1).await;
        outbox.shutdown().await;
        assert_eq!(broker.topics(), ["Placed"]);
    }
}

/// D14, X5: alone, and with several deliveries at once: what the rules drop does not wait for a sink that is down.
#[tokio::test]
async fn a_lone_sink_that_is_down_uses_up_nothing_and_holds_up_nothing_that_is_not_for_it() {
    for at_once in AT_ONCE {
        let store = MemoryStore::new();
        let up = Arc::new(Mutex::new(false));
        let broker = Broker::new({
            let up = up.clone();
            move |_| if *up.lock() { Ok(()) } else { Err(SinkError::unavailable("nobody answers")) }
        });
        let noise = Rule { name: "noise".into(), matches: of("Ping"), ..Rule::default() };
        let rules = Arc::new(Rules::new([noise], ["broker".into()]));
        let outlet = Outlet::new("broker", Arc::new(broker.clone()), rules).at_once(at_once);
        let outbox = builder(&store).handle_every(outlet).start().await.unwrap();
        write(&outbox, (0..40).map(|n| Event::builder("Placed").key(format!("k{}", n % 8)))).await;
        until("tries", || (broker.batches.lock().len() >= 3).then_some(())).await;
        write(&outbox, (0..10).map(|_| Event::builder("Ping"))).await;
        until_found(&store, Status::Done, 10).await;
        assert!(found(&store, Status::Retry).await.iter().all(|event| event.attempts == 0));
        *up.lock() = true;
        until_found(&store, Status::Done, 50).await;
        outbox.shutdown().await;
        assert_eq!(broker.taken.lock().len(), 40);
        assert_eq!(found(&store, Status::Dead).await.len(), 0);
    }
}

/// X4: what a web hook says with 500 and with 429 or 503 holds, however eager the policies are.
#[tokio::test]
async fn a_receiver_that_says_when_to_come_back_is_not_tried_before() {
    let wish = Duration::from_millis(400);
    for (words, refusal) in [("500", SinkError::failed("500").after(wish)), ("503", unavailable_for(wish))] {
        for (at_once, failures) in [(1, 1), (20, 1), (1, 100), (20, 100)] {
            let store = MemoryStore::new();
            let tried = Arc::new(Mutex::new(Vec::new()));
            let broker = Broker::new({
                let (tried, refusal) = (tried.clone(), refusal.clone());
                move |_| {
                    tried.lock().push(Instant::now());
                    if tried.lock().len() == 1 { Err(refusal.clone()) } else { Ok(()) }
                }
            });
            let short = Duration::from_millis(1);
            let circuit = CircuitPolicy { failures, shortest: short, longest: short };
            let outlet = Outlet::new("broker", Arc::new(broker), to(&["broker"])).at_once(at_once);
            let outbox = builder(&store).circuit(circuit).handle_every(outlet).start().await.unwrap();
            write(&outbox, [Event::builder("Placed")]).await;
            let done = until_found(&store, Status::Done, 1).await;
            outbox.shutdown().await;
            let tried = tried.lock().clone();
            assert!(tried.len() == 2 && tried[1] - tried[0] >= wish, "{words}, {at_once}, {failures}: {tried:?}");
            assert_eq!(done[0].attempts, u32::from(words == "500"));
        }
    }
}

/// X6: a receiver that wants its failures back at once gets them when the policy says, or all attempts would be over at once.
#[tokio::test]
async fn a_receiver_that_wants_it_again_at_once_gets_it_when_the_policy_says() {
    let delay = Duration::from_millis(150);
    for at_once in AT_ONCE {
        let store = MemoryStore::new();
        let tried = Arc::new(Mutex::new(Vec::new()));
        let broker = Broker::new({
            let tried = tried.clone();
            move |_| {
                tried.lock().push(Instant::now());
                Err(SinkError::failed("500").after(Duration::ZERO))
            }
        });
        let outlet = Outlet::new("broker", Arc::new(broker), to(&["broker"])).at_once(at_once);
        let retry = RetryPolicy::fixed(delay).jitter(0.0).max_attempts(3);
        let outbox = builder(&store).retry(retry).handle_every(outlet).start().await.unwrap();
        write(&outbox, [Event::builder("Placed")]).await;
        until_found(&store, Status::Dead, 1).await;
        outbox.shutdown().await;
        let tried = tried.lock().clone();
        assert_eq!(tried.len(), 3);
        assert!(tried.windows(2).all(|two| two[1] - two[0] >= delay), "{at_once}: {tried:?}");
    }
}

fn unavailable_for(span: Duration) -> SinkError {
    SinkError::unavailable("503").after(span)
}

/// D14: what never came to the sink says nothing of it.
#[tokio::test]
async fn an_event_that_can_not_be_sent_leaves_the_circuit_as_it_is() {
    let hour = Duration::from_hours(1);
    for at_once in AT_ONCE {
        let store = MemoryStore::new();
        let down = Broker::new(|_| Err(SinkError::unavailable("nobody answers")));
        let broker = Broker { largest: Some(3), ..down };
        let nameless = Rule {
            name: "nameless".into(),
            matches: of("Nameless"),
            sinks: vec!["broker".into()],
            topic: Some(Template::new("{tenant}").unwrap()),
            ..Rule::default()
        };
        let rules = Arc::new(Rules::new([nameless], ["broker".into()]));
        let outlet = Outlet::new("broker", Arc::new(broker.clone()), rules).at_once(at_once);
        let outbox = builder(&store)
            .circuit(CircuitPolicy { failures: 2, shortest: hour, longest: hour })
            .retry(RetryPolicy::fixed(hour))
            .handle_every(outlet)
            .start()
            .await
            .unwrap();
        write(&outbox, [Event::builder("First")]).await;
        until_found(&store, Status::Retry, 1).await;
        write(&outbox, [Event::builder("Nameless")]).await;
        let mut tx = outbox.begin().await.unwrap();
        tx.write(Event::builder("Large").json_text("12345")).await.unwrap();
        tx.commit().await.unwrap();
        until_found(&store, Status::Dead, 2).await;
        write(&outbox, [Event::builder("Second")]).await;
        until_found(&store, Status::Retry, 2).await;
        // Two in a row: it is open.
        write(&outbox, [Event::builder("Third")]).await;
        until_found(&store, Status::Retry, 3).await;
        outbox.shutdown().await;
        assert_eq!(broker.batches.lock().len(), 2, "the third has tried as well");
    }
}

/// D14: nor does what the sink itself has refused, before it sent anything: a broker that is down has not answered.
#[tokio::test]
async fn what_a_sink_refuses_by_itself_leaves_the_circuit_as_it_is() {
    let hour = Duration::from_hours(1);
    for at_once in AT_ONCE {
        let store = MemoryStore::new();
        let broker = Broker::new(|message| match &*message.topic {
            "no topic" => Err(SinkError::unfit("no name of a topic")),
            _ => Err(SinkError::unavailable("nobody answers")),
        });
        let outlet = Outlet::new("broker", Arc::new(broker.clone()), to(&["broker"])).at_once(at_once);
        let outbox = builder(&store)
            .circuit(CircuitPolicy { failures: 2, shortest: hour, longest: hour })
            .retry(RetryPolicy::fixed(hour))
            .handle_every(outlet)
            .start()
            .await
            .unwrap();
        write(&outbox, [Event::builder("First")]).await;
        until_found(&store, Status::Retry, 1).await;
        write(&outbox, [Event::builder("no topic")]).await;
        let dead = until_found(&store, Status::Dead, 1).await;
        assert_eq!(dead[0].last_error.as_deref(), Some("broker: no name of a topic"));
        write(&outbox, [Event::builder("Second")]).await;
        until_found(&store, Status::Retry, 2).await;
        // Two in a row: it is open.
        write(&outbox, [Event::builder("Third")]).await;
        until_found(&store, Status::Retry, 3).await;
        outbox.shutdown().await;
        assert_eq!(broker.batches.lock().len(), 3, "the third has tried as well");
    }
}

fn of(event_type: &str) -> Matches {
    Matches { event_type: vec![event_type.into()], ..Matches::default() }
}
