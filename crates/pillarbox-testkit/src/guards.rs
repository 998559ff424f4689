//! The exam of a guard's store. An adapter runs it with one line, [`guards!`](crate::guards!), for a type that implements
//! [`Place`].

use std::{future::Future, sync::Arc, time::Duration};

use pillarbox_core::port::{GuardStore, NAME_LIMIT};

/// A place for marks that no other test has.
pub trait Place: Sized + Send + Sync + 'static {
    /// The adapter.
    type Store: GuardStore;

    /// Why the exam can't be held here, if so: a server that is not there. It is left out then, with these words.
    fn missing() -> Option<String> {
        None
    }

    /// A new place.
    fn fresh() -> impl Future<Output = Self> + Send;

    /// The store there; each call may give another client of it.
    fn store(&self) -> Self::Store;

    /// For how long marks stand in this exam.
    fn ttl(&self) -> Duration {
        Duration::from_hours(1)
    }

    /// Lets the time of the marks pass: by moving their end where that can be done, or by waiting.
    fn pass(&self) -> impl Future<Output = ()> + Send;
}

/// Makes a test of every case, for a type that implements [`Place`](trait@crate::guards::Place).
#[macro_export]
macro_rules! guards {
    ($place:ty) => {
        $crate::exam!(guards, $place:
            the_first_is_told_true_and_later_ones_false,
            consumers_do_not_suppress_each_other,
            of_many_at_once_one_is_told_true,
            a_batch_is_answered_in_its_order,
            a_released_message_may_be_taken_again,
            only_who_made_a_mark_can_release_it,
            a_mark_stands_for_its_time,
            a_purge_removes_what_is_over_and_nothing_else,
            any_text_is_a_name,
        );
    };
}

async fn take<P: Place>(place: &P, consumer: &str, message: &str, by: &str) -> bool {
    place.store().take(consumer, &[message], by, place.ttl()).await.expect("an answer")[0]
}

/// I1
pub async fn the_first_is_told_true_and_later_ones_false<P: Place>() {
    let place = P::fresh().await;
    assert!(take(&place, "billing", "m-1", "a").await);
    assert!(!take(&place, "billing", "m-1", "b").await);
    assert!(!take(&place, "billing", "m-1", "a").await, "not even who has it");
    assert!(take(&place, "billing", "m-2", "a").await);
}

/// I2: also where the two names together are the same letters.
pub async fn consumers_do_not_suppress_each_other<P: Place>() {
    let place = P::fresh().await;
    assert!(take(&place, "billing", "m-1", "a").await);
    assert!(take(&place, "shipping", "m-1", "a").await);
    for (consumer, message) in [("a", "bc"), ("ab", "c"), ("a.b", "c"), ("a", "b.c"), ("a:b", "c"), ("a", "b:c")] {
        assert!(take(&place, consumer, message, "a").await, "{consumer} {message}");
    }
}

/// I1: atomic.
pub async fn of_many_at_once_one_is_told_true<P: Place>() {
    let place = Arc::new(P::fresh().await);
    let calls = (0..16).map(|n| {
        let place = place.clone();
        tokio::spawn(async move { take(&*place, "billing", "m-1", &format!("caller-{n}")).await })
    });
    let mut firsts = 0;
    for call in calls.collect::<Vec<_>>() {
        firsts += usize::from(call.await.expect("no panic"));
    }
    assert_eq!(firsts, 1);
}

/// I1: some were taken, some were not.
pub async fn a_batch_is_answered_in_its_order<P: Place>() {
    let place = P::fresh().await;
    let store = place.store();
    assert_eq!(store.take("billing", &[], "a", place.ttl()).await.expect("nothing"), [false; 0]);
    assert_eq!(store.take("billing", &["m-2", "m-4"], "a", place.ttl()).await.expect("two"), [true, true]);
    let batch = ["m-5", "m-4", "m-3", "m-2", "m-1"];
    let answers = store.take("billing", &batch, "b", place.ttl()).await.expect("five");
    assert_eq!(answers, [true, false, true, false, true]);
}

/// I1: when the work has failed.
pub async fn a_released_message_may_be_taken_again<P: Place>() {
    let place = P::fresh().await;
    assert!(take(&place, "billing", "m-1", "a").await);
    place.store().release("billing", &["m-1", "never taken"], "a").await.expect("a release");
    assert!(take(&place, "billing", "m-1", "b").await);
    place.store().release("billing", &[], "a").await.expect("nothing to do");
}

/// I1: one that comes late frees nobody else's mark.
pub async fn only_who_made_a_mark_can_release_it<P: Place>() {
    let place = P::fresh().await;
    assert!(take(&place, "billing", "m-1", "a").await);
    for (consumer, by) in [("billing", "b"), ("shipping", "a")] {
        place.store().release(consumer, &["m-1"], by).await.expect("no error");
    }
    assert!(!take(&place, "billing", "m-1", "b").await);
}

/// I1: TTL.
pub async fn a_mark_stands_for_its_time<P: Place>() {
    let place = P::fresh().await;
    assert!(take(&place, "billing", "m-1", "a").await);
    assert!(!take(&place, "billing", "m-1", "b").await);
    place.pass().await;
    assert!(take(&place, "billing", "m-1", "b").await, "its time is over");
    place.store().release("billing", &["m-1"], "a").await.expect("no error");
    assert!(!take(&place, "billing", "m-1", "c").await, "who had it before has no say any more");
}

/// I1: nothing grows for ever.
pub async fn a_purge_removes_what_is_over_and_nothing_else<P: Place>() {
    let place = P::fresh().await;
    for n in 0..5 {
        assert!(take(&place, "billing", &format!("old-{n}"), "a").await);
    }
    place.pass().await;
    assert!(take(&place, "billing", "new", "a").await);
    let store = place.store();
    let mut purged = Vec::new();
    loop {
        let some = store.purge(2).await.expect("a purge");
        purged.push(some);
        if some == 0 {
            break;
        }
    }
    assert!(purged == [0] || purged == [2, 2, 1, 0], "{purged:?}");
    assert!(!take(&place, "billing", "new", "b").await);
}

/// S5: quotes, separators, wildcards, other scripts, and as long as may be.
pub async fn any_text_is_a_name<P: Place>() {
    let place = P::fresh().await;
    let long = "x".repeat(NAME_LIMIT);
    let names = ["'; drop table x; --", "a b", "a*b?[c]", "grün/日本", "A", "a", ">", "%_\\", "{}\n\t\"", &long];
    for name in names {
        assert!(take(&place, "billing", name, "me").await, "{name:?}");
        assert!(take(&place, name, "m-1", "me").await, "{name:?}");
    }
    for name in names {
        assert!(!take(&place, "billing", name, "me").await, "{name:?}");
        assert!(!take(&place, name, "m-1", "me").await, "{name:?}");
    }
}
