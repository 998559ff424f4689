//! Receivers that come and go.

use std::{collections::BTreeSet, time::Duration};

use pillarbox_core::port::{Sink, SinkErrorKind::Unavailable};
use pillarbox_http::Options;
use pillarbox_testkit::servers::Proxy;

use crate::receiver::{Receiver, message, send};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_confirmed_is_lost_when_the_receiver_is_killed_again_and_again() {
    let mut receiver = Receiver::start();
    let sink = Options::new(receiver.url()).answer_within(Duration::from_secs(2)).open().unwrap();
    let (mut confirmed, mut failed) = (BTreeSet::new(), 0);
    for round in 0..30 {
        let batch: Vec<_> = (0..20).map(|_| message("pause/2")).collect();
        let kill = async {
            if round % 3 == 1 {
                tokio::time::sleep(Duration::from_millis(round)).await;
                receiver.kill();
            }
        };
        let (answers, ()) = tokio::join!(sink.send(&batch), kill);
        for (message, answer) in batch.iter().zip(answers) {
            match answer {
                Ok(()) => _ = confirmed.insert(message.id.to_string()),
                Err(error) => {
                    assert_eq!(error.kind(), Unavailable, "{error}");
                    failed += 1;
                }
            }
        }
        if round % 3 == 1 {
            assert_eq!(send(&sink, &message("orders")).await.unwrap_err().kind(), Unavailable);
            receiver.start_again();
        }
    }
    let arrived: BTreeSet<_> =
        receiver.arrived().iter().map(|arrived| arrived.headers["ce-id"].to_str().unwrap().to_owned()).collect();
    assert!(confirmed.is_subset(&arrived));
    assert!(confirmed.len() >= 300 && failed > 0, "{} confirmed, {failed} failed", confirmed.len());
}

#[tokio::test]
async fn a_send_that_was_dropped_leaves_the_sink_usable() {
    let receiver = Receiver::start();
    let sink = Options::new(receiver.url()).at_once(2).open().unwrap();
    let batch: Vec<_> = (0..10).map(|_| message("pause/10000")).collect();
    for _ in 0..3 {
        tokio::time::timeout(Duration::from_millis(100), sink.send(&batch)).await.unwrap_err();
        assert_eq!(send(&sink, &message("orders")).await, Ok(()));
    }
}

#[tokio::test]
async fn connections_are_used_again_and_closed_at_the_end() {
    let receiver = Receiver::start();
    let proxy = Proxy::to(receiver.addr()).unwrap();
    let sink = Options::new(format!("http://{}", proxy.addr())).at_once(3).open().unwrap();
    for _ in 0..10 {
        let batch: Vec<_> = (0..6).map(|_| message("orders")).collect();
        assert!(sink.send(&batch).await.iter().all(Result::is_ok));
    }
    let open = proxy.connections();
    assert!((1..=3).contains(&open), "{open}");
    sink.close().await;
    let closed = async {
        while proxy.connections() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), closed).await.expect("no connection is left");
}

#[tokio::test]
async fn a_host_that_is_not_there_is_named_without_the_password() {
    for url in
        ["http://shop:pa55word@no-such-host.invalid/hooks?token=t0ken", "http://shop:pa55word@127.0.0.1:1/?token=t0ken"]
    {
        let sink = Options::new(url).open().unwrap();
        for error in [send(&sink, &message("orders")).await.unwrap_err(), sink.check().await.unwrap_err()] {
            assert_eq!(error.kind(), Unavailable, "{error}");
            let words = error.to_string();
            assert!(words.contains("no-such-host.invalid") || words.contains("127.0.0.1:1"), "{words}");
            assert!(!words.contains("pa55word") && !words.contains("t0ken"), "{words}");
        }
    }
}

#[tokio::test]
async fn tls_needs_no_provider_of_the_process_and_meets_one_who_knows_no_tls() {
    let receiver = Receiver::start();
    let sink = Options::new(receiver.url().replace("http:", "https:")).open().unwrap();
    let error = send(&sink, &message("orders")).await.unwrap_err();
    assert_eq!(error.kind(), Unavailable, "{error}");
    assert!(receiver.arrived().is_empty());
    assert!(rustls::crypto::CryptoProvider::get_default().is_none(), "that is the application's");
}
