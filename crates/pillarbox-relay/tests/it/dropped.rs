//! X1, P4, D12: a web hook's request is its worker's own, and ends with it. What became of it nobody knows, and so the event is
//! sent again.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use parking_lot::Mutex;
use pillarbox_core::{
    Event, Outbox,
    domain::Status,
    engine::{Builder, mode::MultiNode},
    port::{Store, StoreErrorKind},
};
use pillarbox_relay::{Outlet, Rules};
use pillarbox_testkit::{Call, Faulty, MemoryStore};
use tokio::{net::TcpListener, sync::watch};

use super::outlets::{found, until, until_found, write};

/// A receiver of web hooks that keeps all answers back until it is told to give them.
struct Receiver {
    addr: SocketAddr,
    seen: Arc<Seen>,
}

struct Seen {
    ids: Mutex<Vec<String>>,
    /// Requests whose sender did not wait for the answer.
    given_up: AtomicUsize,
    answers: watch::Sender<bool>,
}

impl Receiver {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let answers = watch::Sender::new(false);
        let seen = Arc::new(Seen { ids: Mutex::default(), given_up: AtomicUsize::new(0), answers });
        let app = Router::new().fallback(receive).with_state(seen.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { addr, seen }
    }

    /// A sink that sends one request at a time, and waits for the answer longer than a test takes.
    fn outlet(&self) -> Outlet {
        let options = pillarbox_http::Options::new(format!("http://{}", self.addr)).at_once(1);
        let sink = options.answer_within(Duration::from_mins(1)).open().expect("a sink");
        Outlet::new("hook", Arc::new(sink), Arc::new(Rules::new([], ["hook".into()]))).timeout(Duration::from_mins(1))
    }

    fn answer(&self) {
        self.seen.answers.send_replace(true);
    }

    async fn has(&self, requests: usize) {
        until("requests", || (self.seen.ids.lock().len() >= requests).then_some(())).await;
    }

    async fn is_given_up(&self) {
        until("the end of a request", || (self.seen.given_up.load(Ordering::Relaxed) > 0).then_some(())).await;
    }
}

async fn receive(State(seen): State<Arc<Seen>>, headers: HeaderMap) -> StatusCode {
    seen.ids.lock().push(headers["ce-id"].to_str().expect("an id").to_owned());
    let unanswered = Unanswered(&seen.given_up);
    let _ = seen.answers.subscribe().wait_for(|answers| *answers).await;
    std::mem::forget(unanswered);
    StatusCode::NO_CONTENT
}

/// Counts a request that ends before its answer.
struct Unanswered<'a>(&'a AtomicUsize);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn relay<S: Store>(store: S, receiver: &Receiver) -> Builder<S, MultiNode> {
    Outbox::multi_node(store).workers(4).drain_timeout(Duration::from_millis(50)).handle_every(receiver.outlet())
}

#[tokio::test]
async fn a_request_that_a_shutdown_gives_up_is_sent_again_by_the_next_relay() {
    let (store, receiver) = (MemoryStore::new(), Receiver::start().await);
    let first = relay(store.clone(), &receiver).start().await.unwrap();
    write(&first, ["a", "b"].map(|key| Event::builder("Placed").key(key))).await;
    receiver.has(1).await;
    first.shutdown().await;
    receiver.is_given_up().await;
    // The answer comes when nobody waits for it.
    receiver.answer();
    let waiting = found(&store, Status::New).await;
    assert_eq!(waiting.len(), 2, "{waiting:?}");
    assert!(waiting.iter().all(|event| event.attempts == 0), "{waiting:?}");
    assert_eq!(receiver.seen.ids.lock().len(), 1, "the other one waited for a place, and is not sent");

    let second = relay(store.another_process(), &receiver).start().await.unwrap();
    until_found(&store, Status::Done, 2).await;
    second.shutdown().await;
    let ids = receiver.seen.ids.lock().clone();
    assert_eq!(ids.len(), 3);
    assert!(ids[1..].contains(&ids[0]), "{ids:?}");
}

#[tokio::test]
async fn a_request_that_is_given_up_with_the_lease_gives_back_its_place_and_is_sent_again() {
    let (memory, receiver) = (MemoryStore::new(), Receiver::start().await);
    let store = Faulty::new(memory.clone());
    let lease = (Duration::from_millis(300), Duration::from_secs(1));
    let outbox = relay(store.clone(), &receiver).heartbeat(lease.0).stale_after(lease.1).start().await.unwrap();
    let writer = Outbox::writer_only(memory.another_process()).start().await.unwrap();
    write(&writer, ["a", "b"].map(|key| Event::builder("Placed").key(key))).await;
    receiver.has(1).await;
    let joined = store.faults().calls(Call::Join);
    store.faults().fail(Call::Renew, usize::MAX, StoreErrorKind::Unavailable);
    receiver.is_given_up().await;
    assert_eq!(found(&memory, Status::Done).await.len(), 0);
    receiver.answer();
    until("another lease", || (store.faults().calls(Call::Join) > joined).then_some(())).await;
    store.faults().clear();

    // By the same outlet, whose only place the first request had.
    until_found(&memory, Status::Done, 2).await;
    outbox.shutdown().await;
    let ids = receiver.seen.ids.lock().clone();
    assert!(ids[1..].contains(&ids[0]), "{ids:?}");
    assert!(found(&memory, Status::Dead).await.is_empty());
}
