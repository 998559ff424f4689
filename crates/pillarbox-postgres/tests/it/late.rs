//! Numbers that become visible late: see the module `horizon` for the argument.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use pillarbox_core::domain::{Key, Seq};
use pillarbox_core::port::{Batch, Change, Position, ReadStore as _, Row, TransactStore as _, WriteStore as _};
use pillarbox_testkit::servers::{Postgres, postgres::Version};

use crate::support::{Outbox, event, keyed, new_row, number_in, outcome, owner, page, run_in, seqs};

/// Reads until nothing is open any more; transactions of other tests' databases count as well.
async fn read_to_rest(outbox: &Outbox, mut position: Position) -> Position {
    let end = tokio::time::Instant::now() + Duration::from_mins(1);
    while position.mark < position.seq {
        assert!(tokio::time::Instant::now() < end, "{position:?} does not come to rest");
        let read = outbox.page(&position).await;
        assert!(read.rows.is_empty(), "{:?}", read.rows);
        position = read.position;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    position
}

const WRITE: &str = "insert into outbox_event (event_type, payload) values ('Placed', '7') returning seq";

#[tokio::test]
async fn an_id_that_was_taken_long_before_the_number_is_waited_for() {
    let outbox = Outbox::new().await;
    let mut early = outbox.session().await;
    run_in(&mut early, "begin; select pg_current_xact_id()").await;
    let first = outbox.write([event()]).await;
    let mut read = outbox.page(&Position::START).await;
    assert_eq!(seqs(&read.rows), [first[0].0]);
    let late = number_in(&mut early, WRITE).await;
    let second = outbox.write([event()]).await;
    read = outbox.page(&read.position).await;
    assert_eq!(seqs(&read.rows), [second[0].0]);
    // Its floor is what was given out when it was first seen.
    assert!(read.position.mark.0 < late && read.position.seq >= second[0], "{:?}", read.position);
    run_in(&mut early, "commit").await;
    read = outbox.page(&read.position).await;
    assert_eq!(seqs(&read.rows), [late]);
    read_to_rest(&outbox, read.position).await;
}

#[tokio::test]
async fn rows_of_savepoints_are_found_and_those_rolled_back_are_not() {
    let outbox = Outbox::new().await;
    let mut late = outbox.session().await;
    run_in(&mut late, "begin; savepoint a").await;
    let kept = number_in(&mut late, WRITE).await;
    run_in(&mut late, "release a; savepoint b").await;
    number_in(&mut late, WRITE).await;
    run_in(&mut late, "rollback to b; savepoint c").await;
    let also = number_in(&mut late, WRITE).await;
    outbox.write([event()]).await;
    let read = outbox.page(&Position::START).await;
    run_in(&mut late, "commit").await;
    let read = outbox.page(&read.position).await;
    assert_eq!(seqs(&read.rows), [kept, also]);
    read_to_rest(&outbox, read.position).await;
}

#[tokio::test]
async fn a_transaction_that_is_rolled_back_holds_nothing_up() {
    let outbox = Outbox::new().await;
    let mut late = outbox.session().await;
    run_in(&mut late, "begin").await;
    number_in(&mut late, WRITE).await;
    let written = outbox.write([event()]).await;
    let read = outbox.page(&Position::START).await;
    assert_eq!(read.position.mark, Seq(0));
    run_in(&mut late, "rollback").await;
    let read = outbox.page(&read.position).await;
    assert_eq!((read.rows.len(), read.position.seq), (0, written[0]));
    assert_eq!(read_to_rest(&outbox, read.position).await.mark, written[0]);
}

#[tokio::test]
async fn a_prepared_transaction_is_open_until_it_is_committed() {
    let server = Postgres::options(Version::Debian).setting("max_prepared_transactions", "2").start().unwrap();
    let outbox = Outbox::on(server.database()).await;
    let mut late = outbox.session().await;
    run_in(&mut late, "begin").await;
    let low = number_in(&mut late, WRITE).await;
    run_in(&mut late, "prepare transaction 'x'").await;
    drop(late);
    let written = outbox.write([event()]).await;
    let mut read = outbox.page(&Position::START).await;
    for _ in 0..3 {
        read = outbox.page(&read.position).await;
    }
    assert!(read.position.seq >= written[0] && read.position.mark.0 < low);
    outbox.run("commit prepared 'x'").await;
    assert_eq!(seqs(&outbox.page(&read.position).await.rows), [low]);
}

#[tokio::test]
async fn transactions_held_open_do_not_stop_the_position() {
    let outbox = Outbox::new().await;
    let mut reading = outbox.session().await;
    run_in(&mut reading, "begin isolation level repeatable read; select count(*) from outbox_event").await;
    let mut position = Position::START;
    for _ in 0..5 {
        let written = outbox.write([event(), event()]).await;
        let read = outbox.page(&position).await;
        assert_eq!(seqs(&read.rows), [written[0].0, written[1].0]);
        position = read.position;
    }
    // One that only reads is not in sight; what ran beside the last pass may be.
    position = read_to_rest(&outbox, position).await;

    let mut writing = outbox.session().await;
    run_in(&mut writing, "begin; select pg_current_xact_id()").await;
    let floor = position.seq;
    for _ in 0..5 {
        let written = outbox.write([event(), event()]).await;
        let read = outbox.page(&position).await;
        assert_eq!(seqs(&read.rows), [written[0].0, written[1].0]);
        position = read.position;
        assert!(position.seq >= written[1] && position.mark <= floor, "{position:?}");
    }
    run_in(&mut writing, "commit").await;
    read_to_rest(&outbox, position).await;
}

#[tokio::test]
async fn more_late_rows_than_a_page_come_first_and_in_order() {
    let outbox = Outbox::new().await;
    let mut late = outbox.begin().await.unwrap();
    let rows: Vec<_> = (0..200).map(|_| new_row(event())).collect();
    let low = outbox.insert(&mut late, &rows).await.unwrap();
    let before = outbox.write((0..3).map(|_| event())).await;
    let mut read = outbox.page(&Position::START).await;
    assert_eq!(seqs(&read.rows), before.iter().map(|seq| seq.0).collect::<Vec<_>>());
    outbox.commit(late).await.unwrap();
    let after = outbox.write((0..3).map(|_| event())).await;
    let mut all = Vec::new();
    for _ in 0..10 {
        read = page(&outbox, &read.position, 30).await;
        all.extend(seqs(&read.rows));
    }
    let expected: Vec<i64> = low.iter().chain(&after).map(|seq| seq.0).collect();
    assert_eq!(all, expected);
    read_to_rest(&outbox, read.position).await;
}

/// Writers hold the lock of a row while they write to its key, as the design asks; the reader settles what it reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn racing_writers_on_row_locks_lose_nothing_and_keep_each_keys_order() {
    const WRITERS: usize = 12;
    let outbox = Arc::new(Outbox::new().await);
    outbox.run("create table aggregate (id int primary key, version bigint not null default 0)").await;
    outbox.run("insert into aggregate (id) select generate_series(0, 3)").await;
    let running = Arc::new(AtomicUsize::new(WRITERS));
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (outbox, running) = (outbox.clone(), running.clone());
        writers.push(tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(writer as u64);
            let mut session = outbox.session().await;
            let mut committed = Vec::new();
            for round in 0..60 {
                let mut tx = sqlx::Connection::begin(&mut session).await.unwrap();
                // Some have an id before they wait for the lock.
                if random.bool() {
                    sqlx::query("select pg_current_xact_id()").execute(&mut *tx).await.unwrap();
                }
                let id = random.i32(0..4);
                let lock = sqlx::query("select version from aggregate where id = $1 for update").bind(id);
                lock.execute(&mut *tx).await.unwrap();
                let key = format!("aggregate-{id}");
                let rows: Vec<_> = (0..random.usize(1..4)).map(|_| new_row(keyed(&key))).collect();
                let seqs = outbox.insert(&mut tx, &rows).await.unwrap();
                if random.u8(..4) == 0 {
                    tokio::time::sleep(Duration::from_millis(random.u64(..4))).await;
                }
                if round % 7 == 3 {
                    tx.rollback().await.unwrap();
                } else {
                    tx.commit().await.unwrap();
                    committed.extend(seqs);
                }
            }
            running.fetch_sub(1, Ordering::SeqCst);
            committed
        }));
    }

    let (lease, taken) = owner(&outbox, "n").await;
    let mut random = fastrand::Rng::with_seed(99);
    let mut position = Position::START;
    let mut seen: Vec<(Seq, Option<Key>)> = Vec::new();
    loop {
        let last = running.load(Ordering::SeqCst) == 0;
        let read = page(&outbox, &position, random.usize(1..100)).await;
        for row in &read.rows {
            assert!(row.seq() > position.mark, "{} appeared below the mark of {position:?}", row.seq());
        }
        seen.extend(read.rows.iter().map(|row: &Row| (row.seq(), row.key().cloned())));
        let batch = Batch {
            outcomes: read.rows.iter().map(|row| outcome(row, &taken, Change::Delete)).collect(),
            mark: Some(read.position.mark),
            ..Batch::default()
        };
        outbox.settle(&lease, &batch).await.unwrap();
        // Now and then another owner goes on at the mark alone.
        position = if random.u8(..20) == 0 { Position::at(read.position.mark) } else { read.position };
        if last && read.rows.is_empty() && !read.more {
            break;
        }
    }
    let mut committed = BTreeSet::new();
    for writer in writers {
        committed.extend(writer.await.unwrap());
    }
    let numbers: BTreeSet<Seq> = seen.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(numbers.len(), seen.len(), "each once");
    assert_eq!(numbers, committed, "and none lost");
    let mut last: BTreeMap<Key, Seq> = BTreeMap::new();
    for (seq, key) in seen {
        let before = last.insert(key.unwrap(), seq);
        assert!(before < Some(seq), "{seq} after {before:?}");
    }
}

/// `nextval` shows a number that is 32 ahead for a moment, to those who read the sequence without its lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_position_never_passes_a_number_that_is_yet_to_be_given_out() {
    const DRAWING: i64 = 2;
    const AT_ONCE: i64 = 2;
    const DRAW: &str = "select max(nextval('outbox_event_seq_seq')) from generate_series(1, 2)";
    let outbox = Outbox::new().await;
    let given_out = Arc::new(AtomicI64::new(0));
    let mut drawing = Vec::new();
    for _ in 0..DRAWING {
        let mut session = outbox.session().await;
        let given_out = Arc::clone(&given_out);
        drawing.push(tokio::spawn(async move {
            loop {
                let last = number_in(&mut session, DRAW).await;
                given_out.fetch_max(last, Ordering::SeqCst);
            }
        }));
    }
    let mut position = Position::START;
    for _ in 0..5_000 {
        position = outbox.page(&position).await.position;
        // Those who draw have told what they got, but for the last statement of each.
        let most = given_out.load(Ordering::SeqCst) + DRAWING * AT_ONCE;
        assert!(position.seq.0 <= most, "{} is passed, and {most} at most is given out", position.seq.0);
    }
    drawing.iter().for_each(tokio::task::JoinHandle::abort);
}
