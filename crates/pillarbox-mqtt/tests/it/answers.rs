//! A server that says what the topic tells it to.

use std::{sync::Arc, time::Duration};

use pillarbox_core::port::{
    Sink,
    SinkErrorKind::{Failed, Rejected, Unavailable},
};
use pillarbox_mqtt::{Options, Unroutable};
use pillarbox_testkit::sinks::run;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::support::{assert_error, message};

const CONNECT: u8 = 1;
const PUBLISH: u8 = 3;

/// Says welcome with these properties. A topic is a reason in decimal, with which it answers; `bye/` before it is a goodbye
/// instead, and `cut/` the end after it; `cut` alone is the end without a word.
async fn server(welcome: &'static [u8]) -> String {
    server_that_says(0, welcome).await
}

async fn server_that_says(reason: u8, welcome: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, reason, welcome));
        }
    });
    format!("mqtt://127.0.0.1:{port}")
}

async fn serve(mut stream: TcpStream, reason: u8, welcome: &[u8]) -> std::io::Result<()> {
    loop {
        let kind = stream.read_u8().await? >> 4;
        let (mut length, mut shift) = (0_usize, 0);
        loop {
            let byte = stream.read_u8().await?;
            length |= usize::from(byte & 0x7F) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let count = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
        match kind {
            CONNECT => {
                let mut packet = vec![0x20, 3 + count(welcome), 0, reason, count(welcome)];
                packet.extend_from_slice(welcome);
                stream.write_all(&packet).await?;
            }
            PUBLISH => {
                let end = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
                let topic = std::str::from_utf8(&body[2..end]).unwrap();
                if topic == "cut" {
                    return Ok(());
                }
                if let Some(reason) = topic.strip_prefix("bye/") {
                    return stream.write_all(&[0xE0, 2, reason.parse().unwrap(), 0]).await;
                }
                let (reason, is_last) = topic.strip_prefix("cut/").map_or((topic, false), |reason| (reason, true));
                stream.write_all(&[0x40, 3, body[end], body[end + 1], reason.parse().unwrap()]).await?;
                if is_last {
                    return Ok(());
                }
            }
            _ => {}
        }
    }
}

fn topic(name: &str) -> Arc<str> {
    name.into()
}

fn options(url: String) -> Options {
    Options::new(url).answer_within(Duration::from_secs(5)).unroutable(Unroutable::Accept)
}

#[test]
fn each_reason_goes_to_its_own_message() {
    run(async {
        let sink = options(server(&[]).await).open().unwrap();
        let batch = ["0", "151", "16", "153", "131", "0"].map(|reason| message(&topic(reason), "1"));
        let answers = sink.send(&batch).await;
        for n in [0, 2, 5] {
            assert_eq!(answers[n], Ok(()), "message {n}");
        }
        assert_error(&answers[1], Failed, "quota exceeded (0x97)");
        assert_error(&answers[3], Rejected, "payload format invalid (0x99)");
        assert_error(&answers[4], Failed, "implementation specific error (0x83)");
    });
}

/// More than may be under way at once, from several sides.
#[test]
fn batches_at_once_get_their_own_answers() {
    run(async {
        let sink = options(server(&[]).await).answer_within(Duration::from_secs(30)).open().unwrap();
        let tasks: Vec<_> = (0..4)
            .map(|task| {
                let sink = sink.clone();
                tokio::spawn(async move {
                    for count in [1, 20, 1500] {
                        let is_good = |n: usize| n % 3 != task;
                        let reason = |n| if is_good(n) { "0" } else { "151" };
                        let batch: Vec<_> = (0..count).map(|n| message(&topic(reason(n)), "1")).collect();
                        let answers = sink.send(&batch).await;
                        assert_eq!(answers.len(), count);
                        for (n, answer) in answers.iter().enumerate() {
                            assert_eq!(answer.is_ok(), is_good(n), "message {n}: {answer:?}");
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// 149 is "packet too large", which the client does not know as an answer: to it the connection is broken.
#[test]
fn one_message_that_ends_the_connection_takes_no_neighbour_with_it() {
    run(async {
        let url = server(&[]).await;
        for bad in ["bye/149", "bye/144", "bye/129", "bye/135", "149", "cut/135"] {
            let sink = options(url.clone()).open().unwrap();
            let batch = ["0", bad, "16", bad, "0"].map(|reason| message(&topic(reason), "1"));
            let answers = sink.send(&batch).await;
            for n in [0, 2, 4] {
                assert_eq!(answers[n], Ok(()), "message {n} beside {bad}");
            }
            for n in [1, 3] {
                assert_error(&answers[n], Rejected, "(0x");
            }
        }
    });
}

#[test]
fn one_message_at_which_the_connection_is_cut_without_a_word_fails_alone() {
    run(async {
        let sink = options(server(&[]).await).open().unwrap();
        let batch = ["0", "cut", "16", "cut", "0"].map(|reason| message(&topic(reason), "1"));
        let answers = sink.send(&batch).await;
        for n in [0, 2, 4] {
            assert_eq!(answers[n], Ok(()), "message {n}");
        }
        for n in [1, 3] {
            assert_error(&answers[n], Failed, "ends whenever this is sent");
        }
        // With nobody who gets through, it may as well be the server.
        for answer in sink.send(&[message(&topic("cut"), "1"), message(&topic("cut"), "2")]).await {
            assert_error(&answer, Unavailable, "");
        }
    });
}

/// Two batches on one connection: the one that looks for whom to blame is alone on it.
#[test]
fn nobody_is_blamed_for_another() {
    run(async {
        let sink = options(server(&[]).await).open().unwrap();
        let tasks: Vec<_> = (0..6)
            .map(|n| {
                let sink = sink.clone();
                tokio::spawn(async move {
                    for _ in 0..10 {
                        let bad = if n % 2 == 0 { "bye/149" } else { "0" };
                        let batch = ["0", bad, "0"].map(|reason| message(&topic(reason), "1"));
                        for (message, answer) in batch.iter().zip(sink.send(&batch).await) {
                            let is_good = &*message.topic == "0";
                            assert!(is_good || answer.is_err());
                            if let Err(error) = answer {
                                assert!(!is_good || error.kind() == Unavailable, "{error:?}");
                            }
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn a_server_that_goes_blames_nobody() {
    run(async {
        let sink = options(server(&[]).await).open().unwrap();
        for (bye, words) in [("bye/139", "server shutting down (0x8B)"), ("bye/142", "session taken over (0x8E)")] {
            let answers = sink.send(&[message(&topic(bye), "1")]).await;
            assert_error(&answers[0], Unavailable, words);
        }
        assert_eq!(sink.send(&[message(&topic("0"), "1")]).await, [Ok(())]);
    });
}

#[test]
fn what_is_larger_than_the_server_takes_is_refused_alone() {
    run(async {
        // Maximum Packet Size 1000.
        let sink = options(server(&[0x27, 0, 0, 3, 0xE8]).await).open().unwrap();
        let batch = [message(&topic("0"), "1"), message(&topic("0"), vec![0; 1000]), message(&topic("0"), "2")];
        let answers = sink.send(&batch).await;
        assert_error(&answers[1], Rejected, "the server takes 1000");
        assert_eq!((&answers[0], &answers[2]), (&Ok(()), &Ok(())));
        // Whatever is let through is taken.
        let mut taken = 0;
        for size in 700..1000 {
            match &sink.send(&[message(&topic("0"), vec![0; size])]).await[0] {
                Ok(()) => taken += 1,
                answer => assert_error(answer, Rejected, "the server takes 1000"),
            }
        }
        assert!((100..290).contains(&taken), "{taken}");
    });
}

/// Fewer at once than there are messages, as Mosquitto has it by default.
#[test]
fn a_server_that_takes_few_at_once_gets_all() {
    run(async {
        // Receive Maximum 3.
        let sink = options(server(&[0x21, 0, 3]).await).open().unwrap();
        let batch: Vec<_> = (0..100).map(|n| message(&topic(if n % 7 == 3 { "135" } else { "0" }), "1")).collect();
        for (n, answer) in sink.send(&batch).await.iter().enumerate() {
            assert_eq!(answer.is_ok(), n % 7 != 3, "message {n}: {answer:?}");
        }
    });
}

#[test]
fn a_server_that_confirms_nothing_is_of_no_use() {
    run(async {
        // Maximum QoS 0.
        let sink = options(server(&[0x24, 0]).await).open().unwrap();
        assert_error(&sink.send(&[message(&topic("0"), "1")]).await[0], Unavailable, "it confirms nothing");
        // Retain Available 0.
        let url = server(&[0x25, 0]).await;
        let sink = options(url.clone()).retain(true).open().unwrap();
        assert_error(&sink.check().await, Unavailable, "turn `retain` off");
        assert_eq!(options(url).open().unwrap().send(&[message(&topic("0"), "1")]).await, [Ok(())]);
    });
}

#[test]
fn who_may_not_enter_is_told_so_without_the_password() {
    run(async {
        let url = server_that_says(0x86, &[]).await.replace("://", "://shop:hush@");
        let sink = options(url).open().unwrap();
        for error in [sink.check().await, sink.send(&[message(&topic("0"), "1")]).await.remove(0)] {
            assert_error(&error, Unavailable, "bad user name password");
            assert!(!format!("{error:?}").contains("hush"));
        }
    });
}
