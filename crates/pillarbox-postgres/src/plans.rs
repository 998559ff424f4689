//! Every statement is served by the index that its comment names, also when plans are made without the values.

use pillarbox_core::{
    domain::bucket::{SLOTS, before},
    port::{InboxUpkeep as _, UpkeepStore as _},
};
use pillarbox_testkit::servers::Shared;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use crate::{PostgresInbox, PostgresStore, connection::SESSION};

const PRIMARY_KEY: &str = "using outbox_event_pkey";

/// What the plan of a statement must contain, and whether it may read the table of events from end to end. Of tables
/// that stay small, nothing is asked.
fn wanted(name: &str) -> (&'static [&'static str], bool) {
    match name {
        "page" | "page_late" | "rows" | "finish" | "finish_runs" | "interrupted" | "retry" | "dead" | "unsettled"
        | "start" | "window" | "finished" | "aged" | "list" | "record" => (&[PRIMARY_KEY], false),
        "lock_dead" | "replay" | "discard" | "heads" => (&["using outbox_event_"], false),
        "due" | "next_due" | "failing" => (&["outbox_event_due"], false),
        "lane" => (&["using outbox_event_key"], false),
        "list_dead" | "count_dead" => (&["outbox_event_dead"], false),
        "oldest" => {
            (&[PRIMARY_KEY, "outbox_event_due", "outbox_event_key", "event_key on outbox_event pending_1"], false)
        }
        "newest" => (&[PRIMARY_KEY, "outbox_event_due"], false),
        "present" | "fence" | "renew" => (&["using outbox_life_pkey"], false),
        "count" | "totals" | "worst" => (&[], true),
        _ => (&[], false),
    }
}

/// Finished rows, some that wait, some that are dead, due or keyed.
const ROWS: &str = "
    insert into outbox_event (event_type, payload, given_partition, status, done_at)
        select 'a', repeat('x', 200), n % 256, 'DONE', now() from generate_series(1, 100000) n;
    insert into outbox_event (event_type, payload, given_partition)
        select 'a', repeat('x', 200), n % 256 from generate_series(1, 20000) n;
    insert into outbox_event (event_type, payload, event_key)
        select 'a', '1', 'order-' || n % 500 from generate_series(1, 2000) n;
    insert into outbox_event (event_type, payload, given_partition, status, available_at)
        select 'a', '1', abs(n) % 256, 'RETRY', now() + n * interval '1 second' from generate_series(-500, 500) n;
    insert into outbox_event (event_type, payload, given_partition, status, done_at)
        select 'a', '1', n % 256, 'DEAD', now() from generate_series(1, 1000) n;";

/// One key has nearly all that waits, so that an equal key says little.
const CROWD: &str = "
    delete from outbox_event where event_key is not null;
    insert into outbox_event (event_type, payload, event_key)
        select 'a', '1', case when n % 10000 = 0 then 'order-7' else 'crowd' end from generate_series(1, 300000) n;
    analyze";

async fn plan(session: &mut PgConnection, name: &str, sql: &str) -> String {
    let parameters = (1..30).take_while(|n| sql.contains(&format!("${n}"))).count();
    let prepare = format!("deallocate all; prepare examined as {sql}");
    sqlx::raw_sql(AssertSqlSafe(prepare))
        .execute(&mut *session)
        .await
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let nulls = vec!["null"; parameters].join(", ");
    let arguments = if parameters == 0 { String::new() } else { format!("({nulls})") };
    let rows = sqlx::raw_sql(AssertSqlSafe(format!("explain (costs off) execute examined {arguments}")))
        .fetch_all(&mut *session)
        .await
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn statements_use_their_index() {
    let database = Shared::Postgres.database();
    let store = PostgresStore::open(database.url()).unwrap();
    store.migrate().await.unwrap();
    let mut session = PgConnection::connect(&database.url()).await.unwrap();
    let sql = &store.0.sql;
    for (state, prepare) in [("never analyzed", ROWS), ("analyzed", "analyze"), ("with a crowd", CROWD)] {
        sqlx::raw_sql(prepare).execute(&mut session).await.unwrap();
        sqlx::raw_sql(SESSION).execute(&mut session).await.unwrap();
        let statements = [
            sql.write.named(),
            sql.life.named(),
            sql.own.named(),
            sql.read.named(),
            sql.settle.named(),
            sql.upkeep.named(),
            sql.admin.named(),
            sql.action.named(),
        ];
        for (name, sql) in statements.into_iter().flatten() {
            let plan = plan(&mut session, name, sql.as_str()).await;
            let (words, whole) = wanted(name);
            for words in words {
                assert!(plan.contains(words), "{name} lacks {words:?} ({state}):\n{plan}");
            }
            let scanned =
                plan.contains("Seq Scan on outbox_event") && !plan.contains("Seq Scan on outbox_event_seq_seq");
            assert!(whole || !scanned, "{name} reads the table ({state}):\n{plan}");
            let sorts = ["oldest", "newest", "failing", "holds"].contains(&name);
            assert!(sorts || !name.starts_with("page") || !plan.contains("Sort"), "{name} sorts:\n{plan}");
        }
    }
}

/// What the plan of a statement of the inbox must contain.
fn wanted_of_inbox(name: &str) -> &'static [&'static str] {
    match name {
        "guard take" => &["Conflict Arbiter Indexes: inbox_guard_pkey"],
        "guard release" => &["using inbox_guard_pkey"],
        "guard purge" => &["Tid Scan on inbox_guard", "using inbox_guard_expiry"],
        "recollection page" => &["using inbox_seen_"],
        "letters insert" => &["Insert on inbox_letter"],
        "letters replace" | "letters find" | "letters acted" => &["using inbox_letter_pkey"],
        "letters list" => &["using inbox_letter_newest"],
        "letters list_status" | "letters count_status" => &["using inbox_letter_status"],
        "letters purge" => &["using inbox_letter_pkey", "using inbox_letter_finished"],
        _ => &[],
    }
}

