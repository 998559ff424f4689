//! Reading by due time, by key, by number, and what a new owner must know.

use std::time::Duration;

use pillarbox_core::{
    domain::{Key, Partition, PartitionSet, Seq},
    port::{AdminStore, Candidate, Change, HoldKind, ReadStore, Row, Taken},
};

use super::{
    Backend,
    scene::{LONG, PLENTY, Scene, any, dead, event, events, keyed, operator, partition_of, retry, seqs},
};

const SECOND: Duration = Duration::from_secs(1);

/// P1.
pub async fn due_rows_come_by_their_due_time<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let delays = [3, 1, 2, 9];
    let written = scene.write(delays.map(|delay| event().deliver_after(SECOND * delay))).await;
    scene.backend.pass(SECOND * 4).await;
    let due = scene.due().await;
    assert_eq!(seqs(&due.rows), [written[1], written[2], written[0]]);
    assert!(due.next.is_some_and(|next| next > Duration::ZERO && next <= SECOND * 5), "{:?}", due.next);
}

/// D4.
pub async fn due_takes_what_is_picked_up_to_its_limit<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let written = scene.write(events(10).into_iter().map(|event| event.deliver_after(SECOND))).await;
    scene.backend.pass(SECOND * 2).await;
    let mut even = |c: Candidate<'_>| written.iter().position(|seq| *seq == c.seq).is_some_and(|at| at % 2 == 0);
    let due = scene.store().due(PartitionSet::ALL, 3, &mut even).await.expect("due");
    assert_eq!(seqs(&due.rows), [written[0], written[2], written[4]]);
    let due = scene.store().due(PartitionSet::ALL, 100, &mut even).await.expect("due");
    assert_eq!(due.rows.len(), 5);
}

/// P2.
pub async fn due_reads_only_the_partitions_asked_for<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let written = scene.write(["a", "b"].map(|key| keyed(key).deliver_after(SECOND))).await;
    scene.write_one(keyed("b").deliver_after(LONG)).await;
    scene.backend.pass(SECOND * 2).await;
    let only = [partition_of("a")].into_iter().collect();
    let due = scene.store().due(only, PLENTY, &mut any).await.expect("due");
    assert_eq!(seqs(&due.rows), [written[0]]);
    assert_eq!(due.next, None, "nothing more waits in that partition");
}

/// O2: what failed comes back when it is due, and only then.
pub async fn a_failed_row_is_due_again_after_its_delay<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let seq = scene.write_one(event()).await;
    scene.settle_one(&owner, seq, retry(SECOND * 5)).await;
    let due = scene.due().await;
    assert!(due.rows.is_empty());
    assert!(due.next.is_some_and(|next| next > Duration::ZERO && next <= SECOND * 5), "{:?}", due.next);
    scene.backend.pass(SECOND * 6).await;
    assert_eq!(scene.due_seqs().await, [seq]);
    scene.settle_one(&owner, seq, Change::Done).await;
    assert!(scene.due_seqs().await.is_empty());
}

/// The contract of `lane`.
pub async fn a_lane_has_the_pending_due_rows_of_one_key_from_a_number_on<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write((0..8).map(|_| keyed("k"))).await;
    scene.write([keyed("K"), keyed("k "), event()]).await;
    let later = scene.write_one(keyed("k").deliver_after(SECOND * 5)).await;
    scene.settle_one(&owner, written[1], Change::Done).await;
    scene.settle_one(&owner, written[2], dead(false)).await;
    scene.settle_one(&owner, written[3], retry(Duration::ZERO)).await;
    scene.settle_one(&owner, written[4], retry(LONG)).await;

    let expected = [written[0], written[3], written[5], written[6], written[7]];
    assert_eq!(scene.lane("k", Seq(0)).await, expected);
    assert_eq!(scene.lane("k", written[3]).await, expected[1..], "from includes the number itself");
    let key = Key::from("k");
    let some = scene.store().lane(partition_of("k"), &key, written[1], 2).await.expect("lane");
    assert_eq!(seqs(&some), expected[1..3]);

    scene.backend.pass(SECOND * 6).await;
    assert_eq!(scene.lane("k", written[7]).await, [written[7], later]);
    assert!(scene.lane("nobody", Seq(0)).await.is_empty());
}

/// The contract of `rows`.
pub async fn rows_by_number_are_those_that_are_pending_and_due<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write(events(6)).await;
    scene.settle_one(&owner, written[0], Change::Done).await;
    scene.settle_one(&owner, written[1], dead(false)).await;
    scene.settle_one(&owner, written[2], retry(SECOND * 5)).await;
    scene.settle_one(&owner, written[3], Change::Delete).await;
    let mut wanted: Vec<Seq> = written.iter().rev().copied().collect();
    wanted.push(Seq(written[5].0 + 1_000));
    let rows = async || seqs(&scene.store().rows(&wanted).await.expect("rows"));
    assert_eq!(rows().await, [written[4], written[5]], "in sequence order");
    scene.backend.pass(SECOND * 6).await;
    assert_eq!(rows().await, [written[2], written[4], written[5]]);
    assert!(scene.store().rows(&[]).await.expect("rows").is_empty());
}

