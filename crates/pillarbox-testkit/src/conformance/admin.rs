//! What operators see and do.

use std::time::Duration;

use pillarbox_core::{
    Event,
    domain::{Partition, PartitionSet, Seq, Status},
    port::{AdminStore, Batch, Change, Query},
};

use super::{
    Backend,
    scene::{LONG, Scene, build, dead, event, events, joining, keyed, new_row, operator, partition_of, retry},
};

async fn list<B: Backend>(scene: &Scene<B>, query: &Query) -> Vec<Seq> {
    let listing = scene.store().list(query, Seq(0), 1_000).await.expect("list");
    let found: Vec<Seq> = listing.events.iter().map(|found| found.seq).collect();
    let count = scene.store().count(query).await.expect("count");
    assert_eq!(count, found.len() as u64, "the count is that of the list for {query:?}");
    found
}

fn query(change: impl FnOnce(&mut Query)) -> Query {
    let mut query = Query::default();
    change(&mut query);
    query
}

/// U3.
pub async fn events_are_found_by_every_field<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let rows = [
        build(Event::builder("Placed").aggregate("Order", "1").tenant("acme").key("k1").json(&1)),
        build(Event::builder("Placed").aggregate("Order", "2").tenant("zeta").key("k2").json(&1)),
        build(Event::builder("Paid").aggregate("Invoice", "1").tenant("acme").json(&1)),
        build(event()),
    ]
    .map(new_row);
    let seqs = scene.write_rows(&rows).await;
    scene.settle_one(&owner, seqs[0], dead(false)).await;
    scene.settle_one(&owner, seqs[1], Change::Done).await;
    scene.settle_one(&owner, seqs[2], retry(Duration::ZERO)).await;

    let text = |value: &str| Some(value.to_owned());
    let cases = [
        (Query::default(), vec![0, 1, 2, 3]),
        (query(|q| q.statuses = vec![Status::Dead]), vec![0]),
        (query(|q| q.statuses = vec![Status::New, Status::Done]), vec![1, 3]),
        (query(|q| q.id = Some(rows[2].event.id())), vec![2]),
        (query(|q| q.event_type = text("Placed")), vec![0, 1]),
        (query(|q| q.aggregate_type = text("Invoice")), vec![2]),
        (query(|q| q.aggregate_id = text("1")), vec![0, 2]),
        (query(|q| q.tenant_id = text("acme")), vec![0, 2]),
        (query(|q| q.key = text("k2")), vec![1]),
        (query(|q| q.key = text("' or 1=1 --")), vec![]),
        (
            query(|q| {
                q.tenant_id = text("acme");
                q.statuses = vec![Status::Dead];
            }),
            vec![0],
        ),
    ];
    for (query, expected) in cases {
        let expected: Vec<Seq> = expected.into_iter().map(|at: usize| seqs[at]).collect();
        assert_eq!(list(&scene, &query).await, expected, "{query:?}");
    }
}

/// U3.
pub async fn events_are_found_by_the_time_of_their_insert<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let before = scene.write_one(event()).await;
    scene.backend.pass(Duration::from_secs(1)).await;
    let time = scene.now().await;
    let after = scene.write_one(event()).await;
    assert_eq!(list(&scene, &query(|q| q.from = Some(time))).await, [after]);
    assert_eq!(list(&scene, &query(|q| q.until = Some(time))).await, [before]);
    let created = scene.record(after).await.created_at;
    assert_eq!(list(&scene, &query(|q| q.from = Some(created))).await, [after], "from includes its time");
    assert_eq!(list(&scene, &query(|q| q.until = Some(created))).await, [before], "until does not");
}

/// U3.
pub async fn events_are_found_by_text_in_payload_or_error<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let seqs = scene
        .write([
            Event::builder("A").json(&"Order Seven"),
            Event::builder("B").bytes("text/plain", "nothing of 100% interest"),
            Event::builder("C").json(&"else"),
        ])
        .await;
    let failed = Change::Dead {
        attempts: 1,
        error: "Connection REFUSED by order-service".to_owned(),
        progress: None,
        hold: false,
    };
    scene.settle_one(&owner, seqs[2], failed).await;
    let by_text = async |text: &str| list(&scene, &query(|q| q.text = Some(text.to_owned()))).await;
    assert_eq!(by_text("order").await, [seqs[0], seqs[2]]);
    assert_eq!(by_text("refused").await, [seqs[2]]);
    assert_eq!(by_text("NOTHING OF").await, [seqs[1]]);
    assert_eq!(by_text("100%").await, [seqs[1]]);
    assert!(by_text("o_der").await.is_empty(), "text is no pattern");
    assert!(by_text("%").await == [seqs[1]], "text is no pattern");
}

