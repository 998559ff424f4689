//! Numbers that become visible late, and the low-water mark.

use std::time::{Duration, Instant};

use pillarbox_core::domain::{PartitionSet, Seq};
use pillarbox_core::port::{
    Batch, Candidate, Change, Position, ReadStore as _, Scan, Settled, TransactStore as _, UpkeepStore as _,
    WriteStore as _,
};
use pillarbox_mysql::{MySqlStore, Options};
use pillarbox_testkit::servers::{Database, MariaDb, MySql, Shared, login};
use sqlx::Executor as _;

use crate::support::{MINUTE, Outbox, event, keyed, new_row, on_each_server, outcome, owner, page, seqs};

on_each_server!(
    the_mark_waits_for_an_open_transaction_and_what_it_writes_is_found,
    a_late_commit_comes_before_its_successor,
    numbers_that_were_rolled_back_leave_no_trace,
    a_transaction_open_all_the_time_stops_nothing,
    without_the_privilege_the_longest_transaction_counts,
    a_transaction_that_has_written_nothing_is_not_waited_for,
    what_slipped_through_is_found_by_the_sweep,
    a_late_batch_larger_than_a_page_comes_in_order,
    a_page_of_few_partitions_among_many_gaps_misses_nothing,
);

async fn the_mark_waits_for_an_open_transaction_and_what_it_writes_is_found(server: Shared) {
    let outbox = Outbox::new(server).await;
    let mut late = outbox.begin().await.unwrap();
    let low = outbox.insert(&mut late, &[new_row(event())]).await.unwrap()[0];
    let others = outbox.write((0..20).map(|_| event())).await;
    let mut position = Position::START;
    let end = Instant::now() + Duration::from_millis(1_500);
    let mut known = Vec::new();
    while Instant::now() < end {
        let page = page(&outbox, &position, &mut |c: Candidate<'_>| !known.contains(&c.seq)).await;
        known.extend(seqs(&page.rows));
        position = page.position;
        assert!(position.mark < low, "{position:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(known, others);
    assert_eq!(position.seq, others[19]);
    outbox.commit(late).await.unwrap();
    let page = page(&outbox, &position, &mut |c: Candidate<'_>| !known.contains(&c.seq)).await;
    assert_eq!(seqs(&page.rows), [low]);
    let position = outbox.until_mark(page.position, others[19]).await;
    assert_eq!(position, Position::at(others[19]));
}

async fn a_late_commit_comes_before_its_successor(server: Shared) {
    let outbox = Outbox::new(server).await;
    let mut first = outbox.begin().await.unwrap();
    let ten = outbox.insert(&mut first, &[new_row(keyed("k"))]).await.unwrap()[0];
    let twelve = outbox.write([keyed("other")]).await[0];
    let read = outbox.page(&Position::START).await;
    assert_eq!(seqs(&read.rows), [twelve]);
    outbox.commit(first).await.unwrap();
    let thirteen = outbox.write([keyed("k")]).await[0];
    // In one page, also when it takes several chunks to find them.
    let scan = Scan { partitions: PartitionSet::ALL, after: &read.position, limit: 1, skip_recent: Duration::ZERO };
    let one = outbox.store.page(scan, &mut |c: Candidate<'_>| c.seq != twelve).await.unwrap();
    assert_eq!((seqs(&one.rows), one.more), (vec![ten], true));
    let two = page(&outbox, &one.position, &mut |c: Candidate<'_>| c.seq != twelve && c.seq != ten).await;
    assert_eq!(seqs(&two.rows), [thirteen]);
}

async fn numbers_that_were_rolled_back_leave_no_trace(server: Shared) {
    let outbox = Outbox::new(server).await;
    for _ in 0..100 {
        let mut tx = outbox.begin().await.unwrap();
        outbox.insert(&mut tx, &[new_row(event())]).await.unwrap();
        outbox.rollback(tx).await.unwrap();
        outbox.write([event()]).await;
    }
    let read = page(&outbox, &Position::START, &mut |_: Candidate<'_>| false).await;
    assert_eq!(read.position.seq, Seq(200));
    assert!(read.position.token.is_some());
    let position = outbox.until_mark(read.position, Seq(200)).await;
    assert_eq!(position, Position::at(Seq(200)));
}

async fn a_transaction_open_all_the_time_stops_nothing(server: Shared) {
    let outbox = Outbox::new(server).await;
    let (lease, taken) = owner(&outbox, "n", MINUTE).await;
    let mut open = outbox.begin().await.unwrap();
    let low = outbox.insert(&mut open, &[new_row(keyed("k"))]).await.unwrap()[0];
    let mut position = Position::START;
    let mut seen = Vec::new();
    let mut written = Vec::new();
    for round in 0..30 {
        written.extend(outbox.write((0..50).map(|_| event())).await);
        let read = outbox.page(&position).await;
        assert_eq!(read.rows.len(), 50, "round {round} has read others again");
        seen.extend(seqs(&read.rows));
        position = read.position;
        let outcomes = read.rows.iter().map(|row| outcome(row, &taken, Change::Done)).collect();
        let batch = Batch { outcomes, mark: Some(position.mark), ..Batch::default() };
        assert_eq!(outbox.settle(&lease, &batch).await.unwrap(), Settled::Applied { stale: 0 });
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert_eq!(seen, written);
    assert_eq!(position.mark, Seq(low.0 - 1));
    outbox.commit(open).await.unwrap();
    assert_eq!(seqs(&outbox.page(&position).await.rows), [low]);
}

/// Others read the server's list all the time, so that it is not made anew: on a server of its own, since no other
/// test would see its mark move.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_list_of_transactions_is_not_believed() {
    let mariadb = tokio::task::spawn_blocking(|| MariaDb::start().unwrap()).await.unwrap();
    with_an_old_list(mariadb.database()).await;
    if Shared::MySql.is_there() {
        let mysql = tokio::task::spawn_blocking(|| MySql::start().unwrap()).await.unwrap();
        with_an_old_list(mysql.database()).await;
    }
}

async fn with_an_old_list(database: Database) {
    let store = MySqlStore::open(database.url()).await.unwrap();
    store.migrate().await.unwrap();
    let outbox = Outbox { store, database };
    let mut session = outbox.session().await;
    let reading = tokio::spawn(async move {
        loop {
            session.execute("select count(*) from information_schema.innodb_trx").await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut late = outbox.begin().await.unwrap();
    let low = outbox.insert(&mut late, &[new_row(event())]).await.unwrap()[0];
    let mut position = Position::START;
    outbox.write([event()]).await;
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        position = page(&outbox, &position, &mut |_: Candidate<'_>| false).await.position;
        assert!(position.mark < low, "{position:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    outbox.commit(late).await.unwrap();
    assert_eq!(seqs(&outbox.page(&position).await.rows), [low]);
    reading.abort();
    outbox.until_mark(position, Seq(low.0 + 1)).await;
}

async fn without_the_privilege_the_longest_transaction_counts(server: Shared) {
    let outbox = Outbox::new(server).await;
    let options = Options::new().longest_write_transaction(Duration::from_millis(2_500));
    let blind = options.open(outbox.database.url_for(login::BLIND)).await.unwrap();
    let mut late = outbox.begin().await.unwrap();
    let low = outbox.insert(&mut late, &[new_row(event())]).await.unwrap()[0];
    let high = outbox.write([event()]).await[0];
    let begun = Instant::now();
    let mut position = Position::START;
    let refuse = &mut |_: Candidate<'_>| false;
    while position.mark < high {
        assert!(begun.elapsed() < Duration::from_secs(30), "{position:?}");
        position = page(&blind, &position, refuse).await.position;
        assert!(position.mark < low || begun.elapsed() > Duration::from_millis(2_400), "{position:?}");
        if begun.elapsed() < Duration::from_secs(1) {
            assert!(position.token.is_some(), "what comes late is looked for");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    page(&blind, &position, refuse).await;
    // The promise was not kept: only the next sweep finds it.
    outbox.commit(late).await.unwrap();
    assert_eq!(seqs(&page(&blind, &position, &mut |_| true).await.rows), []);
    let blind = MySqlStore::open(outbox.database.url_for(login::BLIND)).await.unwrap();
    assert_eq!(seqs(&page(&blind, &position, &mut |_| true).await.rows), [low, high]);
}

async fn a_transaction_that_has_written_nothing_is_not_waited_for(server: Shared) {
    let outbox = Outbox::new(server).await;
    let mut reader = outbox.session().await;
    reader.execute("start transaction").await.unwrap();
    reader.execute("select count(*) from outbox_event").await.unwrap();
    let high = outbox.write([event(), event()]).await[1];
    let position = outbox.until_mark(Position::START, high).await;
    // When it writes, its number is a higher one.
    reader.execute("insert into outbox_event (event_type, payload) values ('a', '1')").await.unwrap();
    reader.execute("commit").await.unwrap();
    assert_eq!(seqs(&outbox.page(&position).await.rows), [Seq(high.0 + 1)]);
}

async fn what_slipped_through_is_found_by_the_sweep(server: Shared) {
    let outbox = Outbox::new(server).await;
    outbox.write((0..10).map(|_| event())).await;
    let past = Position::at(Seq(8));
    let read = outbox.page(&past).await;
    assert_eq!(seqs(&read.rows), (1..=10).map(Seq).collect::<Vec<_>>(), "at a takeover");
    assert_eq!((read.position.seq, read.position.mark >= Seq(8)), (Seq(10), true));
    assert_eq!(seqs(&outbox.page(&past).await.rows), [Seq(9), Seq(10)], "and not each time");
    let sweeping = Options::new().sweep_every(Duration::from_millis(50)).open(outbox.database.url()).await.unwrap();
    assert_eq!(page(&sweeping, &past, &mut |_| true).await.rows.len(), 10);
    assert_eq!(page(&sweeping, &past, &mut |_| true).await.rows.len(), 2);
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(page(&sweeping, &past, &mut |_| true).await.rows.len(), 10);
}

async fn a_late_batch_larger_than_a_page_comes_in_order(server: Shared) {
    let outbox = Outbox::new(server).await;
    let (lease, taken) = owner(&outbox, "n", MINUTE).await;
    let mut late = outbox.begin().await.unwrap();
    let rows: Vec<_> = (0..5_000).map(|_| new_row(keyed("k"))).collect();
    let low = outbox.insert(&mut late, &rows).await.unwrap();
    outbox.write([event()]).await;
    let mut position = outbox.page(&Position::START).await.position;
    outbox.commit(late).await.unwrap();
    let high = outbox.write([keyed("k")]).await[0];
    let mut of_key = Vec::new();
    while of_key.len() < 5_001 {
        let read = page(&outbox, &position, &mut |c: Candidate<'_>| c.key.is_some()).await;
        assert!(!read.rows.is_empty(), "{position:?}");
        of_key.extend(seqs(&read.rows));
        position = read.position;
        let outcomes = read.rows.iter().map(|row| outcome(row, &taken, Change::Delete)).collect();
        let batch = Batch { outcomes, mark: Some(position.mark), ..Batch::default() };
        outbox.settle(&lease, &batch).await.unwrap();
    }
    let expected: Vec<_> = low.into_iter().chain([high]).collect();
    assert!(of_key == expected, "out of order");
}

/// Every second row is deleted before it is seen, as where other nodes delete theirs, and one of these is only late.
async fn a_page_of_few_partitions_among_many_gaps_misses_nothing(server: Shared) {
    let outbox = Outbox::new(server).await;
    outbox.write((0..100).map(|_| event())).await;
    let mut late = outbox.begin().await.unwrap();
    let low = outbox.insert(&mut late, &[new_row(event())]).await.unwrap()[0];
    outbox.write((0..100).map(|_| event())).await;
    // One by one: a scan would wait for the row that is not committed.
    for seq in (2..=200).step_by(2) {
        sqlx::query("delete from outbox_event where seq = ?").bind(seq).execute(outbox.pool()).await.unwrap();
    }
    let mut known = Vec::new();
    let mut position = Position::START;
    for _ in 0..5 {
        let read = page(&outbox, &position, &mut |c: Candidate<'_>| !known.contains(&c.seq)).await;
        known.extend(seqs(&read.rows));
        position = read.position;
    }
    assert_eq!((known.len(), low), (100, Seq(101)));
    outbox.commit(late).await.unwrap();
    let read = page(&outbox, &position, &mut |c: Candidate<'_>| !known.contains(&c.seq)).await;
    assert_eq!(seqs(&read.rows), [low]);
}