/// The contract of `rows`: batch-first.
pub async fn thousands_of_rows_are_read_by_number<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let written = scene.write(events(3_000)).await;
    assert_eq!(seqs(&scene.store().rows(&written).await.expect("rows")), written);
}

/// What was written to a row is what its next reader gets.
pub async fn a_row_comes_back_with_its_attempts_and_progress<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let seq = scene.write_one(keyed("k")).await;
    let change = Change::Retry {
        attempts: 4,
        after: Duration::ZERO,
        error: Some("oops".to_owned()),
        progress: Some("a,b".into()),
    };
    scene.settle_one(&owner, seq, change).await;
    let due = scene.due().await.rows;
    let lane = scene.store().lane(partition_of("k"), &Key::from("k"), Seq(0), 9).await.expect("lane");
    let rows = scene.store().rows(&[seq]).await.expect("rows");
    for row in [&due[0], &lane[0], &rows[0]] {
        let Row::Event(record) = row else {
            panic!("{row:?} is broken");
        };
        assert_eq!((record.attempts, record.progress.as_deref()), (4, Some("a,b")));
    }
}

/// O2, O9.
pub async fn recall_names_the_failing_heads_of_keys<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write([keyed("a"), keyed("b"), event(), keyed("c"), keyed("a")]).await;
    for (seq, after) in [(written[0], LONG), (written[1], Duration::ZERO), (written[2], LONG)] {
        scene.settle_one(&owner, seq, retry(after)).await;
    }
    let mut failing = scene.store().recall(&owner.taken).await.expect("recall").failing;
    failing.sort();
    let mut expected =
        [("a", written[0]), ("b", written[1])].map(|(key, seq)| (partition_of(key), Key::from(key), seq));
    expected.sort();
    assert_eq!(failing, expected);
}

/// The contract of `recall`.
pub async fn recall_tells_only_of_the_partitions_that_were_taken<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write([keyed("a"), keyed("b"), keyed("c"), keyed("d")]).await;
    scene.settle_one(&owner, written[0], dead(true)).await;
    scene.settle_one(&owner, written[1], dead(true)).await;
    scene.settle_one(&owner, written[2], retry(LONG)).await;
    scene.settle_one(&owner, written[3], retry(LONG)).await;
    let taken = ["a", "c"].map(|key| owner.taken(partition_of(key)).clone());
    let recall = scene.store().recall(&taken).await.expect("recall");
    assert_eq!(recall.holds.len(), 1);
    let hold = &recall.holds[0];
    assert_eq!((hold.key.as_str(), hold.kind, hold.from), ("a", HoldKind::DeadHead, written[0]));
    assert_eq!(recall.failing.len(), 1);
    assert!(recall.suspects.is_empty(), "a clean take has no suspects");
    let nothing = scene.store().recall(&[]).await.expect("recall");
    assert!(nothing.holds.is_empty() && nothing.failing.is_empty());
}

/// D13.
pub async fn suspects_are_the_oldest_and_the_newest_pending_rows<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write_to(Partition(7), 10).await;
    let elsewhere = scene.write_to(Partition(8), 3).await;
    scene.settle_one(&owner, written[0], Change::Done).await;
    let suspects = async |suspects: u32| {
        let taken = |number: u8, suspects| Taken { suspects, ..owner.taken(Partition(number)).clone() };
        let taken = [taken(7, suspects), taken(8, 0)];
        let mut suspects = scene.store().recall(&taken).await.expect("recall").suspects;
        suspects.sort_unstable();
        suspects
    };
    assert_eq!(suspects(2).await, [written[1], written[2], written[8], written[9]]);
    assert!(suspects(0).await.is_empty());
    let all = suspects(50).await;
    assert_eq!(all, written[1..], "each once");
    assert!(elsewhere.iter().all(|seq| !all.contains(seq)));
}

/// D13: a follower can't have been running before its head.
pub async fn among_the_oldest_suspects_a_key_counts_with_its_head_alone<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let partition = partition_of("k");
    let head = scene.write((0..20).map(|_| keyed("k"))).await[0];
    let next = scene.write_to(partition, 1).await[0];
    scene.write_to(partition, 20).await;
    let taken = Taken { suspects: 2, ..owner.taken(partition).clone() };
    let mut suspects = scene.store().recall(&[taken]).await.expect("recall").suspects;
    suspects.sort_unstable();
    assert_eq!(suspects.len(), 4);
    assert_eq!(suspects[..2], [head, next]);
}

/// O3: a key that was freed is told to its owner.
pub async fn due_tells_which_keys_an_operator_has_freed<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write([keyed("a"), keyed("b"), keyed("a")]).await;
    scene.settle_one(&owner, written[0], dead(true)).await;
    scene.settle_one(&owner, written[1], dead(true)).await;
    assert!(scene.due().await.freed.is_empty());
    scene.store().skip(&written[..1], &operator()).await.expect("skip");
    let freed = scene.due().await.freed;
    assert_eq!(freed.len(), 1);
    assert_eq!((freed[0].key.as_str(), freed[0].kind), ("a", HoldKind::Overflow));
    assert_eq!(scene.lane("a", freed[0].from).await, [written[2]]);
    let only = [partition_of("b")].into_iter().collect();
    let due = scene.store().due(only, PLENTY, &mut any).await.expect("due");
    assert!(due.freed.is_empty());
}