/// U3.
pub async fn a_listing_goes_on_where_the_last_page_ended<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write(events(10)).await;
    for seq in &written[2..9] {
        scene.settle_one(&owner, *seq, dead(false)).await;
    }
    let dead = query(|q| q.statuses = vec![Status::Dead]);
    let mut found = Vec::new();
    let mut from = Seq(0);
    for _ in 0..10 {
        let listing = scene.store().list(&dead, from, 3).await.expect("list");
        assert!(listing.events.len() <= 3);
        found.extend(listing.events.iter().map(|found| found.seq));
        match listing.next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!(found, written[2..9]);
    let last = scene.store().list(&dead, written[8], 3).await.expect("list");
    assert_eq!(last.events.len(), 1, "from includes its number");
    assert_eq!(last.next, None);
}

/// U4.
pub async fn a_replayed_event_is_due_now_as_if_new<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let seq = scene.write_one(event()).await;
    let failed = Change::Retry {
        attempts: 2,
        after: Duration::ZERO,
        error: Some("oops".to_owned()),
        progress: Some("mail".into()),
    };
    scene.settle_one(&owner, seq, failed).await;
    scene.settle_one(&owner, seq, dead(false)).await;
    let replayed = scene.store().replay(&[seq], &operator()).await.expect("replay");
    assert_eq!(replayed, [seq]);
    let found = scene.found(seq).await;
    assert_eq!((found.status, found.attempts), (Status::New, 0));
    assert_eq!((found.last_error, found.done_at), (None, None));
    let record = scene.record(seq).await;
    assert_eq!((record.attempts, record.starts, record.progress.as_deref()), (0, 0, Some("mail")));
    assert_eq!(scene.due_seqs().await, [seq], "found by its due time, wherever the position is");
    assert!(scene.fresh().await.is_empty(), "and in no other way");
    scene.settle_one(&owner, seq, Change::Done).await;
    assert_eq!(scene.found(seq).await.status, Status::Done);
}

/// U4, I6.
pub async fn only_dead_events_can_be_acted_upon<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write(events(4)).await;
    scene.settle_one(&owner, written[1], retry(Duration::ZERO)).await;
    scene.settle_one(&owner, written[2], Change::Done).await;
    let before = scene.all().await;
    let mut seqs = written.clone();
    seqs.push(Seq(written[3].0 + 1_000));
    let (store, actor) = (scene.store(), operator());
    assert_eq!(store.replay(&seqs, &actor).await.expect("replay"), []);
    assert_eq!(store.discard(&seqs, &actor).await.expect("discard"), []);
    assert_eq!(store.skip(&seqs, &actor).await.expect("skip"), []);
    assert_eq!(store.replay(&[], &actor).await.expect("replay"), []);
    assert_eq!(scene.all().await, before);
}

/// U4.
pub async fn of_two_concurrent_replays_one_gets_each_event<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let other = scene.backend.second_handle().await;
    let owner = scene.owner().await;
    let written = scene.write(events(40)).await;
    let mut outcomes = Vec::new();
    for seq in &written {
        outcomes.push(scene.outcome(&owner, *seq, dead(false)).await);
    }
    scene.settle(&owner, outcomes).await;
    let actor = operator();
    let (mine, theirs) = tokio::join!(scene.store().replay(&written, &actor), other.replay(&written, &actor));
    let mut all = mine.expect("replay");
    all.extend(theirs.expect("replay"));
    all.sort_unstable();
    assert_eq!(all, written);
    assert_eq!(scene.due_seqs().await.len(), 40);
}

/// U3, O3.
pub async fn a_discarded_event_is_gone_and_frees_its_key<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write([keyed("k"), keyed("k"), keyed("k")]).await;
    scene.settle_one(&owner, written[0], dead(true)).await;
    let discarded = scene.store().discard(&written, &operator()).await.expect("discard");
    assert_eq!(discarded, [written[0]]);
    assert_eq!(scene.find(written[0]).await, None);
    let freed = scene.due().await.freed;
    assert_eq!(freed.len(), 1, "the owner hears of it");
    assert_eq!((freed[0].partition, freed[0].key.as_str()), (partition_of("k"), "k"));
    assert_eq!(scene.lane("k", freed[0].from).await, written[1..]);
    assert_eq!(scene.holds(&owner).await, freed, "and so does the next owner");
}

