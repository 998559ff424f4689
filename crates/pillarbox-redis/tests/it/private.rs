//! With servers of their own.

use std::{process::Command, sync::Arc, time::Duration};

use pillarbox_core::{
    Event,
    port::{Message, Sink, SinkErrorKind},
};
use pillarbox_redis::{Options, Persistence, RedisSink};
use pillarbox_testkit::{servers::Redis, sinks::run};
use redis::Value;
use tempfile::TempDir;

use crate::place::{connect, read, send_one};

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

async fn set(server: &Redis, name: &str, value: &str) {
    tell(server, &["CONFIG", "SET", name, value]).await;
}

async fn tell(server: &Redis, words: &[&str]) -> Value {
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| {
        command.arg(*word);
    });
    command.query_async(&mut connect(&server.url()).await).await.expect("an answer")
}

/// Sends until it is taken.
async fn until_sent(sink: &RedisSink, message: &Message) {
    while let Err(error) = send_one(sink, message.clone()).await {
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn what_was_confirmed_is_there_after_the_server_was_killed() {
    run(async {
        let mut server = Redis::start().expect("a server");
        let options = Options::new(server.url()).persistence(Persistence::Always);
        let sink = Arc::new(options.answer_within(Duration::from_secs(2)).open().expect("a sink"));
        let (confirmed, mut news) = tokio::sync::mpsc::unbounded_channel();
        let sender = tokio::spawn({
            let sink = Arc::clone(&sink);
            async move {
                while !confirmed.is_closed() {
                    let batch: Vec<_> = (0..50).map(|_| message("orders")).collect();
                    let answers = sink.send(&batch).await;
                    assert_eq!(answers.len(), batch.len());
                    for (message, answer) in batch.iter().zip(answers) {
                        match answer {
                            Ok(()) => drop(confirmed.send(message.id.to_string())),
                            Err(error) => assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}"),
                        }
                    }
                }
            }
        });
        let mut ids = Vec::new();
        for _ in 0..3 {
            for _ in 0..500 {
                ids.push(news.recv().await.expect("a confirmation"));
            }
            server.kill();
            // What was confirmed before it ended.
            while let Ok(id) = news.try_recv() {
                ids.push(id);
            }
            server.start_again().expect("to start again");
        }
        ids.push(news.recv().await.expect("a confirmation after all"));
        news.close();
        sender.await.expect("an end");
        while let Some(id) = news.recv().await {
            ids.push(id);
        }
        let there: std::collections::BTreeSet<_> =
            read(&server.url(), "orders").await.into_iter().map(|received| received.id).collect();
        let lost: Vec<_> = ids.iter().filter(|id| !there.contains(*id)).collect();
        assert!(lost.is_empty(), "{} of {} are lost", lost.len(), ids.len());
    });
}

#[test]
fn a_server_that_could_lose_messages_is_refused_until_it_is_mended() {
    run(async {
        let server = Redis::start().expect("a server");
        set(&server, "appendfsync", "no").await;
        let sink = Options::new(server.url()).open().expect("a sink");
        for error in [
            sink.check().await.expect_err("a refusal"),
            send_one(&sink, message("orders")).await.expect_err("a refusal"),
        ] {
            assert_eq!(error.kind(), SinkErrorKind::Unavailable);
            assert!(error.to_string().contains("appendfsync is no"), "{error}");
        }
        assert!(read(&server.url(), "orders").await.is_empty());
        let unchecked = Options::new(server.url()).persistence(Persistence::Unchecked).open().expect("a sink");
        assert_eq!(send_one(&unchecked, message("orders")).await, Ok(()));
        set(&server, "appendfsync", "everysec").await;
        assert_eq!(sink.check().await, Ok(()));
        let strict = Options::new(server.url()).persistence(Persistence::Always).open().expect("a sink");
        let error = strict.check().await.expect_err("a refusal");
        assert!(error.to_string().contains("appendfsync to always"), "{error}");
    });
}

#[test]
fn a_server_that_throws_out_streams_when_it_is_full_is_refused() {
    run(async {
        let server = Redis::start().expect("a server");
        for (policy, is_taken) in [("allkeys-lru", false), ("allkeys-random", false), ("volatile-lru", true)] {
            set(&server, "maxmemory-policy", policy).await;
            let checked = Options::new(server.url()).open().expect("a sink").check().await;
            assert_eq!(checked.is_ok(), is_taken, "{policy}");
            if let Err(error) = checked {
                assert_eq!(error.kind(), SinkErrorKind::Unavailable);
                assert!(error.to_string().contains(policy) && error.to_string().contains("noeviction"), "{error}");
            }
            let unchecked = Options::new(server.url()).persistence(Persistence::Unchecked).open().expect("a sink");
            assert_eq!(unchecked.check().await, Ok(()));
        }
    });
}

#[test]
fn a_server_that_does_not_tell_is_refused_with_the_way_out() {
    run(async {
        let server = Redis::start().expect("a server");
        tell(&server, &["ACL", "SETUSER", "relay", "on", ">hush", "~orders*", "+xadd"]).await;
        let url = server.url().replace("://", "://relay:hush@");
        let error = Options::new(&url).open().expect("a sink").check().await.expect_err("a refusal");
        let words = error.to_string();
        assert!(words.contains("NOPERM") && words.contains("unchecked") && !words.contains("hush"), "{words}");
        let sink = Options::new(&url).persistence(Persistence::Unchecked).open().expect("a sink");
        assert_eq!(sink.check().await, Ok(()));
        let answers = sink.send(&[message("orders-1"), message("invoices"), message("orders-2")]).await;
        assert_eq!((&answers[0], &answers[2]), (&Ok(()), &Ok(())));
        let error = answers[1].as_ref().expect_err("not allowed");
        assert_eq!(error.kind(), SinkErrorKind::Failed);
        assert!(error.to_string().starts_with("NOPERM"), "{error}");
    });
}

#[test]
fn a_wrong_password_is_told_without_it() {
    run(async {
        let server = Redis::start().expect("a server");
        set(&server, "requirepass", "right").await;
        for (login, words) in [("", "NOAUTH"), (":hush@", "uthentication"), ("nobody:hush@", "uthentication")] {
            let sink = Options::new(server.url().replace("://", &format!("://{login}"))).open().expect("a sink");
            let error = sink.check().await.expect_err("a refusal");
            assert_eq!(error.kind(), SinkErrorKind::Unavailable);
            let told = error.to_string();
            assert!(told.contains(words) && !told.contains("hush"), "{told}");
        }
        let sink = Options::new(server.url().replace("://", "://:right@")).open().expect("a sink");
        assert_eq!(send_one(&sink, message("orders")).await, Ok(()));
    });
}

#[test]
fn a_server_without_room_is_unavailable_until_it_has_some() {
    run(async {
        let server = Redis::start().expect("a server");
        let sink = Options::new(server.url()).open().expect("a sink");
        assert_eq!(send_one(&sink, message("orders")).await, Ok(()));
        set(&server, "maxmemory", "1").await;
        let error = send_one(&sink, message("orders")).await.expect_err("no room");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable);
        assert!(error.to_string().starts_with("OOM"), "{error}");
        set(&server, "maxmemory", "0").await;
        assert_eq!(send_one(&sink, message("orders")).await, Ok(()));
    });
}

