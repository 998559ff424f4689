//! `pillarbox dead` and `pillarbox admin`: over a database and over the API, with the same words.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use serde_json::{Value, json};
use sqlx::{ConnectOptions as _, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

use super::{pillarbox, stderr};

const OPERATOR: &str = "op-0123456789abcdef-secret";
const VIEWER: &str = "vi-0123456789abcdef-secret";

fn id(number: u32) -> String {
    format!("{number:026}")
}

/// A SQLite file with events: 1 to 5 are dead, 6 is new.
struct File {
    folder: TempDir,
}

impl File {
    fn new() -> Self {
        let file = Self { folder: tempfile::tempdir().unwrap() };
        assert!(pillarbox(&["migrate", "--db", &file.url()]).status.success());
        for number in 1..=6 {
            let status = if number < 6 { "DEAD" } else { "NEW" };
            file.run(&format!(
                "insert into outbox_event (event_id, event_type, payload, status, attempts, done_at, last_error, tenant_id)
                values ('{}', 'Placed', '{{\"n\": {number}.10}}', '{status}', 10, 1700000000000000 + {number},
                    'refused {number}' || char(27) || '[2J', 't{number}')",
                id(number)
            ));
        }
        file
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path("a.db").display())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, sql: &str) {
        self.ask(sql);
    }

    /// The first value of the first row, if there is one.
    fn ask(&self, sql: &str) -> Option<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let options = SqliteConnectOptions::new().filename(self.path("a.db"));
            let mut connection = options.connect().await.unwrap();
            let sql = sqlx::AssertSqlSafe(sql.to_owned());
            sqlx::query_scalar::<_, String>(sql).fetch_optional(&mut connection).await.unwrap()
        })
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        path.display().to_string()
    }
}

/// A running `pillarbox admin`.
struct Admin {
    child: Child,
    url: String,
}

impl Admin {
    fn start(file: &File, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pillarbox"))
            .args(["admin", "--db", &file.url(), "--listen", "127.0.0.1:0"])
            .args(arguments)
            .env_remove("RUST_LOG")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().to_owned() }
    }

    /// Ends it, and gives what it said.
    fn stop(mut self) -> String {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        said
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // Ended already where the test came to its end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn dead(over: &[&str], arguments: &[&str]) -> Output {
    pillarbox(&[&["dead"], arguments, over].concat())
}

fn good(over: &[&str], arguments: &[&str]) -> String {
    let output = dead(over, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    assert_eq!(stderr(&output), "");
    String::from_utf8(output.stdout).unwrap()
}

fn bad(over: &[&str], arguments: &[&str]) -> String {
    let output = dead(over, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    stderr(&output)
}

fn objects(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).expect("a line is one JSON object")).collect()
}

