//! Transactional handlers: their work and the outcome of their event are one.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use pillarbox_core::{
    HandlerError, Metadata, Outbox, OutboxEvent as _, Outcome, RetryPolicy,
    domain::{CircuitPolicy, NodeId, Status},
    engine::{Builder, Work, in_tx, mode},
    port::{Actor, AdminStore as _, BoxFuture, Joining, OwnStore as _, StoreErrorKind},
};
use pillarbox_macros::OutboxEvent;
use serde::{Deserialize, Serialize};

use super::{
    Backend,
    stage::{Stage, event, quick, write},
};
use crate::{Call, Faults, Faulty, patience};

#[derive(Clone, Debug, Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core, key = key)]
struct Ordered {
    key: String,
    name: String,
}

fn ordered(name: &str) -> Ordered {
    Ordered { key: name.into(), name: name.into() }
}

fn events<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<pillarbox_core::domain::EventBuilder> {
    names.into_iter().map(|name| ordered(name).to_event()).collect()
}

type Store<B> = Faulty<<B as Backend>::Store>;
type Answer = Result<Outcome, HandlerError>;

/// A database, the faults of the process that delivers, and what its handler was called with.
struct Scene<B: Backend> {
    stage: Stage<B>,
    faults: Mutex<Option<Faults>>,
    runs: Arc<Mutex<Vec<String>>>,
}

impl<B: Backend> Scene<B> {
    async fn new() -> Self {
        Self { stage: Stage::new().await, faults: Mutex::default(), runs: Arc::default() }
    }

    /// A process, with one worker, so that what waits shares a transaction.
    async fn process(&self) -> Builder<Store<B>, mode::SingleNode> {
        let store = Faulty::new(self.stage.backend.second_handle().await);
        *self.faults.lock() = Some(store.faults().clone());
        let builder = Outbox::single_node(store).retry(quick()).workers(1).node_name("twin");
        // Long, so that no heartbeat finds out what a settle has to.
        builder.lease(Duration::from_hours(1)).sample_every(Duration::from_hours(1))
    }

    fn faults(&self) -> Faults {
        self.faults.lock().clone().expect("a process")
    }

    /// A handler that adds the event's name to the table of work, and then does this.
    fn adds<F>(
        &self,
        then: F,
    ) -> impl Fn(Work<Store<B>>, Ordered, Metadata) -> BoxFuture<'static, Answer> + Send + Sync + 'static + use<B, F>
    where
        F: Fn(&str, &Metadata) -> BoxFuture<'static, Answer> + Send + Sync + 'static,
    {
        let runs = self.runs.clone();
        move |mut work, ordered, metadata| {
            runs.lock().push(ordered.name.clone());
            let then = then(&ordered.name, &metadata);
            Box::pin(async move {
                B::add_work(&mut work, ordered.name).await?;
                let answer = then.await;
                drop(work);
                answer
            })
        }
    }

    fn runs_of(&self, name: &str) -> usize {
        self.runs.lock().iter().filter(|run| *run == name).count()
    }

    /// How many transactions of handlers have been committed, apart from those in which the test wrote.
    fn commits(&self, writes: u64) -> u64 {
        self.faults().calls(Call::Commit) - writes
    }

    async fn attempts(&self, id: pillarbox_core::EventId) -> u32 {
        self.stage.row(id).await.expect("it is kept").attempts
    }

    async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let wait = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        assert!(patience::within(patience::PATIENCE, wait).await.is_some(), "waited for {what}");
    }
}

fn done() -> BoxFuture<'static, Answer> {
    async { Ok(Outcome::Done) }.boxed()
}

fn answer(answer: Answer) -> BoxFuture<'static, Answer> {
    async { answer }.boxed()
}

/// H9: work and outcome commit together, several events in one transaction.
pub async fn the_work_of_a_transactional_handler_commits_with_the_outcome<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let outbox = scene.process().await.handle_in_tx(scene.adds(|_, _| done())).start().await.expect("start");
    write(&outbox, events(["a", "b", "c"])).await;
    scene.stage.until_count(Status::Done, 3).await;
    outbox.shutdown().await;
    assert_eq!(scene.stage.backend.work().await, ["a", "b", "c"]);
    assert_eq!(scene.runs.lock().len(), 3, "each once");
    assert!(scene.commits(1) < 3, "{} transactions for three events that waited", scene.commits(1));
}

