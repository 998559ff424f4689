//! `pillarbox events` and `pillarbox status --watch`, on SQLite and PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use std::{
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use pillarbox::{Delivery, Event, HandlerError, Outbox, Query, SqliteStore, Status};
use pillarbox_servers::Shared;
use serde_json::Value;
use sqlx::{ConnectOptions as _, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

use super::{pillarbox, stderr};

const PATIENCE: Duration = Duration::from_secs(40);

fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs to its end, which must be a success.
fn events(url: &str, arguments: &[&str]) -> String {
    let output = pillarbox(&[&["events"], arguments, &["--db", url]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    assert_eq!(stderr(&output), "");
    text(&output)
}

fn objects(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).expect("a line is one JSON object")).collect()
}

fn seqs(url: &str, filter: &[&str]) -> Vec<i64> {
    let listed = events(url, &[&["list", "--json"], filter].concat());
    objects(&listed).iter().map(|event| event["seq"].as_i64().unwrap()).collect()
}

/// A SQLite file, in a folder of its own.
struct File {
    folder: TempDir,
}

impl File {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn migrated() -> Self {
        let file = Self::new();
        assert!(pillarbox(&["migrate", "--db", &file.url()]).status.success());
        file
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("a.db")
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    fn run(&self, sql: &'static str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut db = SqliteConnectOptions::new().filename(self.path()).connect().await.unwrap();
            sqlx::raw_sql(sql).execute(&mut db).await.unwrap();
        });
    }

    /// 1 and 2 are DEAD and behind a DEAD one, 3 is DONE, 4 has bytes and waits, 5 is text.
    async fn filled() -> (Self, Vec<String>) {
        let file = Self::new();
        let outbox = Outbox::single_node(SqliteStore::open(&file.url()).await.unwrap())
            .route("Paid", async |_: Delivery| {
                Err::<(), _>(HandlerError::msg("the bank says no\nand means it").permanent())
            })
            .route(("Order", "Sent"), async |_: Delivery| {})
            .route("Later", async |_: Delivery| {})
            .start()
            .await
            .unwrap();
        let hour = Duration::from_hours(1);
        let mut tx = outbox.begin().await.unwrap();
        let paid = r#"{ "total": 1.10, "big": 12345678901234567890123, "a": [] }"#;
        let mut ids = Vec::new();
        for event in [
            Event::builder("Paid").key("ada").tenant("north").header("trace", "t-1").json_text(paid),
            Event::builder("Sent").key("ada").aggregate("Order", "o-7").json(&1),
            Event::builder("Sent").key("bob").aggregate("Order", "o-8").json(&"a parcel"),
            Event::builder("Later").deliver_after(hour).bytes("application/x-thing", vec![0, 159, 146, 150]),
            Event::builder("Later").deliver_after(hour).bytes("text/plain", "two\nlines"),
        ] {
            ids.push(tx.write(event).await.unwrap().to_string());
        }
        tx.commit().await.unwrap();
        for (status, count) in [(Status::Dead, 1), (Status::Done, 1)] {
            let query = Query { statuses: vec![status], ..Query::default() };
            while pillarbox::port::AdminStore::count(outbox.store(), &query).await.unwrap() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        outbox.shutdown().await;
        (file, ids)
    }
}

/// A command that goes on until it is told to stop.
struct Running {
    process: Child,
    lines: Arc<Mutex<Vec<String>>>,
    errors: Arc<Mutex<String>>,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut process = spawn(arguments);
        let (lines, errors) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(String::new())));
        let (out, err) = (process.stdout.take().unwrap(), process.stderr.take().unwrap());
        let of = lines.clone();
        thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).for_each(|line| of.lock().unwrap().push(line));
        });
        let of = errors.clone();
        thread::spawn(move || {
            BufReader::new(err).lines().map_while(Result::ok).for_each(|line| *of.lock().unwrap() += &(line + "\n"));
        });
        Self { process, lines, errors }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    fn errors(&self) -> String {
        self.errors.lock().unwrap().clone()
    }

    /// The numbers it has printed, as JSON.
    fn of_type(&self, event_type: &str) -> Vec<i64> {
        let events = objects(&self.lines().join("\n"));
        let of_type = events.iter().filter(|event| event["type"] == event_type);
        of_type.map(|event| event["seq"].as_i64().unwrap()).collect()
    }

    fn interrupt(mut self) -> ExitStatus {
        Command::new("kill").args(["-INT", &self.process.id().to_string()]).status().unwrap();
        self.process.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
    command.args(arguments).env_remove("RUST_LOG").stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program runs")
}

