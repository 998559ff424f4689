//! X5, D14: a receiver that takes so many messages a second, and no more.

use std::{sync::Arc, time::Duration};

use pillarbox_core::{
    Event, Outbox, RetryPolicy,
    domain::{Seq, Status},
    port::{AdminStore as _, Query, Sink as _},
};
use pillarbox_http::Options;
use pillarbox_relay::{Outlet, Rule, Rules, Template};
use pillarbox_testkit::MemoryStore;

use crate::receiver::Receiver;

const PATIENCE: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_limits_its_rate_gets_everything_and_no_event_is_given_up() {
    let receiver = Receiver::start();
    let sink = Options::new(receiver.url()).open().unwrap();
    let everything = Rule {
        name: "all".into(),
        sinks: vec!["hooks".into()],
        topic: Some(Template::new("limited/30").unwrap()),
        ..Rule::default()
    };
    let store = MemoryStore::new();
    let outbox = Outbox::multi_node(store.clone())
        .workers(16)
        // A refusal that counted would be the last.
        .retry(RetryPolicy::never())
        .handle_every(Outlet::new("hooks", Arc::new(sink), Arc::new(Rules::new([everything], []))))
        .start()
        .await
        .unwrap();
    let mut tx = outbox.begin().await.unwrap();
    for n in 0..100 {
        tx.write(Event::builder("Placed").key(format!("k{}", n % 40)).json(&n)).await.unwrap();
    }
    tx.commit().await.unwrap();
    let found = async |status| {
        let query = Query { statuses: vec![status], ..Query::default() };
        store.list(&query, Seq(0), 1_000).await.unwrap().events
    };
    let done = async {
        while found(Status::Done).await.len() < 100 {
            let dead = found(Status::Dead).await;
            assert!(dead.is_empty(), "{} are dead: {:?}", dead.len(), dead[0].last_error);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, done).await.expect("all of them get through");
    outbox.shutdown().await;
    assert!(found(Status::Done).await.iter().all(|event| event.attempts == 0));
    assert_eq!(receiver.arrived().len(), 100);
}

#[tokio::test]
async fn who_is_busy_is_there() {
    let receiver = Receiver::start();
    assert_eq!(Options::new(receiver.url() + "/busy").open().unwrap().check().await, Ok(()));
}
