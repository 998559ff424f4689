//! The exam of an inbox. An adapter runs it with one line, [`inboxes!`](crate::inboxes!), for a type that implements [`Place`].

use std::{future::Future, sync::Arc, time::Duration};

use pillarbox_core::{
    domain::{Timestamp, bucket::Buckets},
    port::{InboxStore, InboxUpkeep, NAME_LIMIT, StoreError, StoreErrorKind, TransactStore},
};
use tokio::time::{Instant, sleep};

/// A place for an inbox that no other test has.
pub trait Place: Sized + Send + Sync + 'static {
    /// Begins and ends the transactions.
    type Store: TransactStore;
    /// The adapter.
    type Inbox: InboxStore<<Self::Store as TransactStore>::Tx> + InboxUpkeep;

    /// Why the exam can't be held here, if so: a server that is not there. It is left out then, with these words.
    fn missing() -> Option<String> {
        None
    }

    /// A new place, without the inbox's tables.
    fn fresh() -> impl Future<Output = Self> + Send;

    /// The store of the transactions.
    fn store(&self) -> &Self::Store;

    /// The inbox; each call gives another one, as another process would have.
    fn inbox(&self) -> Self::Inbox;

    /// Sets the length of a bucket in the table of the agreed window, however short: no exam can wait for hours.
    fn hurry(&self, bucket: Duration) -> impl Future<Output = ()> + Send;

    /// How many entries lie in all slots together.
    fn entries(&self) -> impl Future<Output = u64> + Send;
}

/// Makes a test of every case, for a type that implements [`Place`](trait@crate::inboxes::Place).
#[macro_export]
macro_rules! inboxes {
    ($place:ty) => {
        $crate::exam!(inboxes, $place:
            what_was_entered_is_known_and_other_consumers_do_not_mind,
            a_rollback_leaves_nothing,
            a_second_transaction_waits_for_the_first,
            of_many_at_once_one_enters_a_message,
            a_batch_is_answered_in_its_order,
            what_the_bucket_before_has_is_known_alone_and_in_a_batch,
            what_the_bucket_before_has_is_known_among_random_ids,
            messages_are_known_for_the_window_and_then_forgotten_whole,
            a_message_at_the_turn_of_two_buckets_is_entered_once,
            what_an_inbox_has_entered_is_known_to_it_after_a_turn,
            the_first_window_that_was_said_is_kept,
            a_window_that_is_too_short_is_refused,
            without_a_window_nothing_is_entered,
            migrating_twice_and_at_once_is_harmless,
            any_text_is_a_name,
        );
    };
}

type Tx<P> = <<P as Place>::Store as TransactStore>::Tx;

async fn opened<P: Place>() -> P {
    let place = P::fresh().await;
    place.inbox().migrate().await.expect("tables");
    place.inbox().agree(Duration::from_hours(24)).await.expect("a window");
    place
}

async fn begin<P: Place>(place: &P) -> Tx<P> {
    place.store().begin().await.expect("a transaction")
}

async fn enter<P: Place>(place: &P, tx: &mut Tx<P>, message: &str) -> Result<bool, StoreError> {
    place.inbox().enter(tx, "billing", &[message]).await.map(|answers| answers[0])
}

/// In a transaction of its own, which a database may ask to run again.
async fn entered<P: Place>(place: &P, consumer: &str, message: &str) -> bool {
    loop {
        let mut tx = begin(place).await;
        match place.inbox().enter(&mut tx, consumer, &[message]).await {
            Ok(answers) => {
                place.store().commit(tx).await.expect("a commit");
                return answers[0];
            }
            Err(error) => assert!(error.kind().is_transient(), "{error}"),
        }
    }
}

/// I3, I2
pub async fn what_was_entered_is_known_and_other_consumers_do_not_mind<P: Place>() {
    let place = opened::<P>().await;
    assert!(entered(&place, "billing", "m-1").await);
    assert!(!entered(&place, "billing", "m-1").await);
    assert!(entered(&place, "shipping", "m-1").await);
    assert!(entered(&place, "billing", "m-2").await);
    let mut tx = begin(&place).await;
    assert!(enter(&place, &mut tx, "m-3").await.expect("an answer"));
    assert!(!enter(&place, &mut tx, "m-3").await.expect("an answer"), "within one transaction, too");
}

