//! Dead letters, replayed to a real broker over a database and over the API, and `pillarbox admin` from a file.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

use async_nats::{
    header::HeaderMap,
    jetstream::{self, stream},
};
use pillarbox::{
    AnyStore, PostgresInbox, SqliteInbox,
    inbox::{DeadLetters, Parked},
    port::Incoming,
};
use pillarbox_servers::Shared;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::{pillarbox, stderr};

/// A database with the tables of an outbox and an inbox, a stream of NATS, and a folder for files.
struct Shop {
    runtime: Runtime,
    jetstream: jetstream::Context,
    name: String,
    database: String,
    folder: TempDir,
    _server: Option<pillarbox_servers::Database>,
}

impl Shop {
    fn on_sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("a.db").display());
        let name = folder.path().file_name().unwrap().to_string_lossy().replace('.', "");
        Self::open(url, name, folder, None)
    }

    fn on_postgres() -> Self {
        let server = Shared::Postgres.database();
        Self::open(server.url(), server.name().to_owned(), tempfile::tempdir().unwrap(), Some(server))
    }

    fn open(database: String, name: String, folder: TempDir, server: Option<pillarbox_servers::Database>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let migrated = pillarbox(&["migrate", "--db", &database, "--inbox"]);
        assert!(migrated.status.success(), "{}", stderr(&migrated));
        let jetstream = runtime.block_on(async {
            let jetstream = jetstream::new(async_nats::connect(Shared::Nats.url()).await.unwrap());
            let config =
                stream::Config { name: name.clone(), subjects: vec![format!("{name}.>")], ..Default::default() };
            jetstream.create_stream(config).await.unwrap();
            jetstream
        });
        Self { runtime, jetstream, name, database, folder, _server: server }
    }

    fn topic(&self) -> String {
        format!("{}.orders.placed", self.name)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// A configuration as a relay has it, the secrets in files of their own.
    fn config(&self, more: &str) -> String {
        let (database, broker) = (self.write("database", &self.database), self.write("broker", &Shared::Nats.url()));
        let text = format!(
            "[outbox]\nurl = {{ file = {database:?} }}\n[sinks.broker]\ntype = \"nats\"\nurl = {{ file = {broker:?} }}\n{more}"
        );
        self.write("pillarbox.toml", &text)
    }

    /// The consumer `billing` gives up the message of a number, whether or not it did before.
    fn park(&self, number: u32) -> String {
        let queue = match self.runtime.block_on(AnyStore::open(&self.database)).unwrap() {
            AnyStore::Sqlite(store) => DeadLetters::new(SqliteInbox::new(&store)),
            AnyStore::Postgres(store) => DeadLetters::new(PostgresInbox::new(&store)),
            other => panic!("{other:?}"),
        };
        self.park_in(&queue, number)
    }

    /// The same in this queue.
    fn park_in(&self, queue: &DeadLetters, number: u32) -> String {
        self.runtime.block_on(async {
            let message = Incoming {
                topic: self.topic(),
                content_type: "application/json".into(),
                attributes: vec![("id".into(), format!("e-{number}")), ("type".into(), "OrderPlaced".into())],
                headers: vec![("tenant".into(), "acme".into())],
                payload: format!("{{\"n\": {number}.10}}").into(),
                ..Incoming::default()
            };
            let parked = Parked { consumer: "billing", message: &message, reason: "card declined", attempts: 3 };
            queue.park(&parked).await.unwrap().to_string()
        })
    }

    /// A dead event of the outbox's own.
    fn die(&self, number: u32) {
        let AnyStore::Sqlite(store) = self.runtime.block_on(AnyStore::open(&self.database)).unwrap() else {
            panic!("on SQLite")
        };
        let insert = sqlx::query(
            "insert into outbox_event (event_id, event_type, payload, status, attempts, done_at, last_error)
            values (?, 'OrderPlaced', '1', 'DEAD', 10, 1700000000000000, 'refused')",
        );
        self.runtime.block_on(insert.bind(format!("{number:026}")).execute(store.pool())).unwrap();
    }

    /// What is in the stream, in its order: payloads and headers.
    fn sent(&self) -> Vec<(String, HeaderMap)> {
        self.runtime.block_on(async {
            let mut stream = self.jetstream.get_stream(&self.name).await.unwrap();
            let last = stream.info().await.unwrap().state.last_sequence;
            let mut sent = Vec::new();
            for sequence in 1..=last {
                let message = stream.get_raw_message(sequence).await.unwrap();
                assert_eq!(message.subject.as_str(), self.topic(), "the topic it came from");
                sent.push((String::from_utf8(message.payload.to_vec()).unwrap(), message.headers));
            }
            sent
        })
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        // What is left of a test that failed does no harm.
        let _ = self.runtime.block_on(self.jetstream.delete_stream(&self.name));
    }
}

