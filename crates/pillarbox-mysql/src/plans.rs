//! Every statement is served by the index that its comment names, and finished rows cost nothing.

use std::time::{Duration, Instant};

use pillarbox_core::{
    domain::{Key, NodeId, Partition, PartitionSet, Seq, Status, bucket::SLOTS},
    port::{
        AdminStore as _, Candidate, InboxUpkeep as _, Joining, OwnStore as _, Position, Query, ReadStore as _, Scan,
        UpkeepStore as _,
    },
};
use pillarbox_testkit::servers::{Database, Shared};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection, Row as _};

use crate::{MySqlInbox, MySqlStore, connection::Line, row, settle::locked};

/// Which index a statement uses for the events. Of tables that stay small, nothing is asked.
fn wanted(name: &str) -> Option<&'static str> {
    Some(match name {
        "page" | "page_above" | "picked" | "rows" | "done" | "delete" | "interrupted" | "retry" | "dying" | "dead"
        | "start" | "starts" | "window" | "finished" | "aged" | "record" | "replay" | "discard" | "heads"
        | "free_keys" | "created" => "PRIMARY",
        "sweep" | "failing" | "above" | "totals" | "worst" => "by_status",
        "due" | "next_due" => "by_due",
        "lane" | "behind" => "by_key",
        _ => return None,
    })
}

struct Test {
    store: MySqlStore,
    database: Database,
}

impl Test {
    async fn new(server: Shared) -> Self {
        let database = server.database();
        let store = MySqlStore::open(database.url()).await.unwrap();
        store.migrate().await.unwrap();
        Self { store, database }
    }

    async fn run(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(self.store.pool()).await.unwrap();
    }

