//! The store that a URL names.

use pillarbox::{AnyStore, Delivery, Event, Kind, Outbox, port::UpkeepStore as _};

#[tokio::test]
async fn an_outbox_works_on_the_store_of_its_url() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("a.db").display());
    let store = AnyStore::open(&url).await.unwrap();
    assert_eq!(store.kind(), Kind::Sqlite);
    store.migrate().await.unwrap();
    let (sender, mut delivered) = tokio::sync::mpsc::unbounded_channel();
    let outbox = Outbox::single_node(store)
        .route("Paid", move |delivery: Delivery| {
            let sender = sender.clone();
            async move { sender.send(delivery.event().id()).unwrap() }
        })
        .start()
        .await
        .unwrap();

    let mut tx = outbox.begin().await.unwrap();
    sqlx::query("create table paid (id integer)").execute(tx.sqlite().expect("SQLite")).await.unwrap();
    tx.write(Event::builder("Paid").json(&1)).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    sqlx::query("create table paid (id integer)").execute(tx.sqlite().expect("SQLite")).await.unwrap();
    let id = tx.write(Event::builder("Paid").json(&2)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(delivered.recv().await, Some(id), "what was rolled back is not delivered");
    outbox.shutdown().await;
}