/// A running `pillarbox admin`.
struct Admin {
    child: Child,
    url: String,
}

impl Admin {
    fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pillarbox"))
            .arg("admin")
            .args(arguments)
            .envs(variables.iter().copied())
            .env_remove("RUST_LOG")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().to_owned() }
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn dead(over: &[&str], arguments: &[&str]) -> Output {
    pillarbox(&[&["dead"], arguments, over].concat())
}

#[track_caller]
fn good(over: &[&str], arguments: &[&str]) -> String {
    let output = dead(over, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn bad(over: &[&str], arguments: &[&str]) -> String {
    let output = dead(over, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    stderr(&output)
}

/// Several processes at once; how many of them did it, and what the others said.
fn race(over: &[&str], arguments: &[&str], processes: usize) -> (usize, String) {
    let spawn = || {
        Command::new(env!("CARGO_BIN_EXE_pillarbox"))
            .args([&["dead"], arguments, over].concat())
            .env_remove("RUST_LOG")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let running: Vec<_> = (0..processes).map(|_| spawn()).collect();
    let ended: Vec<_> = running.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let good = ended.iter().filter(|output| output.status.success()).count();
    (good, ended.iter().map(stderr).collect())
}

fn objects(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).expect("a line is one JSON object")).collect()
}

/// I6, I7, A1: to the original topic, once also when several replay at once, and at most 3 times.
fn replays(shop: &Shop) {
    let letters: Vec<String> = (1..=4).map(|number| shop.park(number)).collect();
    let config = shop.config("");
    let by_config = ["--config", config.as_str()];

    let (done, said) = race(&by_config, &["replay", &letters[0], "--because", "the bank is back"], 3);
    assert_eq!(done, 1, "{said}");
    assert_eq!(said.matches("error: ").count(), 2, "{said}");
    let sent = shop.sent();
    assert_eq!(sent.len(), 1, "concurrent replays publish once");
    assert_eq!(sent[0].0, "{\"n\": 1.10}", "to the byte");
    let header = |name: &str| sent[0].1.get(name).map(ToString::to_string);
    assert_eq!(header("pillarbox-replay-for").as_deref(), Some("billing"));
    assert_eq!(header("tenant").as_deref(), Some("acme"));

    let nats = Shared::Nats.url();
    let by_url = ["--db", shop.database.as_str(), "--broker", nats.as_str()];
    assert_eq!(good(&by_url, &["replay", &letters[1]]), format!("{} replayed\n", letters[1]));
    assert!(bad(&by_url, &["replay", &letters[1]]).contains("is REPLAYED"));

    let admin = Admin::start(&["--config", &config, "--listen", "127.0.0.1:0"], &[]);
    let by_api = ["--api", admin.url.as_str()];
    let (done, said) = race(&by_api, &["replay", &letters[2]], 3);
    assert_eq!(done, 1, "{said}");
    assert_eq!(shop.sent().len(), 3);
    // It comes back, and goes out again: twice more and no more.
    for replays in [2, 3] {
        assert_eq!(shop.park(3), letters[2], "it is the same letter");
        good(&by_api, &["replay", &letters[2]]);
        let shown = objects(&good(&by_api, &["show", &letters[2], "--json"]));
        assert_eq!((&shown[0]["replays"], &shown[0]["status"]), (&json!(replays), &json!("REPLAYED")));
    }
    shop.park(3);
    for over in [&by_api[..], &by_config] {
        let dry = objects(&good(over, &["replay", "--all", "--dry-run", "--json"]));
        assert_eq!((&dry[0]["letters"], &dry[0]["refused"]), (&json!(1), &json!(1)), "{dry:?}");
        let said = bad(over, &["replay", &letters[2]]);
        assert!(said.contains("was replayed 3 times and died each time"), "{said}");
    }
    assert_eq!(shop.sent().len(), 5);
    let history = objects(&good(&by_config, &["history", &letters[0], "--json"]));
    assert_eq!(history.len(), 1, "who came too late has done nothing");
    assert_eq!(
        (&history[0]["origin"], &history[0]["action"], &history[0]["why"]),
        (&json!("billing"), &json!("replay"), &json!("the bank is back"))
    );
}

#[test]
fn a_dead_letter_goes_to_its_topic_once_over_sqlite_and_the_api() {
    replays(&Shop::on_sqlite());
}

#[test]
fn a_dead_letter_goes_to_its_topic_once_over_postgres_and_the_api() {
    replays(&Shop::on_postgres());
}

/// U3: what `list` shows is acted upon, events and letters, from the oldest to the newest.
#[test]
fn many_letters_and_events_are_replayed_and_discarded_by_filters() {
    for by_api in [false, true] {
        let shop = Shop::on_sqlite();
        let letters: Vec<String> = (1..=6).map(|number| shop.park(number)).collect();
        (1..=2).for_each(|number| shop.die(number));
        let config = shop.config("");
        let admin = by_api.then(|| Admin::start(&["--config", &config, "--listen", "127.0.0.1:0"], &[]));
        let over = match &admin {
            Some(admin) => ["--api", admin.url.as_str()],
            None => ["--config", config.as_str()],
        };
        good(&over, &["edit", &letters[0], "--payload", "{\"n\": 7}", "--because", "mended"]);
        assert_eq!(good(&over, &["replay", "--all", "--dry-run"]), "2 events and 6 letters would be replayed\n");
        assert_eq!(
            good(&over, &["replay", "--all", "--origin", "outbox", "--dry-run"]),
            "2 events would be replayed\n"
        );
        assert_eq!(good(&over, &["discard", "--tenant", "nobody"]), "0 events discarded\n", "letters have no tenant");
        assert_eq!(good(&over, &["replay", "--all", "--origin", "billing", "--rate", "50"]), "6 letters replayed\n");
        let sent: Vec<String> = shop.sent().into_iter().map(|(payload, _)| payload).collect();
        let expected =
            ["{\"n\": 7}", "{\"n\": 2.10}", "{\"n\": 3.10}", "{\"n\": 4.10}", "{\"n\": 5.10}", "{\"n\": 6.10}"];
        assert_eq!(sent, expected, "the oldest first");

        for number in 1..=2 {
            shop.park(number);
        }
        let done = objects(&good(&over, &["discard", "--type", "OrderPlaced", "--why", "over", "--json"]));
        let expected = json!({
            "action": "discard", "changed": 4, "events": 2, "letters": 2, "refused": 0, "dry_run": false, "interrupted": false,
        });
        assert_eq!(done, [expected]);
        assert_eq!(good(&over, &["list"]), "nothing matches\n");
        let history = objects(&good(&over, &["history", "--json", "--limit", "100"]));
        let of = |origin: &str, action: &str| {
            history.iter().filter(|deed| deed["origin"] == origin && deed["action"] == action).count()
        };
        assert_eq!((of("outbox", "discard"), of("billing", "discard")), (2, 2));
        assert_eq!((of("billing", "replay"), of("billing", "edit"), history.len()), (6, 1, 11));
        assert_eq!(history[10]["before"]["payload"], json!({ "n": 1.10 }), "an edit keeps what it has replaced");
        assert_eq!(objects(&good(&over, &["history", "--json", "--origin", "outbox"])).len(), 2);
        let table = good(&over, &["history", &letters[0]]);
        assert!(table.contains("billing") && table.contains("mended"), "{table}");
    }
}

#[test]
fn without_a_clear_way_back_it_is_said_which_flag_to_give() {
    let shop = Shop::on_sqlite();
    let letter = shop.park(1);
    let over = ["--db", shop.database.as_str()];
    let many = [&["replay", "--all"][..], &["replay", "--all", "--dry-run"]];
    for said in [&["replay", &*letter][..], many[0], many[1]].map(|arguments| bad(&over, arguments)) {
        assert!(said.contains("no sink was given") && said.contains("--config FILE or --broker URL"), "{said}");
    }
    let admin = Admin::start(&["--db", &shop.database, "--listen", "127.0.0.1:0"], &[]);
    let said = bad(&["--api", &admin.url], &["replay", &letter]);
    assert!(said.contains("no sink was given") && said.contains("--config FILE or --broker URL"), "{said}");

    let two = shop.config("[sinks.second]\ntype = \"stdout\"\n");
    let said = bad(&["--config", &two], &["replay", &letter]);
    assert!(said.contains("`broker`, `second`") && said.contains("try: --sink NAME"), "{said}");
    assert!(bad(&["--config", &two, "--sink", "secnd"], &["replay", &letter]).contains("Did you mean `second`?"));
    // To look needs no way back.
    assert!(good(&["--config", &two], &["list"]).contains("card declined"));
    let printed = good(&["--config", &two, "--sink", "second"], &["replay", &letter]);
    assert!(printed.contains(&shop.topic()), "{printed}");

    for (more, words) in [
        ("[sinks.b]\ntype = \"nat\"", &["sinks.b.type", "Did you mean `nats`?"][..]),
        ("[dead_letters]\nsinks = \"x\"", &["dead_letters.sinks", "Did you mean `sink`?"]),
        ("[admin]\nlisten = 7", &["admin.listen"]),
        ("[sinks.b]\ntype = \"nats\"\nurl = { env = \"PILLARBOX_NO_SUCH\" }", &["sinks.b.url", "PILLARBOX_NO_SUCH"]),
    ] {
        let config = shop.config(more);
        let said = bad(&["--config", &config], &["replay", &letter]);
        for words in words {
            assert!(said.contains(words), "{more}: {said}");
        }
        let admin = pillarbox(&["admin", "--config", &config]);
        assert_eq!(admin.status.code(), Some(1), "{more}");
    }
    let shop_letter = shop.park(2);
    let said = bad(&["--db", &shop.database, "--broker", "nats://ada:hush@127.0.0.1:1"], &["replay", &shop_letter]);
    assert!(said.contains("does not answer") && !said.contains("hush"), "{said}");
    let said = bad(&["--db", &shop.database, "--broker", "gopher://x:hush@y"], &["replay", &shop_letter]);
    assert!(said.contains("--broker is refused") && said.contains("nats://") && !said.contains("hush"), "{said}");
    assert!(good(&over, &["list"]).contains(&shop_letter), "it stays pending");
}

/// M4, A3: the API from a file and the environment.
#[test]
fn the_api_is_set_up_by_a_file_and_the_environment() {
    const OPERATOR: &str = "op-0123456789abcdef-secret";
    const VIEWER: &str = "vi-0123456789abcdef-secret";
    let shop = Shop::on_sqlite();
    let letter = shop.park(1);
    let tokens = shop.write("tokens", &format!("olga operator {OPERATOR}\nvera viewer {VIEWER}\n"));
    let config = shop.config(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\ntokens = {{ file = {tokens:?} }}\nredact = [\"$.n\"]\n[admin.limits]\nlargest_page = 7\nbulk = 8\n"
    ));
    let admin = Admin::start(&["--config", &config], &[("PILLARBOX__ADMIN__HIDE_ERRORS", "true")]);
    let (olga, vera) = (shop.write("olga", OPERATOR), shop.write("vera", VIEWER));
    let with = |token| vec!["--api", admin.url.as_str(), "--token-file", token];
    assert!(bad(&["--api", &admin.url], &["list"]).contains("a valid token is needed"));
    let seen = good(&with(&vera), &["show", &letter]);
    assert!(seen.contains("[redacted]") && !seen.contains("1.1") && !seen.contains("card declined"), "{seen}");
    let seen = good(&with(&olga), &["show", &letter]);
    assert!(seen.contains("1.1") && seen.contains("card declined"), "{seen}");
    assert!(bad(&with(&vera), &["replay", &letter]).contains("only operators act"));
    good(&with(&olga), &["replay", &letter]);
    assert_eq!(shop.sent().len(), 1);
    // The limits of the API are no limits of the command: it asks again, and again.
    (2..=20).for_each(|number| _ = shop.park(number));
    (1..=19).for_each(|number| shop.die(number));
    assert_eq!(objects(&good(&with(&olga), &["list", "--json"])).len(), 38);
    assert_eq!(objects(&good(&with(&olga), &["list", "--json", "--limit", "9"])).len(), 9);
    assert_eq!(good(&with(&olga), &["replay", "--all"]), "19 events and 19 letters replayed\n");
    assert_eq!(objects(&good(&with(&olga), &["history", "--json"])).len(), 39);

    for (name, value, words) in [
        ("PILLARBOX__ADMIN__LISTN", "x", "Did you mean `listen`?"),
        ("PILLARBOX__ADMIN__LIMITS__BURST", "0", "1 to 1000000"),
        ("PILLARBOX__ADMIN__REDACT", "[\"card\"]", "it begins with $"),
        ("PILLARBOX__ADMIN__TOKENS", "olga", "admin.tokens"),
        ("PILLARBOX__ADMIN__LISTEN", "0.0.0.0:0", "at the port"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
        if words == "at the port" {
            // The environment goes before the file, and an address of all the machine needs tokens, which are there.
            let admin = Admin::start(&["--config", &config], &[(name, value)]);
            assert!(admin.url.starts_with("http://0.0.0.0:"), "{}", admin.url);
            continue;
        }
        let output = command.args(["admin", "--config", &config]).env(name, value).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(stderr(&output).contains(words), "{name}: {}", stderr(&output));
    }
}

/// The command that errors name makes the tables that they miss.
#[test]
fn the_tables_of_consumers_are_made_by_the_command_that_errors_name() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("a.db").display());
    assert!(pillarbox(&["migrate", "--db", &url]).status.success());
    let said = bad(&["--db", &url], &["discard", &"0".repeat(32)]);
    assert!(said.contains("the inbox's tables") && said.contains("pillarbox migrate --inbox"), "{said}");
    assert_eq!(good(&["--db", &url], &["list"]), "nothing matches\n", "before the first consumer there are no letters");
    let printed = pillarbox(&["migrate", "--db", &url, "--inbox", "--print", "--inbox-prefix", "my_"]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert!(printed.contains("create table outbox_event") && printed.contains("create table my_letter"), "{printed}");
    let migrated = pillarbox(&["migrate", "--db", &url, "--inbox"]);
    assert!(String::from_utf8_lossy(&migrated.stdout).contains("the consumers' tables are there"));
    assert!(bad(&["--db", &url], &["discard", &"0".repeat(32)]).contains("there is no dead letter"));
}

/// Tables of an inbox stand beside an outbox or without one.
#[test]
fn dead_letters_are_worked_on_without_an_outbox() {
    let shop = Shop::on_sqlite();
    let letter = shop.park(1);
    shop.runtime.block_on(async {
        let AnyStore::Sqlite(store) = AnyStore::open(&shop.database).await.unwrap() else { panic!("another database") };
        let tables: Vec<String> =
            sqlx::query_scalar("select name from sqlite_schema where type = 'table' and name like 'outbox%'")
                .fetch_all(store.pool())
                .await
                .unwrap();
        assert!(tables.len() > 3, "{tables:?}");
        for table in tables {
            let drop = sqlx::AssertSqlSafe(format!("drop table {table}"));
            sqlx::query(drop).execute(store.pool()).await.unwrap();
        }
    });
    let nats = Shared::Nats.url();
    works_on_letters_alone(&["--db", &shop.database], &nats, &letter);
    assert_eq!(shop.sent().len(), 1);
    // An outbox of another version is no missing one.
    assert!(pillarbox(&["migrate", "--db", &shop.database]).status.success());
    shop.runtime.block_on(async {
        let AnyStore::Sqlite(store) = AnyStore::open(&shop.database).await.unwrap() else { panic!("another database") };
        sqlx::query("insert into outbox_schema (version) values (999)").execute(store.pool()).await.unwrap();
    });
    assert!(bad(&["--db", &shop.database], &["list"]).contains("the outbox can't be read"));
    let neither = ["--db", shop.database.as_str(), "--prefix", "no_", "--inbox-prefix", "none_"];
    assert!(bad(&neither, &["list"]).contains("pillarbox migrate"));
}

/// What is done to letters where there is no outbox: over the place itself, and over the API on it.
fn works_on_letters_alone(place: &[&str], broker: &str, letter: &str) {
    let listed = objects(&good(place, &["list", "--json"]));
    assert_eq!((listed.len(), &listed[0]["letter"]["id"]), (1, &json!(letter)));
    let admin = Admin::start(&[place, &["--listen", "127.0.0.1:0"]].concat(), &[]);
    let by_api = ["--api", admin.url.as_str()];
    for over in [place, &by_api] {
        good(over, &["edit", letter, "--payload", "{\"n\": 7}"]);
        assert!(good(over, &["show", letter]).contains("card declined"));
        assert_eq!(good(over, &["discard", "--all", "--dry-run"]), "1 letter would be discarded\n");
        assert!(bad(over, &["replay", &"0".repeat(26)]).contains("no outbox"));
        assert!(bad(over, &["discard", "--all", "--origin", "outbox"]).contains("no outbox"));
    }
    let with_broker = [place, &["--broker", broker]].concat();
    assert_eq!(good(&with_broker, &["replay", "--all"]), "1 letter replayed\n");
    assert_eq!(good(&by_api, &["list"]), "nothing matches\n");
    let history = objects(&good(place, &["history", letter, "--json"]));
    let actions: Vec<_> = history.iter().map(|deed| deed["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["replay", "edit", "edit"]);
}

/// I6: dead letters on NATS KV and Redis.
#[test]
fn dead_letters_on_nats_and_redis_are_worked_on() {
    let shop = Shop::on_sqlite();
    let (nats, redis, name) = (Shared::Nats.url(), Shared::Redis.url(), format!("{}_letters", shop.name));
    let on_nats = pillarbox_nats::Options::new(&nats).letters(pillarbox_nats::Bucket::named(&name)).unwrap();
    let on_redis = pillarbox_redis::Options::new(&redis).letters(&name).unwrap();
    let places = [(&nats, DeadLetters::new(on_nats), 1), (&redis, DeadLetters::new(on_redis), 2)];
    for (url, queue, number) in places {
        let letter = shop.park_in(&queue, number);
        let place = ["--letters", url.as_str(), "--letters-name", name.as_str()];
        works_on_letters_alone(&place, &nats, &letter);
        assert_eq!(shop.sent().len(), usize::try_from(number).unwrap());
        // Beside an outbox they take the place of those in the database.
        let there = [&place[..], &["--db", &shop.database]].concat();
        shop.die(number);
        shop.park_in(&queue, number);
        assert_eq!(good(&there, &["discard", "--all", "--origin", "billing"]), "1 letter discarded\n",);
        assert_eq!(good(&there, &["discard", "--all"]), "1 event discarded\n");
    }
    for (place, words) in [
        (&["--letters", "postgres://ada:hush@x", "--letters-name", "a"][..], "those of --db"),
        (&["--letters", "redis://ada:hush@", "--letters-name", "a"], "--letters is refused"),
        (&["--letters", "nats://ada:hush@127.0.0.1:1", "--letters-name", "a"], "does not answer"),
    ] {
        let said = bad(place, &["list"]);
        assert!(said.contains(words) && !said.contains("hush"), "{place:?}: {said}");
    }
    shop.runtime.block_on(shop.jetstream.delete_stream(format!("KV_{name}"))).unwrap();
}
