//! What a crash of the server undoes: see the module `life`.

use std::time::{Duration, Instant};

use pillarbox_core::Outbox as Engine;
use pillarbox_core::domain::{Delivery, Event, Lease, PartitionSet, Seq};
use pillarbox_core::port::{
    Actor, AdminStore as _, Batch, Candidate, Change, OwnStore as _, Position, PurgeRequest, PurgeScope, Purged, Query,
    ReadStore as _, Scan, SettleStore as _, Settled, StoreError, StoreErrorKind, TransactStore as _, UpkeepStore as _,
    WriteStore as _,
};
use pillarbox_mysql::MySqlStore;
use pillarbox_testkit::servers::{
    Shared,
    mysql::{Options, Server},
};
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};

use super::Own;
use crate::support::{MINUTE, Outbox, event, join, new_row, on_each_server, outcome, owner, seqs, settle};

on_each_server!(
    a_lease_of_before_a_crash_is_void_and_operators_need_none,
    a_lease_of_before_a_restart_is_void_also_without_the_performance_schema,
    numbers_that_a_crashed_server_gives_out_again_are_delivered,
);

async fn a_lease_of_before_a_crash_is_void_and_operators_need_none(like: Shared) {
    a_lease_of_before_is_void(Own::start(like, Options::default()), |server| {
        server.kill_9();
        server.start_again().unwrap();
    })
    .await;
}

async fn a_lease_of_before_a_restart_is_void_also_without_the_performance_schema(like: Shared) {
    let blind = Options::default().setting("performance-schema", "OFF");
    a_lease_of_before_is_void(Own::start(like, blind), |server| server.restart().unwrap()).await;
}

/// The first answer of a server that accepts calls.
async fn answer<T>(mut call: impl AsyncFnMut() -> Result<T, StoreError>) -> Result<T, StoreErrorKind> {
    let end = Instant::now() + MINUTE;
    loop {
        match call().await {
            Err(error) if error.kind() == StoreErrorKind::Unavailable && Instant::now() < end => {
                sleep(Duration::from_millis(10)).await;
            }
            answered => return answered.map_err(|error| error.kind()),
        }
    }
}

/// Lives that begin in the same second are one.
async fn until_the_next_second(outbox: &Outbox) {
    let uptime = "select cast(variable_value as signed)
        from /*M! information_schema.global_status */ /*!80000 performance_schema.global_status */
        where variable_name = 'Uptime'";
    while outbox.number(uptime).await == 0 {
        sleep(Duration::from_millis(10)).await;
    }
}