/// I3: failure leaves it unclaimed.
pub async fn a_rollback_leaves_nothing<P: Place>() {
    let place = opened::<P>().await;
    let mut tx = begin(&place).await;
    assert!(enter(&place, &mut tx, "m-1").await.expect("an answer"));
    place.store().rollback(tx).await.expect("a rollback");
    let mut tx = begin(&place).await;
    assert!(enter(&place, &mut tx, "m-1").await.expect("an answer"));
    drop(tx);
    assert!(entered(&place, "billing", "m-1").await);
    assert!(!entered(&place, "billing", "m-1").await);
}

/// I3: both ends of the first.
pub async fn a_second_transaction_waits_for_the_first<P: Place>() {
    for commits in [true, false] {
        let place = Arc::new(opened::<P>().await);
        let mut first = begin(&*place).await;
        assert!(enter(&*place, &mut first, "m-1").await.expect("an answer"));
        let second = tokio::spawn({
            let place = place.clone();
            async move { entered(&*place, "billing", "m-1").await }
        });
        // It may come as far as it can; that it waits is seen by its answer.
        sleep(Duration::from_millis(50)).await;
        if commits {
            place.store().commit(first).await.expect("a commit");
        } else {
            place.store().rollback(first).await.expect("a rollback");
        }
        assert_eq!(second.await.expect("no panic"), !commits);
    }
}

/// I3: races.
pub async fn of_many_at_once_one_enters_a_message<P: Place>() {
    let place = Arc::new(opened::<P>().await);
    let calls = (0..12).map(|_| {
        let place = place.clone();
        tokio::spawn(async move { entered(&*place, "billing", "m-1").await })
    });
    let mut firsts = 0;
    for call in calls.collect::<Vec<_>>() {
        firsts += usize::from(call.await.expect("no panic"));
    }
    assert_eq!(firsts, 1);
    assert_eq!(place.entries().await.min(2), place.entries().await, "at most in two buckets");
}

