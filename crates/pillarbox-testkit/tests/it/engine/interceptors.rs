//! D6: code around every delivery.

use std::sync::Arc;

use parking_lot::Mutex;
use pillarbox_core::{
    Delivery, HandlerError,
    domain::Status,
    engine::{Interceptor, Report},
    port::BoxFuture,
};
use pillarbox_testkit::probe::Which;

use super::{Stage, event, telemetry::Tracer, write};

type Calls = Arc<Mutex<Vec<String>>>;

/// What one does at one of its two places.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Well,
    Fail,
    Panic,
    /// Before it has made its future.
    PanicAtOnce,
}

struct Named {
    name: &'static str,
    before: Does,
    after: Does,
    calls: Calls,
}

async fn act(does: Does) -> Result<(), HandlerError> {
    match does {
        Does::Well => Ok(()),
        Does::Fail => Err(HandlerError::msg("refused")),
        Does::Panic | Does::PanicAtOnce => panic!("an interceptor's panic"),
    }
}

impl Interceptor for Named {
    fn before<'a>(&'a self, _: &'a Delivery) -> BoxFuture<'a, Result<(), HandlerError>> {
        self.calls.lock().push(format!("before {}", self.name));
        assert!(self.before != Does::PanicAtOnce, "an interceptor's panic");
        Box::pin(act(self.before))
    }

    fn after<'a>(&'a self, _: &'a Delivery, report: &'a Report) -> BoxFuture<'a, Result<(), HandlerError>> {
        let told = match &report.result {
            Ok(outcome) => format!("{outcome:?}"),
            Err(failure) => failure.to_string(),
        };
        self.calls.lock().push(format!("after {}: {told}", self.name));
        assert!(self.after != Does::PanicAtOnce, "an interceptor's panic");
        Box::pin(act(self.after))
    }
}

/// Delivers one event through three interceptors, of which the second does as said.
async fn through(stage: &Stage, before: Does, after: Does, attempts: u32) -> Vec<String> {
    let calls = Calls::default();
    let named = |name, before, after| Named { name, before, after, calls: calls.clone() };
    let outbox = stage
        .single()
        .retry(super::quick().max_attempts(attempts))
        .interceptor(named("a", Does::Well, Does::Well))
        .interceptor(named("b", before, after))
        .interceptor(named("c", Does::Well, Does::Well))
        .start()
        .await
        .unwrap();
    let ids = write(&outbox, [event()]).await;
    let ended = if before == Does::Well { Status::Done } else { Status::Dead };
    if stage.probe.log().begun() == 0 {
        stage.until_count(ended, 1).await;
    }
    outbox.shutdown().await;
    assert_eq!(stage.row(ids[0]).await.status, ended);

    calls.lock().clone()
}

/// D6: `before` in the order of registration, `after` in reverse, each told the outcome.
#[tokio::test(start_paused = true)]
async fn interceptors_run_in_order_before_and_in_reverse_after() {
    let stage = Stage::new();
    let calls = through(&stage, Does::Well, Does::Well, 1).await;
    assert_eq!(calls, ["before a", "before b", "before c", "after c: Done", "after b: Done", "after a: Done"]);
    assert_eq!(stage.probe.log().done(), 1);
}

/// D6: an error or a panic in `before` is a failure of the delivery; neither the later ones nor the handler run.
#[tokio::test(start_paused = true)]
async fn an_error_before_is_a_failure_and_nothing_further_in_is_called() {
    for (does, words) in [
        (Does::Fail, "refused"),
        (Does::Panic, "an interceptor's panic"),
        (Does::PanicAtOnce, "an interceptor's panic"),
    ] {
        let stage = Stage::new();
        let calls = through(&stage, does, Does::Well, 2).await;
        assert_eq!(stage.probe.log().begun(), 0, "the handler was called");
        assert_eq!(calls.len(), 8, "two attempts: {calls:?}");
        assert_eq!(calls[..2], ["before a", "before b"]);
        assert!(calls[2].starts_with("after b: ") && calls[2].contains(words), "{calls:?}");
        assert!(calls[3].starts_with("after a: ") && calls[3].contains(words), "{calls:?}");
        assert_eq!(calls[..4], calls[4..]);
    }
}

/// D6: an error or a panic in `after` is logged with the event's id, and changes nothing.
#[tokio::test(start_paused = true)]
async fn an_error_after_is_logged_only() {
    for does in [Does::Fail, Does::Panic, Does::PanicAtOnce] {
        let (stage, tracer) = (Stage::new(), Tracer::new());
        let calls = through(&stage, Does::Well, does, 1).await;
        assert_eq!(calls[3..], ["after c: Done", "after b: Done", "after a: Done"]);
        let told = tracer.that_say("an interceptor failed after a delivery");
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].field("event_id"), stage.probe.log().ids()[0].to_string());
        assert_eq!(told[0].level, tracing::Level::ERROR);
    }
}

/// D6: `after` is told of a handler's failure, of its panic, and of its deferral.
#[tokio::test(start_paused = true)]
async fn interceptors_are_told_how_the_handler_ended() {
    let stage = Stage::new();
    let calls = Calls::default();
    let named = Named { name: "a", before: Does::Well, after: Does::Well, calls: calls.clone() };
    let outbox = stage.single().interceptor(named).start().await.unwrap();
    stage.probe.fail(Which::any(), 1);
    stage.probe.panic(Which::any(), 1);
    stage.probe.defer(Which::any(), 1, std::time::Duration::from_millis(1));
    write(&outbox, [event()]).await;
    stage.until_count(Status::Done, 1).await;
    outbox.shutdown().await;
    let calls: Vec<String> = calls.lock().iter().filter(|call| call.starts_with("after")).cloned().collect();
    assert_eq!(calls.len(), 4);
    for (call, words) in calls.iter().zip(["a scripted failure", "a scripted panic", "RetryAfter(1ms)", "Done"]) {
        assert!(call.contains(words), "{calls:?}");
    }
}
