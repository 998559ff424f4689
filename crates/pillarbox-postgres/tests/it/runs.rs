//! Settles of numbers that follow each other: what lies between two runs is nobody's but its own.

use pillarbox_core::domain::Seq;
use pillarbox_core::port::{Change, Position, Row, Settled};

use crate::support::{Outbox, event, outcome, owner, settle};

#[tokio::test]
async fn runs_are_finished_and_what_lies_between_them_stays() {
    for (change, left) in [(Change::Delete, 2), (Change::Done, 10)] {
        let outbox = Outbox::new().await;
        let seqs = outbox.write((0..10).map(|_| event())).await;
        let (lease, taken) = owner(&outbox, "n").await;
        let rows = outbox.page(&Position::START).await.rows;
        let between = [seqs[3], seqs[8]];
        let finished = rows.iter().filter(|row| !between.contains(&row.seq()));
        let outcomes = finished.map(|row| outcome(row, &taken, change.clone())).collect();
        assert_eq!(settle(&outbox, &lease, outcomes).await, Settled::Applied { stale: 0 });

        let pending: Vec<Seq> = outbox.page(&Position::START).await.rows.iter().map(Row::seq).collect();
        assert_eq!(pending, between, "{change:?}");
        assert_eq!(outbox.number("select count(*) from outbox_event").await, left, "{change:?}");
    }
}

/// One that another settle has finished is left as it is, wherever it lies.
#[tokio::test]
async fn what_is_finished_already_is_not_finished_again() {
    let outbox = Outbox::new().await;
    outbox.write((0..4).map(|_| event())).await;
    let (lease, taken) = owner(&outbox, "n").await;
    let rows = outbox.page(&Position::START).await.rows;
    let done = |rows: &[Row], change: Change| rows.iter().map(|row| outcome(row, &taken, change.clone())).collect();
    settle(&outbox, &lease, done(&rows[1..3], Change::Done)).await;
    settle(&outbox, &lease, done(&rows, Change::Delete)).await;
    assert_eq!(outbox.number("select count(*) from outbox_event where status = 'DONE'").await, 2);
    assert_eq!(outbox.number("select count(*) from outbox_event").await, 2);
}
