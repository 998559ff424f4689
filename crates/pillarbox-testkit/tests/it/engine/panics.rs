//! D11, H8: panics, in the engine and in what users write.

use std::{
    future::pending,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use pillarbox_core::{
    Delivery, Event, HandlerError, RetryPolicy,
    domain::{Answer, Failure, Outcome, Status},
    engine::{Handler, HandlerExt},
    port::BoxFuture,
};
use pillarbox_testkit::Call;

use super::{DOWN, Sore, Stage, event, keyed, until, write};

/// D11: a task that panics begins again, with a memory that is read from the table: nothing is lost or reordered, and no
/// attempt counts.
#[tokio::test(start_paused = true)]
async fn a_task_that_panics_begins_again_and_nothing_is_lost_or_reordered() {
    for call in [Call::Page, Call::Due, Call::Recall, Call::Settle, Call::Renew] {
        let stage = Stage::new();
        let outbox = stage.node().start().await.unwrap();
        stage.faults().panic(call, 2);
        if call == Call::Recall {
            // It is asked when partitions are taken.
            stage.faults().panic(Call::Renew, 1);
        }
        let before = stage.faults().calls(call);
        let mut ids = write(&outbox, (0..20).map(|n| keyed(&format!("k{}", n % 3)))).await;
        ids.extend(stage.write_cold((0..20).map(|n| keyed(&format!("k{}", n % 3)))).await);
        stage.until_count(Status::Done, 40).await;
        until("both panics", || stage.faults().calls(call) >= before + 3).await;
        until("the whole", || outbox.partitions_owned() == 256).await;
        ids.extend(write(&outbox, [event(), keyed("k0")]).await);
        stage.until_count(Status::Done, 42).await;
        outbox.shutdown().await;
        // What was not settled comes again; the first time of each is in order.
        stage.probe.assert_in_order_per_key();
        let log = stage.probe.log();
        for id in ids {
            assert!(log.is_done(id), "{call:?}: {id} is lost");
            assert_eq!(stage.row(id).await.attempts, 0, "{call:?}");
        }
    }
}

/// D2: a retry policy that panics is no reason for a worker to end: the default policy decides in its place, up to the attempts
/// that were set.
#[tokio::test(start_paused = true)]
async fn a_policy_that_panics_leaves_the_decision_to_the_default_one() {
    let stage = Stage::new();
    let policy = |_: u32, _: &Failure| -> Option<Duration> { panic!("no idea") };
    let fails = |_: Delivery| async { Err::<(), _>(HandlerError::msg("no")) };
    let builder = stage.single().workers(2);
    let builder = builder.route("Fails", fails.with_retry(RetryPolicy::by(policy).max_attempts(3)));
    let outbox = builder.start().await.unwrap();
    let failing = (0..6).map(|n| Event::builder("Fails").key(format!("k{n}")).json(&n));
    let ids = write(&outbox, failing).await;
    stage.until_count(Status::Dead, 6).await;
    write(&outbox, [event()]).await;
    stage.until_count(Status::Done, 1).await;
    outbox.shutdown().await;
    assert_eq!(stage.row(ids[0]).await.attempts, 3);
}

/// What of the handler panics.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Takes,
    AtOnce,
    PassesOn,
}

struct Panics(Asked);

impl Handler for Panics {
    fn handle(&self, _: Delivery) -> BoxFuture<'_, Answer> {
        Box::pin(async { Ok(Outcome::Done) })
    }

    fn takes(&self, _: &Event) -> bool {
        assert!(self.0 != Asked::Takes, "not told");
        true
    }

    fn at_once(&self) -> usize {
        assert!(self.0 != Asked::AtOnce, "not told");
        4
    }

    fn passes_on(&self) -> bool {
        assert!(self.0 != Asked::PassesOn, "not told");
        false
    }
}

/// H8: a handler that panics when it is asked whether it takes an event has failed with it; what it says of itself otherwise is as
/// if it had not said it.
#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_when_it_is_asked_costs_no_worker() {
    for (asked, ends) in [(Asked::Takes, Status::Dead), (Asked::AtOnce, Status::Done), (Asked::PassesOn, Status::Done)]
    {
        let stage = Stage::new();
        let outbox = stage.single().workers(2).route("Asked", Panics(asked)).start().await.unwrap();
        let ids = write(&outbox, (0..6).map(|n| Event::builder("Asked").key(format!("k{n}")).json(&n))).await;
        stage.until_count(ends, 6).await;
        write(&outbox, [event()]).await;
        stage.probe.wait_for(1).await;
        outbox.shutdown().await;
        let row = stage.row(ids[0]).await;
        if ends == Status::Dead {
            assert_eq!(row.attempts, 3);
            assert!(row.last_error.unwrap().contains("not told"));
        }
    }
}

/// H8, O6: the drop of a handler that was cut off is its own code as well: the worker lives on, and so does the event.
#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_when_it_is_dropped_costs_no_worker() {
    let stage = Stage::new();
    let runs = std::sync::Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let hangs = move |_: Delivery| {
        count.fetch_add(1, Ordering::AcqRel);
        async {
            let _sore = Sore;
            pending::<()>().await;
        }
    };
    let hour = Duration::from_hours(1);
    let builder = stage.single().workers(2).route("Hangs", hangs.clone().with_timeout(Duration::from_secs(1)));
    let builder = builder.route("Waits", hangs.with_timeout(hour).with_id("waits"));
    let outbox = builder.start().await.unwrap();
    // By its timeout.
    let ids = write(&outbox, [Event::builder("Hangs").json(&1), Event::builder("Hangs").json(&2)]).await;
    stage.until_count(Status::Dead, 2).await;
    assert_eq!((runs.load(Ordering::Acquire), stage.row(ids[0]).await.attempts), (6, 3));
    // By the end of the lease.
    let ids = write(&outbox, (0..2).map(|n| Event::builder("Waits").json(&n))).await;
    until("both", || runs.load(Ordering::Acquire) == 8).await;
    stage.faults().fail(Call::Renew, usize::MAX, DOWN);
    until("the loss", || outbox.partitions_owned() == 0).await;
    stage.faults().clear();
    until("both again", || runs.load(Ordering::Acquire) == 10).await;
    assert_eq!(outbox.partitions_owned(), 256, "it was not lost for a panic");
    // By the shutdown.
    outbox.shutdown().await;
    for id in ids {
        assert_eq!((stage.row(id).await.status, stage.row(id).await.attempts), (Status::New, 0));
    }
}
