//! W3 to W6: writing, and the hooks around it.

use std::sync::Arc;

use parking_lot::Mutex;
use pillarbox_core::{
    Event, EventId, Outbox,
    domain::Status,
    engine::{NoHook, WriteError, WriterHook},
    port::{TransactStore, WriteStore},
};
use pillarbox_testkit::{Call, MemoryStore, memory::MemoryTx};

use super::{DOWN, HOUR, Stage, UNKNOWN, event, keyed, telemetry::Tracer, write};

// W2: events are written in a transaction, and neither in a connection nor in the store itself.
static_assertions::assert_impl_all!(MemoryStore: WriteStore<MemoryTx>);
static_assertions::assert_not_impl_any!(
    MemoryStore: WriteStore<MemoryStore>, WriteStore<pillarbox_testkit::memory::MemoryConnection>, WriteStore<()>
);

type Calls = Arc<Mutex<Vec<(&'static str, Vec<EventId>)>>>;
type Before = fn(&mut Vec<Event>) -> Result<(), String>;

/// Writes down what it is told, and does something before a write and after.
struct Hook {
    before: Before,
    after: fn() -> Result<(), String>,
    calls: Calls,
}

impl Hook {
    fn told(&self, what: &'static str, batch: &[EventId]) -> Result<(), String> {
        self.calls.lock().push((what, batch.to_vec()));
        (self.after)()
    }
}

impl WriterHook for Hook {
    fn before_write(&self, batch: &mut Vec<Event>) -> Result<(), String> {
        self.calls.lock().push(("before_write", batch.iter().map(Event::id).collect()));
        (self.before)(batch)
    }

    fn after_write(&self, batch: &[EventId]) -> Result<(), String> {
        self.told("after_write", batch)
    }

    fn after_commit(&self, batch: &[EventId]) -> Result<(), String> {
        self.told("after_commit", batch)
    }

    fn after_rollback(&self, batch: &[EventId]) -> Result<(), String> {
        self.told("after_rollback", batch)
    }
}

fn hook(before: Before) -> (Hook, Calls) {
    let calls = Calls::default();
    (Hook { before, after: || Ok(()), calls: calls.clone() }, calls)
}

fn names(calls: &Calls) -> Vec<&'static str> {
    calls.lock().iter().map(|(name, _)| *name).collect()
}

/// W3: a batch is one statement, and its ids come back in order.
#[tokio::test(start_paused = true)]
async fn a_batch_is_one_insert_and_its_ids_come_back_in_order() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    let events: Vec<Event> = (0..1_000).map(|_| event().build().unwrap()).collect();
    let mut tx = outbox.begin().await.unwrap();
    let ids = tx.write_all(&events).await.unwrap();
    assert_eq!(tx.write_all(Vec::<Event>::new()).await.unwrap(), []);
    tx.commit().await.unwrap();
    assert_eq!(ids, events.iter().map(Event::id).collect::<Vec<_>>());
    assert_eq!(stage.faults().calls(Call::Insert), 1);
    stage.probe.wait_for(1_000).await;
    let (first, last) = (stage.row(ids[0]).await.seq, stage.row(ids[999]).await.seq);
    assert_eq!(last.0 - first.0, 999);
    outbox.shutdown().await;
}

