//! `pillarbox relay`, from the table to what comes out, on PostgreSQL.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use pillarbox::{AnyStore, Delivery, Outbox};
use pillarbox_servers::{Database, Proxy, Shared};
use serde_json::Value;

use super::{pillarbox, stderr};

const PATIENCE: Duration = Duration::from_secs(40);

/// A relay that writes what it sends to its output.
pub(crate) struct Relay {
    process: Child,
    lines: Arc<Mutex<Vec<Value>>>,
    log: Arc<Mutex<String>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl Relay {
    /// With a sink `out`, and what is set besides.
    pub(crate) fn start(database: &Database, set: &[&str]) -> Self {
        Self::start_on(&database.url(), set)
    }

    fn start_on(url: &str, set: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
        command.args(["relay", "--db", url, "--set", "sinks.out.type=stdout"]);
        command.args(["--set", "http.listen=127.0.0.1:0", "--set", "log.format=json"]);
        command.args(set.iter().flat_map(|set| ["--set", set]));
        command.env_remove("RUST_LOG").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the program runs");
        let (lines, log) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(String::new())));
        let (out, err) = (process.stdout.take().expect("an output"), process.stderr.take().expect("a log"));
        let of = lines.clone();
        let from_out = thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                of.lock().expect("no panic").push(serde_json::from_str(&line).expect("a line is one JSON object"));
            }
        });
        let of = log.clone();
        let from_err = thread::spawn(move || {
            for line in BufReader::new(err).lines().map_while(Result::ok) {
                let mut log = of.lock().expect("no panic");
                log.push_str(&line);
                log.push('\n');
            }
        });
        let relay = Self { process, lines, log, readers: vec![from_out, from_err] };
        relay.address();
        relay
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        self.lines.lock().expect("no panic").clone()
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().expect("no panic").clone()
    }

    /// Where metrics and health are, which is the last that it says of its start.
    fn address(&self) -> String {
        wait("the port", || {
            let log = self.log();
            let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let address = lines.find_map(|line| Some(line["fields"]["address"].as_str()?.to_owned()));
            assert!(address.is_some() || !log.contains("error: "), "{log}");
            address
        })
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address()).expect("a connection");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n").expect("to ask");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let metrics = self.get("/metrics");
        let line = metrics.lines().find(|line| line.split(' ').next() == Some(name))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// Says that it is to end, and whether it ended well.
    pub(crate) fn end(mut self) -> (bool, String) {
        Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status().expect("a signal");
        let ended = self.process.wait().expect("an end").success();
        for reader in self.readers.drain(..) {
            reader.join().expect("all was read");
        }
        (ended, self.log())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn migrated() -> Database {
    let database = Shared::Postgres.database();
    let output = pillarbox(&["migrate", "--db", &database.url()]);
    assert!(output.status.success(), "{}", stderr(&output));
    database
}

/// Writes so many events, of five keys.
pub(crate) fn write(database: &Database, events: std::ops::Range<u32>) {
    write_of(database, events, 5);
}

fn write_of(database: &Database, events: std::ops::Range<u32>, keys: u32) {
    let of = |n: u32| format!("select outbox_publish('OrderPlaced', '{{\"n\": {n}}}', key => 'k{}');", n % keys);
    database.run(&events.map(of).collect::<String>()).expect("to write");
}

pub(crate) fn count(database: &Database, of: &str) -> u32 {
    let counted = database.run(&format!("select count(*) from outbox_event where {of}")).expect("to count");
    counted.trim().parse().expect("a number")
}

/// First deliveries are in order for each key; says how many different events there are.
fn assert_in_order(lines: &[Value]) -> usize {
    let mut seen = BTreeSet::new();
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for line in lines {
        let (key, n) =
            (line["key"].as_str().expect("a key").to_owned(), line["payload"]["n"].as_u64().expect("a number"));
        if seen.insert(n) {
            let before = last.insert(key, n);
            assert!(before.is_none_or(|before| before < n), "{n} after {before:?}");
        }
    }
    seen.len()
}

#[test]
fn what_is_committed_comes_out_in_order_and_a_signal_ends_it() {
    let database = migrated();
    write(&database, 0..100);
    let relay = Relay::start(&database, &["messages.source=/shop"]);
    write(&database, 100..200);
    wait("all", || (relay.lines().len() >= 200).then_some(()));
    wait("the outcomes", || (count(&database, "status = 'DONE'") == 200).then_some(()));
    assert_eq!(assert_in_order(&relay.lines()), 200);
    assert_eq!(relay.lines().len(), 200, "without a fault nothing comes twice");
    let line = &relay.lines()[0];
    assert_eq!(line["topic"], "OrderPlaced");
    assert_eq!(line["attributes"]["source"], "/shop");
    assert_eq!(line["attributes"]["type"], "OrderPlaced");
    assert_eq!(line["attributes"]["specversion"], "1.0");

    assert_eq!(relay.metric("pillarbox_delivered_total"), Some(200.0));
    assert!(relay.get("/health/live").starts_with("HTTP/1.1 200"));
    let ready = relay.get("/health/ready");
    assert!(ready.starts_with("HTTP/1.1 200") && ready.contains("\"partitions\":256"), "{ready}");
    let (ended, log) = relay.end();
    assert!(ended && log.contains("stopped"), "{log}");
    assert!(!log.contains("first-class"), "the password is in the log");
    // It has given back what it owned.
    assert_eq!(database.run("select count(*) from outbox_partition where owner is not null").unwrap().trim(), "0");
}

#[test]
fn relays_share_the_work_and_one_takes_over_what_another_leaves() {
    let database = migrated();
    let lease = ["outbox.heartbeat=300ms", "outbox.stale_after=1s", "outbox.rebalance_every=300ms"];
    let one = Relay::start(&database, &lease);
    let mut two = Relay::start(&database, &lease);
    wait("equal shares", || {
        let owners =
            "select count(*) from (select owner from outbox_partition group by owner having count(*) = 128) as x";
        (database.run(owners).unwrap().trim() == "2").then_some(())
    });
    write(&database, 0..100);
    wait("all", || (one.lines().len() + two.lines().len() >= 100).then_some(()));
    assert!(!one.lines().is_empty() && !two.lines().is_empty(), "each has its share");
    two.process.kill().unwrap();
    write(&database, 100..200);
    wait("the outcomes", || (count(&database, "status = 'DONE'") == 200).then_some(()));
    let sent: BTreeSet<_> =
        one.lines().iter().chain(&two.lines()).map(|line| line["payload"]["n"].as_u64().unwrap()).collect();
    assert_eq!(sent.len(), 200);
    assert!(one.end().0);
}

/// The crash between the receiver's word and the settle: nothing is lost, and what comes again has the same id.
#[test]
fn a_relay_killed_between_the_confirm_and_the_settle_sends_the_same_ids_again() {
    let database = migrated();
    let lease = ["outbox.heartbeat=300ms", "outbox.stale_after=1s", "outbox.rebalance_every=300ms"];
    let never_settles = ["outbox.settle_linger=1h", "outbox.settle_batch=10000"];
    let mut one = Relay::start(&database, &[lease.as_slice(), &never_settles].concat());
    write_of(&database, 0..20, 20);
    wait("all", || (one.lines().len() >= 20).then_some(()));
    assert_eq!(count(&database, "status = 'NEW'"), 20);
    one.process.kill().unwrap();
    let two = Relay::start(&database, &lease);
    wait("the outcomes", || (count(&database, "status = 'DONE'") == 20).then_some(()));
    let ids = |relay: &Relay| relay.lines().iter().map(|line| line["id"].to_string()).collect::<BTreeSet<_>>();
    assert_eq!(ids(&one).len(), 20);
    assert_eq!(ids(&one), ids(&two));
    assert!(two.end().0);
}

#[test]
fn a_sink_that_is_down_keeps_its_events_and_no_others() {
    let database = migrated();
    let proxy = Proxy::to_url(&Shared::Redis.url()).unwrap();
    let url = proxy.url(&Shared::Redis.url());
    proxy.refuse();
    let topic = format!("relay-{}", database.name());
    let relay = Relay::start(
        &database,
        &[
            "sinks.redis.type=redis",
            &format!("sinks.redis.url={url}"),
            "messages.unmatched=[\"out\", \"redis\"]",
            &format!("rules=[{{ topic = \"{topic}\", sinks = [\"out\", \"redis\"] }}]"),
            "outbox.circuit={ failures = 2, shortest = \"100ms\", longest = \"300ms\" }",
        ],
    );
    // A key each: the next event of a key waits until both sinks have the one before.
    write_of(&database, 0..50, 50);
    wait("those of the other sink", || (relay.lines().len() >= 50).then_some(()));
    wait("an open circuit", || {
        (relay.metric("pillarbox_circuit_open{destination=\"redis\"}") == Some(1.0)).then_some(())
    });
    // Each of them has come to the closed door more than once.
    wait("events that were put off", || {
        relay.metric("pillarbox_deferred_total").is_some_and(|put_off| put_off > 150.0).then_some(())
    });
    assert_eq!(count(&database, "status in ('NEW', 'RETRY') and attempts = 0"), 50);
    assert!(relay.get("/health/ready").starts_with("HTTP/1.1 200"), "a sink that is down is not the relay's fault");
    proxy.accept().unwrap();
    wait("the outcomes", || (count(&database, "status = 'DONE'") == 50).then_some(()));
    assert_eq!(relay.lines().len(), 50, "who had his part gets no second one");
    assert_eq!(assert_in_order(&relay.lines()), 50);
    let redis = |command: &[&str]| {
        let output = Command::new("redis-cli").args(["-u", &Shared::Redis.url()]).args(command).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(redis(&["xlen", &topic]), "50");
    redis(&["del", &topic]);
    let (ended, log) = relay.end();
    assert!(ended);
    let warnings = log.lines().filter(|line| line.contains("its circuit is open")).count();
    assert_eq!(warnings, 1, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_beside_a_service_on_the_same_table_is_refused_and_told_what_to_do() {
    let database = migrated();
    let store = AnyStore::open(&database.url()).await.unwrap();
    let service = Outbox::multi_node(store).node_name("shop-1").route("OrderPlaced", |_: Delivery| async {});
    let service = service.start().await.unwrap();
    let relay = ["relay", "--db", &database.url(), "--set", "sinks.out.type=stdout", "--set", "http.enabled=false"];
    let output = tokio::task::block_in_place(|| pillarbox(&relay));
    assert!(!output.status.success());
    let said = stderr(&output);
    for words in ["shop-1", "another prefix", "Outlet"] {
        assert!(said.contains(words), "{said}");
    }
    service.shutdown().await;

    // And the other way round.
    let relay = tokio::task::block_in_place(|| Relay::start(&database, &[]));
    let store = AnyStore::open(&database.url()).await.unwrap();
    let service = Outbox::multi_node(store).route("OrderPlaced", |_: Delivery| async {}).start().await;
    let refused = service.expect_err("a refusal").to_string();
    assert!(refused.contains("as a relay") && refused.contains("another prefix"), "{refused}");
    assert!(tokio::task::block_in_place(|| relay.end()).0);
}

#[test]
fn a_relay_with_other_routes_is_refused_until_the_others_have_stopped() {
    let database = migrated();
    let url = database.url();
    let one = Relay::start(&database, &[]);
    let two = Relay::start(&database, &["messages.batch=7"]);
    let rules = "rules=[{ match = { event_type = \"Ping\" }, drop = true }]";
    let arguments = ["relay", "--db", &url, "--set", "sinks.out.type=stdout", "--set", "http.enabled=false"];
    let output = pillarbox(&[&arguments[..], &["--set", rules]].concat());
    assert!(!output.status.success());
    let said = stderr(&output);
    for words in ["as a relay (routes ", "this process is a relay (routes ", "stop the others first", "another prefix"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    // Who has the same takes no notice.
    write(&database, 0..10);
    wait("the outcomes", || (count(&database, "status = 'DONE'") == 10).then_some(()));
    assert!(one.end().0 && two.end().0);
    let changed = Relay::start(&database, &[rules]);
    write(&database, 10..20);
    wait("the outcomes", || (count(&database, "status = 'DONE'") == 20).then_some(()));
    assert!(changed.end().0);
}

#[test]
fn a_port_that_is_taken_is_told_before_anything_is_joined() {
    let database = migrated();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("http.listen={}", taken.local_addr().unwrap());
    let output = pillarbox(&["relay", "--db", &database.url(), "--set", "sinks.out.type=stdout", "--set", &listen]);
    let said = stderr(&output);
    assert!(
        !output.status.success() && said.contains("can't be listened on") && said.contains("http.enabled"),
        "{said}"
    );
    assert_eq!(database.run("select count(*) from outbox_instance").unwrap().trim(), "0");
}

#[test]
fn a_relay_is_not_ready_while_the_database_is_gone() {
    let database = migrated();
    let proxy = Proxy::to_url(&database.url()).unwrap();
    let relay = Relay::start_on(&proxy.url(&database.url()), &[]);
    wait("readiness", || relay.get("/health/ready").starts_with("HTTP/1.1 200").then_some(()));
    proxy.refuse();
    proxy.cut();
    let said = wait("the loss", || Some(relay.get("/health/ready")).filter(|said| said.starts_with("HTTP/1.1 503")));
    assert!(said.contains("\"ready\":false") && said.contains("the database"), "{said}");
    assert!(!said.contains("first-class"), "the password is told");
    assert!(relay.get("/health/live").starts_with("HTTP/1.1 200"));
    proxy.accept().unwrap();
    wait("readiness", || relay.get("/health/ready").starts_with("HTTP/1.1 200").then_some(()));
    assert!(relay.end().0);
}

/// What has come out is settled, and nothing else is begun.
#[test]
fn a_signal_under_load_drains_within_the_limit() {
    let database = migrated();
    write_of(&database, 0..5_000, 5_000);
    let limit = Duration::from_secs(10);
    let relay = Relay::start(&database, &["outbox.drain_timeout=10s", "outbox.workers=8"]);
    wait("the first", || (!relay.lines().is_empty()).then_some(()));
    let lines = relay.lines.clone();
    let begun = Instant::now();
    let (ended, log) = relay.end();
    assert!(ended && begun.elapsed() < limit, "{log}");
    let sent = lines.lock().unwrap().len();
    assert!(sent < 5_000, "it was over before the signal came");
    assert_eq!(usize::try_from(count(&database, "status = 'DONE'")).unwrap(), sent, "{log}");
    assert_eq!(database.run("select count(*) from outbox_partition where owner is not null").unwrap().trim(), "0");
}

/// `timeout` signals a process and then its group: the relay is told twice, and ends as if it were once.
#[test]
fn a_signal_that_comes_twice_at_once_is_one() {
    let database = migrated();
    write_of(&database, 0..2_000, 2_000);
    let relay = Relay::start(&database, &["outbox.drain_timeout=10s", "outbox.workers=8"]);
    wait("the first", || (!relay.lines().is_empty()).then_some(()));
    Command::new("kill").args(["-TERM", &relay.process.id().to_string()]).status().expect("a signal");
    let (ended, log) = relay.end();
    assert!(ended, "{log}");
    assert_eq!(database.run("select count(*) from outbox_instance").unwrap().trim(), "0", "{log}");
}

/// A pipe that nobody reads blocks its writer, and nobody else.
#[test]
fn a_signal_ends_a_relay_whose_output_nobody_reads() {
    let database = migrated();
    // More than a pipe holds.
    let large = "select outbox_publish('OrderPlaced', json_build_object('text', repeat('x', 10000))::text) from generate_series(1, 100);";
    database.run(large).expect("to write");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
    command.args(["relay", "--db", &database.url(), "--set", "sinks.out.type=stdout", "--set", "http.enabled=false"]);
    command.args(["--set", "outbox.drain_timeout=500ms", "--set", "outbox.handler_timeout=300ms"]);
    command.args(["--set", "outbox.circuit={ failures = 1 }"]);
    let mut child = command.env_remove("RUST_LOG").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let log = child.stderr.take().unwrap();
    let mut log = BufReader::new(log).lines().map_while(Result::ok);
    // The time that a batch has goes by, though the writer waits.
    assert!(log.any(|line| line.contains("its circuit is open") && line.contains("no answer within 300ms")));
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let ended = thread::spawn(move || log.any(|line| line.contains("stopped")));
    let status = wait("the end", || child.try_wait().unwrap());
    assert!(status.success() && ended.join().unwrap());
    // What the pipe itself has room for may be.
    assert!(count(&database, "status = 'DONE'") < 100);
}

#[test]
fn a_check_tells_what_works_and_what_does_not() {
    let database = migrated();
    let redis = Shared::Redis.url();
    let check = |set: &[&str]| {
        let mut arguments = vec!["relay", "--check", "--db"];
        let url = database.url();
        arguments.push(&url);
        arguments.extend(["--set", "sinks.r.type=redis"]);
        arguments.extend(set.iter().flat_map(|set| ["--set", set]));
        let output = pillarbox(&arguments);
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output))
    };
    let (good, said) = check(&[&format!("sinks.r.url={redis}")]);
    assert!(good && said.contains("outbox  ok") && said.contains("sink r (redis)  ok"), "{said}");
    let (good, said) = check(&["sinks.r.url=redis://:hush@127.0.0.1:1"]);
    assert!(!good && said.contains("sink r (redis)  FAILED") && said.contains("outbox  ok"), "{said}");
    assert!(!said.contains("hush"), "{said}");
    let (good, said) = check(&[&format!("sinks.r.url={redis}"), "sinks.r.answer_witin=1"]);
    assert!(!good && said.contains("sinks.r.answer_witin") && said.contains("answer_within"), "{said}");
    let (good, said) = check(&[&format!("sinks.r.url={redis}"), "outbox.workers=0"]);
    assert!(!good && said.contains("outbox.workers: is 0: allowed is 1 to 10000"), "{said}");
    assert!(!said.contains("outbox  ok"), "nothing was opened: {said}");
}

/// A4: what is missing is told with what to do, and a look makes nothing.
#[test]
fn a_check_of_a_database_that_is_not_ready_says_why_and_leaves_it_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.db");
    let url = format!("sqlite:{}", file.display());
    let check = |url: &str| {
        let output = pillarbox(&["relay", "--check", "--db", url, "--set", "sinks.out.type=stdout"]);
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = check(&url);
    assert!(said.contains("outbox  FAILED") && said.contains("could not be opened"), "{said}");
    assert!(!file.exists(), "a look has made it");
    std::fs::write(&file, "").unwrap();
    let said = check(&url);
    assert!(said.contains("outbox  FAILED") && said.contains("pillarbox migrate --db"), "{said}");
    let said = check("postgres://u:hush@127.0.0.1:1/shop");
    assert!(said.contains("outbox  FAILED") && said.contains("refused"), "{said}");
    assert!(!said.contains("migrate") && !said.contains("hush"), "{said}");
}

/// A4: a signal is heard from the beginning, also while the database does not answer.
#[test]
fn a_signal_ends_a_relay_that_has_not_started_yet() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://u@{}/shop", silent.local_addr().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
    command.args(["relay", "--db", &url, "--set", "sinks.out.type=stdout", "--set", "http.enabled=false"]);
    let child = command.env_remove("RUST_LOG").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // It waits for the server's greeting.
    let (_connection, _) = silent.accept().unwrap();
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("stopped before it had started"), "{}", stderr(&output));
}

#[test]
fn the_reference_is_a_configuration() {
    let output = pillarbox(&["config", "--reference"]);
    assert!(output.status.success());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pillarbox.toml");
    std::fs::write(&path, &output.stdout).unwrap();
    let database = migrated();
    let output = pillarbox(&["relay", "--check", "--config", path.to_str().unwrap(), "--db", &database.url()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = pillarbox(&["relay", "--config", "/nowhere/pillarbox.toml"]);
    assert!(!output.status.success() && stderr(&output).contains("/nowhere/pillarbox.toml"), "{}", stderr(&output));
    let output = pillarbox(&["relay"]);
    assert!(!output.status.success() && stderr(&output).contains("--reference"), "{}", stderr(&output));
}

#[test]
fn variables_of_the_environment_are_settings() {
    let database = migrated();
    let check = |variables: &[(&str, &str)], set: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
        command.args(["relay", "--check"]).args(set.iter().flat_map(|set| ["--set", set]));
        let output = command.env_remove("RUST_LOG").envs(variables.iter().copied()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output))
    };
    let url = database.url();
    let variables = [("PILLARBOX__OUTBOX__URL", url.as_str()), ("PILLARBOX__SINKS__OUT__TYPE", "stdout")];
    let (good, said) = check(&variables, &[]);
    assert!(good && said.contains("sink out (stdout)  ok"), "{said}");
    let wrong = [variables[0], variables[1], ("PILLARBOX__OUTBOX__WORKERS", "many")];
    let (good, said) = check(&wrong, &[]);
    assert!(!good && said.contains("outbox.workers"), "{said}");
    // What is set by hand comes before.
    let (good, said) = check(&wrong, &["outbox.workers=3"]);
    assert!(good, "{said}");
}
