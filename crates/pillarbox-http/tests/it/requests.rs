//! What requests look like.

use std::time::Duration;

use pillarbox_core::port::{Sink, SinkErrorKind};
use pillarbox_http::{Options, Secret, SignatureError, verify};

use crate::receiver::{Receiver, message, send};

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";
const TOLERANCE: Duration = Duration::from_mins(1);

#[tokio::test]
async fn receivers_can_verify_what_they_get_with_either_secret() {
    let receiver = Receiver::start();
    let sink = Options::new(receiver.url()).secret(OLD).secret(NEW).open().unwrap();
    let sent = message("orders");
    send(&sink, &sent).await.unwrap();
    let arrived = receiver.arrived().remove(0);
    assert_eq!(arrived.headers["webhook-id"], sent.id.to_string().as_str());
    for secret in [OLD, NEW] {
        let secret = Secret::parse(secret).unwrap();
        assert_eq!(verify(&secret, &arrived.headers, &arrived.body, TOLERANCE), Ok(()));
        assert_eq!(verify(&secret, &arrived.headers, b"forged", TOLERANCE), Err(SignatureError::Signature));
    }
    let stranger = Secret::parse("whsec_FxYVFBMSERAPDg0MCwoJCAcGBQQDAgEA").unwrap();
    assert_eq!(verify(&stranger, &arrived.headers, &arrived.body, TOLERANCE), Err(SignatureError::Signature));
}

#[tokio::test]
async fn without_a_secret_nothing_is_signed() {
    let receiver = Receiver::start();
    send(&Options::new(receiver.url()).open().unwrap(), &message("orders")).await.unwrap();
    let arrived = receiver.arrived().remove(0);
    assert!(arrived.headers.keys().all(|name| !name.as_str().starts_with("webhook-")), "{arrived:?}");
}

#[tokio::test]
async fn the_id_is_the_same_at_every_attempt() {
    let receiver = Receiver::start();
    let sink = Options::new(receiver.url()).secret(OLD).open().unwrap();
    let sent = message("status/500/not-today");
    for _ in 0..2 {
        send(&sink, &sent).await.unwrap_err();
    }
    for arrived in receiver.arrived() {
        for name in ["idempotency-key", "ce-id", "webhook-id"] {
            assert_eq!(arrived.headers[name], sent.id.to_string().as_str(), "{name}");
        }
    }
}

#[tokio::test]
async fn the_user_of_the_url_and_the_headers_of_the_options_are_sent() {
    let receiver = Receiver::start();
    let url = receiver.url().replace("http://", "http://shop:p%40ss@") + "/hooks?token=1";
    send(&Options::new(url).header("x-team", "orders").open().unwrap(), &message("a b")).await.unwrap();
    let arrived = receiver.arrived().remove(0);
    assert_eq!(arrived.path, "/hooks/a%20b?token=1");
    assert_eq!(arrived.headers["authorization"], "Basic c2hvcDpwQHNz");
    assert_eq!(arrived.headers["x-team"], "orders");
    assert!(arrived.headers["user-agent"].to_str().unwrap().starts_with("pillarbox/"));
}

#[tokio::test]
async fn a_message_does_not_replace_the_credentials_of_the_options() {
    let receiver = Receiver::start();
    let login = receiver.url().replace("http://", "http://shop:hush@");
    for options in [Options::new(login), Options::new(receiver.url()).header("Authorization", "Bearer hush")] {
        let sink = options.open().unwrap();
        let mut forged = message("orders");
        forged.headers.push(("authorization".into(), "Bearer forged".into()));
        assert_eq!(send(&sink, &forged).await.unwrap_err().kind(), SinkErrorKind::Rejected);
        assert!(receiver.arrived().is_empty());
    }
}

#[tokio::test]
async fn what_can_never_be_sent_is_rejected_alone() {
    let receiver = Receiver::start();
    let sink = Options::new(receiver.url()).open().unwrap();
    let mut forged = message("orders");
    forged.headers.push(("Host".into(), "evil.example".into()));
    let answers = sink.send(&[message("../admin"), forged, message("orders")]).await;
    for answer in &answers[..2] {
        assert_eq!(answer.as_ref().unwrap_err().kind(), SinkErrorKind::Rejected, "{answer:?}");
    }
    assert_eq!(answers[2], Ok(()));
    assert_eq!(receiver.arrived().len(), 1);
}

#[tokio::test]
async fn so_many_requests_are_under_way_at_once_and_no_more() {
    let receiver = Receiver::start();
    let sink = Options::new(receiver.url()).at_once(4).open().unwrap();
    let batch: Vec<_> = (0..16).map(|_| message("pause/200")).collect();
    let answers = sink.send(&batch).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(receiver.most_at_once(), 4);
}
