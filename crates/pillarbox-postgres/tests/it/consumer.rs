//! The exams of the consumer's half, on PostgreSQL, on the newest one, and behind a pooler; and what is PostgreSQL's own.

use std::time::Duration;

use pillarbox_core::{
    domain::bucket::SLOTS,
    port::{InboxStore as _, InboxUpkeep as _, StoreErrorKind, TransactStore as _},
};
use pillarbox_postgres::{Options, PostgresInbox, PostgresStore};
use pillarbox_testkit::servers::{Database, Shared};

/// A database of its own.
struct Place {
    store: PostgresStore,
    database: Database,
}

impl Place {
    fn new(server: Shared) -> Self {
        let database = server.database();
        // As many transactions at once as an exam has.
        let options = Options::new().pool_size(16);
        let options = if server == Shared::PgBouncer { options.behind_pooler() } else { options };
        Self { store: options.open(database.url()).unwrap(), database }
    }

    async fn migrated(server: Shared) -> Self {
        let place = Self::new(server);
        place.inbox().migrate().await.unwrap();
        place
    }

    async fn opened() -> Self {
        let place = Self::migrated(Shared::Postgres).await;
        place.inbox().agree(Duration::from_hours(24)).await.unwrap();
        place
    }

    fn inbox(&self) -> PostgresInbox {
        PostgresInbox::new(&self.store)
    }

    fn run(&self, sql: &str) -> String {
        self.database.run(sql).unwrap().trim().to_owned()
    }

    fn entries(&self) -> u64 {
        let counts = (0..SLOTS).map(|slot| format!("(select count(*) from inbox_seen_{slot})"));
        self.run(&format!("select {}", counts.collect::<Vec<_>>().join(" + "))).parse().unwrap()
    }
}

