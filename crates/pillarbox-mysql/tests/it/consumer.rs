//! The exams of the consumer's half, on MariaDB and on MySQL; and what is their own.

use std::{collections::BTreeSet, time::Duration};

use pillarbox_core::{
    domain::bucket::{self, SLOTS},
    port::{GuardStore as _, InboxStore as _, InboxUpkeep as _, StoreErrorKind, TransactStore as _},
};
use pillarbox_mysql::{MySqlInbox, MySqlStore, Options};
use pillarbox_testkit::servers::{Database, Shared};
use sqlx::{AssertSqlSafe, Row as _};

use crate::support::on_each_server;

/// A database of its own.
struct Place {
    store: MySqlStore,
    database: Database,
}

impl Place {
    async fn new(server: Shared) -> Self {
        let database = server.database();
        // As many transactions at once as an exam has.
        Self { store: Options::new().pool_size(16).open(database.url()).await.unwrap(), database }
    }

    async fn migrated(server: Shared) -> Self {
        let place = Self::new(server).await;
        place.inbox().migrate().await.unwrap();
        place
    }

    async fn opened(server: Shared) -> Self {
        let place = Self::migrated(server).await;
        place.inbox().agree(Duration::from_hours(24)).await.unwrap();
        place
    }

    fn inbox(&self) -> MySqlInbox {
        MySqlInbox::new(&self.store)
    }

    async fn run(&self, sql: String) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(self.store.pool()).await.unwrap();
    }

    async fn number(&self, sql: String) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(self.store.pool()).await.unwrap()
    }

    async fn entries(&self) -> u64 {
        let counts = (0..SLOTS).map(|slot| format!("(select count(*) from inbox_seen_{slot})"));
        self.number(format!("select {}", counts.collect::<Vec<_>>().join(" + "))).await.try_into().unwrap()
    }
}

/// MySQL can't always be had: without it these cases do nothing, and say so.
fn missing(server: Shared) -> Option<String> {
    (server == Shared::MySql && !server.is_there()).then(|| format!("{} is not set", server.variable()))
}

macro_rules! exams {
    ($module:ident, $server:ident) => {
        mod $module {
            use super::*;

            struct Server(Place);

            impl pillarbox_testkit::guards::Place for Server {
                type Store = MySqlInbox;

                fn missing() -> Option<String> {
                    missing(Shared::$server)
                }

                async fn fresh() -> Self {
                    Self(Place::migrated(Shared::$server).await)
                }

                fn store(&self) -> MySqlInbox {
                    self.0.inbox()
                }

                async fn pass(&self) {
                    self.0.run("update inbox_guard set expires_at = expires_at - interval 1 hour".into()).await;
                }
            }

            impl pillarbox_testkit::inboxes::Place for Server {
                type Store = MySqlStore;
                type Inbox = MySqlInbox;

                fn missing() -> Option<String> {
                    missing(Shared::$server)
                }

                async fn fresh() -> Self {
                    Self(Place::new(Shared::$server).await)
                }

                fn store(&self) -> &MySqlStore {
                    &self.0.store
                }

                fn inbox(&self) -> MySqlInbox {
                    self.0.inbox()
                }

                async fn hurry(&self, bucket: Duration) {
                    self.0.run(format!("update inbox_window set bucket_micros = {}", bucket.as_micros())).await;
                }

                async fn entries(&self) -> u64 {
                    self.0.entries().await
                }
            }

            impl pillarbox_testkit::letters::Place for Server {
                type Store = MySqlInbox;

                fn missing() -> Option<String> {
                    missing(Shared::$server)
                }

                async fn fresh() -> Self {
                    Self(Place::migrated(Shared::$server).await)
                }

                fn store(&self) -> MySqlInbox {
                    self.0.inbox()
                }
            }

            mod guard {
                pillarbox_testkit::guards!(super::Server);
            }

            mod inbox {
                pillarbox_testkit::inboxes!(super::Server);
            }

            mod letters {
                pillarbox_testkit::letters!(super::Server);
            }
        }
    };
}

exams!(on_mariadb, MariaDb);
exams!(on_mysql, MySql);

