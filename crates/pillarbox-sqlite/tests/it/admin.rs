//! Operators' actions, and purging.

use std::time::Duration;

use pillarbox_core::domain::{PartitionSet, Seq, Status};
use pillarbox_core::port::{
    Actor, AdminStore as _, Candidate, Change, HoldKind, PurgeRequest, PurgeScope, Purged, Query, ReadStore as _,
    UpkeepStore as _,
};

use crate::support::{Outbox, dead, event, keyed, outcome, owner, seqs, settle};

/// 1 DEAD and holding `a`, 2 waiting behind it, 3 DEAD without a key, 4 DONE, 5 NEW.
async fn some_dead() -> Outbox {
    let outbox = Outbox::new().await;
    outbox.write([keyed("a"), keyed("a"), event(), event(), event().tenant("t")]).await;
    let (lease, taken) = owner(&outbox, "n").await;
    let rows = outbox.page_after(0).await.rows;
    let outcomes = vec![
        outcome(&rows[0], &taken, dead(true)),
        outcome(&rows[2], &taken, dead(true)),
        outcome(&rows[3], &taken, Change::Done),
    ];
    settle(&outbox, &lease, outcomes).await;
    outbox
}

fn all() -> Query {
    Query::default()
}

#[tokio::test]
async fn lists_match_every_filter() {
    let outbox = some_dead().await;
    let only = |status| Query { statuses: vec![status], ..Query::default() };
    let cases = [
        (all(), vec![1, 2, 3, 4, 5]),
        (only(Status::Dead), vec![1, 3]),
        (only(Status::New), vec![2, 5]),
        (Query { statuses: vec![Status::Dead, Status::Done], ..all() }, vec![1, 3, 4]),
        (Query { tenant_id: Some("t".into()), ..all() }, vec![5]),
        (Query { key: Some("a".into()), ..all() }, vec![1, 2]),
        (Query { key: Some("a".into()), ..only(Status::Dead) }, vec![1]),
        (Query { event_type: Some("%".into()), ..all() }, vec![]),
        (Query { text: Some("bOO".into()), ..all() }, vec![1, 3]),
        (Query { text: Some("7".into()), ..all() }, vec![1, 2, 3, 4, 5]),
        (Query { text: Some("'; drop table outbox_event; --".into()), ..all() }, vec![]),
        (Query { from: Some(pillarbox_core::domain::Timestamp::from_micros(i64::MAX)), ..all() }, vec![]),
        (Query { until: Some(pillarbox_core::domain::Timestamp::from_micros(1)), ..all() }, vec![]),
    ];
    for (query, expected) in cases {
        let found = outbox.list(&query, Seq(0), 10).await.unwrap();
        assert_eq!(found.events.iter().map(|found| found.seq.0).collect::<Vec<_>>(), expected, "{query:?}");
        assert_eq!(outbox.count(&query).await.unwrap(), expected.len() as u64, "{query:?}");
    }
    let id = outbox.list(&all(), Seq(3), 1).await.unwrap().events[0].id.parse().unwrap();
    let one = outbox.list(&Query { id: Some(id), ..only(Status::Dead) }, Seq(0), 10).await.unwrap();
    assert_eq!(one.events[0].seq, Seq(3));
}

#[tokio::test]
async fn lists_are_paged_and_show_broken_rows() {
    let outbox = some_dead().await;
    outbox.run("update outbox_event set event_id = 'odd' where seq = 3").await;
    let first = outbox.list(&all(), Seq(0), 2).await.unwrap();
    assert_eq!((first.events.len(), first.next), (2, Some(Seq(3))));
    assert_eq!(first.events.iter().map(|found| found.holds_key).collect::<Vec<_>>(), [true, false]);
    assert_eq!(first.events[0].last_error.as_deref(), Some("Boom"));
    assert_eq!(first.events[0].attempts, 3);
    assert!(first.events[0].done_at.is_some());
    let second = outbox.list(&all(), Seq(3), 3).await.unwrap();
    assert_eq!((second.events.len(), second.next), (3, None));
    assert_eq!(second.events[0].id, "odd");
    assert!(second.events[0].record.is_err());
}