macro_rules! exams {
    ($module:ident, $server:ident) => {
        mod $module {
            use super::*;

            struct Server(Place);

            impl pillarbox_testkit::guards::Place for Server {
                type Store = PostgresInbox;

                async fn fresh() -> Self {
                    Self(Place::migrated(Shared::$server).await)
                }

                fn store(&self) -> PostgresInbox {
                    self.0.inbox()
                }

                async fn pass(&self) {
                    self.0.run("update inbox_guard set expires_at = expires_at - interval '1 hour'");
                }
            }

            impl pillarbox_testkit::inboxes::Place for Server {
                type Store = PostgresStore;
                type Inbox = PostgresInbox;

                async fn fresh() -> Self {
                    Self(Place::new(Shared::$server))
                }

                fn store(&self) -> &PostgresStore {
                    &self.0.store
                }

                fn inbox(&self) -> PostgresInbox {
                    self.0.inbox()
                }

                async fn hurry(&self, bucket: Duration) {
                    self.0.run(&format!("update inbox_window set bucket_micros = {}", bucket.as_micros()));
                }

                async fn entries(&self) -> u64 {
                    self.0.entries()
                }
            }

            impl pillarbox_testkit::letters::Place for Server {
                type Store = PostgresInbox;

                async fn fresh() -> Self {
                    Self(Place::migrated(Shared::$server).await)
                }

                fn store(&self) -> PostgresInbox {
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

exams!(oldest, Postgres);
exams!(newest, PostgresNewest);
exams!(pooler, PgBouncer);

/// The database's time, in microseconds.
const MICROS: &str = "(extract(epoch from clock_timestamp()) * 1000000)::bigint";

impl Place {
    /// Cuts time so that a bucket of about a day is this part over.
    fn at_part(&self, part: f64) {
        let day = 86_400e6;
        #[expect(clippy::cast_possible_truncation, reason = "a day")]
        let rest = (day * (1.0 - part)) as i64;
        // The next turn, after a number of buckets.
        self.run(&format!(
            "update inbox_window set bucket_micros = turn / (turn / {day}::bigint) from (select {MICROS} + {rest} as turn) as t"
        ));
    }

    fn cut(&self, bucket: Duration) {
        self.run(&format!("update inbox_window set bucket_micros = {}", bucket.as_micros()));
    }

    /// Waits until a bucket is at least this part over, and at most as far as the other.
    async fn until_part(&self, from: f64, until: f64) {
        let part = format!("select ({MICROS} % bucket_micros)::float8 / bucket_micros from inbox_window");
        loop {
            let now: f64 =
                sqlx::query_scalar(sqlx::AssertSqlSafe(part.clone())).fetch_one(self.store.pool()).await.unwrap();
            if (from..until).contains(&now) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn enter(&self, message: &str) -> bool {
        let mut tx = self.store.begin().await.unwrap();
        let answers = self.inbox().enter(&mut tx, "billing", &[message]).await.unwrap();
        self.store.commit(tx).await.unwrap();
        answers[0]
    }
}

#[tokio::test]
async fn an_inbox_needs_a_prefix_of_its_own() {
    let place = Place::new(Shared::Postgres);
    for bad in ["outbox_", "OUTBOX_", "a-b", ""] {
        assert!(PostgresInbox::with_prefix(&place.store, bad).is_err(), "{bad}");
        assert!(Options::new().inbox_migration_sql(bad).is_err(), "{bad}");
    }
    let one = PostgresInbox::with_prefix(&place.store, "billing_inbox_").unwrap();
    one.migrate().await.unwrap();
    place.inbox().migrate().await.unwrap();
    assert_eq!(one.prefix(), "billing_inbox_");
}

#[tokio::test]
async fn the_text_of_the_inboxs_migrations_makes_the_tables_with_psql() {
    for options in [Options::new(), Options::new().schema("sales").prefix("mine_")] {
        let database = Shared::Postgres.database();
        database.run(&options.inbox_migration_sql("in_").unwrap()).unwrap();
        let store = options.open(database.url()).unwrap();
        let schema = store.schema().map(|schema| format!("{schema}.")).unwrap_or_default();
        let inbox = PostgresInbox::with_prefix(&store, "in_").unwrap();
        inbox.migrate().await.unwrap();
        inbox.agree(Duration::from_hours(24)).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        assert_eq!(inbox.enter(&mut tx, "billing", &["m-1"]).await.unwrap(), [true]);
        store.commit(tx).await.unwrap();
        let versions = database.run(&format!("select count(*) from {schema}in_schema"));
        assert_eq!(versions.unwrap().trim(), "1");
    }
}

#[tokio::test]
async fn tables_of_a_newer_version_are_refused() {
    let place = Place::migrated(Shared::Postgres).await;
    place.run("insert into inbox_schema (version) values (1000)");
    let error = place.inbox().migrate().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema);
    assert!(error.to_string().contains("update the program"), "{error}");
}

/// I3: a snapshot does not show what the other has entered, so the database ends the transaction, and it may be run again.
#[tokio::test]
async fn a_conflict_of_snapshots_is_transient() {
    for level in ["repeatable read", "serializable"] {
        let place = Place::opened().await;
        let begin = format!("begin isolation level {level}");
        let mut late = place.store.pool().begin_with(sqlx::AssertSqlSafe(begin)).await.unwrap();
        sqlx::query("select count(*) from inbox_seen_0").execute(&mut *late).await.unwrap();
        assert!(place.enter("m-1").await);
        let error = place.inbox().enter(&mut late, "billing", &["m-1"]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Conflict, "{level}: {error}");
        late.rollback().await.unwrap();
        assert!(!place.enter("m-1").await);
    }
}

/// I3: its snapshot is from before the other's commit, and it enters when the time of both slots is over for others.
#[tokio::test]
async fn a_snapshot_from_before_the_turn_does_not_enter_a_message_twice() {
    let place = Place::opened().await;
    place.cut(Duration::from_secs(2));
    place.until_part(0.6, 0.9).await;
    let mut late = place.store.pool().begin_with("begin isolation level repeatable read").await.unwrap();
    sqlx::query("select count(*) from inbox_seen_0").execute(&mut *late).await.unwrap();
    assert!(place.enter("m-1").await);
    place.until_part(0.55, 0.9).await;
    place.until_part(0.0, 0.5).await;
    place.until_part(0.55, 0.9).await;
    let error = place.inbox().enter(&mut late, "billing", &["m-1"]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
}

#[tokio::test]
async fn a_snapshot_that_is_too_old_is_refused() {
    let place = Place::opened().await;
    place.cut(Duration::from_millis(200));
    let mut fresh = place.store.pool().begin().await.unwrap();
    let mut old = place.store.pool().begin_with("begin isolation level repeatable read").await.unwrap();
    sqlx::query("select count(*) from inbox_seen_0").execute(&mut *old).await.unwrap();
    // More than two buckets.
    sqlx::query("select pg_sleep(0.5)").execute(place.store.pool()).await.unwrap();
    let error = place.inbox().enter(&mut old, "billing", &["m-1"]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("too old"), "{error}");
    // At READ COMMITTED each statement has a snapshot of its own.
    assert_eq!(place.inbox().enter(&mut fresh, "billing", &["m-1"]).await.unwrap(), [true]);
}

/// I3: in the first part of a bucket a message stands in two slots, later in one.
#[tokio::test]
async fn a_message_is_entered_in_two_slots_after_a_turn() {
    for (part, entries) in [(0.001, 2), (0.5, 1)] {
        let place = Place::opened().await;
        place.at_part(part);
        assert!(place.enter("m-1").await);
        assert_eq!(place.entries(), entries, "{part}");
        assert!(!place.enter("m-1").await);
        assert_eq!(place.entries(), entries, "{part}");
    }
}

/// I3: it is, at every turn; here hundreds of times.
#[tokio::test]
async fn a_wrong_guess_of_the_bucket_is_noticed() {
    let place = Place::opened().await;
    place.cut(Duration::from_millis(40));
    let inbox = place.inbox();
    for n in 0..300 {
        let mut tx = place.store.begin().await.unwrap();
        let message = format!("m-{n}");
        assert_eq!(inbox.enter(&mut tx, "billing", &[&message]).await.unwrap(), [true]);
        assert_eq!(inbox.enter(&mut tx, "billing", &[&message]).await.unwrap(), [false]);
        place.store.commit(tx).await.unwrap();
    }
}

/// Making a plan costs more than running it. PostgreSQL makes five, and then the one for all values, unless that looks dearer.
#[tokio::test]
async fn the_plans_of_an_entry_are_made_once() {
    let place = Place::opened().await;
    for part in [0.001, 0.5] {
        place.at_part(part);
        let inbox = place.inbox();
        let mut tx = place.store.pool().begin().await.unwrap();
        for n in 0..20 {
            let names: Vec<String> = (0..8).map(|place| format!("m-{part}-{n}-{place}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            assert_eq!(inbox.enter(&mut tx, "billing", &names[..1]).await.unwrap(), [true]);
            assert_eq!(inbox.enter(&mut tx, "billing", &names[1..]).await.unwrap(), [true; 7]);
        }
        let made = "select custom_plans from pg_prepared_statements where statement like '%inbox_seen%'";
        let made: Vec<i64> = sqlx::query_scalar(made).fetch_all(&mut *tx).await.unwrap();
        assert!(!made.is_empty() && made.iter().all(|made| *made <= 5), "{part}: {made:?}");
    }
}

/// I3: in ascending order, whatever the caller's is.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn batches_in_opposite_orders_do_not_wait_in_a_circle() {
    let place = Place::opened().await;
    for (round, part) in (0..20).map(|round| (round, if round % 2 == 0 { 0.001 } else { 0.5 })) {
        place.at_part(part);
        let up: Vec<String> = (0..200).map(|n| format!("m-{round}-{n}")).collect();
        let down: Vec<String> = up.iter().rev().cloned().collect();
        let calls = [up.clone(), down, up.clone()].map(|messages| {
            let (store, inbox) = (place.store.clone(), place.inbox());
            tokio::spawn(async move {
                let messages: Vec<&str> = messages.iter().map(String::as_str).collect();
                let mut tx = store.begin().await.unwrap();
                let answers = inbox.enter(&mut tx, "billing", &messages).await.unwrap();
                store.commit(tx).await.unwrap();
                answers.into_iter().filter(|new| *new).count()
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
#[tokio::test]
async fn a_bucket_is_emptied_once_in_its_middle() {
    let place = Place::opened().await;
    for (part, emptied) in [(0.01, false), (0.99, false), (0.5, true)] {
        place.at_part(part);
        assert_eq!(place.inbox().rotate().await.unwrap(), emptied, "{part}");
    }
    assert!(place.enter("m-1").await);
    assert!(!place.inbox().rotate().await.unwrap());
    assert!(!place.enter("m-1").await);
    assert_eq!(place.run("select count(*) from inbox_bucket"), "1");
}

/// I3: of several processes one empties it, and the others are not held up.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_rotations_at_once_one_empties_the_bucket() {
    let place = Place::opened().await;
    place.at_part(0.5);
    let rotations: Vec<_> =
        (0..8).map(|_| place.inbox()).map(|inbox| tokio::spawn(async move { inbox.rotate().await.unwrap() })).collect();
    let mut emptied = 0;
    for rotation in rotations {
        emptied += usize::from(rotation.await.unwrap());
    }
    assert_eq!(emptied, 1);
}

/// I3: whoever works in the present bucket is not held up by one who does not end.
#[tokio::test]
async fn a_slot_in_use_is_emptied_later() {
    let place = Place::opened().await;
    place.at_part(0.5);
    let mut user = place.store.pool().begin().await.unwrap();
    for slot in 0..SLOTS {
        let look = format!("select count(*) from inbox_seen_{slot}");
        sqlx::query(sqlx::AssertSqlSafe(look)).execute(&mut *user).await.unwrap();
    }
    let inbox = place.inbox();
    assert!(!inbox.rotate().await.unwrap());
    assert!(place.enter("m-1").await);
    user.rollback().await.unwrap();
    assert!(inbox.rotate().await.unwrap());
    assert!(!place.enter("m-1").await);
}

#[tokio::test]
async fn a_role_that_may_not_truncate_is_told_so() {
    let place = Place::opened().await;
    place.at_part(0.5);
    let role = format!("{}_clerk", place.database.name());
    let owner = place.run("select current_user");
    let grants = format!(
        "create role {role}; grant {role} to {owner}; grant usage on schema public to {role};
        grant select, insert, update, delete on all tables in schema public to {role}"
    );
    place.database.run_as_admin(&grants).unwrap();
    let join = if place.database.url().contains('?') { '&' } else { '?' };
    let store = PostgresStore::open(format!("{}{join}options=-c%20role%3D{role}", place.database.url())).unwrap();
    let error = PostgresInbox::new(&store).rotate().await.unwrap_err();
    store.pool().close().await;
    drop(store);
    place.database.run_as_admin(&format!("drop owned by {role}; drop role {role}")).unwrap();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("TRUNCATE"), "{error}");
}

/// S5: PostgreSQL's text can't hold it.
#[tokio::test]
async fn names_with_nul_characters_are_names() {
    use pillarbox_core::port::GuardStore as _;

    let place = Place::opened().await;
    let names = ["a\0b", "a\u{1a}0b", "ab", "\0", "\u{1a}", "\u{1a}\u{1a}"];
    let inbox = place.inbox();
    let hour = Duration::from_hours(1);
    assert_eq!(inbox.take("a\0", &names, "me\0", hour).await.unwrap(), [true; 6]);
    assert_eq!(inbox.take("a\0", &names, "me\0", hour).await.unwrap(), [false; 6]);
    inbox.release("a\0", &names[..1], "me\0").await.unwrap();
    assert_eq!(inbox.take("a\0", &names[..2], "me\0", hour).await.unwrap(), [true, false]);
    let mut tx = place.store.begin().await.unwrap();
    assert_eq!(inbox.enter(&mut tx, "\0", &names).await.unwrap(), [true; 6]);
    assert_eq!(inbox.enter(&mut tx, "\0", &names).await.unwrap(), [false; 6]);
}
