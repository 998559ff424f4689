//! A server of its own, which dies.

use std::time::{Duration, Instant};

use pillarbox_core::port::{Sink, SinkErrorKind};
use pillarbox_rabbitmq::Options;
use pillarbox_testkit::{servers::RabbitMq, sinks::run};
use tokio::sync::watch;

use crate::support::{assert_error, connect, declare, message, name, received};

#[test]
fn what_was_confirmed_survives_the_servers_death() {
    let mut server = RabbitMq::start().unwrap();
    run(async {
        let topic = name();
        let connection = connect(&server.url()).await;
        declare(&connection.create_channel().await.unwrap(), &topic, &[]).await;
        let sink = Options::new(server.url()).answer_within(Duration::from_secs(5)).open().unwrap();
        let (count, mut counted) = watch::channel(0);
        let (back, is_back) = watch::channel(false);
        let sender = tokio::spawn({
            let (sink, topic) = (sink.clone(), topic.clone());
            async move {
                let (mut confirmed, mut after) = (Vec::new(), 0);
                while after < 5 {
                    let batch: Vec<_> = (0..20).map(|_| message(&topic, "1")).collect();
                    let answers = sink.send(&batch).await;
                    for (message, answer) in batch.iter().zip(&answers) {
                        match answer {
                            Ok(()) => confirmed.push(message.id.to_string()),
                            // The queue is a moment later than the server.
                            Err(error) if error.kind() == SinkErrorKind::Failed => {}
                            Err(error) => assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}"),
                        }
                    }
                    count.send_replace(confirmed.len());
                    if answers.iter().all(Result::is_ok) {
                        after += usize::from(*is_back.borrow());
                    } else {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
                confirmed
            }
        });
        counted.wait_for(|count| *count >= 200).await.unwrap();
        let server = tokio::task::spawn_blocking(move || {
            server.kill();
            server.start_again().unwrap();
            server
        });
        let server = server.await.unwrap();
        back.send_replace(true);
        let confirmed = sender.await.unwrap();
        assert!(confirmed.len() >= 300, "{}", confirmed.len());
        let there = received(&connect(&server.url()).await, &topic).await;
        let there: std::collections::HashSet<_> = there.into_iter().map(|received| received.id).collect();
        let lost = confirmed.iter().filter(|id| !there.contains(*id)).count();
        assert_eq!(lost, 0, "of {}", confirmed.len());

        // 128 MiB is this server's own limit.
        let sink = Options::new(server.url())
            .answer_within(Duration::from_secs(30))
            .largest(200 * 1024 * 1024)
            .open()
            .unwrap();
        let batch = [message(&topic, "1"), message(&topic, vec![0; 129 * 1024 * 1024]), message(&topic, "2")];
        let began = Instant::now();
        let answers = sink.send(&batch).await;
        assert_eq!((&answers[0], &answers[2]), (&Ok(()), &Ok(())), "after {:?}", began.elapsed());
        assert_error(&answers[1], SinkErrorKind::Rejected, "406 PRECONDITION_FAILED - message size");
    });
}

#[test]
fn tls_is_by_scheme_and_trusts_whom_it_is_told_to() {
    let (server, port, certificate) = RabbitMq::start_with_tls().unwrap();
    run(async {
        let topic = name();
        let connection = connect(&server.url()).await;
        declare(&connection.create_channel().await.unwrap(), &topic, &[]).await;
        let options = |url: String| Options::new(url).answer_within(Duration::from_secs(5));
        let url = format!("amqps://guest:guest@127.0.0.1:{port}");
        let trusting = options(url.clone()).root_certificate(&certificate.root).open().unwrap();
        assert_eq!(trusting.check().await, Ok(()));
        assert_eq!(trusting.send(&[message(&topic, "1")]).await, [Ok(())]);
        // By the public certificates.
        let strange = options(url).open().unwrap();
        assert_error(&strange.check().await, SinkErrorKind::Unavailable, "certificate");
        let plain = options(format!("amqp://guest:guest@127.0.0.1:{port}")).open().unwrap();
        assert_error(&plain.send(&[message(&topic, "2")]).await[0], SinkErrorKind::Unavailable, "");
        assert_eq!(received(&connection, &topic).await.len(), 1);
    });
}
