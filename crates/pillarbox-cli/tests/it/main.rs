//! The built program, as a user runs it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

mod advice;
mod dead;
mod events;
mod letters;
mod private;
mod relay;
mod secrets;
mod status;
mod tables;
mod telemetry;

use std::{
    path::Path,
    process::{Command, Output},
};

use pillarbox_servers::Shared;
use serde_json::Value;
use sqlx::{ConnectOptions as _, SqliteConnection, sqlite::SqliteConnectOptions};

fn pillarbox(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pillarbox"))
        .args(arguments)
        .env_remove("RUST_LOG")
        .output()
        .expect("the program runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs `demo --json`, which must succeed, and reads what it prints: one object and nothing else.
fn demo(arguments: &[&str]) -> Value {
    let output = pillarbox(&[&["demo", "--json"], arguments].concat());
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
    assert_eq!(stderr(&output), "");
    let figures: Value = serde_json::from_slice(&output.stdout).expect("stdout is one JSON object");
    assert_eq!(figures["verdict"], "ok");
    figures
}

async fn open(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(path).connect().await.expect("the database opens")
}

async fn count(db: &mut SqliteConnection, sql: &'static str) -> u64 {
    sqlx::query_scalar(sql).fetch_one(db).await.expect("the statement is valid")
}

#[test]
fn any_number_of_events_holds_from_the_smallest_on() {
    for (events, dead) in [(1, 0), (2, 1), (3, 1), (7, 1), (200, 1)] {
        let figures = demo(&["--events", &events.to_string()]);
        assert_eq!(figures["written"], events);
        assert_eq!((&figures["dead"], &figures["dead_planned"]), (&dead.into(), &dead.into()));
        assert_eq!(figures["delivered"], events - dead);
        assert_eq!(figures["duplicates"], 0);
        assert!(figures["retried"].as_u64().unwrap() > 0, "every run shows a retry");
        assert!(figures["rolled_back"].as_u64().unwrap() > 0, "every run shows a rollback");
    }
}

#[tokio::test]
async fn the_figures_are_those_of_the_database_that_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a shop.db");
    let url = format!("sqlite:{}", path.display());
    let figures = demo(&["--events", "600", "--db", &url, "--keep"]);
    assert_eq!(figures["database"], path.to_str().unwrap());
    let mut db = open(&path).await;
    assert_eq!(count(&mut db, "select count(*) from demo_event").await, 600);
    assert_eq!(count(&mut db, "select count(*) from demo_event where status = 'DONE'").await, figures["delivered"]);
    assert_eq!(count(&mut db, "select count(*) from demo_event where status = 'DEAD'").await, figures["dead"]);
    assert_eq!(count(&mut db, "select count(*) from demo_order").await, figures["orders"]);
    let told = "select (select sum(step) from demo_order) + (select count(*) from demo_signup)";
    assert_eq!(count(&mut db, told).await, figures["written"]);
    let orphans = "select count(*) from demo_event where aggregate_type = 'Order' and cast(aggregate_id as integer) not in \
                   (select id from demo_order)";
    assert_eq!(count(&mut db, orphans).await, 0);
}

#[tokio::test]
async fn a_database_in_use_keeps_its_tables_and_every_run_its_own_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let mut db = SqliteConnectOptions::new().filename(&path).create_if_missing(true).connect().await.unwrap();
    sqlx::raw_sql("create table orders (id integer); insert into orders values (1), (2), (3)")
        .execute(&mut db)
        .await
        .unwrap();
    let path = path.to_str().unwrap();
    assert_eq!(demo(&["--events", "100", "--db", path])["run"], 1);
    // As if the run had been cut short: one of its events waits to be tried again.
    sqlx::raw_sql(
        "update demo_event set status = 'RETRY', available_at = created_at \
         where seq = (select min(seq) from demo_event where status = 'DONE')",
    )
    .execute(&mut db)
    .await
    .unwrap();
    let second = demo(&["--events", "100", "--db", path]);
    assert_eq!((&second["run"], &second["written"]), (&2.into(), &100.into()));
    assert_eq!(second["leftovers"], 1);
    assert_eq!(count(&mut db, "select count(*) from orders").await, 3);
}

