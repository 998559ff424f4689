//! What answers mean.

use std::time::{Duration, Instant, SystemTime};

use pillarbox_core::port::{
    Sink,
    SinkErrorKind::{Failed, Rejected, Unavailable},
};
use pillarbox_http::Options;

use crate::receiver::{Receiver, message, send};

#[tokio::test]
async fn each_status_has_its_verdict_and_the_receivers_words() {
    let receiver = Receiver::start();
    let sink = Options::new(receiver.url()).open().unwrap();
    for (status, kind) in [(400, Rejected), (404, Rejected), (429, Unavailable), (500, Failed), (503, Unavailable)] {
        let error = send(&sink, &message(&format!("status/{status}/broken-order"))).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        let words = error.to_string();
        assert!(words.contains(&status.to_string()) && words.contains("broken-order"), "{words}");
    }
    for status in [200, 202, 204] {
        assert_eq!(send(&sink, &message(&format!("status/{status}/x"))).await, Ok(()));
    }
}

#[tokio::test]
async fn the_receiver_says_when_to_come_back() {
    let receiver = Receiver::start();
    let sink = Options::new(receiver.url()).open().unwrap();
    for status in [429, 503] {
        let error = send(&sink, &message(&format!("retry/{status}/7"))).await.unwrap_err();
        assert_eq!(error.retry_after(), Some(Duration::from_secs(7)), "{error}");
    }
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
    let error = send(&sink, &message(&format!("retry/429/{date}"))).await.unwrap_err();
    let after = error.retry_after().unwrap();
    assert!((Duration::from_secs(50)..=Duration::from_secs(100)).contains(&after), "{after:?}");
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let receiver = Receiver::start();
    let sink = Options::new(receiver.url()).open().unwrap();
    let error = send(&sink, &message("moved")).await.unwrap_err();
    assert_eq!(error.kind(), Failed, "{error}");
    assert!(error.to_string().contains("redirects are not followed"), "{error}");
    assert_eq!(receiver.arrived().len(), 1, "{:?}", receiver.arrived());
}

#[tokio::test]
async fn of_a_long_answer_the_beginning_is_kept() {
    let receiver = Receiver::start();
    let sink = Options::new(receiver.url()).open().unwrap();
    let error = send(&sink, &message("long")).await.unwrap_err();
    assert_eq!(error.kind(), Rejected, "{error}");
    assert!((400..700).contains(&error.to_string().len()), "{}", error.to_string().len());
}

#[tokio::test]
async fn a_body_without_end_changes_no_verdict() {
    let receiver = Receiver::start();
    let sink = Options::new(receiver.url()).open().unwrap();
    let begun = Instant::now();
    assert_eq!(send(&sink, &message("endless/200")).await, Ok(()));
    let error = send(&sink, &message("endless/400")).await.unwrap_err();
    assert_eq!(error.kind(), Rejected, "{error}");
    assert!(error.to_string().contains("so far"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(8), "it waits for the end of the body");
}

#[tokio::test]
async fn a_slow_receiver_is_unavailable_and_keeps_no_others() {
    let receiver = Receiver::start();
    let sink = Options::new(receiver.url()).answer_within(Duration::from_millis(300)).open().unwrap();
    let answers = sink.send(&[message("pause/20000"), message("orders")]).await;
    let error = answers[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), Unavailable, "{error}");
    assert!(error.to_string().contains("300ms"), "{error}");
    assert_eq!(answers[1], Ok(()));
}

#[tokio::test]
async fn once_nobody_answers_the_rest_of_the_batch_waits_no_longer() {
    let receiver = Receiver::start();
    let sink = Options::new(receiver.url()).answer_within(Duration::from_millis(500)).at_once(2).open().unwrap();
    let batch: Vec<_> = (0..20).map(|_| message("pause/20000")).collect();
    let begun = Instant::now();
    let answers = sink.send(&batch).await;
    assert_eq!(answers.len(), 20);
    assert!(
        answers.iter().all(|answer| answer.as_ref().is_err_and(|error| error.kind() == Unavailable)),
        "{answers:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(receiver.arrived().len() <= 4, "{}", receiver.arrived().len());
}