const INBOX_ROWS: &str = "
    insert into inbox_guard (consumer, message, taken_by, expires_at)
        select 'c-' || n % 3, 'm-' || n, 'me', now() + n * interval '1 second' from generate_series(-5000, 5000) n;
    insert into inbox_letter select md5(n::text), 0, 'c', 'e', 't', 'o', null, '', '[]', '[]', 'x', 'r', 1,
        now() - n * interval '1 second', null, null, null, 0, (array['PENDING', 'REPLAYED'])[1 + (n > 100)::int],
        case when n > 100 then now() end, null, '[]' from generate_series(1, 5000) n;";

/// In the user's own session, with its own settings, when the slots are empty and when they are full.
const PLAIN_SESSION: &str = "reset all; set plan_cache_mode = force_generic_plan";

#[tokio::test]
async fn statements_of_the_inbox_use_their_index() {
    let database = Shared::Postgres.database();
    let inbox = PostgresInbox::new(&PostgresStore::open(database.url()).unwrap());
    inbox.migrate().await.unwrap();
    let mut session = PgConnection::connect(&database.url()).await.unwrap();
    let fill = (0..SLOTS).map(|slot| {
        format!("insert into inbox_seen_{slot} select 'c-' || n % 3, 'm-' || n from generate_series(1, 20000) n;")
    });
    let fill = fill.chain([INBOX_ROWS.to_owned()]).collect::<String>();
    let sql = &inbox.0.sql;
    // Empty, filled and never analyzed, analyzed.
    for (state, prepare) in [("empty", "select 1"), ("filled", fill.as_str()), ("analyzed", "analyze")] {
        sqlx::raw_sql(AssertSqlSafe(prepare.to_owned())).execute(&mut session).await.unwrap();
        sqlx::raw_sql(PLAIN_SESSION).execute(&mut session).await.unwrap();
        let slots = sql.seen.named();
        for (slot, (name, sql)) in
            slots.chunks(slots.len() / SLOTS).enumerate().flat_map(|(slot, of)| of.iter().map(move |of| (slot, of)))
        {
            let plan = plan(&mut session, name, sql.as_str()).await;
            let lookup = format!("using inbox_seen_{}_pkey", before(slot));
            let looks = ["one", "many"].contains(name);
            assert_eq!(plan.contains(&lookup), looks, "{name} of slot {slot}: {lookup:?} ({state}):\n{plan}");
            assert!(!plan.contains("Seq Scan on inbox"), "{name} of slot {slot} reads a table ({state}):\n{plan}");
        }
        sqlx::raw_sql(SESSION).execute(&mut session).await.unwrap();
        let groups = [
            ("guard", sql.guard.named()),
            ("recollection", sql.recollection.named()),
            ("letters", sql.letters.named()),
            ("upkeep", sql.upkeep.named()),
        ];
        for (group, statements) in groups {
            for (name, sql) in statements {
                let name = format!("{group} {name}");
                let plan = plan(&mut session, &name, sql.as_str()).await;
                for words in wanted_of_inbox(&name) {
                    assert!(plan.contains(words), "{name} lacks {words:?} ({state}):\n{plan}");
                }
                let sorts = plan.contains("Sort") && name != "guard take";
                assert!(!sorts, "{name} sorts ({state}):\n{plan}");
            }
        }
    }
}