async fn a_lease_of_before_is_void(mut server: Own, end: impl Fn(&mut Server)) {
    let outbox = Outbox::on(server.database()).await;
    let written = outbox.write([event(), event(), event()]).await;
    let other = join(&outbox, "other", MINUTE).await;
    let (lease, taken) = owner(&outbox, "n", MINUTE).await;
    let rows = outbox.page(&Position::START).await.rows;
    let dead = Change::Dead { attempts: 1, error: "why".into(), progress: None, hold: false };
    settle(&outbox, &lease, vec![outcome(&rows[0], &taken, dead)]).await;
    let batch = Batch { outcomes: vec![outcome(&rows[1], &taken, Change::Done)], ..Batch::default() };
    let work = outbox.begin_work().await.unwrap();
    outbox.rollback(work).await.unwrap();
    until_the_next_second(&outbox).await;
    end(&mut server);

    refuses_the_lease(&outbox, &lease, &batch).await;
    let in_work = answer(async || {
        let mut work = outbox.begin_work().await?;
        outbox.settle_in(&mut work, &lease, &batch).await
    });
    assert_eq!(in_work.await, Err(StoreErrorKind::Rewound));

    // None of these is an owner's.
    answer(async || outbox.check().await).await.unwrap();
    assert_eq!(answer(async || outbox.list(&Query::default(), Seq(0), 10).await).await.unwrap().events.len(), 3);
    assert_eq!(answer(async || outbox.stats().await).await.unwrap().live_nodes, 2);
    let who = Actor::new("me");
    assert_eq!(answer(async || outbox.replay(&written[..1], &who).await).await, Ok(vec![written[0]]));
    let scope = PurgeScope::Finished { done: MINUTE, dead: None };
    let purged =
        answer(async || outbox.purge(PurgeRequest { scope, batch: 10, cursor: None, lease: None }).await).await;
    assert!(matches!(purged, Ok(Purged::Removed { rows: 0, .. })), "{purged:?}");
    answer(async || {
        let mut tx = outbox.begin().await?;
        outbox.insert(&mut tx, &[new_row(event())]).await?;
        outbox.commit(tx).await
    })
    .await
    .unwrap();

    let (lease, taken) = owner(&outbox, "n", MINUTE).await;
    let mark = taken.iter().map(|taken| taken.mark).min().unwrap();
    let found = outbox.page(&Position::at(mark)).await;
    assert_eq!(seqs(&found.rows), [written[1], written[2], Seq(written[2].0 + 1)]);
    let due = outbox.due(PartitionSet::ALL, 10, &mut |_: Candidate<'_>| true).await.unwrap();
    assert_eq!(seqs(&due.rows), written[..1]);
    let done = |rows: &[_]| rows.iter().map(|row| outcome(row, &taken, Change::Done)).collect();
    assert_eq!(settle(&outbox, &lease, done(&found.rows)).await, Settled::Applied { stale: 0 });
    let mut work = outbox.begin_work().await.unwrap();
    let batch = Batch { outcomes: done(&due.rows), ..Batch::default() };
    assert_eq!(outbox.settle_in(&mut work, &lease, &batch).await.unwrap(), Settled::Applied { stale: 0 });
    outbox.commit(work).await.unwrap();
    outbox.until_mark(found.position, Seq(written[2].0 + 1)).await;
    assert!(outbox.renew(&lease, MINUTE).await.unwrap().is_some());
    // That of another outbox with the same store.
    let other = outbox.renew(&other, MINUTE).await.map_err(|error| error.kind());
    assert_eq!(other.map(drop), Err(StoreErrorKind::Rewound));
}

async fn refuses_the_lease(store: &MySqlStore, lease: &Lease, batch: &Batch) {
    let scan =
        || Scan { partitions: PartitionSet::ALL, after: &Position::START, limit: 10, skip_recent: Duration::ZERO };
    let refused = [
        answer(async || store.settle(lease, batch).await).await.map(drop),
        answer(async || store.renew(lease, MINUTE).await).await.map(drop),
        answer(async || store.take(lease, PartitionSet::ALL).await).await.map(drop),
        answer(async || store.start(lease, Seq(1)).await).await.map(drop),
        answer(async || store.page(scan(), &mut |_: Candidate<'_>| true).await).await.map(drop),
        answer(async || store.rows(&[Seq(1)]).await).await.map(drop),
    ];
    assert_eq!(refused, [Err(StoreErrorKind::Rewound); 6]);
}

/// MySQL writes its log once a second whatever it is told, and may have just done so: then the test begins anew.
async fn numbers_that_a_crashed_server_gives_out_again_are_delivered(like: Shared) {
    for _ in 0..10 {
        if numbers_that_come_again_are_delivered(like).await {
            return;
        }
        assert_eq!(like, Shared::MySql, "the test needs a server that has lost what it had not written");
    }
    panic!("the test needs a server that has lost what it had not written");
}

/// A node that lives on has read past numbers that are lost, and has all of them in flight.
async fn numbers_that_come_again_are_delivered(like: Shared) -> bool {
    const LOST: &str = "1";
    const KEPT: &str = "2";
    let events = |count, payload: &'static str| (0..count).map(move |_| Event::builder("Placed").json_text(payload));
    let durable = Options::default().setting("innodb-flush-log-at-trx-commit", "1");
    let mut server = Own::start(like, durable.setting("innodb-flush-log-at-timeout", "2700"));
    let outbox = Outbox::on(server.database()).await;
    let (delivered, mut deliveries) = mpsc::unbounded_channel();
    let (release, released) = watch::channel(false);
    let engine = Engine::multi_node(outbox.another().await)
        .route("Placed", move |delivery: Delivery| {
            let payload = delivery.event().payload().as_text().unwrap().to_owned();
            let (delivered, mut released) = (delivered.clone(), released.clone());
            async move {
                let _ = delivered.send(payload.clone());
                if payload == LOST {
                    let _ = released.wait_for(|released| *released).await;
                }
            }
        })
        .heartbeat(Duration::from_secs(20))
        .stale_after(MINUTE)
        .start()
        .await
        .unwrap();
    until_the_next_second(&outbox).await;
    server.admin_client("", "set global innodb_flush_log_at_trx_commit = 0").unwrap();
    outbox.write(events(20, LOST)).await;
    deliveries.recv().await.unwrap();
    server.kill_9();
    server.start_again().unwrap();

    let outbox = Outbox { store: outbox.another().await, database: outbox.database };
    let lost = outbox.number("select count(*) from outbox_event").await == 0;
    if lost {
        let seqs = outbox.write(events(3, KEPT)).await;
        assert!(seqs.iter().all(|seq| seq.0 <= 20), "the test needs numbers that come again: {seqs:?}");
        release.send(true).unwrap();
        for _ in &seqs {
            while timeout(MINUTE, deliveries.recv()).await.expect("delivered within a minute").unwrap() != KEPT {}
        }
    }
    drop(release);
    engine.shutdown().await;
    lost
}
