//! S7: two databases of different kinds in one process.

use std::{collections::BTreeSet, time::Duration};

use pillarbox_core::{
    Delivery, Event, Outbox,
    port::{Store, TransactStore},
};
use pillarbox_mysql::MySqlStore;
use pillarbox_sqlite::SqliteStore;
use pillarbox_testkit::servers::Shared;
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::timeout,
};

async fn start<S: Store + TransactStore>(store: S) -> (Outbox<S>, UnboundedReceiver<String>) {
    let (sender, delivered) = unbounded_channel();
    let builder = Outbox::single_node(store).route("Placed", move |delivery: Delivery| {
        let sender = sender.clone();
        async move { sender.send(delivery.event().id().to_string()) }
    });
    (builder.start().await.unwrap(), delivered)
}

async fn write<S: Store + TransactStore>(outbox: &Outbox<S>, n: usize) -> String {
    let mut tx = outbox.begin().await.unwrap();
    let id = tx.write(Event::builder("Placed").key(format!("k{}", n % 3)).json(&n)).await.unwrap();
    tx.commit().await.unwrap();
    id.to_string()
}

async fn receive(delivered: &mut UnboundedReceiver<String>, count: usize) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for _ in 0..count {
        ids.insert(timeout(Duration::from_secs(30), delivered.recv()).await.unwrap().unwrap());
    }
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outboxes_on_databases_of_different_kinds_live_in_one_process_and_share_nothing() {
    let database = Shared::MariaDb.database();
    let folder = tempfile::tempdir().unwrap();
    let file = SqliteStore::open(folder.path().join("shop.db").to_str().unwrap()).await.unwrap();
    let (near, mut at_near) = start(file).await;
    let (far, mut at_far) = start(MySqlStore::open(database.url()).await.unwrap()).await;
    let (mut to_near, mut to_far) = (BTreeSet::new(), BTreeSet::new());
    for n in 0..30 {
        to_near.insert(write(&near, n).await);
        to_far.insert(write(&far, n).await);
    }
    assert_eq!(receive(&mut at_near, 30).await, to_near);
    assert_eq!(receive(&mut at_far, 30).await, to_far);
    near.shutdown().await;
    let last = write(&far, 30).await;
    assert_eq!(receive(&mut at_far, 1).await, BTreeSet::from([last]));
    far.shutdown().await;
    assert!(at_near.try_recv().is_err() && at_far.try_recv().is_err(), "nothing came twice");
}
