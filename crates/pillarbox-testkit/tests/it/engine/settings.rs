//! B1: settings, and what is refused.

use std::time::Duration;

use pillarbox_core::{
    Delivery, Outbox, RetryPolicy,
    domain::Status,
    engine::{Builder, Heartbeat, OutboxError, PurgeOptions, WriteError, mode},
};
use pillarbox_testkit::{Call, MemoryStore};

use super::{ROUTE, Stage, Store, event, keyed, write};

type Node = Builder<Store, mode::MultiNode>;

const MILLI: Duration = Duration::from_millis(1);

async fn refusal(change: fn(Node) -> Node) -> String {
    let stage = Stage::new();
    let refused = change(stage.node()).start().await;
    assert_eq!(stage.faults().calls(Call::Migrate), 0, "nothing is touched before the settings are checked");
    match refused {
        Err(OutboxError::Setting(words)) => words,
        other => panic!("{other:?}"),
    }
}

/// B1, M4: a value out of its range is refused with its name, itself and the range.
#[tokio::test]
async fn a_setting_out_of_range_is_refused_with_name_value_and_range() {
    let cases: [(fn(Node) -> Node, &[&str]); 30] = [
        (|b| b.workers(0), &["workers", "0", "1 to 10000"]),
        (|b| b.workers(10_001), &["workers", "10001", "1 to 10000"]),
        (|b| b.hot_capacity(0), &["hot_capacity", "0", "1 to 1000000"]),
        (|b| b.cold_capacity(2_000_000), &["cold_capacity", "2000000", "1 to 1000000"]),
        (|b| b.page_size(0), &["page_size", "0", "1 to 100000"]),
        (|b| b.lane_capacity(0), &["lane_capacity", "0", "1 to 100000"]),
        (|b| b.settle_batch(0), &["settle_batch", "0", "1 to 10000"]),
        (|b| b.max_starts(0), &["max_starts", "0", "1 to 1000"]),
        (|b| b.handler_timeout(Duration::ZERO), &["handler_timeout", "0ns", "1ms"]),
        (|b| b.poll_interval(Duration::ZERO, Duration::ZERO), &["poll_interval", "0ns", "1ms"]),
        (
            |b| b.poll_interval(Duration::from_secs(2), Duration::from_secs(1)),
            &["poll_interval", "maximum", "1s", "2s"],
        ),
        (|b| b.reservation_ttl(Duration::ZERO), &["reservation_ttl", "0ns", "10ms"]),
        (|b| b.sample_every(Duration::ZERO), &["sample_every", "0ns", "10ms"]),
        (|b| b.heartbeat(Duration::ZERO), &["heartbeat", "0ns", "10ms"]),
        (|b| b.rebalance_every(Duration::ZERO), &["rebalance_every", "0ns", "10ms"]),
        (|b| b.poll_interval(MILLI, Duration::MAX), &["poll_interval's maximum", "315360000s"]),
        (|b| b.reservation_ttl(Duration::MAX), &["reservation_ttl", "315360000s"]),
        (|b| b.sample_every(Duration::MAX), &["sample_every", "315360000s"]),
        (|b| b.skip_recent(Duration::MAX), &["skip_recent", "315360000s"]),
        (|b| b.settle_linger(Duration::MAX), &["settle_linger", "315360000s"]),
        (|b| b.route_grace(Duration::MAX), &["route_grace", "315360000s"]),
        (|b| b.rebalance_every(Duration::MAX), &["rebalance_every", "315360000s"]),
        (|b| b.stale_after(Duration::MAX), &["stale_after", "315360000s", "ten years"]),
        (|b| b.purge(PurgeOptions { every: Duration::MAX, ..PurgeOptions::default() }), &["purge.every", "315360000s"]),
        (|b| b.stale_after(Duration::from_secs(14)), &["stale_after", "14s", "5s", "Set stale_after to 15s or more"]),
        (
            |b| b.heartbeat(Duration::from_secs(30)),
            &["heartbeat 30s", "stale_after is 30s", "heartbeat to 10s or less"],
        ),
        (|b| b.purge(PurgeOptions { batch: 0, ..PurgeOptions::default() }), &["purge.batch", "0", "1 to 100000"]),
        (|b| b.retry(RetryPolicy::default().max_attempts(0)), &["retry policy", "0"]),
        (|b| b.metrics_prefix("1st"), &["metrics_prefix", "1st", "letter"]),
        (|b| b.node_name(""), &["node_name", "0", "1 to 200"]),
    ];
    for (change, words) in cases {
        let refused = refusal(change).await;
        for word in words {
            assert!(refused.contains(word), "{word:?} is not in {refused:?}");
        }
    }
}

