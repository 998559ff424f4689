//! Leases, positions and takeovers.

use std::time::Duration;

use pillarbox_core::domain::{Epoch, NodeId, Partition, PartitionSet, Seq};
use pillarbox_core::port::{
    Batch, Change, OwnStore as _, PurgeRequest, PurgeScope, Purged, ReadStore as _, Released, Settled, UpkeepStore as _,
};

use crate::support::{MINUTE, Outbox, event, join, keyed, outcome, owner, seqs, settle};

#[tokio::test]
async fn lapsed_node_is_expelled_before_its_partitions_move() {
    let outbox = Outbox::new().await;
    outbox.write([event(), event()]).await;
    let (old, taken) = owner(&outbox, "old").await;
    let page = outbox.page_after(0).await;
    let batch = Batch { mark: Some(Seq(1)), ..Batch::default() };
    outbox.settle(&old, &batch).await.unwrap();

    let new = join(&outbox, "new", MINUTE).await;
    assert_eq!(outbox.expel(&new).await.unwrap(), Some(vec![]));
    assert_eq!(outbox.take(&new, PartitionSet::ALL).await.unwrap(), Some(vec![]));

    outbox.run("update outbox_instance set until = 0 where id = 'old'").await;
    let late = vec![outcome(&page.rows[0], &taken, Change::Delete)];
    assert_eq!(settle(&outbox, &old, late.clone()).await, Settled::Fenced);
    assert!(outbox.renew(&old, MINUTE).await.unwrap().is_none(), "a lapsed lease is not revived");
    assert_eq!(outbox.expel(&new).await.unwrap(), Some(vec![NodeId::new("old")]));
    let again = outbox.take(&new, PartitionSet::ALL).await.unwrap().unwrap();
    assert_eq!(again.len(), 256);
    for (before, after) in taken.iter().zip(&again) {
        assert!(after.epoch > before.epoch);
        assert_eq!((after.mark, after.suspects), (Seq(1), 2));
    }
    assert_eq!(settle(&outbox, &old, late).await, Settled::Fenced);
    assert!(outbox.start(&old, Seq(1)).await.unwrap().is_none());
    assert!(outbox.take(&old, PartitionSet::ALL).await.unwrap().is_none());
    assert!(outbox.leave(&old, None).await.unwrap().is_none());
    let purge = PurgeRequest { scope: PurgeScope::ByAge(Duration::ZERO), batch: 10, cursor: None, lease: Some(&old) };
    assert_eq!(outbox.purge(purge).await.unwrap(), Purged::Fenced);
    assert_eq!(outbox.number("select count(*) from outbox_event").await, 2);
}

#[tokio::test]
async fn a_namesake_takes_the_place_of_the_first() {
    let outbox = Outbox::new().await;
    let (first, _) = owner(&outbox, "n").await;
    let second = join(&outbox, "n", MINUTE).await;
    assert!(second.incarnation > first.incarnation);
    assert!(outbox.renew(&first, MINUTE).await.unwrap().is_none());
    let renewal = outbox.renew(&second, MINUTE).await.unwrap().unwrap();
    assert!(renewal.owners.iter().all(Option::is_none));
    assert_eq!(renewal.nodes.len(), 1);
    assert!(renewal.nodes[0].live);
    let taken = outbox.take(&second, PartitionSet::ALL).await.unwrap().unwrap();
    assert!(taken.iter().all(|taken| taken.mark == Seq(0) && taken.suspects == 2));

    outbox.leave(&second, None).await.unwrap().unwrap();
    let third = join(&outbox, "n", MINUTE).await;
    assert!(third.incarnation > second.incarnation, "no incarnation comes twice");
}

#[tokio::test]
async fn what_is_released_carries_position_and_suspects_and_nothing_else_moves() {
    let outbox = Outbox::new().await;
    let (lease, _) = owner(&outbox, "n").await;
    let given = [Released { partition: Partition(3), suspects: 5 }];
    outbox.release(&lease, &given, Seq(40)).await.unwrap().unwrap();
    let other = join(&outbox, "m", MINUTE).await;
    let taken = outbox.take(&other, PartitionSet::ALL).await.unwrap().unwrap();
    assert_eq!(taken.len(), 1);
    assert_eq!((taken[0].partition, taken[0].suspects, taken[0].mark), (Partition(3), 5, Seq(40)));
    // Not the first node's any more: it can't give it away.
    outbox.release(&lease, &given, Seq(1)).await.unwrap().unwrap();
    let renewal = outbox.renew(&other, MINUTE).await.unwrap().unwrap();
    assert_eq!(renewal.owners[3], Some(NodeId::new("m")));

    outbox.leave(&lease, Some(Seq(50))).await.unwrap().unwrap();
    let others = PartitionSet::ALL.iter().filter(|partition| *partition != Partition(3)).collect();
    let taken = outbox.take(&other, others).await.unwrap().unwrap();
    assert_eq!(taken.len(), 255);
    assert!(taken.iter().all(|taken| taken.suspects == 0 && taken.mark == Seq(50)));
}