/// The server's time, in microseconds.
const MICROS: &str = "timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))";

impl Place {
    /// Cuts time so that a bucket of about a day is this part over, in hundredths.
    async fn at_hundredth(&self, part: i64) {
        let day = 86_400_000_000_i64;
        let turn = format!("({MICROS} + {})", day / 100 * (100 - part));
        self.run(format!("update inbox_window set bucket_micros = {turn} div ({turn} div {day})")).await;
    }

    /// Cuts time so that the bucket of this number is half over.
    async fn in_the_middle_of(&self, bucket: i64) {
        let halves = bucket * 2 + 1;
        self.run(format!("update inbox_window set bucket_micros = {MICROS} * 2 div {halves}")).await;
    }

    async fn cut(&self, bucket: Duration) {
        self.run(format!("update inbox_window set bucket_micros = {}", bucket.as_micros())).await;
    }

    async fn enter(&self, message: &str) -> bool {
        self.enter_all(&[message]).await[0]
    }

    async fn enter_all(&self, messages: &[&str]) -> Vec<bool> {
        self.enter_by(&self.inbox(), "billing", messages).await.0
    }

    /// Also how many inserts there were of rows as given, and of rows that were looked up.
    async fn enter_by(&self, inbox: &MySqlInbox, consumer: &str, messages: &[&str]) -> (Vec<bool>, [i64; 2]) {
        let mut tx = self.store.begin().await.unwrap();
        let before = inserts(&mut tx).await;
        let answers = inbox.enter(&mut tx, consumer, messages).await.unwrap();
        let after = inserts(&mut tx).await;
        self.store.commit(tx).await.unwrap();
        (answers, [after[0] - before[0], after[1] - before[1]])
    }
}

/// The inserts of a session so far: of rows as given, and of rows that were looked up.
async fn inserts(connection: &mut sqlx::MySqlConnection) -> [i64; 2] {
    let mut counts = [0; 2];
    for (count, name) in counts.iter_mut().zip(["Com_insert", "Com_insert_select"]) {
        let status = format!("show session status where variable_name = '{name}'");
        let row = sqlx::raw_sql(AssertSqlSafe(status)).fetch_one(&mut *connection).await.unwrap();
        *count = row.get::<String, _>(1).parse().unwrap();
    }
    counts
}

/// Rows were entered as given.
const AS_GIVEN: [i64; 2] = [1, 0];
/// That was tried, and then each was looked up.
const TRIED: [i64; 2] = [1, 1];
/// Each was looked up.
const LOOKED_UP: [i64; 2] = [0, 1];

#[tokio::test]
async fn an_inbox_needs_a_prefix_of_its_own() {
    let place = Place::new(Shared::MariaDb).await;
    for bad in ["outbox_", "OUTBOX_", "a-b", ""] {
        assert!(MySqlInbox::with_prefix(&place.store, bad).is_err(), "{bad}");
        assert!(Options::new().inbox_migration_sql(bad).is_err(), "{bad}");
    }
    let one = MySqlInbox::with_prefix(&place.store, "billing_inbox_").unwrap();
    one.migrate().await.unwrap();
    place.inbox().migrate().await.unwrap();
    assert_eq!(one.prefix(), "billing_inbox_");
}

on_each_server!(
    the_text_of_the_inboxs_migrations_makes_the_tables_with_the_client,
    tables_of_a_newer_version_are_refused,
    a_snapshot_does_not_enter_a_message_twice,
    a_message_is_entered_in_two_slots_after_a_turn,
    a_wrong_guess_of_the_bucket_is_noticed,
    a_wrong_guess_of_the_bucket_is_noticed_by_every_statement,
    what_lies_above_the_bucket_before_is_entered_without_a_look_at_it,
    a_batch_is_looked_up_one_by_one_if_the_bucket_before_has_anything_within_it,
    batches_are_compared_with_the_bucket_before_by_their_bytes,
    batches_of_every_size_are_entered_once,
    batches_of_every_size_are_entered_once_among_those_of_the_bucket_before,
    a_batch_waits_for_what_is_open_in_the_bucket_before,
    batches_in_opposite_orders_enter_each_message_once,
    a_bucket_is_emptied_once_in_its_middle,
    of_many_rotations_at_once_one_empties_the_bucket,
    a_slot_in_use_is_emptied_later,
    a_rotation_that_dies_between_emptying_and_recording_loses_nothing,
    a_user_who_may_not_truncate_is_told_so,
    who_has_a_mark_and_asks_again_with_others_is_told_so,
);

