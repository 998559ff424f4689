//! With servers of their own.

use std::{
    collections::BTreeMap,
    fs,
    process::{Child, Command},
    sync::Arc,
    time::{Duration, Instant},
};

use pillarbox_core::{
    Event,
    port::{Message, Sink, SinkErrorKind},
};
use pillarbox_nats::{Options, Stream};
use pillarbox_testkit::{
    servers::{Nats, packages},
    sinks::run,
};
use tempfile::TempDir;

use crate::place::{id, read, send_one};

fn message(topic: &str) -> Message {
    let id = Event::builder("OrderPlaced").json(&()).build().expect("an event").id();
    Message {
        topic: topic.into(),
        key: None,
        id,
        content_type: "application/json".into(),
        attributes: vec![("id".into(), id.to_string())],
        headers: Vec::new(),
        payload: "1".into(),
    }
}

#[test]
fn what_was_confirmed_is_there_once_after_the_server_was_killed() {
    run(async {
        let mut server = Nats::start().expect("a server");
        let stream = Stream::named("ORDERS").subjects(["orders"]);
        let options = Options::new(server.url()).stream(stream).answer_within(Duration::from_secs(2));
        let sink = Arc::new(options.open().expect("a sink"));
        let (confirmed, mut news) = tokio::sync::mpsc::unbounded_channel();
        let sender = tokio::spawn(async move {
            while !confirmed.is_closed() {
                let mut batch: Vec<_> = (0..50).map(|_| message("orders")).collect();
                // What is not confirmed is sent again, as the relay does.
                while !batch.is_empty() {
                    let answers = sink.send(&batch).await;
                    assert_eq!(answers.len(), batch.len());
                    let mut answers = answers.into_iter();
                    batch.retain(|message| match answers.next().expect("an answer") {
                        Ok(()) => {
                            let _ = confirmed.send(message.id.to_string());
                            false
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
                            true
                        }
                    });
                }
            }
        });
        let mut ids = Vec::new();
        for _ in 0..3 {
            for _ in 0..500 {
                ids.push(news.recv().await.expect("a confirmation"));
            }
            server.kill();
            server.start_again().expect("to start again");
        }
        for _ in 0..100 {
            ids.push(news.recv().await.expect("a confirmation after all"));
        }
        news.close();
        while let Some(id) = news.recv().await {
            ids.push(id);
        }
        sender.await.expect("an end");
        let mut there: BTreeMap<String, usize> = BTreeMap::new();
        for message in read(&server.url(), "ORDERS").await {
            *there.entry(id(&message)).or_default() += 1;
        }
        let lost = ids.iter().filter(|id| !there.contains_key(*id)).count();
        assert_eq!(lost, 0, "of {}", ids.len());
        let twice = there.values().filter(|count| **count > 1).count();
        assert_eq!(twice, 0, "of {}", there.len());
    });
}

/// A server with settings of the test's own.
struct Server {
    process: Child,
    port: u16,
    folder: TempDir,
}

impl Server {
    fn start(settings: &str) -> Self {
        Self::in_folder(TempDir::new().expect("a folder"), settings)
    }

    fn in_folder(folder: TempDir, settings: &str) -> Self {
        packages::ensure(&["nats-server"]).expect("the server's package");
        let path = folder.path().display();
        // It takes a free port, and writes it down.
        let settings = format!(
            "listen: \"127.0.0.1:-1\"\nports_file_dir: \"{path}\"\njetstream {{ store_dir: \"{path}/data\" }}\n{settings}\n"
        );
        fs::write(folder.path().join("settings"), settings).expect("to write");
        let log = fs::File::create(folder.path().join("log")).expect("a log");
        let mut command = Command::new("nats-server");
        command.args(["--config", "settings"]).current_dir(folder.path()).stderr(log);
        let mut process = command.spawn().expect("a server");
        let ports = folder.path().join(format!("nats-server_{}.ports", process.id()));
        let port = loop {
            let written = fs::read_to_string(&ports).unwrap_or_default();
            if let Some(port) = written.split("127.0.0.1:").nth(1).and_then(|rest| rest.split('"').next()?.parse().ok())
            {
                break port;
            }
            let ended = process.try_wait().expect("a process");
            assert!(ended.is_none(), "{}", fs::read_to_string(folder.path().join("log")).expect("a log"));
            std::thread::sleep(Duration::from_millis(10));
        };
        Self { process, port, folder }
    }

