//! Every statement is served by the index that its comment names, and finished rows cost nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use pillarbox_core::{
    Delivery, Event, Outbox,
    domain::{Key, NodeId, Partition, PartitionSet, Seq, Status},
    port::{
        AdminStore as _, Candidate, InboxUpkeep as _, Joining, OwnStore as _, Position, Query, ReadStore as _, Scan,
        Taken, UpkeepStore as _,
    },
};
use sqlx::{AssertSqlSafe, Row as _};

use crate::{SqliteInbox, SqliteStore, connection::Line};

const PRIMARY_KEY: &str = "outbox_event USING INTEGER PRIMARY KEY (rowid";

/// What the plan of a statement must contain. Of tables that stay small, nothing is asked.
fn wanted(name: &str) -> &'static [&'static str] {
    match name {
        "page_all" | "page_some" | "rows" | "done_run" | "done_each" | "delete_run" | "delete_each" | "retry"
        | "dead" | "interrupted" | "start" | "window" | "aged" | "list" | "list_newest" | "edited" | "edit"
        | "record_edit" | "record" | "replay" | "discard" => &[PRIMARY_KEY],
        "finished" => &[PRIMARY_KEY, "outbox_hold_key (partition=? AND name=?)"],
        "due" | "next_due" => &["outbox_event USING INDEX outbox_event_due (available_at>"],
        "failing" => &["outbox_event_due"],
        "lane" => &["outbox_event USING INDEX outbox_event_key (event_key=? AND seq>?)"],
        "list_dead" => {
            &["outbox_event USING INDEX outbox_event_dead (seq>?)", "outbox_hold_key (partition=? AND name=?)"]
        }
        "list_dead_newest" => {
            &["outbox_event USING INDEX outbox_event_dead (seq<?)", "outbox_hold_key (partition=? AND name=?)"]
        }
        "actions" | "forget" => &["outbox_action USING INTEGER PRIMARY KEY (rowid<?)"],
        "actions_of" => &["outbox_action USING INDEX outbox_action_event (event_id=? AND id<?)"],
        "count_dead" => &["outbox_event_dead"],
        "holds" => &["outbox_hold USING INDEX outbox_hold_key (partition=?)"],
        "oldest" => &["earlier USING", "outbox_event_key (event_key=? AND seq<?)", PRIMARY_KEY],
        "newest" => &[PRIMARY_KEY, "outbox_event_due"],
        "highest" => &["SEARCH outbox_event"],
        _ => &[],
    }
}

#[tokio::test]
async fn statements_use_their_index() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("outbox.db").to_str().unwrap()).await.unwrap();
    store.migrate().await.unwrap();
    let sql = &store.0.sql;
    let statements = [
        sql.keys.named(),
        sql.own.named(),
        sql.read.named(),
        sql.settle.named(),
        sql.upkeep.named(),
        sql.admin.named(),
        sql.action.named(),
    ];
    for (name, sql) in statements.into_iter().flatten() {
        // Prepares the statement as well: what SQLite does not understand fails here.
        let rows = sqlx::query(AssertSqlSafe(format!("explain query plan {}", sql.as_str())))
            .fetch_all(store.pool())
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let plan = rows.iter().map(|row| row.get::<String, _>(3)).collect::<Vec<_>>().join("\n");
        for words in wanted(name) {
            assert!(plan.contains(words), "{name} lacks {words:?}:\n{plan}");
        }
        let sorts = ["oldest", "newest", "failing", "worst"].contains(&name);
        assert!(sorts || !plan.contains("TEMP B-TREE FOR ORDER"), "{name} sorts:\n{plan}");
    }
}