async fn the_text_of_the_inboxs_migrations_makes_the_tables_with_the_client(server: Shared) {
    let place = Place::new(server).await;
    place.database.run(&Options::new().inbox_migration_sql("in_").unwrap()).unwrap();
    let inbox = MySqlInbox::with_prefix(&place.store, "in_").unwrap();
    inbox.migrate().await.unwrap();
    inbox.agree(Duration::from_hours(24)).await.unwrap();
    let mut tx = place.store.begin().await.unwrap();
    assert_eq!(inbox.enter(&mut tx, "billing", &["m-1"]).await.unwrap(), [true]);
    assert_eq!(place.number("select count(*) from in_schema".into()).await, 1);
}

async fn tables_of_a_newer_version_are_refused(server: Shared) {
    let place = Place::migrated(server).await;
    place.run("insert into inbox_schema (version) values (1000)".into()).await;
    let error = place.inbox().migrate().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema);
    assert!(error.to_string().contains("update the program"), "{error}");
}

/// I3: whatever the snapshot shows, in the slot of the present and in the one before; or the transaction is to be run again.
async fn a_snapshot_does_not_enter_a_message_twice(server: Shared) {
    for level in ["read committed", "repeatable read", "serializable"] {
        let place = Place::opened(server).await;
        // Without a turn between the two, soon after one, and long after one.
        for (case, batch) in (0..3).flat_map(|case| [(case, false), (case, true)]) {
            let message = format!("m-{case}-{batch}");
            match case {
                0 => place.at_hundredth(50).await,
                1 => place.at_hundredth(99).await,
                _ => place.in_the_middle_of(800).await,
            }
            let mut connection = place.store.pool().acquire().await.unwrap();
            let set = format!("set transaction isolation level {level}");
            sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut *connection).await.unwrap();
            let mut late = sqlx::Connection::begin(&mut *connection).await.unwrap();
            sqlx::query("select count(*) from inbox_guard").execute(&mut *late).await.unwrap();
            assert!(place.enter(&message).await, "{message}");
            match case {
                0 => {}
                1 => place.at_hundredth(1).await,
                _ => place.in_the_middle_of(801).await,
            }
            let other = format!("n-{case}");
            let messages = if batch { vec![other.as_str(), &message] } else { vec![message.as_str()] };
            match place.inbox().enter(&mut late, "billing", &messages).await {
                Ok(answers) => assert_eq!(answers.last(), Some(&false), "{level}, {message}"),
                Err(error) => assert_eq!(error.kind(), StoreErrorKind::Conflict, "{level}, {message}: {error}"),
            }
            late.rollback().await.unwrap();
        }
    }
}

/// I3: in the first part of a bucket a message stands in two slots, later in one.
async fn a_message_is_entered_in_two_slots_after_a_turn(server: Shared) {
    for (part, entries) in [(0, 2), (50, 1)] {
        let place = Place::opened(server).await;
        place.at_hundredth(part).await;
        assert!(place.enter("m-1").await);
        assert_eq!(place.entries().await, entries, "{part}");
        assert!(!place.enter("m-1").await);
        assert_eq!(place.entries().await, entries, "{part}");
        let mut tx = place.store.begin().await.unwrap();
        let answers = place.inbox().enter(&mut tx, "billing", &["m-2", "m-1", "m-0"]).await.unwrap();
        assert_eq!(answers, [true, false, true], "{part}");
    }
}

