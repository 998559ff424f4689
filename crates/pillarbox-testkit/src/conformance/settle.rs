//! Settling.

use std::time::Duration;

use pillarbox_core::{
    domain::{ERROR_LIMIT, Partition, Seq, Status},
    port::{Batch, Change, OwnStore, ReadStore, Released, Settled, Settlement},
};

use super::{
    Backend,
    scene::{LONG, Scene, dead, event, events, keyed, partition_of, retry},
};

/// D8.
pub async fn done_keeps_the_row_and_delete_removes_it<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write(events(3)).await;
    scene.settle_one(&owner, written[0], Change::Done).await;
    scene.settle_one(&owner, written[1], Change::Delete).await;
    let done = scene.found(written[0]).await;
    assert_eq!(done.status, Status::Done);
    assert!(done.done_at.is_some());
    assert_eq!(scene.find(written[1]).await, None);
    assert_eq!(scene.fresh().await, [written[2]]);
}

/// D8.
pub async fn a_failure_is_kept_with_its_attempts_and_error<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let seq = scene.write_one(event()).await;
    let before = scene.now().await;
    scene.settle_one(&owner, seq, retry(Duration::from_secs(5))).await;
    let found = scene.found(seq).await;
    assert_eq!((found.status, found.attempts, found.done_at), (Status::Retry, 1, None));
    assert_eq!(found.last_error.as_deref(), Some("oops"));
    let due = found.available_at.expect("a due time");
    let after = scene.now().await;
    assert!(due >= before.saturating_add(Duration::from_secs(5)), "counted from the settle");
    assert!(due <= after.saturating_add(Duration::from_secs(5)), "counted from the settle");
}

/// D9, D14: a deferral uses up nothing and forgets nothing.
pub async fn a_deferral_keeps_the_former_error_and_progress<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let seq = scene.write_one(event()).await;
    let failed = Change::Retry {
        attempts: 2,
        after: Duration::ZERO,
        error: Some("first".to_owned()),
        progress: Some("mail".into()),
    };
    let deferred = Change::Retry { attempts: 2, after: Duration::ZERO, error: None, progress: None };
    scene.settle_one(&owner, seq, failed).await;
    scene.settle_one(&owner, seq, deferred).await;
    let found = scene.found(seq).await;
    assert_eq!((found.status, found.attempts), (Status::Retry, 2));
    assert_eq!(found.last_error.as_deref(), Some("first"));
    assert_eq!(scene.record(seq).await.progress.as_deref(), Some("mail"));
}

/// D8.
pub async fn a_dead_row_keeps_its_attempts_and_error<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let seq = scene.write_one(event()).await;
    scene.settle_one(&owner, seq, dead(true)).await;
    let found = scene.found(seq).await;
    assert_eq!((found.status, found.attempts), (Status::Dead, 3));
    assert_eq!(found.last_error.as_deref(), Some("boom"));
    assert!(found.done_at.is_some());
    assert!(!found.holds_key, "without a key it holds none");
    assert!(scene.fresh().await.is_empty() && scene.due_seqs().await.is_empty());
    assert!(scene.holds(&owner).await.is_empty());
}

/// D8.
pub async fn the_longest_error_is_kept<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let seq = scene.write_one(event()).await;
    let error = "🦀".repeat(ERROR_LIMIT);
    let change = Change::Dead { attempts: 1, error: error.clone(), progress: None, hold: false };
    scene.settle_one(&owner, seq, change).await;
    assert!(scene.found(seq).await.last_error == Some(error), "the error was changed");
}

/// D12.
pub async fn an_interrupted_delivery_leaves_its_row_as_it_was<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write(events(2)).await;
    scene.settle_one(&owner, written[1], retry(LONG)).await;
    for seq in written {
        let before = scene.found(seq).await;
        scene.store().start(&owner.lease, seq).await.expect("start");
        scene.settle_one(&owner, seq, Change::Interrupted).await;
        assert_eq!(scene.found(seq).await, before);
    }
}

/// D13.
pub async fn starts_are_counted_and_cleared_by_every_outcome<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    for change in [retry(Duration::ZERO), Change::Interrupted, Change::Done, dead(false)] {
        let seq = scene.write_one(event()).await;
        for count in 1..=2 {
            let starts = scene.store().start(&owner.lease, seq).await.expect("start");
            assert_eq!(starts, Some(count));
        }
        assert_eq!(scene.record(seq).await.starts, 2, "the next reader sees them");
        let finished = matches!(change, Change::Done | Change::Dead { .. });
        scene.settle_one(&owner, seq, change).await;
        assert_eq!(scene.record(seq).await.starts, 0);
        let again = scene.store().start(&owner.lease, seq).await.expect("start");
        assert_eq!(again, (!finished).then_some(1), "only what is pending can start");
    }
    let missing = scene.store().start(&owner.lease, Seq(1_000_000)).await.expect("start");
    assert_eq!(missing, None);
}