/// H9: of several in a transaction, one that fails loses its own work and no other.
pub async fn a_failed_transactional_handler_undoes_its_own_work_alone<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let handler =
        scene.adds(|name, _| answer(if name == "b" { Err(HandlerError::msg("no")) } else { Ok(Outcome::Done) }));
    let outbox = scene.process().await.handle_in_tx(in_tx(handler).id("project")).start().await.expect("start");
    let gate = scene.faults().stop_before(Call::BeginWork);
    let ids = write(&outbox, events(["a", "b", "c"])).await;
    gate.reached().await;
    gate.open();
    scene.stage.until_count(Status::Dead, 1).await;
    scene.stage.until_count(Status::Done, 2).await;
    outbox.shutdown().await;
    assert_eq!(scene.stage.backend.work().await, ["a", "c"]);
    assert_eq!((scene.runs_of("a"), scene.runs_of("b"), scene.runs_of("c")), (1, 3, 1));
    assert_eq!(scene.attempts(ids[1]).await, 3);
    assert_eq!(scene.stage.row(ids[1]).await.and_then(|row| row.last_error).as_deref(), Some("no"));
}

/// H9, D14: a transactional handler's destination that is down uses up no attempts, and others go on.
pub async fn a_transactional_handlers_destination_that_is_down_uses_up_no_attempts<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let down = Arc::new(Mutex::new(true));
    let state = down.clone();
    let handler = scene.adds(move |_, _| {
        let down = *state.lock();
        answer(if down { Err(HandlerError::msg("no route to host").unavailable()) } else { Ok(Outcome::Done) })
    });
    let circuit =
        CircuitPolicy { failures: 2, shortest: Duration::from_millis(50), longest: Duration::from_millis(100) };
    let outbox = scene
        .process()
        .await
        .circuit(circuit)
        .handle_in_tx(in_tx(handler).id("project").destination("search"))
        .route("Happened", scene.stage.probe.handler())
        .start()
        .await
        .expect("start");
    let ids = write(&outbox, events(["a", "b", "c", "d", "e", "f", "g", "h"])).await;
    // Far more than the attempts of one of them.
    scene.until("its circuit to open, and probes", || scene.runs.lock().len() > 5).await;
    write(&outbox, [event()]).await;
    scene.stage.until_count(Status::Done, 1).await;
    let stats = outbox.stats().await.expect("stats");
    assert_eq!((stats.count(Status::Dead), stats.pending()), (0, 8));
    assert_eq!(scene.stage.backend.work().await, [""; 0]);
    *down.lock() = false;
    scene.stage.until_count(Status::Done, 9).await;
    outbox.shutdown().await;
    let mut work = scene.stage.backend.work().await;
    work.sort_unstable();
    assert_eq!(work, ["a", "b", "c", "d", "e", "f", "g", "h"], "each once");
    for id in ids {
        assert_eq!(scene.attempts(id).await, 0);
    }
}

/// H9: a panic and a timeout leave nothing of the transaction, and count for their own events alone.
pub async fn a_panic_or_a_timeout_voids_the_transaction_and_counts_for_the_culprit_alone<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let handler = scene.adds(|name, metadata| match (name, metadata.is_retry()) {
        ("panics", false) => async { panic!("boom") }.boxed(),
        ("hangs", false) => std::future::pending().boxed(),
        _ => done(),
    });
    let handler = in_tx(handler).timeout(Duration::from_millis(300));
    let outbox = scene.process().await.handle_in_tx(handler).start().await.expect("start");
    let gate = scene.faults().stop_before(Call::BeginWork);
    let names = ["a", "panics", "b", "hangs", "c"];
    let ids = write(&outbox, events(names)).await;
    gate.reached().await;
    gate.open();
    scene.stage.until_count(Status::Done, 5).await;
    outbox.shutdown().await;
    assert_eq!(scene.stage.backend.work().await, ["a", "b", "c", "hangs", "panics"]);
    for (id, failures) in ids.iter().zip([0, 1, 0, 1, 0]) {
        assert_eq!(scene.attempts(*id).await, failures);
    }
    assert!(scene.runs_of("a") > 1, "the panic has left it as it was");
}

/// H9, P4: what a node did after it had lost its lease leaves no trace.
pub async fn the_work_of_a_fenced_node_leaves_no_trace<B: Backend>() {
    let scene = Scene::<B>::new().await;
    // As long as it stands back for another of its name.
    let lease = Duration::from_secs(1);
    let outbox =
        scene.process().await.lease(lease).handle_in_tx(scene.adds(|_, _| done())).start().await.expect("start");
    let gate = scene.faults().stop_before(Call::BeginWork);
    write(&outbox, events(["a"])).await;
    gate.reached().await;
    // A second life of the same name ends the first one's lease.
    let joining =
        Joining { node: NodeId::new("twin"), ttl: Duration::from_millis(50), routes: Vec::new(), in_flight: 0 };
    scene.stage.backend.store().join(&joining).await.expect("join");
    let second = scene.faults().stop_before(Call::BeginWork);
    gate.open();
    // Its first transaction is over when it begins the second, under a new lease.
    second.reached().await;
    assert_eq!(scene.runs_of("a"), 1);
    assert_eq!(scene.stage.backend.work().await, Vec::<String>::new());
    second.open();
    scene.stage.until_count(Status::Done, 1).await;
    outbox.shutdown().await;
    assert_eq!(scene.stage.backend.work().await, ["a"]);
    assert_eq!(scene.runs_of("a"), 2);
}