/// I3: it is, at every turn; here hundreds of times.
async fn a_wrong_guess_of_the_bucket_is_noticed(server: Shared) {
    let place = Place::opened(server).await;
    place.cut(Duration::from_millis(40)).await;
    let inbox = place.inbox();
    for n in 0..300 {
        let mut tx = place.store.begin().await.unwrap();
        let messages = [format!("m-{n:03}"), format!("m-{n:03}-2")];
        let messages: Vec<&str> = messages.iter().map(String::as_str).take(1 + n % 2).collect();
        assert_eq!(inbox.enter(&mut tx, "billing", &messages).await.unwrap(), vec![true; messages.len()]);
        assert_eq!(inbox.enter(&mut tx, "billing", &messages).await.unwrap(), vec![false; messages.len()]);
        place.store.commit(tx).await.unwrap();
    }
}

/// I3: here by a session with a time of its own, a bucket later than the process believes.
async fn a_wrong_guess_of_the_bucket_is_noticed_by_every_statement(server: Shared) {
    for (messages, answers, second) in [
        (vec!["b", "y", "z"], vec![true; 3], TRIED),
        (vec!["b", "m", "y"], vec![true, false, true], TRIED),
        (vec!["x", "y", "z"], vec![true; 3], AS_GIVEN),
        (vec!["m"], vec![false], LOOKED_UP),
        (vec!["z"], vec![true], LOOKED_UP),
    ] {
        // By whether they lie above the bucket that is believed to be the one before.
        for first in [AS_GIVEN, if messages.len() == 1 { LOOKED_UP } else { TRIED }] {
            let place = Place::opened(server).await;
            place.in_the_middle_of(799).await;
            if first != AS_GIVEN {
                assert!(place.enter("zz").await);
            }
            place.in_the_middle_of(800).await;
            assert_eq!(place.enter_all(&["a", "m", "w"]).await, [true; 3]);
            let entries = place.entries().await;
            let mut tx = place.store.begin().await.unwrap();
            let later =
                "set timestamp = unix_timestamp(sysdate(6)) + (select bucket_micros / 1000000 from inbox_window)";
            sqlx::raw_sql(later).execute(&mut *tx).await.unwrap();
            let before = inserts(&mut tx).await;
            assert_eq!(place.inbox().enter(&mut tx, "billing", &messages).await.unwrap(), answers, "{messages:?}");
            let after = inserts(&mut tx).await;
            // In vain, and then by the time that was told.
            let expected = [first[0] + second[0], first[1] + second[1]];
            assert_eq!([after[0] - before[0], after[1] - before[1]], expected, "{messages:?}");
            sqlx::raw_sql("set timestamp = default").execute(&mut *tx).await.unwrap();
            place.store.commit(tx).await.unwrap();
            let entered = place.number(format!("select count(*) from inbox_seen_{}", bucket::slot(801))).await;
            assert_eq!(entered, answers.iter().map(|new| i64::from(*new)).sum::<i64>(), "{messages:?}");
            assert_eq!(place.entries().await, entries + u64::try_from(entered).unwrap(), "{messages:?}");
        }
    }
}

/// I3: nobody can look into a table that is locked.
async fn what_lies_above_the_bucket_before_is_entered_without_a_look_at_it(server: Shared) {
    let place = Place::opened(server).await;
    place.in_the_middle_of(800).await;
    assert_eq!(place.enter_all(&["m-2", "m-4"]).await, [true, true]);
    place.in_the_middle_of(801).await;
    let inbox = place.inbox();
    // Now it knows the highest one of either.
    assert_eq!(place.enter_by(&inbox, "billing", &["m-1"]).await, (vec![true], LOOKED_UP));
    assert_eq!(place.enter_by(&inbox, "audit", &["a-1"]).await, (vec![true], AS_GIVEN));
    let mut other = place.store.pool().acquire().await.unwrap();
    let lock = format!("lock tables inbox_seen_{} write", bucket::slot(800));
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *other).await.unwrap();
    for (consumer, messages, looks) in [
        ("billing", vec!["m-4 "], false),
        ("billing", vec!["n-3", "m-40", "n-1"], false),
        ("audit", vec!["m-2"], false),
        ("billing", vec!["m-4"], true),
        ("billing", vec!["m-5", "m-4"], true),
        ("billing", vec!["m-3"], true),
        // Of this one nobody has asked for the highest.
        ("shipping", vec!["m-5"], true),
    ] {
        let mut tx = place.store.begin().await.unwrap();
        sqlx::raw_sql("set lock_wait_timeout = 1").execute(&mut *tx).await.unwrap();
        match inbox.enter(&mut tx, consumer, &messages).await {
            Ok(answers) => assert_eq!((answers, looks), (vec![true; messages.len()], false), "{messages:?}"),
            Err(error) => assert_eq!((error.kind(), looks), (StoreErrorKind::Conflict, true), "{messages:?}: {error}"),
        }
        sqlx::raw_sql("set lock_wait_timeout = default").execute(&mut *tx).await.unwrap();
        place.store.commit(tx).await.unwrap();
    }
    sqlx::raw_sql("unlock tables").execute(&mut *other).await.unwrap();
    let answers = place.enter_by(&inbox, "billing", &["m-4", "m-4 ", "m-5", "n-3", "n-4"]).await.0;
    assert_eq!(answers, [false, false, true, false, true]);
}