/// A4: everything that can be done, over a database and over the API.
#[test]
fn the_dead_are_listed_shown_replayed_edited_skipped_and_discarded() {
    for by_api in [false, true] {
        let file = File::new();
        let admin = by_api.then(|| Admin::start(&file, &[]));
        let url = file.url();
        let over = match &admin {
            Some(admin) => vec!["--api", admin.url.as_str()],
            None => vec!["--db", url.as_str(), "--as", "ada"],
        };
        let listed = objects(&good(&over, &["list", "--json"]));
        assert_eq!(listed.len(), 5);
        assert_eq!(listed[0]["origin"], "outbox");
        assert_eq!(
            listed.iter().map(|item| item["event"]["seq"].as_i64().unwrap()).collect::<Vec<_>>(),
            [5, 4, 3, 2, 1]
        );
        let table = good(&over, &["list", "--limit", "2"]);
        assert!(table.starts_with("origin") && table.contains("refused 5\u{fffd}[2J"), "{table}");
        assert!(table.contains("there are more") && !table.contains("refused 3"), "{table}");
        assert_eq!(good(&over, &["list", "--tenant", "nobody"]), "nothing matches\n");
        assert_eq!(objects(&good(&over, &["list", "--json", "--tenant", "t3"])).len(), 1);

        let shown = good(&over, &["show", &id(3)]);
        assert!(shown.contains("status          DEAD") && shown.contains("\"n\": 3.1"), "{shown}");
        let shown = objects(&good(&over, &["show", &id(3), "--json"]));
        assert_eq!(shown[0]["id"], id(3));

        let payload = file.write("new.json", "{\"n\": 30.0}");
        good(&over, &["edit", &id(3), "--payload-file", &payload, "--because", "a wrong number"]);
        assert_eq!(file.ask("select payload from outbox_event where seq = 3").unwrap(), "{\"n\": 30.0}", "to the byte");
        assert!(bad(&over, &["edit", &id(3), "--payload", "{"]).contains("not JSON"));
        assert_eq!(good(&over, &["replay", &id(3), "--because", "it is right now"]), format!("{} replayed\n", id(3)));
        let said = bad(&over, &["replay", &id(3), &id(99), &id(4)]);
        assert!(said.contains("only DEAD events can be replayed") && said.contains("there is no event"), "{said}");
        assert_eq!(file.ask("select status from outbox_event where seq = 4").unwrap(), "NEW", "the rest is done");
        assert!(bad(&over, &["skip", &id(5)]).contains("holds no key"));
        good(&over, &["discard", &id(5), "--because", "nobody wants it"]);
        assert_eq!(file.ask("select event_id from outbox_event where seq = 5"), None);

        let who = if by_api { "local" } else { "ada" };
        let history = objects(&good(&over, &["history", "--json"]));
        let told: Vec<_> = history.iter().map(|a| (a["action"].clone(), a["who"].clone(), a["why"].clone())).collect();
        let deed = |action: &str, why: Option<&str>| (json!(action), json!(who), json!(why));
        let expected = [
            deed("discard", Some("nobody wants it")),
            deed("replay", None),
            deed("replay", Some("it is right now")),
            deed("edit", Some("a wrong number")),
        ];
        assert_eq!(told, expected);
        assert_eq!(history[3]["before"]["payload"], json!({ "n": 3.10 }));
        assert!(good(&over, &["history", &id(3)]).contains("a wrong number"));
        assert!(good(&over, &["history", "5"]).contains("nobody wants it"), "by its number, when it is gone too");
        if let Some(admin) = admin {
            let said = admin.stop();
            assert!(said.contains("everybody on this machine, for there are no tokens"), "{said}");
            assert!(said.contains("an operator acted"), "{said}");
        }
    }
}

/// A4, U3: many at once.
#[test]
fn many_are_replayed_and_discarded_by_filters() {
    for by_api in [false, true] {
        let file = File::new();
        let admin = by_api.then(|| Admin::start(&file, &[]));
        let url = file.url();
        let over = match &admin {
            Some(admin) => vec!["--api", admin.url.as_str()],
            None => vec!["--db", url.as_str()],
        };
        assert_eq!(good(&over, &["replay", "--all", "--dry-run"]), "5 events would be replayed\n");
        let done = objects(&good(&over, &["discard", "--tenant", "t1", "--json"]));
        let expected = json!({
            "action": "discard", "changed": 1, "events": 1, "letters": 0, "refused": 0, "dry_run": false, "interrupted": false,
        });
        assert_eq!(done, [expected]);
        assert_eq!(
            good(&over, &["replay", "--type", "Placed", "--rate", "2", "--because", "back"]),
            "4 events replayed\n"
        );
        assert_eq!(good(&over, &["replay", "--all"]), "0 events replayed\n");
        for unclear in
            [&["replay"][..], &["discard"], &["replay", "--all", "--type", "x"], &["replay", &id(1), "--type", "x"]]
        {
            assert!(bad(&over, unclear).contains("not clear"), "{unclear:?}");
        }
        let history = objects(&good(&over, &["history", "--json"]));
        assert_eq!(history.len(), 5);
    }
}

#[test]
fn tokens_have_names_and_roles_and_are_told_to_nobody() {
    let file = File::new();
    let tokens = file.write("tokens", &format!("# people\nolga operator {OPERATOR}\nvera viewer {VIEWER}\n"));
    let admin = Admin::start(&file, &["--token-file", &tokens, "--redact", "$.n", "-vv"]);
    let (operator, viewer) = (file.write("olga", OPERATOR), file.write("vera", &format!("{VIEWER}\n")));
    let url = admin.url.clone();
    let with = |token| vec!["--api", url.as_str(), "--token-file", token];
    let said = bad(&["--api", &url], &["list"]);
    assert!(said.contains("a valid token is needed") && said.contains("try: --token-file"), "{said}");
    let wrong = file.write("wrong", "somebody-elses-token");
    assert!(!bad(&with(&wrong), &["list"]).contains("somebody-elses"));

    assert!(good(&with(&viewer), &["show", &id(1)]).contains("[redacted]"));
    assert!(good(&with(&operator), &["show", &id(1)]).contains("\"n\": 1.1"));
    assert!(bad(&with(&viewer), &["replay", &id(1)]).contains("only operators act"));
    assert!(bad(&with(&viewer), &["list", "--text", "x"]).contains("can't be searched"));
    good(&with(&operator), &["replay", &id(1), "--as", "olga's trainee"]);
    assert_eq!(file.ask("select actor from outbox_action").unwrap(), "olga (olga's trainee)");
    let said = admin.stop();
    assert!(said.contains("those with one of 2 tokens"), "{said}");
    assert!(!said.contains(OPERATOR) && !said.contains(VIEWER), "{said}");
}