/// What the plan of a statement of the inbox must contain.
fn wanted_of_inbox(name: &str) -> &'static [&'static str] {
    match name {
        "guard release" => &["SEARCH inbox_guard USING PRIMARY KEY (consumer=? AND message=?)"],
        "guard purge" => &["inbox_guard_expiry (expires_at<?)", "SEARCH inbox_guard USING PRIMARY KEY"],
        "enter" => &["USING PRIMARY KEY (consumer=? AND message=?)"],
        "letters replace" | "letters find" => &["SEARCH inbox_letter USING PRIMARY KEY (id=?)"],
        "letters list" => &["inbox_letter_newest (dead_at<?)"],
        "letters count" => &["SCAN inbox_letter"],
        "letters count_status" => &["inbox_letter_status (status=?)"],
        "letters purge" => &["inbox_letter_finished (finished_at<?)"],
        "upkeep emptied_for" => &["PRIMARY KEY"],
        _ => &[],
    }
}

#[tokio::test]
async fn statements_of_the_inbox_use_their_index() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("inbox.db").to_str().unwrap()).await.unwrap();
    let inbox = SqliteInbox::new(&store);
    inbox.migrate().await.unwrap();
    let groups = [
        ("guard ", inbox.0.guard.named()),
        ("", inbox.0.seen.named()),
        ("letters ", inbox.0.letters.named()),
        ("upkeep ", inbox.0.upkeep.named()),
    ];
    for (group, statements) in groups {
        for (name, sql) in statements {
            let name = format!("{group}{name}");
            let rows = sqlx::query(AssertSqlSafe(format!("explain query plan {}", sql.as_str())))
                .fetch_all(store.pool())
                .await
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            let plan = rows.iter().map(|row| row.get::<String, _>(3)).collect::<Vec<_>>().join("\n");
            for words in wanted_of_inbox(&name) {
                assert!(plan.contains(words), "{name} lacks {words:?}:\n{plan}");
            }
            let scanned = plan.contains("SCAN inbox_guard") || plan.contains("SCAN inbox_seen");
            assert!(!scanned, "{name} reads a table:\n{plan}");
            assert!(!plan.contains("TEMP B-TREE FOR ORDER"), "{name} sorts:\n{plan}");
            let lookups = plan.matches("SEARCH inbox_seen_").count();
            assert_eq!(lookups, usize::from(name == "enter"), "{name}:\n{plan}");
        }
    }
}

/// Counts what SQLite's machine does on a connection.
async fn count_steps(line: &Line, steps: &Arc<AtomicU64>) {
    let mut entered = line.enter().await.unwrap();
    let mut handle = entered.connection().unwrap().lock_handle().await.unwrap();
    let steps = steps.clone();
    handle.set_progress_handler(1, move || {
        steps.fetch_add(1, Ordering::Relaxed);
        true
    });
}

async fn take_all(store: &SqliteStore, name: &str) -> Vec<Taken> {
    let joining =
        Joining { node: NodeId::new(name), ttl: Duration::from_mins(1), routes: vec!["a".into()], in_flight: 3_008 };
    let lease = store.join(&joining).await.unwrap();
    store.take(&lease, PartitionSet::ALL).await.unwrap().unwrap()
}

/// The steps of each read of a new owner, by name.
async fn costs(store: &SqliteStore, taken: &[Taken]) -> Vec<(&'static str, u64)> {
    let steps = Arc::<AtomicU64>::default();
    for line in [&store.0.pages, &store.0.seeks, &store.0.operators] {
        count_steps(line, &steps).await;
    }
    let cost = || steps.swap(0, Ordering::Relaxed);
    let mut all = |_: Candidate<'_>| true;
    let after = &Position::at(taken.iter().map(|taken| taken.mark).min().unwrap());
    cost();
    let mut costs = Vec::new();

    let scan = Scan { partitions: PartitionSet::ALL, after, limit: 100, skip_recent: Duration::ZERO };
    assert_eq!(store.page(scan, &mut all).await.unwrap().rows.len(), 100);
    costs.push(("a page", cost()));
    let some: PartitionSet = Partition::all().take(128).collect();
    let scan = Scan { partitions: some, after, limit: 20, skip_recent: Duration::ZERO };
    assert_eq!(store.page(scan, &mut all).await.unwrap().rows.len(), 20);
    costs.push(("a page of half the partitions", cost()));
    store.due(PartitionSet::ALL, 100, &mut all).await.unwrap();
    costs.push(("due rows", cost()));
    let key = Key::from("k");
    let partition = Event::builder("a").key("k").json(&1).build().unwrap().key_partition().unwrap();
    store.lane(partition, &key, Seq(0), 10).await.unwrap();
    costs.push(("a lane", cost()));
    store.recall(taken).await.unwrap();
    costs.push(("a recall", cost()));
    let dead = Query { statuses: vec![Status::Dead], ..Query::default() };
    store.list(&dead, Seq(0), 10).await.unwrap();
    costs.push(("a list of the dead", cost()));
    costs
}

