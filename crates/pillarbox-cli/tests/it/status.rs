//! What `pillarbox status` and `pillarbox migrate` print for scripts, and for terminals.

use std::collections::BTreeSet;

use pillarbox::{Delivery, Event, HandlerError, Outbox, SqliteStore};
use pillarbox_servers::Shared;
use serde_json::{Value, json};

use super::{pillarbox, stderr};

const PAGE: &str = include_str!("../../../../docs/book/src/operations.md");

/// Every key of an object with its path; that of a list's items ends with `[]`.
fn keys(value: &Value, path: &str, keys_of: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, field)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            keys_of.insert(path.clone());
            keys(field, &path, keys_of);
        }),
        Value::Array(items) => items.iter().for_each(|item| keys(item, &format!("{path}[]"), keys_of)),
        _ => {}
    }
}

/// The keys that a table of the page names: those under the heading.
fn of_page(heading: &str) -> BTreeSet<String> {
    let (_, rest) = PAGE.split_once(heading).expect("the page has the heading");
    let rows =
        rest.lines().skip_while(|line| !line.starts_with("|---")).skip(1).take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|line| line.split('|').nth(1));
    cells.flat_map(|cell| cell.split(',').map(|name| name.trim().trim_matches('`').to_owned())).collect()
}

#[tokio::test]
async fn the_json_of_status_has_the_keys_that_the_page_names_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("a.db").display());
    let outbox = with_a_blocked_key(&url, "k", "no").await;
    let output = pillarbox(&["status", "--db", &url, "--json"]);
    let mut found = BTreeSet::new();
    keys(&serde_json::from_slice(&output.stdout).expect("one object"), "", &mut found);
    assert_eq!(found, of_page("### `status --json`"));
    outbox.shutdown().await;
}

/// As with every `--json`: what is on stdout is an answer, or nothing.
#[tokio::test]
async fn status_of_a_database_without_tables_prints_nothing_to_stdout() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}?mode=rwc", folder.path().join("a.db").display());
    for command in [&["status"][..], &["events", "list"], &["dead", "list"]] {
        let output = pillarbox(&[command, &["--db", &url, "--json"]].concat());
        assert_eq!(output.status.code(), Some(1), "{command:?}");
        assert!(output.stdout.is_empty(), "{command:?}");
        assert!(stderr(&output).contains("pillarbox migrate"), "{}", stderr(&output));
    }
}

#[tokio::test]
async fn what_others_have_written_does_not_command_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("a.db").display());
    let outbox = with_a_blocked_key(&url, "k\u{1b}[2Jevil\nforged", "no\u{1b}]0;title\u{7} \u{9b}31m").await;
    for command in [
        &["status"][..],
        &["events", "list"],
        &["events", "show", "1"],
        &["dead", "list"],
        &["dead", "show", "1"],
        &["dead", "history"],
    ] {
        let output = pillarbox(&[command, &["--db", &url]].concat());
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(!text.is_empty(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{command:?}: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("forged")), "{command:?}: {text:?}");
        assert!(command[0] != "status" || text.contains("k\u{fffd}[2Jevil forged: DEAD"), "{text:?}");
    }
    // For programs it is what it is.
    let output = pillarbox(&["status", "--db", &url, "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(status["blocked"]["keys"][0]["key"], "k\u{1b}[2Jevil\nforged");
    outbox.shutdown().await;
}

/// A4: what can't be decoded holds its key like any other.
#[tokio::test]
async fn a_key_behind_a_head_that_can_not_be_decoded_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("a.db").display());
    let outbox = with_a_blocked_key(&url, "k", "no").await;
    let store = SqliteStore::open(&url).await.unwrap();
    sqlx::query("update outbox_event set headers = '[' where seq = 1").execute(store.pool()).await.unwrap();
    let output = pillarbox(&["status", "--db", &url]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("\n  (key can't be read), seq 1: DEAD for "), "{text}");
    let output = pillarbox(&["status", "--db", &url, "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).expect("one object");
    let blocked = &status["blocked"]["keys"][0];
    assert_eq!((&blocked["key"], &blocked["seq"], &blocked["error"]), (&Value::Null, &json!(1), &json!("no")));
    outbox.shutdown().await;
}

async fn with_a_blocked_key(url: &str, key: &str, error: &'static str) -> Outbox<SqliteStore> {
    let store = SqliteStore::open(url).await.unwrap();
    let outbox = Outbox::single_node(store)
        .node_name("till-1")
        .route("Paid", move |_: Delivery| async move { Err::<(), _>(HandlerError::msg(error).permanent()) });
    let outbox = outbox.start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(Event::builder("Paid").key(key).json(&1)).await.unwrap();
    tx.write(Event::builder("Paid").key(key).json(&2)).await.unwrap();
    tx.commit().await.unwrap();
    while outbox.dead().count(&pillarbox::Query::default()).await.unwrap() == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    outbox
}

fn migrates_as_json(url: &str, database: &str) {
    let run = |arguments: &[&str]| {
        let output = pillarbox(&[&["migrate", "--db", url, "--json"], arguments].concat());
        let code = output.status.code();
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
        (code, said)
    };
    let (code, before) = run(&["--check"]);
    let needed = before["needed"].clone();
    assert_eq!(code, Some(2));
    let expected = json!({
        "database": database, "up_to_date": false, "needed": needed, "before": null, "version": null, "applied": [],
        "notes": before["notes"], "inbox": null,
    });
    assert_eq!(before, expected);
    assert!(before["notes"][0].as_str().is_some_and(|note| note.contains("run the migrations")), "{before}");

    let versions: Vec<_> = (1..=needed.as_i64().expect("a version")).collect();
    let (code, made) = run(&["--inbox"]);
    assert_eq!(code, Some(0));
    assert_eq!((&made["before"], &made["version"], &made["up_to_date"]), (&Value::Null, &needed, &true.into()));
    assert_eq!(made["applied"], json!(versions));
    assert_eq!(made["inbox"]["before"], Value::Null);
    assert_eq!(made["inbox"]["applied"][0], 1);
    let mut found = BTreeSet::new();
    keys(&made, "", &mut found);
    assert_eq!(found, of_page("### `migrate --json`"));

    let (code, again) = run(&["--inbox"]);
    assert_eq!((code, &again["before"], &again["version"]), (Some(0), &needed, &needed));
    assert_eq!((&again["applied"], &again["inbox"]["applied"]), (&json!([]), &json!([])));
    let (code, after) = run(&["--check"]);
    assert_eq!((code, &after["up_to_date"], &after["version"]), (Some(0), &true.into(), &needed));
}

#[test]
fn what_a_migration_found_and_did_is_one_object() {
    let folder = tempfile::tempdir().unwrap();
    migrates_as_json(&format!("sqlite:{}", folder.path().join("a.db").display()), "SQLite");
}

#[test]
fn what_a_migration_found_and_did_is_one_object_on_postgres() {
    migrates_as_json(&Shared::Postgres.database().url(), "PostgreSQL");
}

#[test]
fn what_a_migration_found_and_did_is_one_object_on_mariadb() {
    migrates_as_json(&Shared::MariaDb.database().url(), "MySQL or MariaDB");
}