/// B1: where one setting stands for several, it is the one that is named.
#[tokio::test]
async fn a_lease_that_is_too_short_is_refused_by_its_name() {
    let stage = Stage::new();
    let refused = stage.single().lease(Duration::from_millis(29)).start().await.unwrap_err().to_string();
    assert!(refused.contains("lease is 29ms") && refused.contains("30ms"), "{refused}");
    assert!(stage.single().lease(Duration::from_millis(30)).start().await.is_ok());
}

/// B1: the limits themselves are allowed.
#[tokio::test(start_paused = true)]
async fn the_limits_of_the_ranges_are_allowed() {
    let stage = Stage::new();
    let milli = Duration::from_millis(1);
    let outbox = stage
        .node()
        .workers(1)
        .hot_capacity(1)
        .cold_capacity(1)
        .page_size(1)
        .lane_capacity(1)
        .settle_batch(1)
        .max_starts(1)
        .poll_interval(milli, milli)
        .heartbeat(milli * 10)
        .stale_after(milli * 30)
        .node_name("n".repeat(200))
        .start()
        .await
        .unwrap();
    let mut ids = write(&outbox, (0..20).map(|n| if n % 2 == 0 { event() } else { keyed("k") })).await;
    ids.extend(stage.write_cold((0..20).map(|n| if n % 2 == 0 { event() } else { keyed("k") })).await);
    stage.until_count(Status::Done, 40).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
    stage.probe.assert_in_order_per_key();
}

/// B1: the longest, too. What waits for so long waits, and nothing overflows.
#[tokio::test(start_paused = true)]
async fn the_longest_times_are_allowed() {
    let stage = Stage::new();
    let years = Duration::from_hours(10 * 365 * 24);
    let outbox = stage
        .node()
        .poll_interval(MILLI, years)
        .reservation_ttl(years)
        .sample_every(years)
        .route_grace(years)
        .heartbeat(years / 3)
        .stale_after(years)
        .rebalance_every(years)
        .handler_timeout(Duration::MAX)
        .drain_timeout(Duration::MAX)
        .purge(PurgeOptions { every: years, ..PurgeOptions::default() })
        .start()
        .await
        .unwrap();
    write(&outbox, [event(), keyed("k"), keyed("k")]).await;
    stage.until_count(Status::Done, 3).await;
    outbox.shutdown().await;
}

/// D7: starting with nothing to deliver to is an error that says what to do; a writer needs nothing.
#[tokio::test]
async fn an_outbox_without_a_handler_does_not_start() {
    let refused = Outbox::single_node(MemoryStore::new()).start().await.unwrap_err();
    assert!(matches!(refused, OutboxError::NoHandler));
    assert!(refused.to_string().contains("writer_only"), "{refused}");
    assert!(Outbox::ordered(MemoryStore::new()).start().await.is_err());
    assert!(Outbox::multi_node(MemoryStore::new()).start().await.is_err());
    assert!(Outbox::writer_only(MemoryStore::new()).start().await.is_ok());
}

/// H1: a second handler of a route is an error at the start, and names the route.
#[tokio::test]
async fn a_second_handler_of_a_route_is_refused() {
    let stage = Stage::new();
    let refused = stage.single().route(ROUTE, |_: Delivery| async {}).start().await.unwrap_err();
    assert!(matches!(refused, OutboxError::DuplicateRoute(_)));
    assert!(refused.to_string().contains(ROUTE), "{refused}");
    assert!(stage.single().route((String::from("Order"), ROUTE), |_: Delivery| async {}).start().await.is_ok());
}