/// O3.
pub async fn a_skipped_event_stays_dead_and_frees_its_key<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write([keyed("k"), keyed("k"), keyed("free")]).await;
    scene.settle_one(&owner, written[0], dead(true)).await;
    scene.settle_one(&owner, written[2], dead(false)).await;
    assert!(scene.found(written[0]).await.holds_key);
    let skipped = scene.store().skip(&written, &operator()).await.expect("skip");
    assert_eq!(skipped, [written[0]], "the other holds no key");
    let found = scene.found(written[0]).await;
    assert_eq!((found.status, found.holds_key), (Status::Dead, false));
    assert_eq!(found.last_error.as_deref(), Some("boom"));
    let again = scene.store().skip(&written, &operator()).await.expect("skip");
    assert_eq!(again, []);
}

/// M1.
pub async fn the_outbox_in_numbers<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let empty = scene.store().stats().await.expect("stats");
    assert_eq!((empty.pending(), empty.worst_partition, empty.live_nodes), (0, None, 0));
    assert_eq!(empty.oldest(Status::New), None);

    let owner = scene.owner().await;
    scene.join_for("short", Duration::from_secs(4)).await;
    assert_eq!(scene.store().stats().await.expect("stats").live_nodes, 2);
    let written = scene.write(events(10)).await;
    let oldest = scene.record(written[3]).await.created_at;
    scene.settle_one(&owner, written[0], Change::Done).await;
    scene.settle_one(&owner, written[1], dead(false)).await;
    scene.settle_one(&owner, written[2], retry(Duration::ZERO)).await;
    let partition = partition_of("k");
    scene.write((0..20).map(|_| keyed("k"))).await;
    let stats = scene.store().stats().await.expect("stats");
    let counts = Status::ALL.map(|status| stats.count(status));
    assert_eq!(counts, [27, 1, 1, 1]);
    assert_eq!((stats.pending(), stats.worst_partition), (28, Some((partition, 20))));
    assert_eq!(stats.oldest(Status::New), Some(oldest));

    scene.backend.pass(Duration::from_secs(5)).await;
    let later = scene.store().stats().await.expect("stats");
    assert_eq!(later.live_nodes, 1, "a lapsed node is not live");
    assert!(later.now >= stats.now);
}

/// O5: who is there, and who owns what.
pub async fn the_nodes_and_what_they_own<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let empty = scene.store().fleet().await.expect("fleet");
    assert_eq!((empty.nodes.len(), empty.free), (0, PartitionSet::ALL));

    let some = |numbers: &[u8]| numbers.iter().copied().map(Partition).collect::<PartitionSet>();
    let ada = scene.owner_of("ada", LONG, some(&[0, 7, 255])).await;
    scene.owner_of("bob", Duration::from_secs(4), some(&[1])).await;
    let batch = Batch { mark: Some(Seq(5)), ..Batch::default() };
    scene.settle_batch(&ada, &batch).await;
    let fleet = scene.store().fleet().await.expect("fleet");
    let [first, second] = &fleet.nodes[..] else { panic!("{fleet:?}") };
    assert_eq!((first.node.as_str(), first.incarnation, first.mark), ("ada", ada.lease.incarnation, Some(Seq(5))));
    assert_eq!((first.partitions, second.partitions), (some(&[0, 7, 255]), some(&[1])));
    assert_eq!((second.node.as_str(), second.mark), ("bob", None));
    assert_eq!(second.routes, joining("bob", LONG).routes);
    assert_eq!(fleet.free.len(), 252);
    assert!(first.is_live(fleet.now) && second.is_live(fleet.now));
    assert!(first.started_at <= fleet.now && second.until < first.until);

    scene.backend.pass(Duration::from_secs(5)).await;
    let later = scene.store().fleet().await.expect("fleet");
    assert_eq!(later.nodes.iter().map(|node| node.is_live(later.now)).collect::<Vec<_>>(), [true, false]);
    assert_eq!(later.nodes[1].partitions, some(&[1]), "a lapsed node's partitions are its own until it is expelled");
}