/// I3: nothing of it is there, or some, or all.
async fn a_batch_is_looked_up_one_by_one_if_the_bucket_before_has_anything_within_it(server: Shared) {
    let place = Place::opened(server).await;
    place.in_the_middle_of(800).await;
    assert_eq!(place.enter_all(&["m-2", "m-4"]).await, [true, true]);
    place.in_the_middle_of(801).await;
    for (messages, answers, way) in [
        // Below it, above it, and between two of it.
        (["a-1", "a-2"], [true, true], AS_GIVEN),
        (["n-2", "n-1"], [true, true], AS_GIVEN),
        (["m-3", "m-2a"], [true, true], AS_GIVEN),
        // Around one, and around all.
        (["m-1", "m-3a"], [true, true], TRIED),
        (["z-1", "a-0"], [true, true], TRIED),
        // One of it, at either end, and all.
        (["m-4", "x-1"], [false, true], TRIED),
        (["m-2", "b-1"], [false, true], TRIED),
        (["m-4", "m-2"], [false, false], TRIED),
        // What is known of the present bucket.
        (["a-1", "a-3"], [false, true], AS_GIVEN),
        (["n-1", "n-2"], [false, false], AS_GIVEN),
    ] {
        // Of each an inbox that has tried nothing yet.
        assert_eq!(place.enter_by(&place.inbox(), "billing", &messages).await, (answers.into(), way), "{messages:?}");
        assert_eq!(place.enter_all(&messages).await, [false, false], "{messages:?}");
    }
    let others = place.enter_by(&place.inbox(), "audit", &["m-2", "m-4"]).await;
    assert_eq!(others, (vec![true, true], AS_GIVEN), "what another consumer has entered");
    // After a try in vain there is a pause.
    let inbox = place.inbox();
    for (messages, way) in
        [(["a-4", "z-4"], TRIED), (["c-1", "c-2"], LOOKED_UP), (["c-3", "c-4"], AS_GIVEN), (["c-5", "c-6"], AS_GIVEN)]
    {
        assert_eq!(place.enter_by(&inbox, "billing", &messages).await, (vec![true, true], way), "{messages:?}");
    }
}

/// I3: no order of letters decides what lies between two messages.
async fn batches_are_compared_with_the_bucket_before_by_their_bytes(server: Shared) {
    let place = Place::opened(server).await;
    place.in_the_middle_of(800).await;
    let known = ["m-2", "p", "\u{e4}-1", "\u{1f980}"];
    assert_eq!(place.enter_all(&known).await, [true; 4]);
    place.in_the_middle_of(801).await;
    for (messages, answers, way) in [
        // By letters the first is the greater one.
        (["Z-9", "m-2"], [true, false], TRIED),
        (["z-1", "\u{e4}-1"], [true, false], TRIED),
        // By the units of UTF-16, too.
        (["\u{ff5e}", "\u{1f980}"], [true, false], TRIED),
        // By letters they are the same as one that is known, or without the space at the end.
        (["M-1", "M-2"], [true, true], AS_GIVEN),
        (["p ", "p\0"], [true, true], AS_GIVEN),
    ] {
        assert_eq!(place.enter_by(&place.inbox(), "billing", &messages).await, (answers.into(), way), "{messages:?}");
        assert_eq!(place.enter_all(&messages).await, [false, false], "{messages:?}");
    }
}