#[test]
fn a_replica_takes_nothing_until_it_is_promoted() {
    run(async {
        let (first, second) = (Redis::start().expect("a server"), Redis::start().expect("a server"));
        let sink = Options::new(second.url()).open().expect("a sink");
        assert_eq!(send_one(&sink, message("orders")).await, Ok(()));
        tell(&second, &["REPLICAOF", "127.0.0.1", &first.port().to_string()]).await;
        let error = send_one(&sink, message("orders")).await.expect_err("a replica");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
        let error = sink.check().await.expect_err("a replica");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
        tell(&second, &["REPLICAOF", "NO", "ONE"]).await;
        until_sent(&sink, &message("orders")).await;
        assert_eq!(sink.check().await, Ok(()));
    });
}

#[test]
fn replicas_are_waited_for_if_told_so() {
    run(async {
        let (first, mut second) = (Redis::start().expect("a server"), Redis::start().expect("a server"));
        let options = Options::new(first.url()).replicas(1).answer_within(Duration::from_secs(2));
        let sink = options.open().expect("a sink");
        let error = send_one(&sink, message("orders")).await.expect_err("no replica");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable);
        assert_eq!(error.to_string(), "0 replicas have the message, and 1 are asked for");
        tell(&second, &["REPLICAOF", "127.0.0.1", &first.port().to_string()]).await;
        let wanted = message("orders");
        until_sent(&sink, &wanted).await;
        // What is confirmed is there, the moment it is.
        let there = read(&second.url(), "orders").await;
        assert!(there.iter().any(|received| received.id == wanted.id.to_string()), "{there:?}");
        second.kill();
        let error = send_one(&sink, message("orders")).await.expect_err("no replica");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
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
        let server = Redis::start().expect("a server");
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (certificate, key) = (file("cert.pem"), file("key.pem"));
        let mut connection = connect(&server.url()).await;
        let port = loop {
            let port = fastrand::u16(10_000..32_000);
            let mut command = redis::cmd("CONFIG");
            command.arg("SET").arg("tls-cert-file").arg(&certificate).arg("tls-key-file").arg(&key);
            command
                .arg("tls-ca-cert-file")
                .arg(&certificate)
                .arg("tls-auth-clients")
                .arg("no")
                .arg("tls-port")
                .arg(port);
            match command.query_async::<()>(&mut connection).await {
                Ok(()) => break port,
                Err(error) => assert!(error.to_string().contains("port"), "{error}"),
            }
        };
        let url = format!("rediss://127.0.0.1:{port}");
        let sink = Options::new(&url).root_certificate(&certificate).open().expect("a sink");
        assert_eq!(send_one(&sink, message("orders")).await, Ok(()));
        assert_eq!(read(&server.url(), "orders").await.len(), 1);
        let error = Options::new(&url).open().expect("a sink").check().await.expect_err("a stranger");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable);
        assert!(error.to_string().contains("certificate"), "{error}");
    });
}