/// I3: batched.
pub async fn a_batch_is_answered_in_its_order<P: Place>() {
    let place = opened::<P>().await;
    let mut tx = begin(&place).await;
    let inbox = place.inbox();
    assert_eq!(inbox.enter(&mut tx, "billing", &[]).await.expect("nothing"), [false; 0]);
    assert_eq!(inbox.enter(&mut tx, "billing", &["m-2", "m-4"]).await.expect("two"), [true, true]);
    place.store().commit(tx).await.expect("a commit");
    let mut tx = begin(&place).await;
    let batch = ["m-5", "m-4", "m-3", "m-2", "m-1"];
    let answers = inbox.enter(&mut tx, "billing", &batch).await.expect("five");
    assert_eq!(answers, [true, false, true, false, true]);
    let many: Vec<String> = (0..1_000).map(|n| format!("many-{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(inbox.enter(&mut tx, "billing", &many).await.expect("many"), [true; 1_000]);
    place.store().commit(tx).await.expect("a commit");
}

/// I3: in the middle of each, far from a turn.
pub async fn what_the_bucket_before_has_is_known_alone_and_in_a_batch<P: Place>() {
    let place = opened::<P>().await;
    let batch = ["m-3", "m-2", "m-1"];
    for (bucket, answers) in [(800, [true; 3]), (800, [false; 3]), (801, [false; 3]), (802, [true; 3])] {
        in_the_middle_of(&place, bucket).await;
        let mut tx = begin(&place).await;
        assert_eq!(place.inbox().enter(&mut tx, "billing", &batch).await.expect("three"), answers, "{bucket}");
        place.store().commit(tx).await.expect("a commit");
        assert!(!entered(&place, "billing", "m-1").await, "{bucket}");
    }
    in_the_middle_of(&place, 803).await;
    let mut tx = begin(&place).await;
    let answers = place.inbox().enter(&mut tx, "billing", &["m-0", "m-2", "m-4"]).await.expect("three");
    assert_eq!(answers, [true, false, true]);
}

/// Cuts time so that the bucket of this number is half over. The servers of an exam run on this host, by its clock.
async fn in_the_middle_of<P: Place>(place: &P, bucket: u64) {
    let now = Timestamp::from(std::time::SystemTime::now()).as_micros().unsigned_abs();
    place.hurry(Duration::from_micros(now * 2 / (bucket * 2 + 1))).await;
}

/// I3: ids that do not ascend lie among those of the bucket before.
pub async fn what_the_bucket_before_has_is_known_among_random_ids<P: Place>() {
    let place = opened::<P>().await;
    let random = |count: usize| (0..count).map(|_| format!("{:032x}", fastrand::u128(..))).collect::<Vec<_>>();
    in_the_middle_of(&place, 800).await;
    let inbox = place.inbox();
    let old = random(700);
    for batch in old.chunks(70) {
        let batch: Vec<&str> = batch.iter().map(String::as_str).collect();
        let mut tx = begin(&place).await;
        assert_eq!(inbox.enter(&mut tx, "billing", &batch).await.expect("new ones"), [true; 70]);
        place.store().commit(tx).await.expect("a commit");
    }
    in_the_middle_of(&place, 801).await;
    let inbox = place.inbox();
    let mut count = 700;
    // Many in a row by the same inbox: how it asks depends on what it has met.
    for (round, known) in [0, 0, 1, 0, 0, 3, 1, 0, 0, 0, 60, 0].into_iter().enumerate() {
        let new = random(60 - known);
        let again = fastrand::choose_multiple(&old, known);
        let mut batch: Vec<(&str, bool)> = new.iter().map(|id| (id.as_str(), true)).collect();
        batch.extend(again.into_iter().map(|id| (id.as_str(), false)));
        fastrand::shuffle(&mut batch);
        let (ids, expected): (Vec<&str>, Vec<bool>) = batch.into_iter().unzip();
        let mut tx = begin(&place).await;
        assert_eq!(inbox.enter(&mut tx, "billing", &ids).await.expect("sixty"), expected, "{round}");
        place.store().commit(tx).await.expect("a commit");
        count += 60 - u64::try_from(known).expect("few");
        assert_eq!(place.entries().await, count, "{round}");
        let mut tx = begin(&place).await;
        assert_eq!(inbox.enter(&mut tx, "billing", &ids).await.expect("sixty"), [false; 60], "{round}, again");
        place.store().commit(tx).await.expect("a commit");
    }
}

/// I3: buckets, over more than a whole round of them.
pub async fn messages_are_known_for_the_window_and_then_forgotten_whole<P: Place>() {
    let place = opened::<P>().await;
    let bucket = Duration::from_millis(300);
    place.hurry(bucket).await;
    let inbox = place.inbox();
    let window = Buckets::of_micros(300_000).expect("buckets").window();
    let asked = Instant::now();
    assert!(entered(&place, "billing", "m-1").await);
    // What is asked for again is not entered again, so it is forgotten at the same time.
    loop {
        inbox.rotate().await.expect("a rotation");
        let asking = Instant::now();
        if entered(&place, "billing", "m-1").await {
            assert!(asking.elapsed() + asked.elapsed() >= window, "after {:?}", asked.elapsed());
            break;
        }
        assert!(asked.elapsed() < bucket * 200, "never forgotten");
        sleep(bucket / 10).await;
    }
    // A slow exam may miss the middle of a bucket; then its slot is emptied a round later.
    while place.entries().await > 0 {
        inbox.rotate().await.expect("a rotation");
        assert!(asked.elapsed() < bucket * 200, "never emptied");
        sleep(bucket / 10).await;
    }
}

/// I3: the first enters it in one bucket, the second comes in the next while the first is open.
pub async fn a_message_at_the_turn_of_two_buckets_is_entered_once<P: Place>() {
    let place = Arc::new(opened::<P>().await);
    let length = Duration::from_secs(2);
    place.hurry(length).await;
    let buckets = Buckets::of_micros(2_000_000).expect("buckets");
    let now = || Timestamp::from(std::time::SystemTime::now());
    // The servers of an exam run on this host, by its clock.
    let to_the_turn = || {
        let number = buckets.number(now());
        Timestamp::from_micros((number + 1) * buckets.micros()).since(now())
    };
    let early = Duration::from_millis(150);
    let wait = to_the_turn();
    let wait = if wait > early * 2 { wait } else { wait + length };
    sleep(wait.saturating_sub(early)).await;
    let mut first = begin(&*place).await;
    assert!(enter(&*place, &mut first, "m-1").await.expect("an answer"));
    sleep(to_the_turn() + Duration::from_millis(50)).await;
    let second = tokio::spawn({
        let place = place.clone();
        async move { entered(&*place, "billing", "m-1").await }
    });
    sleep(Duration::from_millis(100)).await;
    place.store().commit(first).await.expect("a commit");
    assert!(!second.await.expect("no panic"), "entered in both buckets");
}

/// I3: what it knows of one bucket does not hold of the next.
pub async fn what_an_inbox_has_entered_is_known_to_it_after_a_turn<P: Place>() {
    let place = opened::<P>().await;
    place.hurry(Duration::from_secs(2)).await;
    let buckets = Buckets::of_micros(2_000_000).expect("buckets");
    let now = || Timestamp::from(std::time::SystemTime::now());
    let inbox = place.inbox();
    let enter = async |messages: &[&str]| {
        // Where nobody enters anything in two buckets. The servers of an exam run on this host, by its clock.
        while buckets.overlaps(now()) {
            sleep(Duration::from_millis(10)).await;
        }
        let mut tx = begin(&place).await;
        let bucket = buckets.number(now());
        let answers = inbox.enter(&mut tx, "billing", messages).await.expect("answers");
        place.store().commit(tx).await.expect("a commit");
        (answers, bucket, !buckets.overlaps(now()) && buckets.number(now()) == bucket)
    };
    // A slow exam may come too late: then once more, with other messages.
    for round in 0..100 {
        let ids = [3, 2, 1].map(|n| format!("m-{round:03}-{n}"));
        let ids = [ids[0].as_str(), &ids[1], &ids[2]];
        let (answers, first, kept) = enter(&ids[..2]).await;
        assert_eq!(answers, [true, true], "{round}");
        while buckets.number(now()) == first {
            sleep(Duration::from_millis(10)).await;
        }
        let (answers, second, kept_again) = enter(&ids).await;
        if kept && kept_again && second == first + 1 {
            assert_eq!(answers, [false, false, true]);
            return;
        }
    }
    panic!("always too late");
}

/// I3: what is in the tables was put there by one arithmetic.
pub async fn the_first_window_that_was_said_is_kept<P: Place>() {
    let place = P::fresh().await;
    place.inbox().migrate().await.expect("tables");
    let hours = Duration::from_hours;
    assert_eq!(place.inbox().agree(hours(24)).await.expect("the first"), hours(24));
    assert_eq!(place.inbox().agree(hours(48)).await.expect("the first"), hours(24));
    assert_eq!(place.inbox().agree(hours(1)).await.expect("the first"), hours(24));
}

/// I3: a bucket must outlast every transaction.
pub async fn a_window_that_is_too_short_is_refused<P: Place>() {
    let place = P::fresh().await;
    place.inbox().migrate().await.expect("tables");
    let error = place.inbox().agree(Duration::from_secs(10)).await.expect_err("too short");
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("the least"), "{error}");
}

/// I3: told at once, not when the first message is forgotten too early.
pub async fn without_a_window_nothing_is_entered<P: Place>() {
    let place = P::fresh().await;
    place.inbox().migrate().await.expect("tables");
    let mut tx = begin(&place).await;
    let error = enter(&place, &mut tx, "m-1").await.expect_err("no window");
    assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
}

/// S3
pub async fn migrating_twice_and_at_once_is_harmless<P: Place>() {
    let place = Arc::new(P::fresh().await);
    let calls = (0..4).map(|_| {
        let place = place.clone();
        tokio::spawn(async move {
            let inbox = place.inbox();
            inbox.migrate().await.expect("tables");
            inbox.agree(Duration::from_hours(24)).await.expect("a window");
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("no panic");
    }
    assert!(entered(&*place, "billing", "m-1").await);
    place.inbox().migrate().await.expect("tables");
    assert!(!entered(&*place, "billing", "m-1").await);
}

/// S5
pub async fn any_text_is_a_name<P: Place>() {
    let place = opened::<P>().await;
    let long = "x".repeat(NAME_LIMIT);
    for name in ["'; drop table x; --", "a b", "a,b", "grün/日本", "A", "a", "a ", "%_\\", "{}\n\t\"", &long] {
        assert!(entered(&place, "billing", name).await, "{name:?}");
        assert!(!entered(&place, "billing", name).await, "{name:?}");
        assert!(entered(&place, name, "m-1").await, "{name:?}");
    }
}