/// W4: a hook sees the whole batch and may change it, add to it and take from it; hooks run in their order.
#[tokio::test(start_paused = true)]
async fn a_hook_may_change_add_to_and_take_from_the_batch() {
    let stage = Stage::new();
    let (first, calls) = hook(|batch| {
        batch.retain(|event| event.key().is_none());
        batch[0] = batch[0].to_builder().tenant("changed").build().unwrap();
        batch.push(event().tenant("added").build().unwrap());
        Ok(())
    });
    let (second, later) = hook(|_| Ok(()));
    let outbox = stage.single().hook(first).hook(second).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    let ids = tx.write_all([event(), keyed("taken out"), event()]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(ids.len(), 3);
    stage.probe.wait_for(3).await;
    let log = stage.probe.log();
    let tenants: Vec<_> = ids.iter().map(|id| log.event(*id).tenant_id().map(str::to_owned)).collect();
    assert_eq!(tenants, [Some("changed".to_owned()), None, Some("added".to_owned())]);
    assert_eq!(calls.lock()[0].1.len(), 3, "the whole batch as written");
    assert_eq!(later.lock()[0].1, ids, "the second sees what the first made of it");
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// W4: a suppressed batch inserts nothing and gives an empty result; its transaction's end is told to nobody.
#[tokio::test(start_paused = true)]
async fn a_suppressed_batch_inserts_nothing() {
    let stage = Stage::new();
    let (hook, calls) = hook(|batch| {
        batch.clear();
        Ok(())
    });
    let outbox = stage.single().hook(hook).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.put("orders", "1");
    assert_eq!(tx.write_all([event(), event()]).await.unwrap(), []);
    assert!(matches!(tx.write(event()).await, Err(WriteError::Hook(_))));
    tx.commit().await.unwrap();
    assert_eq!(stage.store.inner().table("orders"), ["1"], "the transaction itself goes on");
    assert_eq!(stage.faults().calls(Call::Insert), 0);
    assert_eq!(names(&calls), ["before_write", "before_write"]);
    outbox.shutdown().await;
    assert_eq!(stage.probe.log().begun(), 0);
}

/// W4: a batch that a hook fails is not inserted, and the caller gets the hook's words; later hooks are not asked.
#[tokio::test(start_paused = true)]
async fn a_batch_that_a_hook_fails_is_not_inserted() {
    let stage = Stage::new();
    let (first, _) = hook(|_| Err("not today".to_owned()));
    let (second, later) = hook(|_| Ok(()));
    let outbox = stage.single().hook(first).hook(second).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    let error = tx.write_all([event()]).await.unwrap_err();
    assert!(error.to_string().contains("not today"), "{error}");
    tx.commit().await.unwrap();
    assert_eq!((stage.faults().calls(Call::Insert), names(&later).len()), (0, 0));
    outbox.shutdown().await;
}

/// W5, W6: several writes in one transaction each fire once, at its commit, its rollback or its drop.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_transaction_is_told_once_for_each_batch() {
    for (end, told) in [("commit", "after_commit"), ("rollback", "after_rollback"), ("drop", "after_rollback")] {
        let stage = Stage::new();
        let (hook, calls) = hook(|_| Ok(()));
        let outbox = stage.single().hook(hook).start().await.unwrap();
        let mut tx = outbox.begin().await.unwrap();
        let mut batches = vec![tx.write_all([event(), keyed("k")]).await.unwrap()];
        batches.push(vec![tx.write(event().deliver_after(HOUR)).await.unwrap()]);
        batches.push(vec![tx.write(event()).await.unwrap()]);
        let before = ["before_write", "after_write"].repeat(3);
        assert_eq!(names(&calls), before, "nothing of the end yet");
        match end {
            "commit" => tx.commit().await.unwrap(),
            "rollback" => tx.rollback().await.unwrap(),
            _ => drop(tx),
        }
        let ends = calls.lock()[6..].to_vec();
        assert_eq!(ends, batches.into_iter().map(|batch| (told, batch)).collect::<Vec<_>>());
        outbox.shutdown().await;
    }
}

/// W6: the receipt tells the hooks, too.
#[tokio::test(start_paused = true)]
async fn a_receipt_tells_the_hooks_of_the_end() {
    let stage = Stage::new();
    let (hook, calls) = hook(|_| Ok(()));
    let outbox = stage.single().hook(hook).start().await.unwrap();
    for (commits, told) in [(true, "after_commit"), (false, "after_rollback")] {
        let mut tx = outbox.store().begin().await.unwrap();
        let receipt = outbox.write(&mut tx, event()).await.unwrap();
        if commits {
            outbox.store().commit(tx).await.unwrap();
            receipt.confirm();
        } else {
            outbox.store().rollback(tx).await.unwrap();
            receipt.rolled_back();
        }
        assert_eq!(names(&calls).last(), Some(&told));
    }
    outbox.shutdown().await;
}

/// W4: an error or a panic in an observing hook is logged, and neither the write nor the other hooks notice.
#[tokio::test(start_paused = true)]
async fn errors_and_panics_of_observing_hooks_are_logged_only() {
    let afters: [(fn() -> Result<(), String>, &str); 2] =
        [(|| Err("oh".to_owned()), "a writer hook failed"), (|| panic!("oh"), "a writer hook panicked")];
    for (after, words) in afters {
        let (stage, tracer) = (Stage::new(), Tracer::new());
        let (mut bad, _) = hook(|_| Ok(()));
        bad.after = after;
        let (good, calls) = hook(|_| Ok(()));
        let outbox = stage.single().hook(bad).hook(good).start().await.unwrap();
        let ids = write(&outbox, [event()]).await;
        let mut tx = outbox.begin().await.unwrap();
        tx.write(event()).await.unwrap();
        tx.rollback().await.unwrap();
        stage.probe.wait_for(1).await;
        outbox.shutdown().await;
        stage.probe.assert_each_once(&ids);
        let told = tracer.that_say(words);
        let hooks: Vec<_> = told.iter().map(|line| line.field("hook")).collect();
        assert_eq!(hooks, ["after_write", "after_commit", "after_write", "after_rollback"]);
        assert!(told.iter().all(|line| line.level == tracing::Level::ERROR));
        assert_eq!(names(&calls).len(), 6, "the other hook heard everything");
    }
}

/// W5: the hook that does nothing asks for nothing, and what it is told of costs nothing.
#[tokio::test(start_paused = true)]
async fn the_hook_that_does_nothing_registers_nothing() {
    let stage = Stage::new();
    let outbox = Outbox::writer_only(stage.store.clone()).hook(NoHook).start().await.unwrap();
    assert!(!NoHook.observes_end());
    write(&outbox, [event()]).await;
    assert_eq!(stage.count(Status::New).await, 1);

    struct Deaf(Calls);
    impl WriterHook for Deaf {
        fn after_commit(&self, batch: &[EventId]) -> Result<(), String> {
            self.0.lock().push(("after_commit", batch.to_vec()));
            Ok(())
        }

        fn observes_end(&self) -> bool {
            false
        }
    }
    let calls = Calls::default();
    let outbox = Outbox::writer_only(stage.store.clone()).hook(Deaf(calls.clone())).start().await.unwrap();
    write(&outbox, [event()]).await;
    assert_eq!(names(&calls).len(), 0);
}

/// W4, W6: a commit of unknown outcome is told to no hook, and its events are delivered if and only if it is in
/// effect; one that failed for sure is a rollback.
#[tokio::test(start_paused = true)]
async fn an_event_is_delivered_if_and_only_if_its_commit_is_in_effect() {
    for (in_effect, kind, told) in [(true, UNKNOWN, false), (false, UNKNOWN, false), (false, DOWN, true)] {
        let stage = Stage::new();
        let (hook, calls) = hook(|_| Ok(()));
        let outbox = stage.single().reservation_ttl(HOUR).hook(hook).start().await.unwrap();
        if in_effect {
            stage.faults().lose(Call::Commit, 1, kind);
        } else {
            stage.faults().fail(Call::Commit, 1, kind);
        }
        let mut tx = outbox.begin().await.unwrap();
        let mut ids = tx.write_all([event(), keyed("k")]).await.unwrap();
        let error = tx.commit().await.unwrap_err();
        assert_eq!(error.is_outcome_unknown(), !told);
        assert_eq!(names(&calls).contains(&"after_rollback"), told);
        assert!(!names(&calls).contains(&"after_commit"));
        if !in_effect {
            ids.clear();
        }
        ids.extend(write(&outbox, [keyed("k")]).await);
        stage.probe.wait_for(ids.len()).await;
        stage.read_through().await;
        outbox.shutdown().await;
        stage.probe.assert_each_once(&ids);
    }
}

/// W6: the reader saw the row while the commit's answer was under way, and then the answer was lost.
#[tokio::test(start_paused = true)]
async fn a_row_that_the_reader_passed_is_delivered_when_the_commits_answer_is_lost() {
    let stage = Stage::new();
    let outbox = stage.single().reservation_ttl(HOUR).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    let ids = tx.write_all([event()]).await.unwrap();
    let gate = stage.faults().stop_after(Call::Commit);
    let committing = tokio::spawn(tx.commit());
    gate.reached().await;
    stage.read_through().await;
    // The task that waits for the answer is dropped: nobody will ever know it.
    committing.abort();
    stage.probe.wait_for(1).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}

/// W1: an insert that fails reaches the caller, and the rollback leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn an_insert_that_fails_reaches_the_caller_and_leaves_nothing() {
    let stage = Stage::new();
    let outbox = stage.single().start().await.unwrap();
    for lost in [false, true] {
        if lost {
            stage.faults().lose(Call::Insert, 1, DOWN);
        } else {
            stage.faults().fail(Call::Insert, 1, DOWN);
        }
        let mut tx = outbox.begin().await.unwrap();
        assert!(matches!(tx.write(event()).await, Err(WriteError::Store(_))));
        drop(tx);
    }
    let ids = write(&outbox, [event()]).await;
    stage.probe.wait_for(1).await;
    outbox.shutdown().await;
    stage.probe.assert_each_once(&ids);
}