/// P4: what is finished stays as it is, whatever comes late.
pub async fn a_late_outcome_changes_nothing_that_is_finished<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write((0..3).map(|_| keyed("k"))).await;
    let late = [Change::Done, Change::Delete, retry(Duration::ZERO), dead(true), Change::Interrupted];
    let mut outcomes = Vec::new();
    for seq in &written {
        for change in &late {
            outcomes.push(scene.outcome(&owner, *seq, change.clone()).await);
        }
    }
    scene.settle_one(&owner, written[0], Change::Done).await;
    scene.settle_one(&owner, written[1], Change::Delete).await;
    let other_error = Change::Dead { attempts: 9, error: "the first word".to_owned(), progress: None, hold: false };
    scene.settle_one(&owner, written[2], other_error).await;
    let before = scene.all().await;
    for outcome in outcomes {
        assert_eq!(scene.settle(&owner, vec![outcome.clone()]).await, Settled::Applied { stale: 0 });
        assert_eq!(scene.all().await, before, "changed by {outcome:?}");
    }
    assert!(scene.holds(&owner).await.is_empty(), "a late death holds no key");
}

/// D11: a batch whose answer was lost is sent again.
pub async fn the_same_batch_twice_is_harmless<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write((0..5).map(|n| keyed(&format!("k{n}")))).await;
    let changes = [Change::Done, Change::Delete, retry(LONG), dead(true), Change::Interrupted];
    let mut outcomes = Vec::new();
    for (seq, change) in written.iter().zip(changes) {
        outcomes.push(scene.outcome(&owner, *seq, change).await);
    }
    let batch = Batch { outcomes, mark: Some(Seq(0)), ..Batch::default() };
    let view = async || {
        let all = scene.all().await;
        all.into_iter()
            .map(|found| (found.seq, found.status, found.attempts, found.last_error, found.holds_key))
            .collect::<Vec<_>>()
    };
    assert_eq!(scene.settle_batch(&owner, &batch).await, Settled::Applied { stale: 0 });
    let before = view().await;
    assert_eq!(scene.settle_batch(&owner, &batch).await, Settled::Applied { stale: 0 });
    assert_eq!(view().await, before);
    assert_eq!(scene.holds(&owner).await.len(), 1);
}

/// The contract of `settle`.
pub async fn an_empty_batch_is_applied<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    assert_eq!(scene.settle_batch(&owner, &Batch::default()).await, Settled::Applied { stale: 0 });
}

/// D9 of the design.
pub async fn a_large_mixed_batch_is_settled_in_one_go<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write_to(Partition(3), 4_000).await;
    let change = |at: usize| match at % 4 {
        0 => Change::Done,
        1 => Change::Delete,
        2 => Change::Retry {
            attempts: u32::try_from(at).expect("a small number"),
            after: LONG,
            error: Some(format!("error of {at}")),
            progress: None,
        },
        _ => Change::Dead { attempts: 1, error: format!("error of {at}"), progress: None, hold: false },
    };
    let outcomes = written.iter().enumerate().map(|(at, seq)| Settlement {
        seq: *seq,
        partition: Partition(3),
        epoch: owner.epoch(Partition(3)),
        key: None,
        change: change(at),
    });
    assert_eq!(scene.settle(&owner, outcomes.collect()).await, Settled::Applied { stale: 0 });
    let all = scene.all().await;
    assert_eq!(all.len(), 3_000);
    for found in all {
        let at = written.binary_search(&found.seq).expect("a row of this case");
        let expected = match at % 4 {
            0 => (Status::Done, None),
            2 => (Status::Retry, Some(format!("error of {at}"))),
            3 => (Status::Dead, Some(format!("error of {at}"))),
            _ => panic!("{at} was deleted"),
        };
        assert_eq!((found.status, found.last_error), expected);
        assert!(at % 4 != 2 || found.attempts as usize == at, "each row has its own attempts");
    }
}

/// P4: a live node that gave a partition away settles the rest, and that alone.
pub async fn outcomes_of_an_old_epoch_are_left_out_and_counted<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let mut owner = scene.owner().await;
    let written = scene.write([keyed("a"), keyed("b")]).await;
    let outcomes =
        [scene.outcome(&owner, written[0], dead(true)).await, scene.outcome(&owner, written[1], Change::Done).await];
    let moved = partition_of("a");
    let released = [Released { partition: moved, suspects: 0 }];
    let release = scene.store().release(&owner.lease, &released, Seq(0)).await;
    release.expect("release").expect("the lease is in force");
    let next = scene.owner_of("next", LONG, [moved].into_iter().collect()).await;
    assert!(next.epoch(moved) > owner.epoch(moved));

    assert_eq!(scene.settle(&owner, outcomes.to_vec()).await, Settled::Applied { stale: 1 });
    assert_eq!(scene.found(written[0]).await.status, Status::New);
    assert_eq!(scene.found(written[1]).await.status, Status::Done);
    owner.taken.retain(|taken| taken.partition != moved);
    assert!(scene.holds(&next).await.is_empty(), "a stale death holds no key");
    scene.settle_one(&next, written[0], Change::Done).await;
}