/// H9, S3: when the answer to the commit is lost, the table decides whether the event is delivered again.
pub async fn a_commit_of_unknown_outcome_is_repeated_only_if_it_has_no_effect<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let outbox = scene.process().await.handle_in_tx(scene.adds(|_, _| done())).start().await.expect("start");
    for (name, committed, runs) in [("a", true, 1), ("b", false, 2)] {
        let gate = scene.faults().stop_before(Call::BeginWork);
        write(&outbox, events([name])).await;
        gate.reached().await;
        if committed {
            scene.faults().lose(Call::Commit, 1, StoreErrorKind::OutcomeUnknown);
        } else {
            scene.faults().fail(Call::Commit, 1, StoreErrorKind::OutcomeUnknown);
        }
        gate.open();
        let count = if committed { 1 } else { 2 };
        scene.stage.until_count(Status::Done, count).await;
        scene.until("the end of its delivery", || scene.runs_of(name) == runs).await;
    }
    // The keys go on.
    write(&outbox, events(["a", "b"])).await;
    scene.stage.until_count(Status::Done, 4).await;
    outbox.shutdown().await;
    assert_eq!(scene.stage.backend.work().await, ["a", "a", "b", "b"]);
    assert_eq!((scene.runs_of("a"), scene.runs_of("b")), (2, 3));
}

/// H9, crash table: wherever the process dies between the handler and the end of its transaction, the effect is there
/// exactly once.
pub async fn the_effect_is_there_once_wherever_the_process_dies<B: Backend>() {
    for (call, after, runs) in [
        (Call::Keep, false, 2),
        (Call::SettleIn, false, 2),
        (Call::SettleIn, true, 2),
        (Call::Commit, false, 2),
        (Call::Commit, true, 1),
    ] {
        let scene = Scene::<B>::new().await;
        let first = scene.process().await.handle_in_tx(scene.adds(|_, _| done())).start().await.expect("start");
        let gate = scene.faults().stop_before(Call::BeginWork);
        let ids = write(&first, events(["a"])).await;
        gate.reached().await;
        let dies = if after { scene.faults().stop_after(call) } else { scene.faults().stop_before(call) };
        gate.open();
        dies.reached().await;
        // It neither settles nor leaves.
        scene.faults().go_down();
        drop(first);
        let outbox = scene.process().await.handle_in_tx(scene.adds(|_, _| done())).start().await.expect("start");
        scene.stage.until_count(Status::Done, 1).await;
        write(&outbox, events(["a"])).await;
        scene.stage.until_count(Status::Done, 2).await;
        outbox.shutdown().await;
        assert_eq!(scene.stage.backend.work().await, ["a", "a"], "{call:?}, {after}");
        assert_eq!(scene.runs_of("a"), runs + 1, "{call:?}, {after}");
        assert_eq!(scene.attempts(ids[0]).await, 0, "{call:?}, {after}");
    }
}

/// H9: an event that is written in the work is there if, and only if, the work is.
pub async fn events_of_the_work_are_delivered_if_it_commits<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let project = |mut work: Work<Store<B>>, ordered: Ordered, metadata: Metadata| async move {
        let fails = ordered.name == "a" && !metadata.is_retry();
        B::add_work(&mut work, ordered.name).await?;
        work.write_all([event(), event()]).await?;
        work.write(event()).await?;
        if fails { Err(HandlerError::msg("not at the first attempt")) } else { Ok(()) }
    };
    let outbox = scene.process().await.route(super::stage::ROUTE, scene.stage.probe.handler());
    let outbox = outbox.handle_in_tx(project).start().await.expect("start");
    write(&outbox, events(["a", "b"])).await;
    scene.stage.until_count(Status::Done, 8).await;
    outbox.shutdown().await;
    assert_eq!(scene.stage.probe.log().begun(), 6, "of the attempts that succeeded alone");
    assert_eq!(scene.stage.backend.work().await, ["a", "b"]);
    assert_eq!(scene.stage.backend.store().count(&pillarbox_core::port::Query::default()).await.expect("count"), 8);
}

/// H9: a transaction is not open for as long as there is work.
pub async fn a_transaction_takes_on_no_more_after_a_quarter_of_a_second<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let slow = |_: &str, _: &Metadata| {
        async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok(Outcome::Done)
        }
        .boxed()
    };
    let outbox = scene.process().await.handle_in_tx(scene.adds(slow)).start().await.expect("start");
    let gate = scene.faults().stop_before(Call::BeginWork);
    write(&outbox, events(["a", "b", "c", "d", "e", "f"])).await;
    gate.reached().await;
    gate.open();
    scene.stage.until_count(Status::Done, 6).await;
    outbox.shutdown().await;
    assert_eq!(scene.stage.backend.work().await.len(), 6);
    assert_eq!(scene.runs.lock().len(), 6);
    assert!(scene.commits(1) >= 2, "all of 600 ms in one transaction");
}