    /// So many rows, every fourth with the key `k`.
    async fn fill(&self, count: u32, status: &str) {
        let done = if status == "DONE" { "utc_timestamp(6)" } else { "null" };
        let k = Partition::of_key(&Key::from("k"));
        let sql = format!(
            "insert into outbox_event (event_type, payload, status, done_at, event_key, `partition`)
            select 'a', '1', '{status}', {done}, if(n % 4 = 0, 'k', null), if(n % 4 = 0, {k}, n % 256)
            from json_table(concat('[', repeat('0,', {count} - 1), '0]'), '$[*]' columns (n for ordinality)) as numbers"
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(self.store.pool()).await.unwrap();
    }
}

pub(crate) async fn for_each_server<F: Future<Output = ()>>(test: impl Fn(Shared) -> F) {
    test(Shared::MariaDb).await;
    if Shared::MySql.is_there() {
        test(Shared::MySql).await;
    } else {
        eprintln!("left out on MySQL: {} is not set", Shared::MySql.variable());
    }
}

#[tokio::test]
async fn statements_use_their_index() {
    for_each_server(async |server| {
        let test = Test::new(server).await;
        test.fill(3_000, "DONE").await;
        test.fill(300, "NEW").await;
        test.run("insert into outbox_hold (`partition`, kind, name, from_seq) values (1, 'DEAD_HEAD', 'k', 5), (1, 'DEAD_HEAD', 'j', 6)").await;
        test.run("analyze table outbox_event").await;
        let sql = &test.store.0.sql;
        let mut connection = MySqlConnection::connect(&test.database.url()).await.unwrap();
        if server == Shared::MySql {
            connection.execute("set explain_format = 'TRADITIONAL'").await.unwrap();
        }
        let statements = [
            sql.keys.named(),
            sql.own.named(),
            sql.read.named(),
            sql.recall.named(),
            sql.settle.named(),
            sql.upkeep.named(),
            sql.admin.named(),
            sql.action.named(),
        ];
        assert_eq!(sql.water.named().len(), 1, "the look at the transactions is no statement on these tables");
        for (name, sql) in statements.into_iter().flatten() {
            if ["list", "count"].contains(&name) {
                // They have a tail that depends on what is asked; see below.
                continue;
            }
            // With numbers in the place of the binds, and a list where one is opened.
            let text = sql.as_str().replace("json_table(?", "json_table('[1, 5, 9, 3200]'").replace("seq > ? and seq <= ?", "seq > 1 and seq <= 3100")
                .replace("event_key = ?", "event_key = 'k'").replace("{list}", "1, 5, 9, 3200").replace('?', "100");
            // What the server does not understand fails here.
            let rows = connection
                .fetch_all(AssertSqlSafe(format!("explain {text}")))
                .await
                .unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
            let Some(index) = wanted(name) else { continue };
            let of_events = rows.iter().filter(|row| word(row, "table") == "outbox_event");
            let mut found = 0;
            for row in of_events {
                found += 1;
                let (key, access, extra) = (word(row, "key"), word(row, "type"), word(row, "Extra"));
                assert_eq!(key, index, "{name} on {server:?}: {access} {extra}");
                assert!(access != "ALL", "{name} on {server:?} reads the table");
                // MySQL sorts the followers of an overflowing key, once at an unclean takeover.
                let sorts = ["failing", "worst", "behind"].contains(&name) || !extra.contains("filesort");
                assert!(sorts, "{name} on {server:?} sorts: {extra}");
            }
            let plan: Vec<_> = rows.iter().map(|row| format!("{} {}", word(row, "table"), word(row, "Extra"))).collect();
            assert!(found > 0, "{name} on {server:?} has no plan for the events: {plan:?}");
        }
    })
    .await;
}

/// Which index a statement of the inbox uses, and what stands in the place of its conditions, if they follow.
fn wanted_of_inbox(name: &str) -> Option<(&'static str, &'static str)> {
    Some(match name {
        "take_over" | "taken" | "release" | "one" | "many" | "highest" | "ahead" | "after" | "entered" | "page"
        | "replace" | "find" => ("PRIMARY", ""),
        "guard purge" => ("by_expiry", ""),
        "list" => ("newest", "1 = 1 order by dead_at desc, id limit 10"),
        "list_status" => ("by_status", "status = 'PENDING' order by dead_at desc, id limit 10"),
        "count_status" => ("by_status", "status = 'PENDING'"),
        "letters purge" => ("by_end", ""),
        _ => return None,
    })
}

#[tokio::test]
async fn statements_of_the_inbox_use_their_index() {
    for_each_server(async |server| {
        let database = server.database();
        let inbox = MySqlInbox::new(&MySqlStore::open(database.url()).await.unwrap());
        inbox.migrate().await.unwrap();
        let mut connection = MySqlConnection::connect(&database.url()).await.unwrap();
        let numbers = "json_table(concat('[', repeat('0,', 2999), '0]'), '$[*]' columns (n for ordinality)) as numbers";
        for slot in 0..SLOTS {
            let fill = format!("insert into inbox_seen_{slot} select 'c', concat('m-', n), 1 from {numbers}");
            connection.execute(AssertSqlSafe(fill)).await.unwrap();
        }
        let fill = format!("insert into inbox_guard select 'c', concat('m-', n), 'me', 1, utc_timestamp(6) + interval n second from {numbers}");
        connection.execute(AssertSqlSafe(fill)).await.unwrap();
        let fill = format!(
            "insert into inbox_letter select n, 0, 'c', 'e', 't', 'o', null, '', '[]', '[]', 'x', 'r', 1,
                utc_timestamp(6) - interval n second, null, null, null, 0, if(n > 100, 'REPLAYED', 'PENDING'),
                if(n > 100, utc_timestamp(6) - interval n second, null), null, '[]' from {numbers}"
        );
        connection.execute(AssertSqlSafe(fill)).await.unwrap();
        connection.fetch_all("analyze table inbox_guard, inbox_letter, inbox_seen_0, inbox_seen_1").await.unwrap();
        if server == Shared::MySql {
            connection.execute("set explain_format = 'TRADITIONAL'").await.unwrap();
        }
        let sql = &inbox.0.sql;
        let groups = [("guard", sql.guard.named()), ("seen", sql.seen.named()), ("recollection", sql.recollection.named()), ("letters", sql.letters.named()), ("upkeep", sql.upkeep.named())];
        for (group, name, sql) in groups.into_iter().flat_map(|(group, named)| named.into_iter().map(move |(name, sql)| (group, name, sql))) {
            let whole = format!("{group} {name}");
            let wanted = wanted_of_inbox(name).or_else(|| wanted_of_inbox(&whole));
            let tail = wanted.map_or(if name == "count" { "1 = 1" } else { "" }, |(_, tail)| tail);
            // With values in the place of the binds: a consumer, a list, a time that fits.
            let text = format!("{}{tail}", sql.as_str())
                .replace("json_table(?", "json_table('[\"m-1\", \"m-7\", \"m-3000\"]'")
                .replace("consumer = ?", "consumer = 'c'")
                .replace("message = ?", "message = 'm-7'")
                .replace("message >= ?", "message >= 'm-7'")
                .replace("between ? and ?", "between 'm-1' and 'm-7'")
                .replace("consumer = cast(? as binary)", "consumer = cast('c' as binary)")
                .replace("div ? = ?", "div 1 > 0")
                .replace("mod ? >= ?", "mod 1 >= 0")
                .replace("id = ?", "id = '7'")
                .replace('?', "10");
            let rows = connection
                .fetch_all(AssertSqlSafe(format!("explain {text}")))
                .await
                .unwrap_or_else(|error| panic!("{whole}: {error}\n{text}"));
            let Some((index, _)) = wanted else { continue };
            let tables = ["other", "near", "own", "old", "inbox_guard", "inbox_letter"];
            let plan: Vec<_> = rows.iter().map(|row| ["table", "type", "key", "Extra"].map(|column| word(row, column))).collect();
            // The table that is inserted into has a line of its own on MySQL, without an index.
            let read: Vec<_> = plan.iter().filter(|[table, ..]| tables.contains(&table.as_str())).collect();
            assert!(!read.is_empty(), "{whole} on {server:?}: {plan:?}");
            for [_, access, key, extra] in read {
                assert_eq!(key, index, "{whole} on {server:?}: {plan:?}");
                assert!(access != "ALL" && !extra.contains("filesort"), "{whole} on {server:?}: {plan:?}");
            }
            let lookups = plan.iter().filter(|[table, ..]| table == "other" || table == "near").count();
            let expected = usize::from(["one", "many", "highest", "ahead"].contains(&name));
            assert_eq!(lookups, expected, "{whole} on {server:?}: {plan:?}");
        }
    })
    .await;
}

/// A column of a plan.
fn word(row: &sqlx::mysql::MySqlRow, column: &str) -> String {
    let bytes: Option<Vec<u8>> = row.try_get_unchecked(column).unwrap_or_default();
    bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// How many rows a connection of the store has read so far.
async fn rows_read(line: &Line) -> i64 {
    let mut entered = line.enter().await.unwrap();
    let rows = sqlx::raw_sql("show session status like 'Handler_read%'").fetch_all(&mut *entered).await.unwrap();
    entered.done();
    rows.iter().map(|row| word(row, "Value").parse::<i64>().unwrap()).sum()
}

fn scan(after: &Position) -> Scan<'_> {
    Scan { partitions: PartitionSet::ALL, after, limit: 500, skip_recent: Duration::ZERO }
}

/// S6, and a transaction that is open all the time: what was read and finished above the mark costs nothing either.
#[tokio::test]
async fn reads_cost_the_same_behind_300_000_finished_rows() {
    for_each_server(async |server| {
        let test = Test::new(server).await;
        let store = &test.store;
        // Holds the mark at 0.
        let mut open = MySqlConnection::connect(&test.database.url()).await.unwrap();
        open.execute("start transaction").await.unwrap();
        open.execute("insert into outbox_event (event_type, payload) values ('a', '1')").await.unwrap();
        let mut all = |_: Candidate<'_>| true;
        let mut position = Position::START;
        for (count, label) in [(0, "without finished rows"), (300_000, "behind 300,000 finished rows")] {
            if count > 0 {
                test.run("update outbox_event set status = 'DONE', done_at = utc_timestamp(6) where status = 'NEW' and seq > 1").await;
                test.fill(count, "DONE").await;
            }
            // Reads past what is finished, once.
            let begun = Instant::now();
            position = store.page(scan(&position), &mut all).await.unwrap().position;
            let once = begun.elapsed();
            test.fill(1_000, "NEW").await;
            let before = rows_read(&store.0.pages).await;
            let begun = Instant::now();
            let page = store.page(scan(&position), &mut all).await.unwrap();
            let took = begun.elapsed();
            let read = rows_read(&store.0.pages).await - before;
            assert_eq!((page.rows.len(), page.position.mark), (500, Seq(0)));
            println!("{server:?}: a page of 500 {label}: {took:?}, {read} reads; the one before took {once:?}");
            assert!(read < 2_500, "{read} reads {label}");
            position = page.position;
        }
        let both = async || rows_read(&store.0.seeks).await + rows_read(&store.0.pages).await;
        let before = both().await;
        let key = Key::from("k");
        let partition = Partition::of_key(&key);
        let lane = store.lane(partition, &key, position.seq, 10).await.unwrap();
        assert_eq!(lane.len(), 10);
        store.due(PartitionSet::ALL, 100, &mut all).await.unwrap();
        let dead = Query { statuses: vec![Status::Dead], ..Query::default() };
        store.list(&dead, Seq(0), 10).await.unwrap();
        let read = both().await - before;
        println!("{server:?}: a lane, due rows and a list of the dead: {read} reads");
        assert!(read < 300, "{read} reads");
        open.execute("rollback").await.unwrap();
    })
    .await;
}

/// Decision 9: a settle or a purge that finds no row at the highest number holds no lock that writers need, and
/// waits for none of theirs.
#[tokio::test]
async fn a_settle_of_missing_rows_stands_in_no_writers_way() {
    for_each_server(async |server| {
        let test = Test::new(server).await;
        let store = &test.store;
        test.fill(10, "NEW").await;
        test.run("delete from outbox_event where seq > 5").await;
        let joining = Joining { node: NodeId::new("n"), ttl: Duration::from_mins(1), routes: vec![], in_flight: 1 };
        let lease = store.join(&joining).await.unwrap();
        let sql = &store.0.sql;
        let list = row::json_numbers((4..=12).map(Seq));
        let changes = [&sql.settle.done, &sql.settle.delete, &sql.settle.interrupted, &sql.settle.dying];
        for change in changes.into_iter().chain([&sql.upkeep.aged]) {
            // A writer that has not committed, at the number behind.
            let mut writer = MySqlConnection::connect(&test.database.url()).await.unwrap();
            writer.execute("set session innodb_lock_wait_timeout = 1").await.unwrap();
            writer.execute("start transaction").await.unwrap();
            writer.execute("insert into outbox_event (event_type, payload, seq) values ('a', '1', 13)").await.unwrap();
            let mut tx = store.fenced(&store.0.settles, &lease).await.unwrap().unwrap();
            let begun = Instant::now();
            if change.as_str().contains("{list}") {
                locked(&mut tx, change, &(4..=12).map(Seq).collect::<Vec<_>>()).await.unwrap();
            } else {
                sqlx::query(change.clone()).bind(list.as_str()).execute(&mut *tx).await.unwrap();
            }
            assert!(begun.elapsed() < Duration::from_millis(900), "waited for a writer: {}", change.as_str());
            for number in ["6", "7", "12", "14", "1000"] {
                let insert = format!("insert into outbox_event (event_type, payload, seq) values ('a', '1', {number})");
                let done = writer.execute(AssertSqlSafe(insert)).await;
                done.unwrap_or_else(|error| panic!("{number} waits for {}: {error}", change.as_str()));
            }
            tx.rollback().await.unwrap();
            writer.execute("rollback").await.unwrap();
        }
    })
    .await;
}
