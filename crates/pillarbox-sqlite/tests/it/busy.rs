//! Waiting for the write lock, and futures that are dropped while they wait.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use pillarbox_core::domain::PartitionSet;
use pillarbox_core::port::{
    Batch, Change, OwnStore as _, ReadStore as _, Settled, StoreErrorKind, TransactStore as _, WakeStore as _,
    WriteStore as _,
};
use pillarbox_sqlite::Options;

use crate::support::{MINUTE, Outbox, event, join, new_row, open, outcome, owner, settle};

#[tokio::test]
async fn a_lock_held_elsewhere_is_unavailable_after_the_timeout() {
    let outbox = Outbox::new().await;
    let hasty = open(&outbox.folder, Options::new().busy_timeout(Duration::from_millis(20))).await;
    let lease = join(&hasty, "n", MINUTE).await;
    let elsewhere = outbox.begin().await.unwrap();
    for error in [
        hasty.begin().await.unwrap_err(),
        hasty.renew(&lease, MINUTE).await.unwrap_err(),
        hasty.settle(&lease, &Batch::default()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains("busy"), "{error}");
    }
    outbox.rollback(elsewhere).await.unwrap();
    assert!(hasty.renew(&lease, MINUTE).await.unwrap().is_some());
}

#[tokio::test]
async fn a_second_transaction_of_one_task_is_refused_and_does_not_hang() {
    let outbox = Outbox::new().await;
    let hasty = open(&outbox.folder, Options::new().busy_timeout(Duration::from_millis(20))).await;
    let first = hasty.begin().await.unwrap();
    assert_eq!(hasty.begin().await.unwrap_err().kind(), StoreErrorKind::Unavailable);
    hasty.commit(first).await.unwrap();
    hasty.begin().await.unwrap();
}

#[tokio::test]
async fn a_reader_that_turns_writer_too_late_has_a_conflict() {
    let outbox = Outbox::new().await;
    outbox.write([event()]).await;
    let mut late = outbox.pool().begin().await.unwrap();
    sqlx::query("select count(*) from outbox_event").fetch_one(&mut *late).await.unwrap();
    outbox.write([event()]).await;
    let error = outbox.insert(&mut late, &[new_row(event())]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error:?}");
}

#[tokio::test]
async fn a_dropped_transaction_leaves_nothing_and_no_lock() {
    let outbox = Outbox::new().await;
    for _ in 0..10 {
        let mut tx = outbox.begin().await.unwrap();
        outbox.insert(&mut tx, &[new_row(event())]).await.unwrap();
        drop(tx);
    }
    outbox.write([event()]).await;
    assert_eq!(outbox.number("select count(*) from outbox_event").await, 1);
}

/// Polls a future so many times, and drops it. `None` when it was not done by then.
async fn cut<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        // Lets the connection's thread go on, so that the cut falls at another point.
        std::thread::yield_now();
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test]
async fn a_settle_that_is_cut_off_anywhere_happens_whole_or_not_at_all() {
    let outbox = Outbox::new().await;
    let (lease, taken) = owner(&outbox, "n").await;
    for polls in (0..200).step_by(3) {
        outbox.write([event(), event()]).await;
        let page = outbox.page_after(0).await;
        let outcomes = page.rows.iter().map(|row| outcome(row, &taken, Change::Delete)).collect();
        let batch = Batch { outcomes, holds: vec![], mark: Some(page.position.mark) };
        let cut_off = cut(outbox.settle(&lease, &batch), polls).await;
        // The next call on the same connection finds no transaction open.
        assert!(outbox.take(&lease, PartitionSet::EMPTY).await.unwrap().is_some());
        let left = outbox.number("select count(*) from outbox_event").await;
        assert!(left == 0 || left == 2, "{left} left after {polls} polls");
        assert!(cut_off.is_none() || left == 0);
        assert_eq!(outbox.settle(&lease, &batch).await.unwrap(), Settled::Applied { stale: 0 });
        assert_eq!(outbox.number("select count(*) from outbox_event").await, 0);
    }
}

#[tokio::test]
async fn a_page_that_is_cut_off_leaves_its_connection_fit() {
    let outbox = Outbox::new().await;
    outbox.write((0..500).map(|_| event())).await;
    for polls in 0..20 {
        cut(outbox.page_after(0), polls).await;
        assert_eq!(outbox.page_after(400).await.rows.len(), 100);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_and_settles_of_two_stores_all_get_through() {
    let outbox = Outbox::new().await;
    let other = outbox.another().await;
    let (lease, taken) = owner(&outbox, "n").await;
    let writers = (0..4).map(|_| {
        let other = other.clone();
        tokio::spawn(async move {
            for _ in 0..20 {
                let mut tx = other.begin().await.unwrap();
                other.insert(&mut tx, &[new_row(event())]).await.unwrap();
                other.commit(tx).await.unwrap();
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut settled = 0;
    while settled < 80 {
        let page = outbox.page_after(0).await;
        settled += page.rows.len();
        let outcomes = page.rows.iter().map(|row| outcome(row, &taken, Change::Delete)).collect();
        assert_eq!(settle(&outbox, &lease, outcomes).await, Settled::Applied { stale: 0 });
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(outbox.number("select count(*) from outbox_event").await, 0);
}

#[tokio::test]
async fn a_commit_of_another_process_is_news() {
    let outbox = Outbox::new().await;
    let other = outbox.another().await;
    outbox.news().await.unwrap();
    assert!(cut(outbox.news(), 50).await.is_none(), "nothing has happened yet");
    let mut tx = other.begin().await.unwrap();
    other.insert(&mut tx, &[new_row(event())]).await.unwrap();
    other.commit(tx).await.unwrap();
    outbox.news().await.unwrap();
}