#[tokio::test]
async fn a_loss_makes_the_program_fail_and_say_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    demo(&["--events", "10", "--db", path.to_str().unwrap()]);
    // The database now loses what the outbox is told to keep.
    let mut db = open(&path).await;
    sqlx::raw_sql(
        "create trigger thief after insert on demo_event when new.event_type = 'OrderPaid' \
         begin delete from demo_event where seq = new.seq; end",
    )
    .execute(&mut db)
    .await
    .unwrap();
    let output = pillarbox(&["demo", "--json", "--events", "300", "--db", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(figures["verdict"], "failed");
    let problems = figures["problems"].as_array().unwrap();
    let miscount = problems.iter().find(|listed| listed["problem"] == "miscount").unwrap();
    assert!(miscount["examples"][0].as_str().unwrap().contains("OrderPaid"), "{problems:?}");
    assert!(miscount["examples"].as_array().unwrap().len() <= 10);
}

#[test]
fn the_temporary_database_goes_unless_it_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_pillarbox"))
            .args([&["demo", "--events", "5"], arguments].concat())
            .env("TMPDIR", folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let left = || std::fs::read_dir(folder.path()).unwrap().count();
    let text = run(&[]);
    assert!(text.contains("delivered") && text.contains("p99") && !text.contains("sqlite3"), "{text}");
    assert_eq!(left(), 0);
    let text = run(&["--keep"]);
    assert!(text.contains("sqlite3"), "{text}");
    assert_eq!(left(), 1);
}

#[test]
fn a_rate_is_kept() {
    let figures = demo(&["--events", "100", "--rate", "100"]);
    let seconds = figures["seconds"].as_f64().unwrap();
    assert!(seconds > 0.9, "100 events at 100 a second took {seconds} s");
}

#[test]
fn wrong_arguments_are_refused_with_the_reason() {
    for (arguments, word) in [
        (&["demo", "--events", "0"][..], "1..=5000000"),
        (&["demo", "--events", "many"], "many"),
        (&["demo", "--rate", "-1"], "-1"),
        (&["demo", "--speed", "1"], "--speed"),
        (&["dance"], "dance"),
    ] {
        let output = pillarbox(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
}

#[test]
fn databases_that_can_not_be_used_are_refused_with_what_to_do() {
    for (url, word) in [
        ("postgres://localhost/shop", "sqlite"),
        ("sqlite::memory:", "memory"),
        ("/no/such/folder/shop.db", "/no/such/folder/shop.db"),
    ] {
        let output = pillarbox(&["demo", "--json", "--db", url]);
        assert_eq!(output.status.code(), Some(1), "{url}");
        let text = stderr(&output);
        assert!(text.starts_with("error: ") && text.contains(word) && text.contains("try: "), "{text}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_file_that_is_no_database_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("letter.txt");
    let words = "Dear reader, this is no database. ".repeat(100);
    std::fs::write(&path, &words).unwrap();
    let output = pillarbox(&["demo", "--db", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("letter.txt"), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), words);
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_run_in_order_and_says_what_was_done() {
    use std::process::Stdio;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pillarbox"))
        .args(["demo", "--json", "--rate", "200", "--events", "100000", "--db", path.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Ctrl-C is listened to before the database is opened.
    while !path.exists() {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::yield_now();
    }
    let interrupt = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    assert!(interrupt.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(figures["verdict"], "interrupted");
    assert_eq!(figures["problems"], Value::Array(vec![]));
    // What was left waiting does not trouble the next run.
    demo(&["--events", "20", "--db", path.to_str().unwrap()]);
}

#[test]
fn help_has_examples() {
    let output = pillarbox(&["demo", "--help"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Examples:") && text.contains("--events"), "{text}");
}

#[tokio::test]
async fn migrate_makes_the_tables_once_and_check_tells() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("a.db").display());
    let run = |arguments: &[&str]| pillarbox(&[&["migrate", "--db", &url], arguments].concat());
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let before = run(&["--check"]);
    assert_eq!(before.status.code(), Some(2), "{}", stderr(&before));
    assert!(text(&before).contains("run the migrations"));
    assert_eq!(text(&run(&[])), "the tables are migrated\n");
    assert_eq!(text(&run(&[])), "the tables were up to date\n");
    assert!(run(&["--check"]).status.success());
    assert_eq!(run(&["--check", "--prefix", "other_"]).status.code(), Some(2));
    let hostile = run(&["--prefix", "x; drop table y"]);
    assert_eq!(hostile.status.code(), Some(1));
    assert!(stderr(&hostile).contains("table prefix"), "{}", stderr(&hostile));
}

#[tokio::test]
async fn printed_migrations_make_what_this_program_needs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let url = format!("sqlite:{}", path.display());
    let printed = pillarbox(&["migrate", "--db", &url, "--prefix", "mine_", "--print"]);
    assert!(printed.status.success(), "{}", stderr(&printed));
    assert!(!path.exists(), "printing touches nothing");
    let sql = String::from_utf8(printed.stdout).unwrap();
    let mut db = SqliteConnectOptions::new().filename(&path).create_if_missing(true).connect().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut db).await.unwrap();
    let check = pillarbox(&["migrate", "--db", &url, "--prefix", "mine_", "--check"]);
    assert!(check.status.success(), "{}", stderr(&check));
}

/// A client that can't log in closes the pipe; its own error is what the person needs to see, and no panic beside it.
#[test]
fn a_reader_who_has_left_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("a.db").display());
    for arguments in [
        &["migrate", "--db", "postgres://nobody@localhost/shop", "--print", "--inbox"][..],
        &["migrate", "--db", "mysql://nobody@localhost/shop", "--print"],
        &["migrate", "--db", &file, "--inbox"],
        &["migrate", "--db", &file, "--check"],
        &["config", "--reference"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut program = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
        let output = program.args(arguments).env_remove("RUST_LOG").stdout(writer).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        assert_eq!(stderr(&output), "", "{arguments:?}");
    }
}

#[tokio::test]
async fn status_shows_what_waits_and_who_owns_what() {
    use pillarbox::{Delivery, Event, Outbox, SqliteStore};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let url = format!("sqlite:{}", path.display());
    let missing = pillarbox(&["status", "--db", &url]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(!path.exists(), "looking at a file that is missing does not make it");

    let store = SqliteStore::open(&url).await.unwrap();
    let outbox = Outbox::single_node(store).node_name("till-1").route("Paid", async |_: Delivery| {});
    let outbox = outbox.start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    for _ in 0..3 {
        tx.write(Event::builder("Paid").key("k").deliver_after(std::time::Duration::from_hours(1)).json(&1))
            .await
            .unwrap();
    }
    tx.commit().await.unwrap();

    let output = pillarbox(&["status", "--db", &url, "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&status["pending"], &status["worst_partition"]["pending"]), (&3.into(), &3.into()));
    assert_eq!((&status["by_status"][0]["status"], &status["by_status"][0]["events"]), (&"NEW".into(), &3.into()));
    assert!(status["oldest_pending_seconds"].as_f64().unwrap() >= 0.0);
    let node = &status["nodes"][0];
    assert_eq!((&node["name"], &node["live"]), (&"till-1".into(), &true.into()));
    assert_eq!(node["partitions"].as_array().unwrap().len(), 256);
    assert_eq!(status["partitions"], serde_json::json!({ "owned": 256, "owned_by_lapsed": 0, "free": 0 }));

    let output = pillarbox(&["status", "--db", &url]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["3 events wait", "till-1", "Paid", "256 of 256 partitions have a live owner"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    outbox.shutdown().await;
    let output = pillarbox(&["status", "--db", &url]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("no nodes: nobody delivers these events"), "{text}");
}

#[tokio::test]
async fn status_shows_the_keys_that_are_blocked_and_why() {
    let folder = tempfile::tempdir().unwrap();
    shows_blocked_keys(&format!("sqlite:{}", folder.path().join("a.db").display())).await;
}

#[tokio::test]
async fn status_shows_the_keys_that_are_blocked_on_postgres() {
    shows_blocked_keys(&Shared::Postgres.database().url()).await;
}

#[tokio::test]
async fn status_shows_the_keys_that_are_blocked_on_mariadb() {
    shows_blocked_keys(&Shared::MariaDb.database().url()).await;
}

async fn shows_blocked_keys(url: &str) {
    use pillarbox::{AnyStore, Delivery, Event, HandlerError, Outbox, Query, RetryPolicy, Status};

    let store = AnyStore::open(url).await.unwrap();
    let outbox = Outbox::single_node(store)
        .route("Paid", async |_: Delivery| Err::<(), _>(HandlerError::msg("the bank says no").permanent()))
        .route("Sent", async |_: Delivery| Err::<(), _>(HandlerError::msg("the bank is closed")))
        .retry(RetryPolicy::fixed(std::time::Duration::from_hours(1)))
        .start();
    let outbox = outbox.await.unwrap();
    let begun = std::time::Instant::now();
    let mut tx = outbox.begin().await.unwrap();
    for (event, key) in [("Paid", "ada"), ("Paid", "ada"), ("Paid", "bob"), ("Sent", "cyd"), ("Sent", "cyd")] {
        tx.write(Event::builder(event).key(key).json(&1)).await.unwrap();
    }
    tx.write(Event::builder("Paid").json(&1)).await.unwrap();
    tx.commit().await.unwrap();
    for (status, count) in [(Status::Dead, 3), (Status::Retry, 1)] {
        let query = Query { statuses: vec![status], ..Query::default() };
        while outbox.dead().count(&query).await.unwrap() < count {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    let at_least = std::time::Duration::from_millis(300);
    tokio::time::sleep(at_least).await;

    let output = pillarbox(&["status", "--db", url, "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let keys = status["blocked"]["keys"].as_array().unwrap();
    let mut shown: Vec<_> =
        keys.iter().map(|key| ["key", "status", "error"].map(|field| key[field].as_str().unwrap())).collect();
    shown.sort_unstable();
    // The event without a key blocks nothing, and the second ones wait.
    let expected = [
        ["ada", "DEAD", "the bank says no"],
        ["bob", "DEAD", "the bank says no"],
        ["cyd", "RETRY", "the bank is closed"],
    ];
    assert_eq!(shown, expected);
    for key in keys {
        let age = key["blocked_seconds"].as_f64().unwrap();
        assert!(at_least.as_secs_f64() < age && age < begun.elapsed().as_secs_f64(), "{key}");
    }
    let output = pillarbox(&["status", "--db", url]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["blocked keys", "ada: DEAD for", "the bank says no", "cyd: RETRY for", "the bank is closed"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    outbox.shutdown().await;
}

#[test]
fn a_url_of_no_known_database_is_refused_without_its_password() {
    for command in ["status", "migrate"] {
        let output = pillarbox(&[command, "--db", "oracle://me:secret@host/db"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("postgres://") && !stderr(&output).contains("secret"), "{}", stderr(&output));
    }
}

/// S3, S4, W8: what `--print` gives is run with the server's own client, and an event is written with it.
fn prints_migrates_and_shows(server: Shared) {
    let database = server.database();
    let url = database.url();
    let run = |command: &str, arguments: &[&str]| {
        let output = pillarbox(&[&[command, "--db", &url, "--prefix", "mine_"], arguments].concat());
        let password = url.split(['/', '@']).nth(2).and_then(|user| user.split(':').nth(1)).expect("a password");
        for text in [&output.stdout, &output.stderr] {
            assert!(!String::from_utf8_lossy(text).contains(password), "the password is told");
        }
        output
    };
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(run("migrate", &["--check"]).status.code(), Some(2));
    let status = run("status", &[]);
    assert!(stderr(&status).contains("pillarbox migrate"), "{}", stderr(&status));

    let printed = run("migrate", &["--print"]);
    assert!(printed.status.success(), "{}", stderr(&printed));
    database.run(&text(&printed)).expect("the client runs the migrations");
    assert!(run("migrate", &["--check"]).status.success());
    assert_eq!(text(&run("migrate", &[])), "the tables were up to date\n");

    database.run("insert into mine_event (event_type, payload) values ('Paid', '{}')").expect("an event by hand");
    let status = run("status", &["--json"]);
    assert!(status.status.success(), "{}", stderr(&status));
    let status: Value = serde_json::from_slice(&status.stdout).expect("one JSON object");
    assert_eq!((&status["pending"], &status["partitions"]["free"]), (&1.into(), &256.into()));
    assert!(text(&run("status", &[])).starts_with("1 event waits, the oldest for "));
}

#[test]
fn postgres_is_migrated_by_hand_and_shown() {
    prints_migrates_and_shows(Shared::Postgres);
}

#[test]
fn mariadb_is_migrated_by_hand_and_shown() {
    prints_migrates_and_shows(Shared::MariaDb);
}

#[test]
fn a_server_that_is_not_there_is_told_without_the_password() {
    for url in ["postgres://me:secret@127.0.0.1:1/shop", "mysql://me:secret@127.0.0.1:1/shop"] {
        let output = pillarbox(&["status", "--db", url]);
        assert_eq!(output.status.code(), Some(1));
        assert!(!stderr(&output).contains("secret"), "{}", stderr(&output));
    }
}

/// A refused login is no lack of rights, and the advice does not send anybody to the wrong door.
#[test]
fn a_refused_login_and_a_user_who_may_make_no_tables_are_told_apart() {
    let database = Shared::Postgres.database();
    let url = database.url();
    let (scheme, rest) = url.split_once("://").expect("a URL");
    let (_, host) = rest.rsplit_once('@').expect("a user");
    let refused = pillarbox(&["migrate", "--db", &format!("{scheme}://nobody:wrong@{host}")]);
    assert_eq!(refused.status.code(), Some(1));
    let said = stderr(&refused);
    assert!(said.contains("try: look at name and password") && !said.contains("make tables"), "{said}");
    assert!(!said.contains("wrong"), "{said}");

    database.run("revoke create on schema public from pg_database_owner").expect("the owner gives up a right");
    let refused = pillarbox(&["migrate", "--db", &url]);
    assert_eq!(refused.status.code(), Some(1));
    let said = stderr(&refused);
    assert!(said.contains("permission denied") && said.contains("--print"), "{said}");
}