/// I3: the text of the statement has rows for some sizes, and what is left of them is no message.
async fn batches_of_every_size_are_entered_once(server: Shared) {
    let place = Place::opened(server).await;
    place.at_hundredth(50).await;
    let mut entries = 0_u64;
    for size in [2, 3, 7, 8, 9, 99, 100, 101, 499, 500, 501, 1_200] {
        let messages: Vec<String> = (0..size).rev().map(|n| format!("{size}-{n}")).collect();
        let messages: Vec<&str> = messages.iter().map(String::as_str).collect();
        let way = if size > 500 { LOOKED_UP } else { AS_GIVEN };
        assert_eq!(place.enter_by(&place.inbox(), "billing", &messages).await, (vec![true; size], way), "{size}");
        // One is new, wherever it stands.
        for at in BTreeSet::from([0, size / 2, size - 1]) {
            let new = format!("{}-{at}", messages[at]);
            let mut mixed = messages.clone();
            mixed[at] = &new;
            let expected: Vec<bool> = (0..size).map(|n| n == at).collect();
            assert_eq!(place.enter_all(&mixed).await, expected, "{size}, {at}");
            entries += 1;
        }
        entries += u64::try_from(size).unwrap();
        assert_eq!(place.entries().await, entries, "{size}");
    }
}

/// I3: the same where the bucket before has higher ones, and where it has one of them.
async fn batches_of_every_size_are_entered_once_among_those_of_the_bucket_before(server: Shared) {
    let place = Place::opened(server).await;
    let sizes = [2, 3, 7, 8, 9, 99, 100, 101, 200, 201, 499, 500, 501];
    let places = |size: usize| BTreeSet::from([0, size / 2, size - 1]);
    let known = |size: usize, n: usize| format!("{size}-known-{n}");
    place.in_the_middle_of(800).await;
    let old: Vec<String> = sizes.iter().flat_map(|size| places(*size).into_iter().map(|n| known(*size, n))).collect();
    let mut entries = 0_u64;
    for message in &old {
        assert!(place.enter(message).await);
        entries += 1;
    }
    place.in_the_middle_of(801).await;
    for size in sizes {
        // Below what is known of this size.
        let messages: Vec<String> = (0..size).rev().map(|n| format!("{size}-{n}")).collect();
        let messages: Vec<&str> = messages.iter().map(String::as_str).collect();
        let way = if size > 500 { LOOKED_UP } else { AS_GIVEN };
        assert_eq!(place.enter_by(&place.inbox(), "billing", &messages).await, (vec![true; size], way), "{size}");
        entries += u64::try_from(size).unwrap();
        let way = if size > 500 { LOOKED_UP } else { TRIED };
        for at in places(size) {
            let mut mixed: Vec<String> = (0..size).map(|n| format!("{size}-{n}-{at}")).collect();
            mixed[at] = known(size, at);
            let mixed: Vec<&str> = mixed.iter().map(String::as_str).collect();
            let expected: Vec<bool> = (0..size).map(|n| n != at).collect();
            let entered = place.enter_by(&place.inbox(), "billing", &mixed).await;
            assert_eq!(entered, (expected, way), "{size}, {at}");
            entries += u64::try_from(size - 1).unwrap();
        }
        assert_eq!(place.entries().await, entries, "{size}");
    }
}

