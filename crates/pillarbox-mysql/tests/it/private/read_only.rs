//! D11: a server that takes no writes, as while its role changes.

use pillarbox_core::port::{
    Batch, Change, OwnStore as _, Position, ReadStore as _, Settled, StoreErrorKind, TransactStore as _,
    WriteStore as _,
};
use pillarbox_testkit::servers::{Shared, mysql::Options};

use super::Own;
use crate::support::{MINUTE, Outbox, event, new_row, on_each_server, outcome, owner, settle};

on_each_server!(a_read_only_server_is_named_as_such_and_nothing_is_lost_when_it_takes_writes_again);

async fn a_read_only_server_is_named_as_such_and_nothing_is_lost_when_it_takes_writes_again(like: Shared) {
    let server = Own::start(like, Options::default());
    let outbox = Outbox::on(server.database()).await;
    outbox.write([event(), event()]).await;
    let (lease, taken) = owner(&outbox, "n", MINUTE).await;
    let rows = outbox.page(&Position::START).await.rows;
    let done: Vec<_> = rows.iter().map(|row| outcome(row, &taken, Change::Done)).collect();
    let batch = Batch { outcomes: done.clone(), ..Batch::default() };
    let switches = match like {
        Shared::MySql => &["read_only", "super_read_only"][..],
        _ => &["read_only"],
    };
    for switch in switches {
        server.admin_client("", &format!("set global {switch} = 1")).unwrap();
        let mut tx = outbox.begin().await.unwrap();
        let insert = outbox.insert(&mut tx, &[new_row(event())]).await.unwrap_err();
        drop(tx);
        let settled = outbox.settle(&lease, &batch).await.unwrap_err();
        for error in [insert, settled, outbox.renew(&lease, MINUTE).await.unwrap_err()] {
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{switch}: {error:?}");
            assert!(error.to_string().contains("read-only"), "{switch}: {error}");
        }
        server.admin_client("", "set global read_only = 0").unwrap();
    }
    assert!(outbox.renew(&lease, MINUTE).await.unwrap().is_some());
    assert_eq!(settle(&outbox, &lease, done).await, Settled::Applied { stale: 0 });
    outbox.write([event()]).await;
    let states = "select group_concat(status, attempts order by seq separator ' ') from outbox_event";
    assert_eq!(outbox.database.run(states).unwrap().trim(), "DONE0 DONE0 NEW0");
}