const PENDING: &str = "insert into outbox_event (event_id, event_type, payload, event_key, partition)
    with recursive n (n) as (select 1 union all select n + 1 from n where n < 1000)
    select printf('%026d', n), 'a', '1', iif(n % 4, null, 'k'), iif(n % 4, n % 256, 0) from n";

async fn fresh() -> (tempfile::TempDir, SqliteStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    store.migrate().await.unwrap();
    (folder, store)
}

async fn open(folder: &tempfile::TempDir) -> SqliteStore {
    SqliteStore::open(folder.path().join("outbox.db").to_str().unwrap()).await.unwrap()
}

async fn run(store: &SqliteStore, sql: &'static str) {
    sqlx::query(sql).execute(store.pool()).await.unwrap();
}

/// S6: also for a new owner, after a clean stop and after a crash, because the mark is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_cost_the_same_behind_200_000_finished_rows() {
    let (_folder, store) = fresh().await;
    run(&store, PENDING).await;
    let clean = costs(&store, &take_all(&store, "n").await).await;
    let unclean = costs(&store, &take_all(&store, "n").await).await;

    let (folder, store) = fresh().await;
    run(
        &store,
        "insert into outbox_event (event_id, event_type, payload, status, done_at, event_key)
            with recursive n (n) as (select 1 union all select n + 1 from n where n < 200000)
            select printf('%026d', n), 'a', '1', 'DONE', 1, iif(n % 4, null, 'k') from n",
    )
    .await;
    for (end, none) in [("a clean stop", &clean), ("a crash", &unclean)] {
        let outbox = Outbox::single_node(open(&folder).await).node_name("n").route("a", |_: Delivery| async {});
        let outbox = outbox.start().await.unwrap();
        let mut tx = outbox.begin().await.unwrap();
        tx.write(Event::builder("a").json(&1)).await.unwrap();
        tx.commit().await.unwrap();
        let mark = "select coalesce(max(mark), 0) from outbox_instance";
        let pending = "select count(*) from outbox_event where status = 'NEW'";
        let number = |sql: &'static str| sqlx::query_scalar::<_, i64>(sql).fetch_one(store.pool());
        while number(pending).await.unwrap() > 0 || number(mark).await.unwrap() < 200_000 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if end == "a clean stop" {
            outbox.shutdown().await;
        }
        // Under the same name: the lease of the one before ends here, as if its process were gone.
        let taken = take_all(&store, "n").await;
        drop(outbox);
        assert!(taken.iter().all(|taken| taken.mark >= Seq(200_000)), "{end}");
        run(&store, PENDING).await;
        for ((name, with), (_, without)) in costs(&store, &taken).await.into_iter().zip(none) {
            println!("{name} after {end}: {with} steps, {without} without finished rows");
            assert!(with <= without * 3 / 2 + 500, "{name} after {end}: {with} steps, {without} without finished rows");
        }
        run(&store, "update outbox_event set status = 'DONE', done_at = 1 where status = 'NEW'").await;
    }
}