#[tokio::test]
async fn an_outcome_of_an_earlier_epoch_changes_nothing_and_is_counted() {
    let outbox = Outbox::new().await;
    outbox.write([event(), event()]).await;
    let (lease, taken) = owner(&outbox, "n").await;
    let rows = outbox.page_after(0).await.rows;
    let mut stale = outcome(&rows[0], &taken, Change::Delete);
    stale.epoch = Epoch(stale.epoch.0 - 1);
    let fresh = outcome(&rows[1], &taken, Change::Delete);
    assert_eq!(settle(&outbox, &lease, vec![stale, fresh]).await, Settled::Applied { stale: 1 });
    assert_eq!(seqs(&outbox.page_after(0).await.rows), [1]);
}

#[tokio::test]
async fn suspects_are_the_oldest_heads_and_the_newest_rows() {
    let outbox = Outbox::new().await;
    outbox.write(["a", "a", "b", "c", "d", "e"].map(keyed).into_iter().chain([event(), event()])).await;
    outbox.write([event().deliver_after(MINUTE)]).await;
    let (lease, _) = owner(&outbox, "n").await;
    outbox.run("update outbox_instance set until = 0").await;
    let other = join(&outbox, "m", MINUTE).await;
    outbox.expel(&other).await.unwrap();
    let taken = outbox.take(&other, PartitionSet::ALL).await.unwrap().unwrap();
    let recall = outbox.recall(&taken).await.unwrap();
    // Two of each: 1 and 3, since 2 waits behind 1; and from the other end 8 and 9.
    assert_eq!(recall.suspects, [1, 3, 8, 9].map(Seq));
    assert_eq!(outbox.start(&other, Seq(1)).await.unwrap(), Some(1));
    assert_eq!(outbox.start(&other, Seq(1)).await.unwrap(), Some(2));
    assert_eq!(outbox.start(&lease, Seq(1)).await.unwrap(), None);

    let row = &outbox.rows(&[Seq(1)]).await.unwrap()[0];
    settle(&outbox, &other, vec![outcome(row, &taken, Change::Interrupted)]).await;
    assert_eq!(outbox.number("select starts from outbox_event where seq = 1").await, 0);
}

#[tokio::test]
async fn suspects_below_the_position_are_found_by_due_time_and_hold() {
    let outbox = Outbox::new().await;
    outbox.write([keyed("a"), keyed("b"), keyed("b"), event()]).await;
    let (lease, taken) = owner(&outbox, "n").await;
    let rows = outbox.page_after(0).await.rows;
    let retry = Change::Retry { attempts: 1, after: Duration::ZERO, error: None, progress: None };
    let batch = Batch {
        outcomes: vec![outcome(&rows[0], &taken, retry), outcome(&rows[3], &taken, Change::Done)],
        holds: vec![pillarbox_core::port::HoldChange::Set(pillarbox_core::port::Hold {
            partition: rows[1].partition(),
            key: "b".into(),
            kind: pillarbox_core::port::HoldKind::Overflow,
            from: Seq(2),
        })],
        mark: Some(Seq(4)),
    };
    outbox.settle(&lease, &batch).await.unwrap();
    outbox.run("update outbox_instance set until = 0").await;
    let other = join(&outbox, "m", MINUTE).await;
    outbox.expel(&other).await.unwrap();
    let taken = outbox.take(&other, PartitionSet::ALL).await.unwrap().unwrap();
    let recall = outbox.recall(&taken).await.unwrap();
    assert_eq!(recall.suspects, [1, 2].map(Seq));
    assert_eq!(recall.failing.iter().map(|(_, key, seq)| (key.as_str(), seq.0)).collect::<Vec<_>>(), [("a", 1)]);
    assert_eq!(recall.holds.len(), 1);
}