#[tokio::test]
async fn a_list_is_narrowed_by_each_filter_and_goes_on_where_it_ended() {
    let (file, ids) = File::filled().await;
    let url = file.url();
    for (filter, expected) in [
        (&[][..], &[1, 2, 3, 4, 5][..]),
        (&["--status", "DEAD"], &[1]),
        (&["--status", "dead,done"], &[1, 3]),
        (&["--status", "NEW", "--status", "DONE"], &[2, 3, 4, 5]),
        (&["--type", "Sent"], &[2, 3]),
        (&["--aggregate-type", "Order"], &[2, 3]),
        (&["--aggregate-id", "o-8"], &[3]),
        (&["--tenant", "north"], &[1]),
        (&["--key", "ada"], &[1, 2]),
        (&["--text", "BANK"], &[1]),
        (&["--text", "parcel"], &[3]),
        (&["--since", "1h"], &[1, 2, 3, 4, 5]),
        (&["--since", "2020-01-01", "--key", "bob"], &[3]),
        (&["--since", "2999-01-01T00:00:00Z"], &[]),
        (&["--limit", "2"], &[1, 2]),
        (&["--limit", "2", "--after", "2"], &[3, 4]),
        (&["--limit", "2", "--after", "4"], &[5]),
    ] {
        assert_eq!(seqs(&url, filter), expected, "{filter:?}");
    }

    let table = events(&url, &["list", "--limit", "3"]);
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>().join(" "), "seq id type key status tries age error");
    let status = lines[0].find("status").unwrap();
    assert!(lines[1].contains(&ids[0]) && lines[1].ends_with("the bank says no"), "{table}");
    assert_eq!([&lines[1][status..status + 5], &lines[3][status..status + 4]], ["DEAD*", "DONE"], "{table}");
    assert!(table.ends_with("\n\nthere are more: the same with --after 3\n"), "{table}");
    assert!(!events(&url, &["list"]).contains("--after"));
    assert_eq!(events(&url, &["list", "--key", "nobody"]), "no events match\n");

    for wrong in [&["--status", "OLD"][..], &["--since", "yesterday"], &["--limit", "0"]] {
        let output = pillarbox(&[&["events", "list", "--db", &url], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[tokio::test]
async fn an_event_is_shown_by_its_id_or_number_with_everything_it_has() {
    let (file, ids) = File::filled().await;
    let url = file.url();
    let shown = events(&url, &["show", "1"]);
    for part in [
        &ids[0],
        "DEAD",
        "north",
        "trace: t-1",
        "holds its key   yes",
        "last error\n  the bank says no\n  and means it\n",
        "payload: application/json, 58 bytes\n  {\n    \"total\": 1.10,\n    \"big\": 12345678901234567890123,\n    \"a\": []\n  }\n",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let without_age = |text: String| text.lines().filter(|line| !line.contains(" ago")).collect::<Vec<_>>().join("\n");
    assert_eq!(without_age(events(&url, &["show", &ids[0]])), without_age(shown));
    assert!(events(&url, &["show", "4"]).contains("4 bytes, in base64\n  AJ+Slg==\n"));
    assert!(events(&url, &["show", "5"]).contains("\n  two\n  lines"));

    let json = objects(&events(&url, &["show", &ids[0], "--json"])).remove(0);
    assert_eq!((&json["seq"], &json["holds_key"], &json["type"]), (&1.into(), &true.into(), &"Paid".into()));
    assert_eq!((&json["headers"]["trace"], &json["payload"]["total"]), (&"t-1".into(), &1.1.into()));
    assert_eq!(json["last_error"], "the bank says no\nand means it");
    assert_eq!(objects(&events(&url, &["show", "4", "--json"]))[0]["payload_base64"], "AJ+Slg==");
    assert_eq!(objects(&events(&url, &["show", "3", "--json"]))[0]["payload"], "a parcel");
    let raw = pillarbox(&["events", "show", "4", "--payload-only", "--db", &url]);
    assert_eq!(raw.stdout, [0, 159, 146, 150]);

    for unknown in ["77", "01KA4M7Z6Q0000000000000000", "what"] {
        let output = pillarbox(&["events", "show", unknown, "--db", &url]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(unknown) && stderr(&output).contains("try: "), "{}", stderr(&output));
    }
}

/// What can't be decoded stands in the list and is shown with the reason.
fn shows_the_broken(url: &str, seq: &str) {
    let table = events(url, &["list"]);
    assert!(table.contains("can't be decoded: "), "{table}");
    let shown = events(url, &["show", seq]);
    assert!(shown.contains("broken") && shown.contains("UNDECODABLE"), "{shown}");
    let json = &objects(&events(url, &["show", seq, "--json"]))[0];
    assert!(json["undecodable"].is_string() && json["type"].is_null(), "{json}");
    let payload = pillarbox(&["events", "show", seq, "--payload-only", "--db", url]);
    assert_eq!(payload.status.code(), Some(1));
    assert!(stderr(&payload).contains("can't be decoded"), "{}", stderr(&payload));
}

const INSERT_BROKEN: &str = "insert into outbox_event (event_id, event_type, payload) values ('broken', 'Paid', '{}')";

#[test]
fn a_row_that_can_not_be_decoded_is_shown_with_its_reason() {
    let file = File::migrated();
    file.run(INSERT_BROKEN);
    shows_the_broken(&file.url(), "1");
}

#[test]
fn follow_prints_what_is_committed_after_its_start_and_late_numbers_too() {
    let file = File::migrated();
    file.run("insert into outbox_event (seq, event_id, event_type, payload) values (50, '01KA4M7Z6Q0000000000000000', 'Old', '1')");
    let url = file.url();
    let follow = Running::start(&["events", "follow", "--json", "--db", &url]);
    let all = Running::start(&["events", "follow", "--from-start", "--type", "Old", "--db", &url]);
    // Where it begins is known once it has seen one.
    wait("the start", || {
        file.run("insert into outbox_event (event_id, event_type, payload) select '01KA4M7Z6Q00000000000' || (10000 + max(seq)), 'Probe', '1' from outbox_event");
        (!follow.of_type("Probe").is_empty()).then_some(())
    });
    file.run(
        "insert into outbox_event (seq, event_id, event_type, payload) values
            (1000, '01KA4M7Z6Q0000000000000001', 'New', '1'), (1001, '01KA4M7Z6Q0000000000000002', 'New', '1')",
    );
    wait("the new ones", || (follow.of_type("New") == [1_000, 1_001]).then_some(()));
    file.run("insert into outbox_event (seq, event_id, event_type, payload) values (900, '01KA4M7Z6Q0000000000000003', 'New', '1')");
    wait("the late one", || (follow.of_type("New") == [1_000, 1_001, 900]).then_some(()));
    assert!(follow.of_type("Old").is_empty());
    wait("the old one", || (all.lines().len() == 2).then_some(()));
    assert!(all.lines()[0].contains("inserted") && all.lines()[1].contains("Old"), "{:?}", all.lines());
    assert_eq!(follow.errors() + &all.errors(), "");
    assert!(follow.interrupt().success() && all.interrupt().success());
}

#[tokio::test]
async fn a_reader_who_leaves_ends_it_quietly() {
    let (file, _) = File::filled().await;
    let url = file.url();
    for arguments in [
        &["events", "list"][..],
        &["events", "show", "1"],
        &["events", "follow", "--from-start"],
        &["status"],
        &["status", "--watch", "0.1"],
    ] {
        let mut child = spawn(&[arguments, &["--db", &url]].concat());
        drop(child.stdout.take());
        let status = wait("the end", || child.try_wait().unwrap());
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert!(status.success() && errors.is_empty(), "{arguments:?}: {status} {errors}");
    }
}

#[test]
fn watch_shows_one_state_after_another_and_goes_on_after_an_error() {
    let file = File::migrated();
    let url = file.url();
    let watch = Running::start(&["status", "--watch", "0.1", "--json", "--db", &url]);
    let people = Running::start(&["status", "--db", &url, "--watch"]);
    wait("two states", || (watch.lines().len() >= 2).then_some(()));
    file.run("alter table outbox_event rename to away");
    wait("the error", || watch.errors().contains("error: the outbox can't be read").then_some(()));
    file.run("alter table away rename to outbox_event; insert into outbox_event (event_id, event_type, payload) values ('01KA4M7Z6Q0000000000000000', 'New', '1')");
    wait("what came after", || {
        let last = objects(watch.lines().last()?).remove(0);
        (last["pending"] == 1).then_some(())
    });
    wait("a state below another", || {
        let states = people.lines().iter().filter(|line| line.contains(" wait")).count();
        (states >= 2 && people.lines().iter().any(|line| line.starts_with("----"))).then_some(())
    });
    assert!(!people.lines().concat().contains('\u{1b}'), "no terminal, no escapes");
    assert!(watch.interrupt().success() && people.interrupt().success());
}

#[test]
fn postgres_lists_shows_and_follows() {
    let database = Shared::Postgres.database();
    let url = database.url();
    assert!(pillarbox(&["migrate", "--db", &url]).status.success());
    let publish = |what: &str| database.run(&format!("select outbox_publish({what})")).expect("to write");
    for n in 1..=3 {
        publish(&format!("'Placed', '{{\"n\": {n}}}', key => 'k{n}'"));
    }
    let all = seqs(&url, &[]);
    assert_eq!(all.len(), 3);
    assert_eq!(seqs(&url, &["--key", "k2", "--type", "Placed", "--status", "NEW", "--since", "1h"]), [all[1]]);
    assert_eq!(seqs(&url, &["--text", "\"N\": 3"]), [all[2]]);
    assert_eq!(seqs(&url, &["--after", &all[0].to_string(), "--limit", "1"]), [all[1]]);
    let shown = objects(&events(&url, &["show", &all[0].to_string(), "--json"])).remove(0);
    assert_eq!(shown["payload"]["n"], 1);
    let by_id = objects(&events(&url, &["show", shown["id"].as_str().unwrap(), "--json"])).remove(0);
    assert_eq!(by_id["seq"], all[0]);

    let follow = Running::start(&["events", "follow", "--json", "--db", &url]);
    wait("the start", || {
        publish("'Probe', '1'");
        (!follow.of_type("Probe").is_empty()).then_some(())
    });
    thread::scope(|scope| {
        // Its number is lower than that of the fast one, which is seen before it is committed.
        let slow = scope.spawn(|| {
            let until_released = "do $$ begin
                while not exists (select 1 from outbox_event where event_type = 'Release') loop
                    perform pg_sleep(0.05);
                end loop;
            end $$";
            database
                .run(&format!("begin; select outbox_publish('Slow', '1'); {until_released}; commit"))
                .expect("to write");
        });
        wait("the slow one's number", || {
            let asleep = "select count(*) from pg_stat_activity
                where wait_event = 'PgSleep' and datname = current_database()";
            (database.run_as_admin(asleep).unwrap().trim() == "1").then_some(())
        });
        publish("'Fast', '1'");
        wait("the fast one", || (!follow.of_type("Fast").is_empty()).then_some(()));
        assert!(follow.of_type("Slow").is_empty());
        publish("'Release', '1'");
        slow.join().unwrap();
    });
    wait("the slow one", || (!follow.of_type("Slow").is_empty()).then_some(()));
    assert!(follow.of_type("Slow") < follow.of_type("Fast"));
    assert!(follow.of_type("Placed").is_empty());
    assert!(follow.interrupt().success());

    database.run(INSERT_BROKEN).expect("to write");
    let broken = database.run("select max(seq) from outbox_event").unwrap();
    shows_the_broken(&url, broken.trim());
}
