//! X1: how many messages go to a sink at once, and whose time that is.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use pillarbox_core::{
    Event, Outbox, RetryPolicy,
    domain::Status,
    port::{Abilities, BoxFuture, Confirms, Message, Pace, Sent, Sink},
};
use pillarbox_relay::{Outlet, Rules};
use pillarbox_testkit::MemoryStore;
use tokio::sync::Notify;

use super::outlets::{found, until_found, write};

/// A sink that answers when so many batches are under way, or when it has answered for that once.
#[derive(Clone)]
struct Crowd {
    pace: Pace,
    wanted: usize,
    seen: Arc<Mutex<Seen>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Seen {
    under_way: usize,
    most: usize,
    largest: usize,
    messages: usize,
}

impl Crowd {
    fn new(pace: Pace, wanted: usize) -> Self {
        Self { pace, wanted, seen: Arc::default(), changed: Arc::default() }
    }

    async fn take(&self, batch: &[Message]) -> Vec<Sent> {
        {
            let mut seen = self.seen.lock();
            seen.under_way += 1;
            seen.most = seen.most.max(seen.under_way);
            seen.largest = seen.largest.max(batch.len());
        }
        self.changed.notify_waiters();
        loop {
            let changed = self.changed.notified();
            if self.seen.lock().most >= self.wanted {
                break;
            }
            changed.await;
        }
        // Others may come meanwhile, if there is a place for them.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let mut seen = self.seen.lock();
        seen.under_way -= 1;
        seen.messages += batch.len();
        vec![Ok(()); batch.len()]
    }
}

impl Sink for Crowd {
    fn abilities(&self) -> Abilities {
        Abilities { confirms: Confirms::Stored, largest: None, keeps_order: true, dedupes: false }
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>> {
        Box::pin(self.take(batch))
    }

    fn check(&self) -> BoxFuture<'_, Sent> {
        Box::pin(async { Ok(()) })
    }
}

/// Sends so many events to a sink, by an outlet whose batches have ten messages.
async fn send_all(sink: &Crowd, events: usize) {
    send_by(sink, events, 64, 1).await;
}

async fn send_by(sink: &Crowd, events: usize, workers: usize, at_once: usize) {
    let store = MemoryStore::new();
    let rules = Arc::new(Rules::new([], ["sink".into()]));
    let outlet = Outlet::new("sink", Arc::new(sink.clone()), rules).batch(10).at_once(at_once);
    let outbox =
        Outbox::multi_node(store.clone()).workers(workers).handle_every(outlet).start().await.expect("an outbox");
    write(&outbox, (0..events).map(|n| Event::builder("Placed").key(format!("k{n}")))).await;
    until_found(&store, Status::Done, events).await;
    outbox.shutdown().await;
    assert_eq!(sink.seen.lock().messages, events);
}

#[tokio::test]
async fn a_second_batch_goes_out_while_the_first_has_no_answer() {
    let sink = Crowd::new(Pace::default(), 2);
    send_all(&sink, 200).await;
    let seen = sink.seen.lock();
    assert_eq!(seen.most, 2, "and no third one");
    assert!((5..=10).contains(&seen.largest), "a batch of {}", seen.largest);
}

/// Whatever a worker hands over together, a batch has no more than the sink takes, and a second one goes out beside it.
#[tokio::test]
async fn what_workers_hand_over_together_goes_out_together() {
    for at_once in [4, 10, 100] {
        let sink = Crowd::new(Pace::default(), 2);
        send_by(&sink, 200, 6, at_once).await;
        let seen = sink.seen.lock();
        assert_eq!(seen.most, 2, "{at_once} at once");
        assert!((5..=10).contains(&seen.largest), "{at_once} at once: a batch of {}", seen.largest);
    }
}

#[tokio::test]
async fn a_sink_that_wants_one_message_a_batch_gets_so_many_as_it_wants_at_once() {
    let sink = Crowd::new(Pace { batch: 1, batches: 5 }, 5);
    send_all(&sink, 200).await;
    let seen = sink.seen.lock();
    assert_eq!((seen.most, seen.largest), (5, 1));
}

#[tokio::test]
async fn a_sink_that_wants_one_batch_gets_one() {
    let sink = Crowd::new(Pace { batches: 1, ..Pace::default() }, 1);
    send_all(&sink, 200).await;
    assert_eq!(sink.seen.lock().most, 1);
}

/// A sink that takes its time for each message, and at the first call more than anybody has.
struct Slow {
    each: Duration,
    hangs: Mutex<bool>,
}

impl Sink for Slow {
    fn abilities(&self) -> Abilities {
        Abilities { confirms: Confirms::Stored, largest: None, keeps_order: true, dedupes: false }
    }

    fn pace(&self) -> Pace {
        Pace { batch: 1, batches: 1 }
    }

    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>> {
        Box::pin(async {
            if std::mem::take(&mut *self.hangs.lock()) {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(self.each).await;
            vec![Ok(()); batch.len()]
        })
    }

    fn check(&self) -> BoxFuture<'_, Sent> {
        Box::pin(async { Ok(()) })
    }
}

async fn send_slowly(sink: Slow, timeout: Duration) {
    let store = MemoryStore::new();
    let rules = Arc::new(Rules::new([], ["sink".into()]));
    let outlet = Outlet::new("sink", Arc::new(sink), rules).timeout(timeout);
    // A handler would have far less time than the last message waits.
    let builder = Outbox::multi_node(store.clone()).workers(64).handler_timeout(Duration::from_millis(20));
    // And nobody a second attempt.
    let outbox = builder.retry(RetryPolicy::never()).handle_every(outlet).start().await.expect("an outbox");
    write(&outbox, (0..40).map(|n| Event::builder("Placed").key(format!("k{n}")))).await;
    until_found(&store, Status::Done, 40).await;
    outbox.shutdown().await;
    assert_eq!(found(&store, Status::Dead).await.len(), 0);
}

#[tokio::test]
async fn a_message_that_waits_for_its_turn_has_not_failed() {
    send_slowly(Slow { each: Duration::from_millis(5), hangs: Mutex::new(false) }, Duration::from_secs(30)).await;
}

#[tokio::test]
async fn a_sink_that_hangs_is_given_up_and_uses_up_no_attempt() {
    send_slowly(Slow { each: Duration::ZERO, hangs: Mutex::new(true) }, Duration::from_millis(50)).await;
}