#[tokio::test]
async fn a_replay_is_due_now_and_happens_once() {
    let outbox = some_dead().await;
    let actor = Actor::new("ada").because("fixed");
    let (first, second) = tokio::join!(
        outbox.replay(&[Seq(1), Seq(3), Seq(4), Seq(99)], &actor),
        outbox.replay(&[Seq(1), Seq(3)], &actor)
    );
    let mut changed = [first.unwrap(), second.unwrap()].concat();
    changed.sort_unstable();
    assert_eq!(changed, [Seq(1), Seq(3)]);
    let due = outbox.due(PartitionSet::ALL, 9, &mut |_: Candidate<'_>| true).await.unwrap();
    assert_eq!(seqs(&due.rows), [1, 3]);
    assert_eq!(outbox.number("select from_seq from outbox_hold where kind = 'DEAD_HEAD'").await, 1);
    let kept = "select count(*) from outbox_action where action = 'REPLAY' and actor = 'ada' and reason = 'fixed'
        and event_type = 'Placed' and event_id is not null and at > 0";
    assert_eq!(outbox.number(kept).await, 2);
}

#[tokio::test]
async fn a_discarded_or_skipped_head_frees_its_key() {
    for discard in [true, false] {
        let outbox = some_dead().await;
        let actor = Actor::new("ada");
        let seqs = [Seq(1), Seq(2), Seq(3)];
        let changed = if discard {
            outbox.discard(&seqs, &actor).await.unwrap()
        } else {
            outbox.skip(&seqs, &actor).await.unwrap()
        };
        let (expected, dead) = if discard { (vec![Seq(1), Seq(3)], 0) } else { (vec![Seq(1)], 2) };
        assert_eq!(changed, expected);
        assert_eq!(outbox.stats().await.unwrap().count(Status::Dead), dead);
        assert_eq!(outbox.number("select count(*) from outbox_action").await, i64::try_from(expected.len()).unwrap());
        let due = outbox.due(PartitionSet::ALL, 9, &mut |_: Candidate<'_>| true).await.unwrap();
        assert_eq!(due.freed.len(), 1);
        assert_eq!((due.freed[0].kind, due.freed[0].from), (HoldKind::Overflow, Seq(2)));
        assert!(outbox.discard(&[Seq(1)], &actor).await.unwrap().len() <= 1);
    }
}

#[tokio::test]
async fn stats_count_by_status() {
    let outbox = some_dead().await;
    let stats = outbox.stats().await.unwrap();
    assert_eq!(Status::ALL.map(|status| stats.count(status)), [2, 0, 1, 2]);
    assert_eq!((stats.pending(), stats.live_nodes), (2, 1));
    assert!(stats.oldest(Status::Dead).unwrap() <= stats.now);
    assert_eq!(stats.oldest(Status::Retry), None);
    assert_eq!(stats.worst_partition.unwrap().1, 1);
}

async fn purge(outbox: &Outbox, scope: PurgeScope, batch: u32) -> u64 {
    let mut removed = 0;
    let mut cursor = None;
    loop {
        let request = PurgeRequest { scope, batch, cursor, lease: None };
        let Purged::Removed { rows, next } = outbox.purge(request).await.unwrap() else { panic!("fenced") };
        assert!(rows <= u64::from(batch));
        removed += rows;
        cursor = next;
        if cursor.is_none() {
            return removed;
        }
    }
}

#[tokio::test]
async fn a_purge_takes_what_is_finished_and_old_but_no_head_that_holds_its_key() {
    let finished = |done, dead| PurgeScope::Finished { done, dead };
    let hour = Duration::from_hours(1);
    for batch in [1, 2, 100] {
        let outbox = some_dead().await;
        assert_eq!(purge(&outbox, finished(hour, Some(hour)), batch).await, 0);
        outbox.run("update outbox_event set created_at = 1, done_at = done_at - 7200000000").await;
        assert_eq!(purge(&outbox, finished(hour, None), batch).await, 1);
        assert_eq!(purge(&outbox, finished(hour, Some(hour)), batch).await, 1);
        let left = outbox.list(&all(), Seq(0), 10).await.unwrap().events;
        assert_eq!(left.iter().map(|found| found.seq.0).collect::<Vec<_>>(), [1, 2, 5]);
    }
}

#[tokio::test]
async fn a_purge_by_age_takes_everything_old_and_stops_at_the_first_young_row() {
    let outbox = some_dead().await;
    outbox.run("update outbox_event set created_at = 1 where seq <> 3").await;
    assert_eq!(purge(&outbox, PurgeScope::ByAge(Duration::from_hours(1)), 2).await, 2);
    assert_eq!(outbox.number("select count(*) from outbox_event").await, 3);
}
