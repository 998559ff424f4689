use pillarbox_core::{Event, Outbox};
use pillarbox_inbox::{ConsumerSettings, DeadLetterSettings};
use pillarbox_testkit::MemoryStore;

use super::*;

const LEAST: &str = "outbox.url = \"sqlite:x.db\"\n[sinks.out]\ntype = \"stdout\"\n";

fn read(text: &str) -> Result<Config, ConfigError> {
    Config::read(&Source::new().text(text))
}

fn refused(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

/// The reference with all its comment signs before settings taken away.
fn uncommented() -> String {
    let is_setting = |line: &str| {
        line.strip_prefix('#')
            .is_some_and(|rest| rest.starts_with('[') || rest.starts_with(|c: char| c.is_ascii_lowercase()))
    };
    let lines = REFERENCE.lines().map(|line| if is_setting(line) { &line[1..] } else { line });
    // No test has this file.
    lines
        .collect::<Vec<_>>()
        .join("\n")
        .replace("{ file = \"/run/secrets/tokens\" }", "\"ada viewer 0123456789abcdef\"")
}

#[test]
fn the_reference_as_it_stands_and_with_every_setting_is_the_default() {
    let settings = |config: &Config| {
        let builder = config.outbox.of_relay(Outbox::multi_node(MemoryStore::new()).node_name("relay-1"));
        format!("{builder:?}")
    };
    let (bare, full) = (read(REFERENCE).unwrap(), read(&uncommented()).unwrap());
    assert_eq!(settings(&bare), settings(&full));
    assert_eq!(Messages { unmatched: Some(vec!["out".into()]), ..bare.messages }, full.messages);
    assert_eq!(bare.http, full.http);
    assert_eq!(bare.log, full.log);
    let endpoint = Some("http://localhost:4318".to_owned());
    assert_eq!(Telemetry { endpoint, ..bare.telemetry }, full.telemetry);
    assert_eq!(full.outbox.prefix(), Some("outbox_"));
}

/// M4: what the file says are the defaults of a service's builders.
#[test]
fn the_reference_of_a_service_is_the_default() {
    let read = |text: &str| Settings::read(&Source::new().text(text)).unwrap();
    let (none, bare, full) = (read(""), read(REFERENCE), read(&uncommented()));
    for settings in [&none, &bare] {
        assert_eq!(settings.guard, full.guard);
        assert_eq!(settings.inbox, full.inbox);
        assert_eq!(settings.consumer.retry.policy().delay(1, 0.5), full.consumer.retry.policy().delay(1, 0.5));
        let policies = |settings: &Settings| {
            let consumer = &settings.consumer;
            format!("{:?} {:?}", consumer.retry.policy(), consumer.circuit.policy())
        };
        assert_eq!(policies(settings), policies(&full));
        let (retry, circuit) = (full.consumer.retry, full.consumer.circuit);
        assert_eq!(ConsumerSettings { retry, circuit, ..settings.consumer.clone() }, full.consumer);
        let sink = Some("out".to_owned());
        assert_eq!(DeadLetterSettings { sink, ..settings.dead_letters.clone() }, full.dead_letters);
        assert!(settings.outbox.enabled() && full.outbox.enabled());
    }
}

#[test]
fn replays_go_through_the_sink_that_is_named_or_the_only_one() {
    let settings = |text: &str| Settings::read(&Source::new().text(text)).unwrap();
    assert!(settings("").replays().unwrap().is_none());
    assert!(settings(LEAST).replays().unwrap().is_some());
    let two = format!("{LEAST}[sinks.second]\ntype = \"stdout\"\n");
    let error = settings(&two).replays().err().unwrap().to_string();
    assert!(error.contains("dead_letters.sink: is missing") && error.contains("`out`, `second`"), "{error}");
    assert!(settings(&format!("{two}[dead_letters]\nsink = \"second\"")).replays().unwrap().is_some());
    let error = settings(&format!("{two}[dead_letters]\nsink = \"secnd\"")).replays().err().unwrap().to_string();
    assert!(error.contains("Did you mean `second`?"), "{error}");
    let error = settings("dead_letters.sink = \"a\"").replays().err().unwrap().to_string();
    assert!(error.contains("[sinks.a]"), "{error}");
}

#[test]
fn a_broker_is_known_by_its_address() {
    let error = broker("gopher://ada:hush@x").unwrap_err().to_string();
    assert!(error.contains("nats://") && !error.contains("hush"), "{error}");
    assert!(broker("localhost:4222").is_err());
    #[cfg(feature = "nats")]
    {
        assert_eq!(broker("nats://localhost").unwrap().kind(), "nats");
        assert_eq!(broker("TLS://localhost").unwrap().kind(), "nats");
        let error = broker("nats://ada:hush@").unwrap_err().to_string();
        assert!(!error.contains("hush"), "{error}");
    }
    #[cfg(not(feature = "nats"))]
    assert!(broker("nats://localhost").unwrap_err().to_string().contains("feature `nats`"));
}

#[test]
fn the_reference_has_every_key() {
    let text = uncommented();
    let consuming = ["guard", "inbox", "consumer", "dead_letters", "admin"];
    for section in ["outbox", "messages", "http", "log", "telemetry"].into_iter().chain(consuming) {
        let error = refused(&format!("{text}\n[{section}_]\n"));
        assert!(error.contains(&format!("`{section}`")), "{error}");
    }
    for (section, before) in [
        ("outbox.", "migrate"),
        ("outbox.retry.", "backoff"),
        ("outbox.circuit.", "failures"),
        ("outbox.purge.", "done"),
        ("messages.", "mode"),
        ("http.", "listen"),
        ("log.", "format"),
        ("telemetry.", "endpoint"),
        ("guard.", "ttl"),
        ("inbox.", "window"),
        ("consumer.", "prefetch"),
        ("consumer.retry.", "backoff"),
        ("consumer.circuit.", "failures"),
        ("dead_letters.", "retention"),
        ("admin.", "listen"),
        ("admin.limits.", "burst"),
    ] {
        let error = read_with(&text, &format!("{section}nonsense"), "1").unwrap_err().to_string();
        assert!(error.starts_with(&format!("{section}nonsense: ")), "{error}");
        let (_, allowed) = error.split_once("Allowed: ").unwrap();
        assert!(allowed.contains(before), "{error}");
        for key in allowed.split(", ").map(|key| key.trim_matches('`')) {
            let there = text.lines().any(|line| line.split([' ', '=']).next() == Some(key))
                || text.contains(&format!("[{section}{key}]"));
            assert!(there, "{section}{key} is not in the reference");
        }
    }
}

/// The options of a type of sink in the reference: each with its value.
fn options_of(kind: &str) -> Vec<(&'static str, &'static str)> {
    let lines = REFERENCE.lines().map(|line| line.trim_start_matches('#').trim());
    let of_type = lines.skip_while(|line| *line != format!("type = {kind:?}")).skip(1);
    let pairs = of_type.take_while(|line| !line.is_empty()).filter_map(|line| line.split_once(" = "));
    pairs
        .map(|(key, value)| {
            (key, value.split("    ").next().unwrap_or_default().split(" #").next().unwrap_or_default())
        })
        .collect()
}

const KINDS: [&str; 6] = ["http", "kafka", "mqtt", "nats", "rabbitmq", "redis"];

/// Whatever is in this build.
#[test]
fn the_reference_has_every_option_that_the_book_has_for_a_sink() {
    let book = include_str!("../../../../docs/book/src/relay.md");
    for kind in KINDS {
        let (_, section) = book.split_once(&format!("### {kind}\n")).expect(kind);
        let section = section.split("\n### ").next().unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        let cells = rows.filter_map(|line| line.split('|').nth(1));
        let of_book: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        let of_reference = options_of(kind);
        assert!(!of_book.is_empty());
        for option in &of_book {
            let (key, inner) = option.split_once('.').map_or((*option, None), |(key, inner)| (key, Some(inner)));
            let found = of_reference.iter().find(|(name, _)| *name == key);
            let (_, value) = found.unwrap_or_else(|| panic!("{kind}: {option} is not in the reference"));
            assert!(inner.is_none_or(|inner| value.contains(&format!("{inner} = "))), "{kind}: {option}");
        }
        for (key, _) in of_reference {
            assert!(
                of_book.iter().any(|option| option.split('.').next() == Some(key)),
                "{kind}: {key} is not in the book"
            );
        }
    }
}

/// Those types that are in this build.
#[test]
fn the_reference_has_every_option_of_every_sink_with_a_value_of_its_kind() {
    for kind in KINDS {
        let options = options_of(kind);
        let (required, address) = options[0];
        let sink =
            |more: &str| read_with(LEAST, "sinks.b", &format!("{{ type = {kind:?}, {required} = {address}{more} }}"));
        let error = sink(", nonsense = 1").unwrap_err().to_string();
        if error.contains("is not in this build") {
            continue;
        }
        let (_, allowed) = error.split_once("Allowed: ").unwrap_or_else(|| panic!("{kind}: {error}"));
        for key in allowed.split(", ").map(|key| key.trim_matches('`')) {
            assert!(options.iter().any(|(name, _)| *name == key), "{kind}: {key} is not in the reference");
        }
        for (key, value) in &options[1..] {
            // Some go with others only, and files are not there.
            let Err(error) = sink(&format!(", {key} = {value}")) else { continue };
            let error = error.to_string();
            for words in ["is no key", "wrong kind", "wrong value", "can't be read here"] {
                assert!(!error.contains(words), "{kind}: {key} = {value}: {error}");
            }
        }
    }
}

fn read_with(text: &str, path: &str, value: &str) -> Result<Config, ConfigError> {
    Config::read(&Source::new().text(text).set(path, value))
}

#[test]
fn what_is_wrong_is_told_with_its_path_and_what_was_meant() {
    for (text, words) in [
        ("outbox.worker = 1", &["outbox.worker", "Did you mean `workers`?", "`page_size`"][..]),
        ("outbox.workers = \"many\"", &["outbox.workers", "a whole number from 1 to 10000 is expected"]),
        ("outbox.workers = -1", &["outbox.workers", "a whole number from 1 to 10000 is expected"]),
        ("outbox.purge.batch = 1.5", &["outbox.purge.batch", "a whole number from 1 to 100000 is expected"]),
        ("outbox.migrate = \"perhaps\"", &["outbox.migrate", "`true` or `false` is expected"]),
        ("outbox.handler_timeout = 30", &["outbox.handler_timeout", "\"10s\""]),
        ("outbox.handler_timeout = \"soon\"", &["outbox.handler_timeout", "\"10s\""]),
        ("outbox.on_success = \"kept\"", &["outbox.on_success", "Did you mean `keep`?", "`delete`"]),
        ("outbox.retry.maximum = 3", &["outbox.retry.maximum", "`max_attempts`"]),
        ("sinks.b.type = \"nat\"", &["sinks.b.type", "Did you mean `nats`?"]),
        ("sinks.b.kind = \"nats\"", &["sinks.b.type", "is missing", "rabbitmq"]),
        ("sinks.b = { type = \"stdout\", url = \"x\" }", &["sinks.b.url", "stdout"]),
        #[cfg(feature = "kafka")]
        (
            "sinks.k = { type = \"kafka\", brokers = \"k\", properties = { \"linger.ms\" = [1] } }",
            &["sinks.k.properties.linger.ms", "a text, a number, `true` or `false`"],
        ),
        ("messages.unmatched = [\"elsewhere\"]", &["messages.unmatched.0", "elsewhere", "`out`"]),
        ("[[rules]]\nsinks = [\"ou\"]", &["rules.0.sinks.0", "Did you mean `out`?"]),
        ("[[rules]]\ntopic = \"{tenat}\"", &["rules.0.topic", "Did you mean {tenant}?"]),
        ("[[rules]]\nheaders = { x = \"{\" }", &["rules.0.headers.x", "without"]),
        ("[[rules]]\ndrop = true\nsinks = [\"out\"]", &["rules.0", "neither or both"]),
        ("[[rules]]\nmatch = { even_type = \"x\" }", &["rules", "event_type"]),
        ("messages.batch = 0", &["messages.batch", "1 to 10000"]),
        ("messages.mode = \"binery\"", &["messages.mode", "Did you mean `binary`?"]),
        ("http.listen = \"everywhere\"", &["http.listen", "\"127.0.0.1:9464\""]),
        ("http.listen = \"9464\"", &["http.listen", "an address and a port"]),
        (
            "[[rules]]\nmatch = { event_type = 3 }",
            &["rules.0.match.event_type", "a text or a list of texts is expected"],
        ),
        ("[[rules]]\nmatch = { headers = { x = [1] } }", &["rules.0.match.headers.x", "a text is expected"]),
        ("telemetry.endpoint = \"localhost:4318\"", &["telemetry.endpoint", "http://localhost:4318"]),
        ("telemetry.endpoint = \"http://a b\"", &["telemetry.endpoint", "http://localhost:4318"]),
        ("telemetry.sampled = 2", &["telemetry.sampled", "0.0 to 1.0"]),
        ("telemetry.service = \"\"", &["telemetry.service", "is empty"]),
        ("telemetry.metrics_every = \"0s\"", &["telemetry.metrics_every", "1s"]),
        ("telemetry.headers = { \"a b\" = \"c\" }", &["telemetry.headers.a b"]),
        ("guard.enable = true", &["guard.enable", "Did you mean `enabled`?"]),
        ("guard.ttl = \"0ms\"", &["guard.ttl", "the least is 1ms"]),
        ("guard.enabled = 3", &["guard.enabled", "`true` or `false`"]),
        ("inbox.window = \"5m\"", &["inbox.window", "the least is 360s"]),
        ("consumer.workers = 0", &["consumer.workers", "1 to 10000"]),
        ("consumer.on_unknown = \"drop\"", &["consumer.on_unknown", "`park`", "`skip`"]),
        ("consumer.retry.max_attempts = 0", &["consumer.retry", "max_attempts", "the least is 1"]),
        ("consumer.retry.jitter = 2", &["consumer.retry", "jitter", "from 0 to 1"]),
        ("dead_letters.most_replays = 1001", &["dead_letters.most_replays", "0 to 1000"]),
        ("admin.listn = \"x\"", &["admin.listn", "Did you mean `listen`?"]),
        ("admin.listen = \"everywhere\"", &["admin.listen", "an address and a port"]),
        ("admin.limits.burst = 0", &["admin.limits.burst", "1 to 1000000"]),
        ("admin.limits.requests_per_second = -1", &["admin.limits.requests_per_second", "0.01 to 100000"]),
        ("admin.limits.time = \"1ms\"", &["admin.limits.time", "the least is 1s"]),
        ("admin.tokens = { file = \"/nowhere/at/all\" }", &["admin.tokens", "/nowhere/at/all"]),
        ("[logs]", &["logs", "Did you mean `log`?"]),
        ("outbox.purge.dead = \"for ever\"", &["outbox.purge.dead", "\"7d\"", "\"never\""]),
        ("outbox.heartbeat_on = \"thread\"", &["outbox.heartbeat_on", "`own_thread`"]),
        ("a = = b", &["line 1, column 5"]),
        ("a = 1\nä = = b", &["line 2, column"]),
    ] {
        // Keys of the root have to come before the first section.
        let whole = if text.starts_with('[') { format!("{LEAST}{text}") } else { format!("{text}\n{LEAST}") };
        let error = refused(&whole);
        for words in words {
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}

/// Every range that the builder has, by a value out of it.
#[test]
fn what_the_builder_refuses_is_refused_with_its_path_before_there_is_a_database() {
    for (key, value) in [
        ("workers", "0"),
        ("hot_capacity", "0"),
        ("cold_capacity", "1000001"),
        ("page_size", "0"),
        ("lane_capacity", "100001"),
        ("events_per_transaction", "1001"),
        ("settle_batch", "0"),
        ("max_starts", "0"),
        ("handler_timeout", "\"0ms\""),
        ("poll_interval.shortest", "\"0ms\""),
        ("poll_interval.longest", "\"1ms\""),
        ("reservation_ttl", "\"9ms\""),
        ("sample_every", "\"9ms\""),
        ("heartbeat", "\"9ms\""),
        ("rebalance_every", "\"9ms\""),
        ("stale_after", "\"14s\""),
        ("purge.batch", "0"),
        ("purge.every", "\"9ms\""),
        ("poll_interval.longest", "\"4000d\""),
        ("reservation_ttl", "\"4000d\""),
        ("sample_every", "\"4000d\""),
        ("skip_recent", "\"4000d\""),
        ("settle_linger", "\"4000d\""),
        ("route_grace", "\"4000d\""),
        ("heartbeat", "\"4000d\""),
        ("rebalance_every", "\"4000d\""),
        ("stale_after", "\"4000d\""),
        ("purge.every", "\"4000d\""),
        ("retry", "{ max_attempts = 0 }"),
        ("circuit", "{ failures = 0 }"),
        ("metrics_prefix", "\"9\""),
        ("node_name", "\"\""),
    ] {
        let poll = "[outbox.poll_interval]\nshortest = \"20ms\"\nlongest = \"1s\"";
        let source = Source::new().text(format!("{LEAST}{poll}")).set(format!("outbox.{key}"), value);
        let error = Config::read(&source).expect_err(key);
        assert_eq!(error.path(), format!("outbox.{key}"), "{error}");
        let settings = source.read_unchecked(&BTreeMap::new()).expect(key).outbox;
        let of_builder = settings.apply(Outbox::multi_node(MemoryStore::new())).validate();
        assert!(of_builder.is_err(), "{key} = {value} is good enough for the builder");
    }
    // One below and one above what is refused.
    for (key, value) in [("workers", "10000"), ("heartbeat", "\"10ms\""), ("stale_after", "\"15s\"")] {
        read_with(LEAST, &format!("outbox.{key}"), value).unwrap();
    }
}

#[test]
fn the_purge_may_leave_things_for_ever() {
    let config = read(&format!("{LEAST}[outbox.purge]\ndead = \"never\"\nactions = \"never\"")).unwrap();
    let shown = format!("{:?}", config.outbox.apply(Outbox::multi_node(MemoryStore::new())));
    assert!(shown.contains("dead: None") && shown.contains("actions: None"), "{shown}");
    let config = read(&format!("{LEAST}[outbox.purge]\nactions = \"2d\"")).unwrap();
    let shown = format!("{:?}", config.outbox.apply(Outbox::multi_node(MemoryStore::new())));
    assert!(shown.contains("dead: Some(604800s)") && shown.contains("actions: Some(172800s)"), "{shown}");
}

#[test]
fn no_error_repeats_a_value() {
    // As the reader of TOML would show it, with the line it stands in.
    for text in [
        "[outbox]\nurl = \"postgres://u:hush@h/db\n",
        "[outbox]\nurl = 'postgres://u:hush@h/db\n",
        "[outbox]\nurl = \"postgres://u:hush@h/db\" x\n",
        "[outbox]\nurl = \"\\q:hush\"\n",
        "[outbox]\nurl = postgres://u:hush@h/db\n",
        "[outbox]\nurl = \"a\"\nurl = \"hush\"\n",
        "[sinks.b]\nheaders = { authorization = \"hush\"\n",
    ] {
        let error = refused(text);
        assert!(!error.contains("hush") && error.contains("line ") && !error.contains('\n'), "{text}: {error}");
        let file = std::env::temp_dir().join(format!("pillarbox-broken-{}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        let error = Config::read(&Source::new().file(&file)).unwrap_err().to_string();
        std::fs::remove_file(&file).unwrap();
        assert!(!error.contains("hush") && error.contains("pillarbox-broken"), "{error}");
    }
    for (path, value) in [
        ("outbox.workers", "\"hush\""),
        ("outbox.handler_timeout", "\"hush\""),
        ("outbox.purge.dead", "\"hush\""),
        ("outbox.on_success", "\"hush\""),
        ("outbox.retry", "\"hush\""),
        ("outbox.url", "[\"hush\"]"),
        ("outbox", "\"hush\""),
        ("sinks", "\"hush\""),
        ("sinks.out", "\"hush\""),
        ("rules", "\"hush\""),
        ("rules", "[\"hush\"]"),
        ("http.listen", "\"hush\""),
        ("telemetry.endpoint", "\"http://u:hush@ h\""),
        ("telemetry.headers", "{ key = [\"hush\"] }"),
        ("telemetry.headers", "{ key = \"hush\\n\" }"),
        ("telemetry.sampled", "\"hush\""),
        ("admin.tokens", "[\"hush\"]"),
        ("admin.listen", "\"hush\""),
        ("dead_letters", "\"hush\""),
    ] {
        let error = read_with(LEAST, path, value).expect_err(path).to_string();
        assert!(!error.contains("hush"), "{path} = {value}: {error}");
    }
    for kind in ["http", "mqtt", "nats", "rabbitmq", "redis"] {
        for url in ["\"x://u:hush@h:port/\"", "\"u:hush@h\"", "[\"hush\"]", "{ hush = 1, x = 2 }"] {
            let error = read_with(LEAST, "sinks.b", &format!("{{ type = {kind:?}, url = {url} }}")).expect_err(kind);
            assert!(!error.to_string().contains("hush"), "{kind}: {error}");
        }
    }
}

#[test]
fn a_relay_without_database_or_sink_is_told_what_it_needs() {
    assert!(refused("[sinks.out]\ntype = \"stdout\"").contains("outbox.url: is missing"));
    assert!(refused("outbox.url = \"sqlite:x.db\"").contains("sinks: is empty"));
    let two = format!("{LEAST}[sinks.second]\ntype = \"stdout\"\n");
    assert!(refused(&two).contains("messages.unmatched: is missing"));
    read(&format!("{two}[[rules]]\nsinks = [\"out\"]")).unwrap();
}

#[test]
fn later_sources_come_before_earlier_ones() {
    let config =
        Config::read(&Source::new().text(format!("messages.source = \"/a\"\n{LEAST}")).set("messages.source", "/b"));
    assert_eq!(config.unwrap().messages.source, "/b");
    let workers = read_with(LEAST, "outbox.workers", "7").unwrap();
    assert!(format!("{:?}", workers.outbox.apply(Outbox::multi_node(MemoryStore::new()))).contains("workers: 7"));
}

#[test]
fn secrets_come_from_files_and_variables_and_are_not_shown() {
    let file = std::env::temp_dir().join(format!("pillarbox-secret-{}", std::process::id()));
    std::fs::write(&file, "sqlite:secret-word.db\n").unwrap();
    let config = read_with(LEAST, "outbox.url", &format!("{{ file = {file:?} }}")).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(config.outbox.url(), "sqlite:secret-word.db");
    assert!(!format!("{config:?}").contains("secret-word"));
    let config = read_with(LEAST, "telemetry.headers", "{ api-key = \"secret-word\" }").unwrap();
    assert_eq!(config.telemetry.headers["api-key"], "secret-word");
    assert!(!format!("{config:?}").contains("secret-word"));
    let config = Settings::read(&Source::new().set_text("admin.tokens", "ada viewer secret-word-of-hers")).unwrap();
    assert!(config.admin.tokens.is_some() && !format!("{config:?}").contains("secret-word"), "{config:?}");
    let error = read_with(LEAST, "outbox.url", "{ file = \"/nowhere/at/all\" }").unwrap_err().to_string();
    assert!(error.contains("outbox.url") && error.contains("/nowhere/at/all"), "{error}");
    let error = read_with(LEAST, "outbox.url", "{ env = \"PILLARBOX_NO_SUCH_VARIABLE\" }").unwrap_err().to_string();
    assert!(error.contains("outbox.url") && error.contains("PILLARBOX_NO_SUCH_VARIABLE"), "{error}");
}

#[test]
fn what_looks_like_a_number_is_a_text_where_one_is_wanted() {
    let settings = |path: &str, value: &str| Settings::read(&Source::new().set(path, value));
    let tokens = settings("admin.tokens", "007").unwrap().admin.tokens;
    assert_eq!(tokens.as_deref(), Some("007"), "as it was typed");
    let several = Source::new().text(LEAST).set("messages.source", "true").set("outbox.prefix", "1e3");
    let config = Config::read(&several.set("outbox.workers", "7")).unwrap();
    assert_eq!((&*config.messages.source, config.outbox.prefix()), ("true", Some("1e3")));
    assert!(format!("{:?}", config.outbox.apply(Outbox::multi_node(MemoryStore::new()))).contains("workers: 7"));
    // In a file there are quotes for it.
    let error = refused(&format!("outbox.prefix = 7\n{LEAST}"));
    assert!(error.contains("outbox.prefix") && error.contains("a text is expected"), "{error}");
}

#[test]
fn one_end_of_the_poll_interval_may_be_set_alone() {
    let config = read(&format!("{LEAST}[outbox.poll_interval]\nshortest = \"50ms\"")).unwrap();
    let shown = format!("{:?}", config.outbox.apply(Outbox::multi_node(MemoryStore::new())));
    assert!(shown.contains("poll_min: 50ms") && shown.contains("poll_max: 1s"), "{shown}");
}

#[test]
fn a_header_may_be_called_env_or_file() {
    let config = read(&format!(
        "{LEAST}[[rules]]\nmatch = {{ headers = {{ file = \"a*\" }} }}\nheaders = {{ env = \"prod\" }}\ntopic = \"files\"\n"
    ))
    .unwrap();
    let event = Event::builder("Paid").header("file", "abc").json(&1).build().unwrap();
    let target = config.rules.target(&event).unwrap();
    assert_eq!((&*target.topic, &target.headers[..]), ("files", &[("env".to_owned(), "prod".to_owned())][..]));
    // A header's own value may come from there.
    let header = format!("{LEAST}[[rules]]\nheaders = {{ x = {{ env = \"PILLARBOX_NO_SUCH_VARIABLE\" }} }}");
    assert!(refused(&header).contains("rules.0.headers.x"));
    let config = read(&format!("{LEAST}[[rules]]\nheaders = {{ env = \"{{tenant}}\" }}")).unwrap();
    let event = Event::builder("Paid").tenant("acme").json(&1).build().unwrap();
    assert_eq!(config.rules.target(&event).unwrap().headers, [("env".to_owned(), "acme".to_owned())]);
}

#[test]
fn rules_are_read_with_all_they_have() {
    let config = read(&format!(
        "{LEAST}[[rules]]\nname = \"orders\"\nmatch = {{ event_type = [\"Order*\", \"Paid\"], headers = {{ region = \"eu\" }} }}\n\
         topic = \"{{tenant}}.orders\"\nkey = \"{{aggregate_id}}\"\nheaders = {{ x-t = \"{{tenant}}\" }}\n"
    ))
    .unwrap();
    let event = Event::builder("OrderPlaced").aggregate("Order", "7").tenant("acme").header("region", "eu");
    let event = event.json(&1).build().unwrap();
    assert!(config.rules.lead_to("out", &event));
    let target = config.rules.target(&event).unwrap();
    assert_eq!(&*target.topic, "acme.orders");
    assert_eq!(target.key, Some(Some("7".into())));
    assert_eq!(target.headers, [("x-t".to_owned(), "acme".to_owned())]);
}