/// I3: at every level. It is there longer than a transaction may be; what it will come to, nobody knows.
async fn a_batch_waits_for_what_is_open_in_the_bucket_before(server: Shared) {
    for level in ["read committed", "repeatable read", "serializable"] {
        let place = Place::opened(server).await;
        place.in_the_middle_of(800).await;
        let mut open = place.store.begin().await.unwrap();
        assert_eq!(place.inbox().enter(&mut open, "billing", &["m-2"]).await.unwrap(), [true]);
        place.in_the_middle_of(801).await;
        let mut connection = place.store.pool().acquire().await.unwrap();
        let set = format!("set session transaction isolation level {level}; set innodb_lock_wait_timeout = 1");
        sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut *connection).await.unwrap();
        let mut tx = sqlx::Connection::begin(&mut *connection).await.unwrap();
        let error = place.inbox().enter(&mut tx, "billing", &["m-1", "m-3"]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Conflict, "{level}: {error}");
        tx.rollback().await.unwrap();
        place.store.commit(open).await.unwrap();
        let mut tx = sqlx::Connection::begin(&mut *connection).await.unwrap();
        let answers = place.inbox().enter(&mut tx, "billing", &["m-1", "m-2"]).await.unwrap();
        assert_eq!(answers, [true, false], "{level}");
        tx.rollback().await.unwrap();
    }
}

/// I3: each once, whoever loses and comes again.
async fn batches_in_opposite_orders_enter_each_message_once(server: Shared) {
    let place = Place::opened(server).await;
    for round in 0..15 {
        match round % 3 {
            0 => place.at_hundredth(0).await,
            1 => place.at_hundredth(50).await,
            // Among those of the bucket before.
            _ => {
                place.in_the_middle_of(800).await;
                place.enter(&format!("m-{round}-1-known")).await;
                place.in_the_middle_of(801).await;
            }
        }
        let up: Vec<String> = (0..200).map(|n| format!("m-{round}-{n}")).collect();
        let down: Vec<String> = up.iter().rev().cloned().collect();
        let calls = [up.clone(), down, up.clone()].map(|messages| {
            let (store, inbox) = (place.store.clone(), place.inbox());
            tokio::spawn(async move {
                let messages: Vec<&str> = messages.iter().map(String::as_str).collect();
                loop {
                    let mut tx = store.begin().await.unwrap();
                    match inbox.enter(&mut tx, "billing", &messages).await {
                        Ok(answers) => {
                            store.commit(tx).await.unwrap();
                            return answers.into_iter().filter(|new| *new).count();
                        }
                        Err(error) => assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}"),
                    }
                }
            })
        });
        let mut entered = 0;
        for call in calls {
            entered += call.await.unwrap();
        }
        assert_eq!(entered, 200);
    }
}

/// I3
async fn a_bucket_is_emptied_once_in_its_middle(server: Shared) {
    let place = Place::opened(server).await;
    for (part, emptied) in [(1, false), (99, false), (50, true)] {
        place.at_hundredth(part).await;
        assert_eq!(place.inbox().rotate().await.unwrap(), emptied, "{part}");
    }
    assert!(place.enter("m-1").await);
    assert!(!place.inbox().rotate().await.unwrap());
    assert!(!place.enter("m-1").await);
    assert_eq!(place.number("select count(*) from inbox_bucket".into()).await, 1);
}

/// I3: of several processes one empties it.
async fn of_many_rotations_at_once_one_empties_the_bucket(server: Shared) {
    let place = Place::opened(server).await;
    place.at_hundredth(50).await;
    let inboxes: Vec<_> = (0..8).map(|_| place.inbox()).collect();
    let rotations = inboxes.into_iter().map(|inbox| tokio::spawn(async move { inbox.rotate().await.unwrap() }));
    let mut emptied = 0;
    for rotation in rotations.collect::<Vec<_>>() {
        emptied += usize::from(rotation.await.unwrap());
    }
    assert_eq!(emptied, 1);
}

