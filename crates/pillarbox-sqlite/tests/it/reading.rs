//! Pages, due rows, lanes, broken rows.

use std::time::Duration;

use pillarbox_core::domain::{Key, Partition, PartitionSet, Seq, Timestamp};
use pillarbox_core::port::{
    Batch, Candidate, Change, Hold, HoldChange, HoldKind, Position, ReadStore as _, Row, Scan, Settled,
};

use crate::support::{MINUTE, Outbox, dead, event, keyed, outcome, owner, page, seqs, settle};

#[tokio::test]
async fn numbers_follow_the_order_of_the_rows_at_every_size() {
    let outbox = Outbox::new().await;
    let mut next = 1;
    for size in [0, 1, 2, 3, 100, 127, 128, 300] {
        let seqs = outbox.write((0..size).map(|_| event())).await;
        assert_eq!(seqs, (next..next + size).map(Seq).collect::<Vec<_>>());
        next += size;
    }
}

#[tokio::test]
async fn what_is_written_is_read_to_the_byte() {
    let outbox = Outbox::new().await;
    let written: Vec<_> = [
        keyed("k")
            .aggregate("Order", "7")
            .tenant("t")
            .header("a", "ä\n\"")
            .occurred_at(Timestamp::from_micros(123_456_789)),
        event(),
        pillarbox_core::Event::builder("Raw").bytes("application/x-protobuf", vec![0, 159, 146, 150]),
        pillarbox_core::Event::builder("Empty").bytes("a/b", vec![]),
        pillarbox_core::Event::builder("Text").json_text("{ \"b\" : 1,\n \"a\":2.50 }"),
    ]
    .map(|event| event.build().unwrap())
    .into();
    outbox.write(written.iter().map(pillarbox_core::Event::to_builder)).await;
    let page = outbox.page_after(0).await;
    let read: Vec<_> = page
        .rows
        .into_iter()
        .map(|row| match row {
            Row::Event(record) => record.event,
            broken @ Row::Broken { .. } => panic!("{broken:?}"),
        })
        .collect();
    assert_eq!(read, written);
    assert_eq!(outbox.number("select count(*) from outbox_event where typeof(payload) = 'text'").await, 3);
}

#[tokio::test]
async fn refused_rows_neither_fill_a_page_nor_stop_it() {
    let outbox = Outbox::new().await;
    outbox.write((0..1_000).map(|_| event())).await;
    let found = page(&outbox, 0, &mut |candidate| candidate.seq.0 > 950).await;
    assert_eq!(found.rows.len(), 50);
    assert_eq!((found.position.seq, found.more), (Seq(1_000), false));
    let full = page(&outbox, 0, &mut |candidate| candidate.seq.0 % 2 == 0).await;
    assert_eq!((full.rows.len(), full.position.seq, full.more), (100, Seq(200), true));
}

