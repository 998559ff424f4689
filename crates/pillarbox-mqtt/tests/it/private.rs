//! A server of its own, which dies.

use std::{collections::HashSet, time::Duration};

use pillarbox_core::port::{Sink, SinkErrorKind};
use pillarbox_mqtt::Options;
use pillarbox_testkit::{servers::Mosquitto, sinks::run};
use tokio::sync::watch;

use crate::support::{Observer, assert_error, message, name};

/// Of each topic the server keeps the last message, so that who comes later sees what it has. It ends in an orderly way:
/// Mosquitto writes what it has to the disk now and then, and when it ends.
#[test]
fn what_was_confirmed_survives_the_servers_restart() {
    let mut server = Mosquitto::start().unwrap();
    run(async {
        let topic = name();
        let sink = Options::new(server.url()).retain(true).answer_within(Duration::from_secs(5)).open().unwrap();
        let (count, mut counted) = watch::channel(0);
        let (back, is_back) = watch::channel(false);
        let sender = tokio::spawn({
            let (sink, topic) = (sink.clone(), topic.clone());
            async move {
                let (mut confirmed, mut after) = (Vec::new(), 0);
                while after < 5 {
                    let mut batch: Vec<_> = (0..20).map(|_| message(&topic, "1")).collect();
                    for message in &mut batch {
                        message.topic = format!("{topic}/{}", message.id).into();
                    }
                    let answers = sink.send(&batch).await;
                    for (message, answer) in batch.iter().zip(&answers) {
                        match answer {
                            Ok(()) => confirmed.push(message.id.to_string()),
                            Err(error) => assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}"),
                        }
                    }
                    count.send_replace(confirmed.len());
                    if answers.iter().all(Result::is_ok) {
                        after += usize::from(*is_back.borrow());
                    } else {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
                confirmed
            }
        });
        counted.wait_for(|count| *count >= 200).await.unwrap();
        let server = tokio::task::spawn_blocking(move || {
            server.stop();
            server.start_again().unwrap();
            server
        });
        let server = server.await.unwrap();
        back.send_replace(true);
        let confirmed = sender.await.unwrap();
        assert!(confirmed.len() >= 300, "{}", confirmed.len());
        let observer = Observer::new(&server.url(), &format!("{topic}/#")).await;
        let there: HashSet<_> = observer.received().await.into_iter().map(|received| received.id).collect();
        let lost = confirmed.iter().filter(|id| !there.contains(*id)).count();
        assert_eq!(lost, 0, "of {}", confirmed.len());
    });
}

#[test]
fn tls_is_by_scheme_and_trusts_whom_it_is_told_to() {
    let (server, port, certificate) = Mosquitto::start_with_tls().unwrap();
    run(async {
        let topic = name();
        let observer = Observer::new(&server.url(), &topic).await;
        let options = |url: String| Options::new(url).answer_within(Duration::from_secs(5));
        let url = format!("mqtts://127.0.0.1:{port}");
        let trusting = options(url.clone()).root_certificate(&certificate.root).open().unwrap();
        assert_eq!(trusting.check().await, Ok(()));
        assert_eq!(trusting.send(&[message(&topic, "1")]).await, [Ok(())]);
        // By the system's certificates.
        let strange = options(url).open().unwrap();
        assert_error(&strange.check().await, SinkErrorKind::Unavailable, "certificate");
        let plain = options(format!("mqtt://127.0.0.1:{port}")).open().unwrap();
        assert_error(&plain.send(&[message(&topic, "2")]).await[0], SinkErrorKind::Unavailable, "");
        assert_eq!(observer.received().await.len(), 1);
    });
}
