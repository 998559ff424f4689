use std::time::{Duration, Instant};

use pillarbox_core::{
    domain::{Timestamp, recollection::ENOUGH},
    port::{InboxStore as _, InboxUpkeep as _, TransactStore as _},
};
use pillarbox_testkit::servers::{Database, Shared};
use sqlx::AssertSqlSafe;

use super::*;
use crate::PostgresStore;

const BILLING: &str = "billing";

/// An inbox whose clock is moved by cutting time anew.
struct Place {
    inbox: PostgresInbox,
    store: PostgresStore,
    _database: Database,
}

impl Place {
    /// In the middle of bucket 800.
    async fn new() -> Self {
        let database = Shared::Postgres.database();
        let url = database.url();
        Self::at(&url, database).await
    }

    async fn at(url: &str, database: Database) -> Self {
        let store = PostgresStore::open(url).unwrap();
        let place = Self { inbox: PostgresInbox::new(&store), store, _database: database };
        place.inbox.migrate().await.unwrap();
        place.inbox.agree(Duration::from_hours(24)).await.unwrap();
        place.in_the_middle_of(800).await;
        place
    }

    async fn run(&self, sql: String) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(self.store.pool()).await.unwrap();
    }

    /// Cuts time so that the bucket of this number is half over, for an inbox that remembers what it knows.
    async fn in_the_middle_of(&self, bucket: i64) {
        let micros = "(extract(epoch from clock_timestamp()) * 1000000)::bigint";
        self.run(format!("update inbox_window set bucket_micros = {micros} * 2 / {}", bucket * 2 + 1)).await;
        *self.inbox.0.buckets.lock().unwrap() = None;
    }

    async fn enter(&self, messages: &[&str]) -> Vec<bool> {
        self.enter_by(&self.inbox, messages).await
    }

    async fn enter_by(&self, inbox: &PostgresInbox, messages: &[&str]) -> Vec<bool> {
        let mut tx = self.store.begin().await.unwrap();
        let answers = inbox.enter(&mut tx, "billing", messages).await.unwrap();
        self.store.commit(tx).await.unwrap();
        answers
    }

    /// Enters a message in a bucket's slot by hand: who looks there finds it, and who recalls the slot does not know it.
    async fn plant(&self, bucket: i64, message: &str) {
        let slot = slot(bucket);
        self.run(format!("insert into inbox_seen_{slot} values ('billing', '{message}')")).await;
    }

    /// How many messages stand in a bucket's slot.
    async fn count(&self, bucket: i64) -> i64 {
        let count = format!("select count(*) from inbox_seen_{}", slot(bucket));
        sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(self.store.pool()).await.unwrap()
    }

    /// A reader of the bucket before this one, as it is asked for after enough lookups.
    async fn reader(&self, bucket: i64) -> Reader {
        let buckets = self.inbox.buckets().await.unwrap().unwrap();
        let recall = || self.inbox.recollection().recall(bucket, BILLING.as_bytes(), ENOUGH, self.inbox.guessed_now());
        recall();
        assert!(matches!(recall(), Recalled::Unread));
        Reader::new(&self.inbox, buckets, bucket, BILLING)
    }

    fn recalls(&self, bucket: i64) -> bool {
        let recalled = self.inbox.recollection().recall(bucket, BILLING.as_bytes(), 1, self.inbox.guessed_now());
        matches!(recalled, Recalled::Known(_))
    }
}

fn random(count: usize) -> Vec<String> {
    (0..count).map(|_| format!("{:032x}", fastrand::u128(..))).collect()
}

fn texts(ids: &[String]) -> Vec<&str> {
    ids.iter().map(String::as_str).collect()
}

