//! Reading by position.

use std::{collections::BTreeSet, time::Duration};

use pillarbox_core::{
    domain::{Partition, PartitionSet, Seq},
    port::{Batch, Candidate, Change, Page, Pick, Position, ReadStore, Row, Scan, TransactStore, WriteStore},
};

use super::{
    Backend,
    scene::{PLENTY, Scene, any, build, dead, event, events, keyed, new_row, partition_of, retry, seqs},
};

fn scan(after: &Position, limit: usize) -> Scan<'_> {
    Scan { partitions: PartitionSet::ALL, after, limit, skip_recent: Duration::ZERO }
}

async fn read<B: Backend>(scene: &Scene<B>, scan: Scan<'_>, pick: &mut dyn Pick) -> Page {
    scene.store().page(scan, pick).await.expect("page")
}

/// The contract of `page`.
pub async fn an_empty_outbox_gives_an_empty_page<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let page = scene.page(&Position::START).await;
    assert!(page.rows.is_empty() && !page.more);
    let again = scene.page(&page.position).await;
    assert!(again.rows.is_empty() && !again.more);
}

/// P1: what a reader does that remembers what it has read.
pub async fn pages_give_every_row_once_in_sequence_order<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let written = scene.write(events(50)).await;
    let mut position = Position::START;
    let mut known = BTreeSet::new();
    let mut read_seqs = Vec::new();
    for round in 0.. {
        assert!(round < 50, "the pages come to no end");
        let page = read(&scene, scan(&position, 7), &mut |c: Candidate<'_>| !known.contains(&c.seq)).await;
        assert!(page.rows.len() <= 7);
        assert!(page.position.seq >= position.seq, "the position went back");
        read_seqs.extend(seqs(&page.rows));
        known.extend(seqs(&page.rows));
        position = page.position;
        if !page.more {
            break;
        }
    }
    assert_eq!(read_seqs, written);
}

/// D15.
pub async fn a_page_that_ends_at_its_limit_says_that_there_is_more<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let written = scene.write(events(5)).await;
    let page = read(&scene, scan(&Position::START, 3), &mut any).await;
    assert_eq!(seqs(&page.rows), written[..3]);
    assert!(page.more);
    assert!(page.position.seq < written[3], "the position passed what was not read");
    let page = read(&scene, scan(&Position::START, 6), &mut any).await;
    assert_eq!(seqs(&page.rows), written);
    assert!(!page.more);
}

/// P2.
pub async fn only_the_partitions_asked_for_are_read<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let mut mine = Vec::new();
    for _ in 0..3 {
        for partition in [0, 1, 64, 127, 128, 255] {
            let seqs = scene.write_to(Partition(partition), 2).await;
            if [1, 128, 255].contains(&partition) {
                mine.extend(seqs);
            }
        }
    }
    let partitions = [1, 128, 255].map(Partition).into_iter().collect();
    let request = |limit| Scan { partitions, ..scan(&Position::START, limit) };
    let page = read(&scene, request(PLENTY), &mut any).await;
    assert_eq!(seqs(&page.rows), mine);
    let page = read(&scene, request(4), &mut any).await;
    assert_eq!(seqs(&page.rows), mine[..4]);
    let none = Scan { partitions: PartitionSet::EMPTY, ..scan(&Position::START, PLENTY) };
    assert!(read(&scene, none, &mut any).await.rows.is_empty());
}

/// The contract of `Pick`.
pub async fn refused_rows_neither_fill_a_page_nor_stop_it<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let written = scene.write(events(2_000)).await;
    let last = written[1_995..].to_vec();
    let page = read(&scene, scan(&Position::START, 3), &mut |c: Candidate<'_>| last.contains(&c.seq)).await;
    assert_eq!(seqs(&page.rows), last[..3]);
    let page = read(&scene, scan(&Position::START, 3), &mut |_: Candidate<'_>| false).await;
    assert!(page.rows.is_empty() && !page.more);
}

/// The contract of `Pick`.
pub async fn the_owner_is_asked_about_each_row_in_order_with_its_partition_and_key<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let written = scene.write([keyed("a"), event(), keyed("b"), keyed("a")]).await;
    let mut asked = Vec::new();
    let mut pick = |c: Candidate<'_>| {
        asked.push((c.seq, c.partition, c.key.map(str::to_owned)));
        true
    };
    read(&scene, scan(&Position::START, PLENTY), &mut pick).await;
    let keys = [Some("a"), None, Some("b"), Some("a")];
    let expected: Vec<_> = written
        .into_iter()
        .zip(keys)
        .map(|(seq, key)| (seq, key.map_or(Partition(0), partition_of), key.map(str::to_owned)))
        .collect();
    assert_eq!(asked, expected);
}

/// Finished, failed and delayed rows are found elsewhere or nowhere.
pub async fn a_page_has_only_new_rows_without_a_due_time<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write(events(6)).await;
    scene.settle_one(&owner, written[0], Change::Done).await;
    scene.settle_one(&owner, written[1], Change::Delete).await;
    scene.settle_one(&owner, written[2], retry(Duration::ZERO)).await;
    scene.settle_one(&owner, written[3], dead(false)).await;
    scene.settle_one(&owner, written[4], Change::Interrupted).await;
    assert_eq!(scene.fresh().await, written[4..]);
}