/// B1: `ordered` refuses events without a key, or gives all of them one.
#[tokio::test(start_paused = true)]
async fn ordered_refuses_events_without_a_key_or_gives_them_one() {
    let stage = Stage::new();
    let ordered = || {
        let builder = Outbox::ordered(stage.store.clone()).route(ROUTE, stage.probe.handler());
        builder.heartbeat_on(Heartbeat::SharedRuntime)
    };
    let strict = ordered().start().await.unwrap();
    let mut tx = strict.begin().await.unwrap();
    let refused = tx.write(event()).await.unwrap_err();
    assert!(matches!(refused, WriteError::NoKey(_)));
    assert!(refused.to_string().contains("default_key"), "{refused}");
    drop(tx);
    assert_eq!(stage.faults().calls(Call::Insert), 0);
    strict.shutdown().await;

    let lenient = ordered().default_key("all").start().await.unwrap();
    let ids = write(&lenient, [event(), keyed("own"), event()]).await;
    stage.probe.wait_for(3).await;
    let log = stage.probe.log();
    let keys: Vec<_> = ids.iter().map(|id| log.event(*id).key().unwrap().as_str().to_owned()).collect();
    assert_eq!(keys, ["all", "own", "all"]);
    lenient.shutdown().await;
    let long = ordered().default_key("k".repeat(513)).start().await.unwrap_err().to_string();
    assert!(long.contains("513") && long.contains("1 to 512"), "{long}");
}

/// M4: switched off, it writes and delivers nothing; switched on again, nothing is missing.
#[tokio::test(start_paused = true)]
async fn an_outbox_that_is_switched_off_writes_and_leaves_the_delivery_to_later() {
    let stage = Stage::new();
    let off = stage.node().enabled(false).start().await.unwrap();
    let ids = write(&off, [event(), keyed("k")]).await;
    super::pass(Duration::from_mins(10)).await;
    assert_eq!((off.is_joined(), stage.count(Status::New).await), (false, 2));
    assert_eq!(stage.faults().calls(Call::Page), 0);
    off.shutdown().await;
    let on = stage.node().enabled(true).start().await.unwrap();
    stage.until_count(Status::Done, 2).await;
    stage.probe.assert_each_once(&ids);
    on.shutdown().await;
}

/// B1: `writer_only` owns nothing and delivers nothing.
#[tokio::test(start_paused = true)]
async fn a_writer_owns_nothing_and_reads_nothing() {
    let stage = Stage::new();
    let outbox = Outbox::writer_only(stage.store.clone()).start().await.unwrap();
    write(&outbox, [event(), keyed("k")]).await;
    super::pass(Duration::from_mins(10)).await;
    for call in [Call::Join, Call::Renew, Call::Page, Call::Due, Call::Settle, Call::Purge] {
        assert_eq!(stage.faults().calls(call), 0, "{call:?}");
    }
    assert_eq!(outbox.partitions_owned(), 0);
    outbox.shutdown().await;
    outbox.shutdown().await;
}

/// S3: with `migrate(false)` the tables are only checked; a store that fails at the start is told.
#[tokio::test(start_paused = true)]
async fn the_tables_are_migrated_or_only_checked() {
    let stage = Stage::new();
    let outbox = stage.single().migrate(false).start().await.unwrap();
    assert_eq!([Call::Migrate, Call::Check].map(|call| stage.faults().calls(call)), [0, 1]);
    outbox.shutdown().await;
    for call in [Call::Migrate, Call::Join, Call::Renew, Call::Take, Call::Recall, Call::Page] {
        stage.faults().fail(call, 1, super::DOWN);
        let failed = stage.single().start().await.unwrap_err();
        assert!(matches!(failed, OutboxError::Store(_)), "{call:?}: {failed}");
        // The node that did not start lapses.
        super::pass(Duration::from_secs(10)).await;
    }
    let outbox = stage.single().start().await.unwrap();
    super::until("the whole", || outbox.partitions_owned() == 256).await;
    outbox.shutdown().await;
}