/// H9, O1: the events of a key come one after another, through failures.
pub async fn transactional_handlers_keep_the_order_of_each_key<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let handler = scene.adds(|name, metadata| {
        let fails = name.ends_with('3') && !metadata.is_retry();
        answer(if fails { Err(HandlerError::msg("once")) } else { Ok(Outcome::Done) })
    });
    let outbox = scene.process().await.workers(3).handle_in_tx(handler).start().await.expect("start");
    let all = (0..8).flat_map(|n| ["x", "y", "z"].map(|key| Ordered { key: key.into(), name: format!("{key}{n}") }));
    write(&outbox, all.map(|ordered| ordered.to_event()).collect::<Vec<_>>()).await;
    scene.stage.until_count(Status::Done, 24).await;
    outbox.shutdown().await;
    assert_eq!(scene.stage.backend.work().await.len(), 24);
    let runs = scene.runs.lock();
    for key in ["x", "y", "z"] {
        let of_key: Vec<_> = runs.iter().filter(|name| name.starts_with(key)).map(|name| &name[1..]).collect();
        assert_eq!(of_key, ["0", "1", "2", "3", "3", "4", "5", "6", "7"], "of {key}");
    }
}

/// H9, O5, U4: a dead head that is replayed, and succeeds, frees its key with the same commit.
pub async fn a_replayed_head_frees_its_key_with_its_work<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let mended = Arc::new(Mutex::new(false));
    let state = mended.clone();
    let start = async |builder: Builder<Store<B>, mode::SingleNode>| {
        let state = state.clone();
        let handler = scene.adds(move |_, _| {
            let mended = *state.lock();
            answer(if mended { Ok(Outcome::Done) } else { Err(HandlerError::msg("no").permanent()) })
        });
        builder.handle_in_tx(handler).start().await.expect("start")
    };
    let first = start(scene.process().await).await;
    let of_key = |name: &str| Ordered { key: "k".into(), name: name.into() }.to_event();
    let ids = write(&first, [of_key("head"), of_key("next")]).await;
    scene.stage.until_count(Status::Dead, 1).await;
    *mended.lock() = true;
    let head = scene.stage.row(ids[0]).await.expect("it is kept");
    let committed = scene.faults().stop_after(Call::Commit);
    scene.stage.backend.store().replay(&[head.seq], &Actor::new("test")).await.expect("replay");
    // It dies between that commit and everything that would follow from it.
    committed.reached().await;
    scene.faults().go_down();
    drop(first);
    let second = start(scene.process().await).await;
    scene.stage.until_count(Status::Done, 2).await;
    write(&second, [of_key("last")]).await;
    scene.stage.until_count(Status::Done, 3).await;
    second.shutdown().await;
    assert_eq!(scene.stage.backend.work().await, ["head", "last", "next"]);
    assert_eq!(*scene.runs.lock(), ["head", "head", "next", "last"]);
}

/// H9, D9, R4: answers mean what they mean for other handlers, and what did not succeed is undone.
pub async fn a_transactional_handler_may_defer_or_fail_for_good<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let deferred = Arc::new(Mutex::new(0));
    let count = deferred.clone();
    let handler = scene.adds(move |name, _| {
        answer(match name {
            "later" if *count.lock() < 2 => {
                *count.lock() += 1;
                Ok(Outcome::RetryAfter(Duration::from_millis(5)))
            }
            "never" | "caught" => Err(HandlerError::msg("not at all").permanent()),
            _ => Ok(Outcome::Done),
        })
    });
    let handler = in_tx(handler)
        .retry(RetryPolicy::never())
        .fallback(|ordered: Ordered| async move { if ordered.name == "caught" { Ok(()) } else { Err("nor here") } });
    let outbox = scene.process().await.handle_in_tx(handler).start().await.expect("start");
    let ids = write(&outbox, events(["later", "never", "caught", "well"])).await;
    scene.stage.until_count(Status::Done, 3).await;
    scene.stage.until_count(Status::Dead, 1).await;
    outbox.shutdown().await;
    assert_eq!(scene.stage.backend.work().await, ["later", "well"]);
    assert_eq!((scene.runs_of("later"), scene.attempts(ids[0]).await), (3, 0));
    let error = scene.stage.row(ids[1]).await.and_then(|row| row.last_error).expect("its errors are kept");
    assert!(error.contains("not at all") && error.contains("nor here"), "{error}");
}
