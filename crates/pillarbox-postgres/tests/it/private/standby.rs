//! D11: the server changes its role.

use pillarbox_core::port::{
    Batch, Change, OwnStore as _, Position, ReadStore as _, Settled, StoreErrorKind, TransactStore as _,
    WriteStore as _,
};
use pillarbox_postgres::Options;
use pillarbox_testkit::servers::{Postgres, postgres::Version};

use crate::support::{MINUTE, Outbox, event, new_row, outcome, owner, settle};

#[tokio::test]
async fn a_standby_is_named_as_such_and_nothing_is_lost_when_it_is_promoted() {
    let mut server = Postgres::start(Version::Debian).unwrap();
    let outbox = Outbox::on(server.database()).await;
    outbox.write([event(), event()]).await;
    let (lease, taken) = owner(&outbox, "n").await;
    let rows = outbox.page(&Position::START).await.rows;
    let done: Vec<_> = rows.iter().map(|row| outcome(row, &taken, Change::Done)).collect();

    server.restart_as_standby().unwrap();
    // Without connections to the server that was.
    let store = outbox.another(Options::new());
    let mut tx = store.begin().await.unwrap();
    let insert = store.insert(&mut tx, &[new_row(event())]).await.unwrap_err();
    drop(tx);
    let batch = Batch { outcomes: done, ..Batch::default() };
    let settled = store.settle(&lease, &batch).await.unwrap_err();
    for error in [insert, settled, store.renew(&lease, MINUTE).await.unwrap_err()] {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains("standby"), "{error:?}");
    }

    // What was not sent before a real standby took over is gone, and its numbers come again.
    server.promote().unwrap();
    let renewed = store.renew(&lease, MINUTE).await.unwrap_err();
    assert_eq!(renewed.kind(), StoreErrorKind::Rewound, "{renewed:?}");
    let (lease, taken) = owner(&store, "n").await;
    let done = rows.iter().map(|row| outcome(row, &taken, Change::Done)).collect();
    assert_eq!(settle(&store, &lease, done).await, Settled::Applied { stale: 0 });
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &[new_row(event())]).await.unwrap();
    store.commit(tx).await.unwrap();
    let states = "select string_agg(status || attempts, ' ' order by seq) from outbox_event";
    assert_eq!(outbox.database.run(states).unwrap().trim(), "DONE0 DONE0 NEW0");
}
