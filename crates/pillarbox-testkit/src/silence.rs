//! A database that falls silent: its connections stay open, and what was asked on them is never answered. So it looks from a node
//! when the server's machine has lost its power, or something on the way has forgotten the connections.

use std::{io, time::Duration};

use pillarbox_core::{
    Delivery, Event, Outbox,
    engine::Heartbeat,
    port::{Store, TransactStore},
};
use tokio::sync::mpsc;

use crate::{
    patience::{PATIENCE, within},
    servers::Proxy,
    told::Log,
};

/// Runs a node whose database falls silent until its lease is over and then answers new questions: what was written
/// meanwhile is delivered. The node's store goes through the proxy and waits a second for an answer, the other one does not go
/// through it. It must be called in a runtime of one thread.
///
/// # Panics
/// When it is not delivered.
pub async fn is_outlived<S: Store + TransactStore>(store: S, direct: S, proxy: &Proxy) {
    let log = Log::new();
    let (deliver, mut delivered) = mpsc::unbounded_channel();
    let node = Outbox::multi_node(store)
        .route("Heard", move |delivery: Delivery| {
            let _ = deliver.send(delivery.event().id());
            async { Ok::<_, io::Error>(()) }
        })
        .heartbeat(Duration::from_millis(200))
        .stale_after(Duration::from_secs(2))
        .heartbeat_on(Heartbeat::SharedRuntime)
        .start()
        .await
        .expect("start");
    let writer = Outbox::writer_only(direct).start().await.expect("start");
    let write = async || {
        let mut tx = writer.begin().await.expect("begin");
        let id = tx.write(Event::builder("Heard").json(&1)).await.expect("write");
        tx.commit().await.expect("commit");
        id
    };
    // The one before may come again: its settle may be lost.
    let mut is_delivered = async |id| while delivered.recv().await.expect("the node lives") != id {};
    let before = write().await;
    within(PATIENCE, is_delivered(before)).await.expect("a delivery before");

    proxy.lose_answers();
    let meanwhile = write().await;
    log.until("the node has lost its lease").await;
    proxy.resume();
    within(PATIENCE, is_delivered(meanwhile)).await.expect("a delivery afterwards");
    node.shutdown().await;
}