/// I3: the slot is empty, nobody knows it, and the lock went with the session. The next one empties it once more if it is still
/// time; if it is not, the slot is written by now, and is left alone.
async fn a_rotation_that_dies_between_emptying_and_recording_loses_nothing(server: Shared) {
    for next in [800, 801] {
        let place = Place::opened(server).await;
        place.in_the_middle_of(800).await;
        assert!(place.enter("m-1").await);
        let slot = bucket::slot(801);
        let old = format!("insert into inbox_seen_{slot} select * from inbox_seen_{}", bucket::slot(800));
        place.run(old).await;
        // It stands still where it would record what it has done.
        place
            .run("create trigger still before insert on inbox_bucket for each row set @still = sleep(600)".into())
            .await;
        let inbox = place.inbox();
        let rotation = tokio::spawn(async move { inbox.rotate().await });
        let standing = "select cast(coalesce(max(id), 0) as signed) from information_schema.processlist \
                        where state = 'User sleep' and db = database()";
        let session = loop {
            match place.number(standing.into()).await {
                0 => assert!(!rotation.is_finished(), "it records without having to wait"),
                session => break session,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        place.run(format!("kill {session}")).await;
        assert!(rotation.await.unwrap().is_err(), "and here it died");
        place.run("drop trigger still".into()).await;
        assert_eq!(place.number(format!("select count(*) from inbox_seen_{slot}")).await, 0, "emptied");
        assert_eq!(place.number("select count(*) from inbox_bucket".into()).await, 0, "and not recorded");
        place.in_the_middle_of(next).await;
        assert!(place.enter("m-2").await);
        assert!(place.inbox().rotate().await.unwrap(), "the slot of bucket {}", next + 1);
        let recorded = format!("select count(*) from inbox_bucket where emptied_for = {}", next + 1);
        assert_eq!(place.number(recorded).await, 1);
        assert!(!place.inbox().rotate().await.unwrap());
        for known in ["m-1", "m-2"] {
            assert!(!place.enter(known).await, "{known}");
        }
    }
}

/// I3: whoever works in the present bucket is not held up by one who does not end.
async fn a_slot_in_use_is_emptied_later(server: Shared) {
    let place = Place::opened(server).await;
    place.at_hundredth(50).await;
    let mut user = place.store.begin().await.unwrap();
    for slot in 0..SLOTS {
        let look = format!("select count(*) from inbox_seen_{slot}");
        sqlx::query(AssertSqlSafe(look)).execute(&mut *user).await.unwrap();
    }
    let inbox = place.inbox();
    assert!(!inbox.rotate().await.unwrap());
    assert!(place.enter("m-1").await);
    user.rollback().await.unwrap();
    assert!(inbox.rotate().await.unwrap());
    assert!(!place.enter("m-1").await);
}

async fn a_user_who_may_not_truncate_is_told_so(server: Shared) {
    let place = Place::opened(server).await;
    place.at_hundredth(50).await;
    let (name, user) = (place.database.name().to_owned(), format!("clerk{}", fastrand::u32(..)));
    let grants = format!(
        "create user '{user}'@'%' identified by 'Clerk-7-secret';
        grant select, insert, update, delete, lock tables on `{name}`.* to '{user}'@'%'"
    );
    place.database.run_as_admin(&grants).unwrap();
    let url = place.database.url();
    let (scheme, rest) = url.split_once("://").unwrap();
    let (_, host) = rest.rsplit_once('@').unwrap();
    let store = MySqlStore::open(format!("{scheme}://{user}:Clerk-7-secret@{host}")).await.unwrap();
    let error = MySqlInbox::new(&store).rotate().await.unwrap_err();
    place.database.run_as_admin(&format!("drop user '{user}'@'%'")).unwrap();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("grant DROP"), "{error}");
    // It holds up nobody.
    assert!(place.inbox().rotate().await.unwrap());
}

/// I1: names of callers come again, and a call must not take the marks of an earlier one for its own.
async fn who_has_a_mark_and_asks_again_with_others_is_told_so(server: Shared) {
    let place = Place::migrated(server).await;
    let inbox = place.inbox();
    let hour = Duration::from_hours(1);
    assert_eq!(inbox.take("billing", &["m-1", "m-3"], "me", hour).await.unwrap(), [true, true]);
    assert_eq!(inbox.take("billing", &["m-3", "m-2", "m-1"], "me", hour).await.unwrap(), [false, true, false]);
    assert_eq!(inbox.take("billing", &["a", "A", "a ", "m-1"], "me", hour).await.unwrap(), [true, true, true, false]);
}