#[tokio::test]
async fn an_exhausted_page_passes_the_rows_of_others() {
    let outbox = Outbox::new().await;
    outbox.write((0..10).map(|_| event())).await;
    let scan = |partition| Scan {
        partitions: PartitionSet::from_iter([Partition(partition)]),
        after: &Position::START,
        limit: 5,
        skip_recent: Duration::ZERO,
    };
    let others = outbox.page(scan(8), &mut |_: Candidate<'_>| true).await.unwrap();
    assert_eq!((others.rows.len(), others.position.seq, others.more), (0, Seq(10), false));
    let own = outbox.page(scan(7), &mut |_: Candidate<'_>| true).await.unwrap();
    assert_eq!((own.rows.len(), own.position.seq, own.more), (5, Seq(5), true));
    let empty = outbox.page_after(10).await;
    assert_eq!((empty.rows.len(), empty.position.seq, empty.more), (0, Seq(10), false));
}

#[tokio::test]
async fn recent_rows_stop_the_page_before_them() {
    let outbox = Outbox::new().await;
    outbox.write([event(), event(), event()]).await;
    outbox.run("update outbox_event set created_at = 0 where seq <> 2").await;
    let scan = Scan { partitions: PartitionSet::ALL, after: &Position::START, limit: 5, skip_recent: MINUTE };
    let page = outbox.page(scan, &mut |_: Candidate<'_>| true).await.unwrap();
    assert_eq!((seqs(&page.rows), page.position.seq, page.more), (vec![1], Seq(1), false));
}

#[tokio::test]
async fn broken_rows_are_told_apart_and_their_neighbours_go_on() {
    let outbox = Outbox::new().await;
    outbox.write((0..9).map(|_| keyed("k"))).await;
    for sql in [
        "update outbox_event set event_id = 'no-ulid' where seq = 1",
        "update outbox_event set headers = '{oops' where seq = 2",
        "update outbox_event set attempts = -1 where seq = 3",
        "update outbox_event set attempts = 'many' where seq = 4",
        "update outbox_event set payload = 17 where seq = 5",
        "update outbox_event set event_type = '' where seq = 6",
        "update outbox_event set event_key = x'ff' where seq = 7",
        "update outbox_event set occurred_at = 'noon' where seq = 8",
    ] {
        outbox.run(sql).await;
    }
    let rows = outbox.page_after(0).await.rows;
    let words = ["event_id", "headers", "attempts", "attempts", "payload", "event type", "event_key", "occurred_at"];
    for (row, word) in rows.iter().zip(words) {
        let Row::Broken { reason, .. } = row else { panic!("{row:?} is not broken") };
        assert!(reason.contains(word), "{reason}");
    }
    assert_eq!(rows[0].key(), Some(&Key::from("k")));
    assert_eq!(rows[6].key(), None);
    assert!(matches!(rows[8], Row::Event(_)));

    let (lease, taken) = owner(&outbox, "n").await;
    let outcomes = rows[..8].iter().map(|row| outcome(row, &taken, dead(false))).collect();
    assert_eq!(settle(&outbox, &lease, outcomes).await, Settled::Applied { stale: 0 });
    assert_eq!(seqs(&outbox.page_after(0).await.rows), [9]);
}

#[tokio::test]
async fn due_rows_come_by_their_time_and_the_next_is_announced() {
    let outbox = Outbox::new().await;
    outbox
        .write([
            event().available_at(Timestamp::from_micros(5)),
            event().available_at(Timestamp::from_micros(3)),
            event().deliver_after(MINUTE),
            event(),
        ])
        .await;
    assert_eq!(seqs(&outbox.page_after(0).await.rows), [4]);
    let due = outbox.due(PartitionSet::ALL, 10, &mut |_: Candidate<'_>| true).await.unwrap();
    assert_eq!(seqs(&due.rows), [2, 1]);
    assert!(due.next.unwrap() <= MINUTE && due.next.unwrap() > MINUTE / 2, "{due:?}");
    let one = outbox.due(PartitionSet::ALL, 1, &mut |candidate: Candidate<'_>| candidate.seq.0 != 2).await.unwrap();
    assert_eq!(seqs(&one.rows), [1]);
    let foreign = PartitionSet::from_iter([Partition(8)]);
    let none = outbox.due(foreign, 10, &mut |_: Candidate<'_>| true).await.unwrap();
    assert_eq!((none.rows.len(), none.next), (0, None));
}

#[tokio::test]
async fn a_retry_is_due_later_and_keeps_what_it_is_not_given() {
    let outbox = Outbox::new().await;
    outbox.write([keyed("a"), keyed("a")]).await;
    let (lease, taken) = owner(&outbox, "n").await;
    let rows = outbox.page_after(0).await.rows;
    let retry = |after, error: Option<&str>, progress: Option<&str>| Change::Retry {
        attempts: 2,
        after,
        error: error.map(Into::into),
        progress: progress.map(Into::into),
    };
    settle(&outbox, &lease, vec![outcome(&rows[0], &taken, retry(MINUTE, Some("boom \"1\""), Some("[0]")))]).await;
    assert_eq!(outbox.rows(&[Seq(1), Seq(2)]).await.unwrap().len(), 1);
    assert_eq!(seqs(&outbox.lane(rows[0].partition(), &"a".into(), Seq(1), 9).await.unwrap()), [2]);
    settle(&outbox, &lease, vec![outcome(&rows[0], &taken, retry(Duration::ZERO, None, None))]).await;
    let lane = outbox.lane(rows[0].partition(), &"a".into(), Seq(1), 9).await.unwrap();
    assert_eq!(seqs(&lane), [1, 2]);
    let Row::Event(record) = &lane[0] else { panic!() };
    assert_eq!((record.attempts, record.progress.as_deref()), (2, Some("[0]")));
    let error: String =
        sqlx::query_scalar("select last_error from outbox_event where seq = 1").fetch_one(outbox.pool()).await.unwrap();
    assert_eq!(error, "boom \"1\"");
}

#[tokio::test]
async fn a_finished_row_is_neither_revived_nor_counted_as_head() {
    let outbox = Outbox::new().await;
    outbox.write([keyed("a")]).await;
    let (lease, taken) = owner(&outbox, "n").await;
    let row = outbox.page_after(0).await.rows.remove(0);
    settle(&outbox, &lease, vec![outcome(&row, &taken, Change::Done)]).await;
    settle(&outbox, &lease, vec![outcome(&row, &taken, dead(true))]).await;
    settle(&outbox, &lease, vec![outcome(&row, &taken, Change::Delete)]).await;
    assert_eq!(outbox.number("select count(*) from outbox_event where status = 'DONE' and done_at > 0").await, 1);
    assert_eq!(outbox.number("select count(*) from outbox_hold").await, 0);
}

#[tokio::test]
async fn gaps_in_a_batch_are_left_alone() {
    let outbox = Outbox::new().await;
    outbox.write((0..100).map(|_| event())).await;
    let (lease, taken) = owner(&outbox, "n").await;
    let rows = outbox.page_after(0).await.rows;
    for (change, keep) in [(Change::Done, 3), (Change::Delete, 30)] {
        let outcomes = rows.iter().filter(|row| row.seq().0 % keep != 0);
        settle(&outbox, &lease, outcomes.map(|row| outcome(row, &taken, change.clone())).collect()).await;
        let left = outbox.page_after(0).await.rows;
        assert!(left.iter().all(|row| row.seq().0 % 3 == 0));
        assert!(left.iter().filter(|row| row.seq().0 % keep == 0).count() >= 3);
    }
}

#[tokio::test]
async fn a_dead_head_keeps_its_hold_until_it_is_cleared() {
    let outbox = Outbox::new().await;
    outbox.write([keyed("a"), keyed("a")]).await;
    let (lease, taken) = owner(&outbox, "n").await;
    let rows = outbox.page_after(0).await.rows;
    let partition = rows[0].partition();
    let hold = |kind, from| Hold { partition, key: "a".into(), kind, from: Seq(from) };
    settle(&outbox, &lease, vec![outcome(&rows[0], &taken, dead(true))]).await;
    let changes = async |holds| {
        let batch = Batch { holds, ..Batch::default() };
        outbox.settle(&lease, &batch).await.unwrap();
        outbox.recall(&taken).await.unwrap().holds
    };
    let overflow = HoldChange::Set(hold(HoldKind::Overflow, 2));
    assert_eq!(changes(vec![overflow.clone()]).await, [hold(HoldKind::DeadHead, 1)]);
    let clear = HoldChange::Clear { partition, key: "a".into() };
    assert_eq!(changes(vec![clear.clone(), overflow]).await, [hold(HoldKind::Overflow, 2)]);
    assert_eq!(changes(vec![clear]).await, []);
}