/// I3
#[tokio::test]
async fn random_ids_are_not_looked_up_any_more_after_the_bucket_before_was_read() {
    let place = Place::new().await;
    let old = random(300);
    assert_eq!(place.enter(&texts(&old)).await, [true; 300]);
    place.in_the_middle_of(801).await;
    assert_eq!(place.enter(&texts(&random(ENOUGH))).await, [true; ENOUGH]);
    let mut planted = 0;
    loop {
        let message = format!("planted-{planted}");
        place.plant(800, &message).await;
        if place.enter(&[&message]).await == [true] {
            break;
        }
        planted += 1;
        assert!(planted < 2_000, "never read");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(planted > 0, "looked up at first");
    place.plant(800, "planted").await;
    place.plant(800, "planted-b").await;
    assert_eq!(place.enter(&["planted"]).await, [true], "looked up");
    assert_eq!(place.enter(&["a-1", "planted-b", "a-2"]).await, [true; 3], "looked up");
    assert_eq!(place.enter(&["a-1", "a-3"]).await, [false, true], "in the present bucket");
    for known in &old[..20] {
        assert_eq!(place.enter(&[known]).await, [false]);
    }
    let new = random(60);
    let mixed: Vec<&str> = texts(&new).into_iter().chain(texts(&old[100..140])).collect();
    let answers: Vec<bool> = (0..100).map(|n| n < 60).collect();
    assert_eq!(place.enter(&mixed).await, answers);
    assert_eq!(place.enter(&mixed).await, [false; 100]);
    assert_eq!(place.enter(&texts(&old)).await, [false; 300]);
}

/// I3: whatever becomes of it, and on whatever page.
#[tokio::test]
async fn a_bucket_is_not_read_while_what_was_entered_there_is_open() {
    for commits in [true, false] {
        let place = Place::new().await;
        let (before, present) = (slot(800), slot(801));
        let fill =
            format!("insert into inbox_seen_{before} select 'billing', 'm-' || n from generate_series(1, 25000) as n");
        place.run(fill).await;
        let mut open = place.store.begin().await.unwrap();
        let messages = ["a-1", "m-15000-1", "z-1", "z-2"];
        assert_eq!(place.inbox.enter(&mut open, "billing", &messages).await.unwrap(), [true; 4]);
        place.in_the_middle_of(801).await;
        place.reader(801).await.run().await;
        assert!(!place.recalls(801));
        assert_eq!(place.enter(&["m-1", "b-1", "m-25000"]).await, [false, true, false], "they are looked up");
        if commits {
            place.store.commit(open).await.unwrap();
        } else {
            place.store.rollback(open).await.unwrap();
        }
        // Those who look there, and those who write elsewhere, do not hold it up.
        let mut others = place.store.begin().await.unwrap();
        let look = format!("select count(*) from inbox_seen_{before}");
        for sql in [look, format!("insert into inbox_seen_{present} values ('shipping', 'm-1')")] {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *others).await.unwrap();
        }
        *place.inbox.recollection() = Recollection::default();
        place.reader(801).await.run().await;
        assert!(place.recalls(801));
        for message in &messages[..2] {
            assert_eq!(place.enter(&[message]).await, [!commits], "{message}");
        }
        assert_eq!(place.enter(&["y-1", "z-1", "z-2"]).await, [true, !commits, !commits]);
        assert_eq!(place.enter(&["m-1", "m-12345", "m-25000"]).await, [false; 3]);
    }
}

/// I3: who believes that two slots are still written to writes to both.
#[tokio::test]
async fn what_is_entered_in_the_bucket_before_after_it_was_read_is_met_in_the_present_one() {
    let place = Place::new().await;
    place.in_the_middle_of(801).await;
    place.reader(801).await.run().await;
    assert!(place.recalls(801));
    let late = PostgresInbox::new(&place.store);
    let turn = late.buckets().await.unwrap().unwrap().micros() * 801;
    *late.0.clock.lock().unwrap() = Some((Timestamp::from_micros(turn + 1_000_000), Instant::now()));
    assert_eq!(place.enter_by(&late, &["m-1", "m-2", "m-3"]).await, [true; 3]);
    assert_eq!((place.count(800).await, place.count(801).await), (3, 3));
    assert_eq!(place.enter(&["m-1"]).await, [false]);
    assert_eq!(place.enter(&["m-2", "m-4", "m-3"]).await, [false, true, false]);
    assert_eq!(place.enter_by(&late, &["m-4", "m-5"]).await, [false, true]);
}

/// I3
#[tokio::test]
async fn what_was_recalled_of_a_bucket_is_not_used_after_a_turn() {
    let place = Place::new().await;
    assert_eq!(place.enter(&["m-0"]).await, [true]);
    place.in_the_middle_of(801).await;
    place.reader(801).await.run().await;
    assert!(place.recalls(801));
    assert_eq!(place.enter(&["zzz", "m-1", "m-2"]).await, [true; 3]);
    place.in_the_middle_of(802).await;
    assert_eq!(place.enter(&["m-1"]).await, [false]);
    assert_eq!(place.enter(&["m-0", "m-2", "m-3"]).await, [true, false, true]);
    assert!(!place.recalls(802));
}

/// I3: by the statements that look at the clock alone, here a bucket earlier than the process believes.
#[tokio::test]
async fn a_wrong_guess_of_the_bucket_is_noticed_where_nothing_is_looked_up() {
    let place = Place::new().await;
    assert_eq!(place.enter(&["m-1", "m-2", "m-3"]).await, [true; 3]);
    place.in_the_middle_of(801).await;
    let buckets = place.inbox.buckets().await.unwrap().unwrap();
    for (messages, answers) in [(vec!["m-1"], vec![false]), (vec!["m-2", "m-4"], vec![false, true])] {
        let middle = Timestamp::from_micros(buckets.micros() * 802 + buckets.micros() / 2);
        *place.inbox.0.clock.lock().unwrap() = Some((middle, Instant::now()));
        *place.inbox.recollection() = Recollection::default();
        let mut reader = place.reader(802).await;
        reader.tell(Reading::Whole(Bloom::new()));
        reader.is_over = true;
        assert!(place.recalls(802));
        assert_eq!(place.enter(&messages).await, answers, "{messages:?}");
    }
    assert_eq!(place.count(802).await, 0);
}