    fn url(&self, login: &str) -> String {
        format!("nats://{login}127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = (self.process.kill(), self.process.wait());
    }
}

fn orders() -> Stream {
    Stream::named("ORDERS").subjects(["orders.>"])
}

#[test]
fn logins_are_by_user_or_token_and_told_without_the_secret() {
    run(async {
        let server = Server::start("authorization { user: relay, password: \"right%\" }");
        let url = server.url("");
        for options in [
            Options::new(&url),
            Options::new(server.url("relay:hush@")),
            Options::new(&url).user("relay", "hush"),
            Options::new(&url).token("hush"),
        ] {
            let sink = options.open().expect("a sink");
            for error in [
                sink.check().await.expect_err("a refusal"),
                send_one(&sink, message("orders.placed")).await.expect_err("a refusal"),
            ] {
                assert_eq!(error.kind(), SinkErrorKind::Unavailable);
                let words = format!("{error} {error:?}");
                assert!(words.contains("authorization violation") && !words.contains("hush"), "{words}");
            }
        }
        for options in [Options::new(server.url("relay:right%25@")), Options::new(&url).user("relay", "right%")] {
            let sink = options.stream(orders()).open().expect("a sink");
            assert_eq!(sink.check().await, Ok(()));
            assert_eq!(send_one(&sink, message("orders.placed")).await, Ok(()));
        }
        drop(server);
        let server = Server::start("authorization { token: right }");
        for options in [Options::new(server.url("right@")), Options::new(server.url("")).token("right")] {
            assert_eq!(options.open().expect("a sink").check().await, Ok(()));
        }
        let sink = Options::new(server.url("")).credentials("/no/such/file").open().expect("a sink");
        let error = sink.check().await.expect_err("no file");
        assert!(error.to_string().contains("/no/such/file"), "{error}");
    });
}

#[test]
fn a_subject_that_is_forbidden_fails_alone_and_at_once() {
    run(async {
        let settings = |publish: &str| {
            format!(
                "authorization {{ users: [ {{ user: admin, password: admin }}, {{ user: relay, password: relay, \
                 permissions: {{ publish: {publish}, subscribe: \"_INBOX.>\" }} }} ] }}"
            )
        };
        let server = Server::start(&settings("[ \"orders.placed\", \"lonely\" ]"));
        let admin = Options::new(server.url("admin:admin@")).stream(orders()).open().expect("a sink");
        assert_eq!(admin.check().await, Ok(()));
        let sink = Options::new(server.url("relay:relay@")).open().expect("a sink");
        // It may not ask, but publish.
        assert_eq!(sink.check().await, Ok(()));
        let start = Instant::now();
        // Nor may it ask why nobody answers.
        let error = send_one(&sink, message("lonely")).await.expect_err("no stream");
        assert_eq!(error.kind(), SinkErrorKind::Failed, "{error}");
        assert!(error.to_string().contains("no stream takes"), "{error}");
        for _ in 0..2 {
            let answers =
                sink.send(&[message("orders.placed"), message("orders.paid"), message("orders.placed")]).await;
            assert_eq!((&answers[0], &answers[2]), (&Ok(()), &Ok(())));
            let error = answers[1].as_ref().expect_err("not allowed");
            assert_eq!(error.kind(), SinkErrorKind::Failed, "{error}");
            assert!(error.to_string().contains("permissions violation for publish to orders.paid"), "{error}");
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        let sink = Options::new(server.url("relay:relay@")).stream(orders()).open().expect("a sink");
        let error = send_one(&sink, message("orders.placed")).await.expect_err("a stream it may not look at");
        assert!(error.to_string().contains("may not look at the stream"), "{error}");
        drop(server);
        let server = Server::start(&settings("\">\"").replace("_INBOX", "other"));
        let sink = Options::new(server.url("relay:relay@")).open().expect("a sink");
        let error = send_one(&sink, message("orders.placed")).await.expect_err("no inbox");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("_INBOX"), "{error}");
    });
}

#[test]
fn tls_is_by_scheme_and_trusts_whom_it_is_told_to() {
    run(async {
        let folder = TempDir::new().expect("a folder");
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]);
        openssl.args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]);
        openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        let made = openssl.current_dir(folder.path()).output().expect("openssl");
        assert!(made.status.success(), "{made:?}");
        let server = Server::in_folder(folder, "tls { cert_file: \"cert.pem\", key_file: \"key.pem\" }");
        let url = server.url("").replace("nats://", "tls://");
        let trusting = Options::new(&url).root_certificate(server.folder.path().join("cert.pem"));
        let sink = trusting.stream(orders()).open().expect("a sink");
        assert_eq!(send_one(&sink, message("orders.placed")).await, Ok(()));
        let error = Options::new(&url).open().expect("a sink").check().await.expect_err("a stranger");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable);
        assert!(error.to_string().contains("certificate"), "{error}");
    });
}

#[test]
fn a_server_without_jetstream_is_told() {
    run(async {
        let server = Server::start("");
        // The second has no stream of its own, and knows no other.
        let plain = Server::start("accounts { A: { jetstream: disabled, users: [ { user: a, password: a } ] } }");
        assert_eq!(Options::new(server.url("")).open().expect("a sink").check().await, Ok(()));
        let sink = Options::new(plain.url("a:a@")).open().expect("a sink");
        for error in [
            sink.check().await.expect_err("no JetStream"),
            // Nobody's messages would get through.
            send_one(&sink, message("orders.placed")).await.expect_err("no JetStream"),
        ] {
            assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("JetStream"), "{error}");
        }
    });
}