/// The contract of `Position`.
pub async fn rows_above_a_lowered_position_are_read_again<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let written = scene.write(events(6)).await;
    let mut lowered = scene.page(&Position::START).await.position;
    lowered.lower(written[2]);
    let again = seqs(&scene.page(&lowered).await.rows);
    assert!(again.ends_with(&written[3..]), "{again:?} lacks some of {:?}", &written[3..]);
}

/// D7 of the design: the cost of a read must not grow with what was read before.
pub async fn the_position_moves_past_what_was_read_and_settled<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let mut tx = scene.store().begin().await.expect("begin");
    let rows = [new_row(build(event()))];
    scene.store().insert(&mut tx, &rows).await.expect("insert");
    scene.store().rollback(tx).await.expect("rollback");
    let written = scene.write(events(5)).await;
    let mut position = Position::START;
    // A store may need some settles until it is sure that nothing below can still commit.
    for _ in 0..10 {
        let page = scene.page(&position).await;
        assert!(page.position.seq >= position.seq, "the position went back");
        position = page.position;
        let mut outcomes = Vec::new();
        for row in &page.rows {
            outcomes.push(scene.outcome(&owner, row.seq(), Change::Done).await);
        }
        let batch = Batch { outcomes, mark: Some(position.mark), ..Batch::default() };
        scene.settle_batch(&owner, &batch).await;
    }
    assert!(position.seq >= written[4], "{position:?} stays behind {:?}", written[4]);
    let next = scene.write_one(event()).await;
    assert_eq!(seqs(&scene.page(&position).await.rows), [next]);
}

/// P1.
pub async fn recent_rows_are_skipped_and_found_later<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let old = scene.write_one(event()).await;
    scene.backend.pass(Duration::from_secs(6)).await;
    let young = scene.write_one(event()).await;
    let request = |after| Scan { skip_recent: Duration::from_secs(5), ..scan(after, PLENTY) };
    let page = read(&scene, request(&Position::START), &mut any).await;
    assert_eq!(seqs(&page.rows), [old]);
    assert!(page.position.seq < young, "the position passed a row that was left out");
    scene.backend.pass(Duration::from_secs(6)).await;
    let later = read(&scene, request(&page.position), &mut any).await;
    assert!(seqs(&later.rows).contains(&young));
}

/// P1.
pub async fn a_late_commit_of_a_lower_number_is_read<B: Backend>() {
    if !B::OVERLAPPING_WRITERS {
        return;
    }
    let scene = Scene::<B>::new().await;
    let mut late = scene.store().begin().await.expect("begin");
    let rows = [new_row(build(event()))];
    let low = scene.store().insert(&mut late, &rows).await.expect("insert")[0];
    let others = scene.write(events(20)).await;
    assert!(low < others[0]);

    // The reader goes on as long as there is something to read, in small pages.
    let mut position = Position::START;
    let mut known = BTreeSet::new();
    for _ in 0..10 {
        let page = read(&scene, scan(&position, 5), &mut |c: Candidate<'_>| !known.contains(&c.seq)).await;
        known.extend(seqs(&page.rows));
        position = page.position;
    }
    assert_eq!(known, others.iter().copied().collect());

    scene.store().commit(late).await.expect("commit");
    let page = read(&scene, scan(&position, 5), &mut |c: Candidate<'_>| !known.contains(&c.seq)).await;
    assert_eq!(seqs(&page.rows), [low]);
}

/// O8, and the story of the design: T1 writes k/10, another's 12 is read, T1 commits, T2 writes k/13.
pub async fn the_order_of_a_key_survives_a_late_commit<B: Backend>() {
    if !B::OVERLAPPING_WRITERS {
        return;
    }
    let scene = Scene::<B>::new().await;
    let mut first = scene.store().begin().await.expect("begin");
    let rows = [new_row(build(keyed("k")))];
    let ten = scene.store().insert(&mut first, &rows).await.expect("insert")[0];
    let twelve = scene.write_one(keyed("other")).await;
    let page = scene.page(&Position::START).await;
    assert_eq!(seqs(&page.rows), [twelve]);
    scene.store().commit(first).await.expect("commit");
    let thirteen = scene.write_one(keyed("k")).await;
    let page = scene.page(&page.position).await;
    let of_key: Vec<Seq> = page.rows.iter().filter(|row| row.seq() != twelve).map(Row::seq).collect();
    assert_eq!(of_key, [ten, thirteen]);
}

/// P6.
pub async fn a_broken_row_is_told_and_its_neighbours_come_through<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write([event(), keyed("k"), event()]).await;
    let outcome = scene.outcome(&owner, written[1], dead(false)).await;
    scene.backend.break_row(written[1]).await;

    let page = scene.page(&Position::START).await;
    assert_eq!(seqs(&page.rows), written);
    let broken = |row: &Row| matches!(row, Row::Broken { .. });
    assert_eq!(page.rows.iter().map(broken).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(page.rows[1].partition(), partition_of("k"));
    let by_number = scene.store().rows(&written).await.expect("rows");
    assert_eq!(by_number.iter().map(broken).collect::<Vec<_>>(), [false, true, false]);

    // It can be put away like any other, and an operator sees what is wrong.
    scene.settle(&owner, vec![outcome]).await;
    assert_eq!(scene.fresh().await, [written[0], written[2]]);
    let found = scene.found(written[1]).await;
    assert!(found.record.is_err());
    assert_eq!(found.last_error.as_deref(), Some("boom"));
}