/// I3: its snapshot may be too old to show what it has met.
#[tokio::test]
async fn a_transaction_that_has_begun_early_enters_in_both_slots_where_nothing_is_looked_up() {
    let place = Place::new().await;
    // The time in which both are written ends in a second.
    let micros = "(extract(epoch from clock_timestamp()) * 1000000)::bigint";
    place.run(format!("update inbox_window set bucket_micros = ({micros} - 599000000) / 801")).await;
    *place.inbox.0.buckets.lock().unwrap() = None;
    let mut early = place.store.begin().await.unwrap();
    let buckets = place.inbox.buckets().await.unwrap().unwrap();
    while !matches!(Reader::new(&place.inbox, buckets, 801, BILLING).read().await.unwrap(), Reading::Whole(_)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    place.reader(801).await.run().await;
    assert!(place.recalls(801));
    assert_eq!(place.enter(&["m-1"]).await, [true]);
    assert_eq!((place.count(800).await, place.count(801).await), (0, 1));
    for (messages, answers) in
        [(vec!["m-1"], vec![false]), (vec!["m-2"], vec![true]), (vec!["m-3", "m-4"], vec![true; 2])]
    {
        assert_eq!(place.inbox.enter(&mut early, "billing", &messages).await.unwrap(), answers, "{messages:?}");
    }
    place.store.commit(early).await.unwrap();
    assert_eq!((place.count(800).await, place.count(801).await), (4, 4));
}

/// I3: and they are counted before they fill the memory.
#[tokio::test]
async fn more_messages_than_are_recalled_are_looked_up() {
    let place = Place::new().await;
    let old = random(20);
    assert_eq!(place.enter(&texts(&old)).await, [true; 20]);
    place.in_the_middle_of(801).await;
    let mut reader = place.reader(801).await;
    reader.most = 19;
    reader.run().await;
    assert!(!place.recalls(801));
    place.plant(800, "planted").await;
    for _ in 0..3 {
        assert_eq!(place.enter(&texts(&random(ENOUGH))).await, [true; ENOUGH]);
    }
    assert!(!place.recalls(801), "nobody tries again");
    assert_eq!(place.enter(&["planted"]).await, [false], "not looked up");
    assert_eq!(place.enter(&[&old[0]]).await, [false]);
    assert_eq!(place.enter(&[&old[1], "m-1", &old[2]]).await, [false, true, false]);
}

/// I3: others may still enter something there. By the database's clock, whatever the process believes.
#[tokio::test]
async fn a_bucket_is_not_read_before_its_time() {
    let place = Place::new().await;
    let middle = place.inbox.buckets().await.unwrap().unwrap();
    // So that it began five minutes ago.
    let begun = Buckets::of_micros((middle.micros() * 1_601 / 2 - 300_000_000) / 800).unwrap();
    for (buckets, bucket, fits) in
        [(middle, 799, false), (middle, 800, true), (middle, 801, false), (begun, 800, false)]
    {
        let reading = Reader::new(&place.inbox, buckets, bucket, BILLING).read().await.unwrap();
        assert_eq!(matches!(reading, Reading::Whole(_)), fits, "{bucket}: {reading:?}");
    }
}

#[tokio::test]
async fn a_reader_that_is_cut_off_leaves_the_bucket_to_another() {
    let place = Place::new().await;
    drop(place.reader(800).await);
    let later = place.inbox.guessed_now().saturating_add(Duration::from_secs(2));
    let recalled = place.inbox.recollection().recall(800, BILLING.as_bytes(), 1, later);
    assert!(matches!(recalled, Recalled::Unread), "{recalled:?}");
    // And an inbox that is gone has nothing read.
    let reader = Reader::new(&place.inbox, place.inbox.buckets().await.unwrap().unwrap(), 800, BILLING);
    drop(place);
    assert!(matches!(reader.read().await, Ok(Reading::Failed)));
}

/// I3: where bytes are in another order than those of UTF-8.
#[tokio::test]
async fn messages_are_found_again_in_a_database_of_another_encoding() {
    let database = Shared::Postgres.database();
    let url = format!("{}_koi8", database.url());
    let (_, name) = url.rsplit_once('/').unwrap();
    let store = PostgresStore::open(database.url()).unwrap();
    let create = format!("create database {name} encoding 'KOI8R' lc_collate 'C' lc_ctype 'C' template template0");
    sqlx::raw_sql(AssertSqlSafe(create)).execute(store.pool()).await.unwrap();
    let place = Place::at(&url, database).await;
    // In KOI8-R the first letter of the alphabet comes after the last but one.
    let messages = ["\u{430}-1", "\u{44e}-1"];
    assert_eq!(place.enter(&messages).await, [true; 2]);
    place.in_the_middle_of(801).await;
    assert_eq!(place.enter(&messages).await, [false; 2]);
    assert_eq!(place.enter(&["\u{430}-1", "\u{431}-1", "a"]).await, [false, true, true]);
    place.store.pool().close().await;
    sqlx::raw_sql(AssertSqlSafe(format!("drop database {name} with (force)"))).execute(store.pool()).await.unwrap();
}