#[test]
fn without_tokens_it_listens_on_loopback_only_and_says_so() {
    let file = File::new();
    for listen in ["0.0.0.0:0", "[::]:0", "10.1.2.3:0"] {
        let output = pillarbox(&["admin", "--db", &file.url(), "--listen", listen]);
        assert_eq!(output.status.code(), Some(1));
        let said = stderr(&output);
        assert!(said.contains("loopback only") && said.contains("--token-file"), "{said}");
    }
    let empty = file.write("tokens", "# none\n");
    let output = pillarbox(&["admin", "--db", &file.url(), "--token-file", &empty]);
    assert!(stderr(&output).contains("there is no token"), "{}", stderr(&output));
    let output = pillarbox(&["admin", "--db", &file.url(), "--redact", "card"]);
    assert!(stderr(&output).contains("it begins with $"), "{}", stderr(&output));
}

#[test]
fn mistakes_say_what_to_do() {
    let file = File::new();
    let url = file.url();
    assert!(bad(&[], &["list"]).contains("--db URL or PILLARBOX_DB"));
    assert!(bad(&["--db", &url], &["list", "--from", "soon"]).contains("it is no time"));
    assert!(bad(&["--db", &url], &["show", "nobody"]).contains("there is no event nobody"));
    assert!(bad(&["--api", "ops.example.org"], &["list"]).contains("https://ops.example.org/api/admin"));
    let said = bad(&["--api", "http://ada:s3cret@127.0.0.1:1/api/admin"], &["list"]);
    assert!(said.contains("password") && !said.contains("s3cret"), "{said}");
    assert!(bad(&["--api", "http://127.0.0.1:1/api/admin"], &["list"]).contains("does not answer"));
    let missing = Path::new("/no/such/file").display().to_string();
    assert!(bad(&["--api", "http://127.0.0.1:1", "--token-file", &missing], &["list"]).contains("can't be read"));
}

/// A consumer on the same database has given up a message.
fn park(file: &File) -> String {
    use pillarbox::{
        SqliteInbox, SqliteStore,
        inbox::{DeadLetters, Parked},
        port::{InboxUpkeep as _, Incoming},
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(file.url()).await.unwrap();
        let tables = SqliteInbox::new(&store);
        tables.migrate().await.unwrap();
        let message = Incoming {
            topic: "orders".into(),
            content_type: "application/json".into(),
            attributes: vec![("id".into(), "e-1".into()), ("type".into(), "OrderPaid".into())],
            payload: "{\"n\": 1}".into(),
            ..Incoming::default()
        };
        let parked = Parked { consumer: "billing", message: &message, reason: "card declined", attempts: 3 };
        DeadLetters::new(tables).park(&parked).await.unwrap().to_string()
    })
}

#[test]
fn dead_letters_of_consumers_are_in_the_same_list_with_their_origin() {
    let file = File::new();
    let letter = park(&file);
    let listed = pillarbox(&["dead", "list", "--db", &file.url(), "--json"]);
    assert!(listed.status.success(), "{}", stderr(&listed));
    let listed = String::from_utf8(listed.stdout).unwrap();
    for words in ["billing", "OrderPaid", "card declined", &letter, &id(1), "outbox"] {
        assert!(listed.contains(words), "{words}: {listed}");
    }
    let shown = pillarbox(&["dead", "show", &letter, "--db", &file.url(), "--json"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("orders"), "{}", stderr(&shown));
    let replayed = pillarbox(&["dead", "replay", &letter, "--db", &file.url()]);
    assert!(!replayed.status.success());
    assert!(stderr(&replayed).contains("no sink was given"), "{}", stderr(&replayed));
    let discarded = pillarbox(&["dead", "discard", &letter, "--db", &file.url(), "--because", "a test"]);
    assert!(discarded.status.success(), "{}", stderr(&discarded));
    assert_eq!(file.ask("select status from inbox_letter").as_deref(), Some("DISCARDED"));
    // Tables of another name are others' letters.
    let listed = pillarbox(&["dead", "list", "--db", &file.url(), "--json", "--inbox-prefix", "other_"]);
    assert!(!String::from_utf8(listed.stdout).unwrap().contains("billing"));
}
