//! Transactional handlers on PostgreSQL.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use pillarbox_core::{
    HandlerError, Metadata, Outbox as Engine, OutboxEvent as _, RetryPolicy,
    domain::Status,
    engine::Work,
    port::{AdminStore as _, Batch, Change, SettleStore as _, Settled, StoreErrorKind, TransactStore as _},
};
use pillarbox_macros::OutboxEvent;
use pillarbox_postgres::{Options, PostgresStore};
use serde::{Deserialize, Serialize};

use crate::support::{Outbox, event, outcome, owner, page, run_in};

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, key = name)]
struct Ordered {
    name: String,
}

async fn until(outbox: &Outbox, status: Status, count: u64) {
    let wait = async {
        while outbox.stats().await.unwrap().count(status) != count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap();
}

async fn place(engine: &Engine<PostgresStore>, names: &[&str]) {
    let mut tx = engine.begin().await.unwrap();
    tx.write_all(names.iter().map(|name| Ordered { name: (*name).into() }.to_event())).await.unwrap();
    tx.commit().await.unwrap();
}

/// PostgreSQL lets nothing follow a statement that failed: a handler that says that all is well is wrong.
#[tokio::test]
async fn an_error_that_a_transactional_handler_swallows_is_its_failure() {
    let outbox = Outbox::new().await;
    outbox.run("create table work (value text unique)").await;
    let add = |mut work: Work<PostgresStore>, ordered: Ordered| async move {
        let add = sqlx::query("insert into work values ($1)").bind(&ordered.name).execute(&mut *work).await;
        add.map_err(HandlerError::from)?;
        if ordered.name == "b" {
            let _ = sqlx::query("insert into work values ('b')").execute(&mut *work).await;
        }
        Ok::<_, HandlerError>(())
    };
    let engine = Engine::single_node(outbox.another(Options::new())).workers(1).retry(RetryPolicy::never());
    let engine = engine.handle_in_tx(add).start().await.unwrap();
    place(&engine, &["a", "b", "c"]).await;
    until(&outbox, Status::Done, 2).await;
    until(&outbox, Status::Dead, 1).await;
    engine.shutdown().await;
    assert_eq!(outbox.number("select count(*) from work where value in ('a', 'c')").await, 2);
    assert_eq!(outbox.number("select count(*) from work").await, 2);
    let told = "select count(*) from outbox_event where last_error like '%earlier statement%'";
    assert_eq!(outbox.number(told).await, 1);
}

/// A constraint that is looked at when the transaction commits is the failure of whoever broke it, alone.
#[tokio::test]
async fn a_constraint_that_refuses_the_commit_fails_the_handler_that_broke_it() {
    let outbox = Outbox::new().await;
    outbox.run("create table work (value text unique deferrable initially deferred)").await;
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let add = move |mut work: Work<PostgresStore>, ordered: Ordered, _: Metadata| {
        count.fetch_add(1, Ordering::Relaxed);
        async move {
            let times = if ordered.name == "b" { 2 } else { 1 };
            for _ in 0..times {
                sqlx::query("insert into work values ($1)").bind(&ordered.name).execute(&mut *work).await?;
            }
            Ok::<_, sqlx::Error>(())
        }
    };
    let engine = Engine::single_node(outbox.another(Options::new())).workers(1).retry(RetryPolicy::never());
    let engine = engine.handle_in_tx(add).start().await.unwrap();
    place(&engine, &["a", "b", "c"]).await;
    until(&outbox, Status::Done, 2).await;
    until(&outbox, Status::Dead, 1).await;
    engine.shutdown().await;
    assert_eq!(outbox.number("select count(*) from work").await, 2);
}

/// A node can be taken over while such a handler works: its row is locked by nobody. From the fence on it is, for ten
/// seconds at the most.
#[tokio::test]
async fn only_the_settle_of_a_transactional_handler_locks_the_node() {
    let outbox = Outbox::new().await;
    outbox.write([event()]).await;
    let (lease, taken) = owner(&outbox, "n").await;
    let rows = page(&outbox, &pillarbox_core::port::Position::START, 9).await.rows;
    let mut tx = outbox.begin_work().await.unwrap();
    run_in(&mut tx, "create table work (value text)").await;
    outbox.keep(&mut tx).await.unwrap();
    let mut other = outbox.session().await;
    run_in(&mut other, "begin; select from outbox_instance for update nowait; commit").await;
    let batch = Batch { outcomes: vec![outcome(&rows[0], &taken, Change::Done)], ..Batch::default() };
    assert_eq!(outbox.settle_in(&mut tx, &lease, &batch).await.unwrap(), Settled::Applied { stale: 0 });
    let locked = sqlx::raw_sql("begin; select from outbox_instance for update nowait").execute(&mut other).await;
    assert!(locked.is_err());
    run_in(&mut other, "rollback").await;
    let limit: String =
        sqlx::query_scalar("show idle_in_transaction_session_timeout").fetch_one(&mut *tx).await.unwrap();
    assert_eq!(limit, "10s");
    // Whoever asks waits for its end.
    let seqs = [rows[0].seq()];
    let asked = outbox.unsettled(&seqs);
    let mut asked = std::pin::pin!(asked);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut asked).await.is_err());
    outbox.commit(tx).await.unwrap();
    assert_eq!(asked.await.unwrap(), []);
}

/// Handlers that ask for a transaction of the application's don't wait for their own.
#[tokio::test]
async fn transactional_handlers_leave_the_applications_pool_alone() {
    let outbox = Outbox::new().await;
    let store = outbox.another(Options::new().pool_size(1));
    let mut work = store.begin_work().await.unwrap();
    let tx = store.begin().await.unwrap();
    store.keep(&mut work).await.unwrap();
    let failed = sqlx::query("select nonsense").execute(&mut *work).await;
    assert!(failed.is_err());
    assert_eq!(store.keep(&mut work).await.unwrap_err().kind(), StoreErrorKind::Rejected);
    store.undo(&mut work).await.unwrap();
    store.keep(&mut work).await.unwrap();
    store.commit(work).await.unwrap();
    store.rollback(tx).await.unwrap();
}
