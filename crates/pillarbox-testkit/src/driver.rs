//! The exam of a driver: events in transactions of the application's own choice.
//!
//! A driver's crate implements [`Driver`] for a bed of its own, and runs all cases in one line:
//! `pillarbox_testkit::driver!(Bed);`. What is below the transaction is the store's, and has its own exam.

use std::{future::Future, time::Duration};

use pillarbox_core::{
    Event, EventId, Outbox,
    domain::{EventBuilder, Headers, Timestamp},
    engine::{Receipt, WriteError},
    port::{AdminStore as _, Query, Store, StoreErrorKind},
};

use crate::Probe;

/// A driver under examination, on an empty, migrated database with a table `orders`, whose primary key `id` is a text.
pub trait Driver: Sized + Send + Sync {
    /// The store that it writes to.
    type Store: Store + Clone;

    /// What the exam says to the database.
    const SQL: Sql;

    /// Why the database can't be had on this machine; the cases then say so and do nothing. Only for databases whose
    /// tests are extra.
    fn missing() -> Option<String> {
        None
    }

    /// A bed with a database of its own.
    fn fresh() -> impl Future<Output = Self> + Send;

    /// The store.
    fn store(&self) -> Self::Store;

    /// In one transaction: inserts the order by the driver's own means, writes the events, and then commits or rolls
    /// back. An error of the write rolls back too.
    fn write(
        &self,
        outbox: &Outbox<Self::Store>,
        order: &str,
        events: Vec<Event>,
        end: End,
    ) -> impl Future<Output = Result<Receipt, WriteError>> + Send;

    /// Runs a statement beside the driver, and returns what it answers: one value, or nothing.
    fn sql(&self, statement: &str) -> impl Future<Output = String> + Send;
}

/// What the exam says to a kind of database.
#[derive(Clone, Copy, Debug)]
pub struct Sql {
    /// How many events are due in 55 minutes to an hour.
    due_in_an_hour: &'static str,
    /// How many are due at the beginning of the year 2100.
    due_in_2100: &'static str,
    /// Has inserts of events refused from now on, with an error by its name and with these words.
    refuse: fn(error: &str, words: &str) -> Vec<String>,
    /// Errors by name, with the words that the database has for them, and what they mean.
    errors: &'static [(&'static str, &'static str, StoreErrorKind)],
}

impl Sql {
    /// PostgreSQL's. The errors are its SQLSTATEs.
    pub const POSTGRES: Self = Self {
        due_in_an_hour: "select count(*) from outbox_event where available_at
            between clock_timestamp() + interval '55 minutes' and clock_timestamp() + interval '1 hour'",
        due_in_2100: "select count(*) from outbox_event where available_at = '2100-01-01 00:00:00+00'",
        refuse: |state, words| {
            vec![
                format!(
                    "create or replace function refuse() returns trigger language plpgsql as $$ begin
                        raise exception using errcode = '{state}', message = '{words}'; end $$"
                ),
                "create or replace trigger refuse before insert on outbox_event execute function refuse()".into(),
            ]
        },
        errors: &[
            ("40001", "could not serialize access due to concurrent update", StoreErrorKind::Conflict),
            ("40P01", "deadlock detected", StoreErrorKind::Conflict),
            ("55P03", "canceling statement due to lock timeout", StoreErrorKind::Conflict),
            ("23514", "a check says no", StoreErrorKind::Rejected),
            ("25006", "cannot execute INSERT in a read-only transaction", StoreErrorKind::Unavailable),
        ],
    };

    /// That of MySQL and MariaDB. The errors are their numbers.
    pub const MYSQL: Self = Self {
        due_in_an_hour: "select count(*) from outbox_event where available_at
            between utc_timestamp(6) + interval 55 minute and utc_timestamp(6) + interval 1 hour",
        due_in_2100: "select count(*) from outbox_event where available_at = '2100-01-01 00:00:00'",
        refuse: |number, words| {
            vec![
                "drop trigger if exists refuse".into(),
                format!(
                    "create trigger refuse before insert on outbox_event for each row
                        signal sqlstate '45000' set mysql_errno = {number}, message_text = '{words}'"
                ),
            ]
        },
        errors: &[
            ("1213", "Deadlock found when trying to get lock; try restarting transaction", StoreErrorKind::Conflict),
            ("1205", "Lock wait timeout exceeded; try restarting transaction", StoreErrorKind::Conflict),
            ("1644", "a trigger says no", StoreErrorKind::Rejected),
            (
                "1290",
                "The server is running with the --read-only option so it cannot execute this statement",
                StoreErrorKind::Unavailable,
            ),
        ],
    };

    /// SQLite's. A trigger has but one error.
    pub const SQLITE: Self = Self {
        due_in_an_hour: "select count(*) from outbox_event where available_at
            between (unixepoch() + 55 * 60) * 1000000 and (unixepoch() + 60 * 60 + 1) * 1000000",
        due_in_2100: "select count(*) from outbox_event where available_at = unixepoch('2100-01-01') * 1000000",
        refuse: |_, words| {
            vec![format!(
                "create trigger refuse before insert on outbox_event begin select raise(abort, '{words}'); end"
            )]
        },
        errors: &[("", "a trigger says no", StoreErrorKind::Rejected)],
    };
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum End {
    Commit,
    Rollback,
}

/// W7, W1.
pub async fn a_commit_delivers_the_event_once_with_its_data<D: Driver>() {
    let scene = Scene::<D>::new().await;
    let ids = scene.commit("order-1", [event("order-1")]).await;
    scene.probe.wait_for(1).await;
    scene.outbox.shutdown().await;
    scene.probe.assert_each_once(&ids);
    assert_eq!(scene.orders().await, "order-1");
}

/// W7, W1.
pub async fn a_rollback_leaves_neither_the_row_nor_the_event<D: Driver>() {
    let scene = Scene::<D>::new().await;
    let written = scene.driver.write(&scene.outbox, "lost", vec![build(event("lost"))], End::Rollback).await;
    written.expect("written").rolled_back();
    let many = (0..3).map(|_| build(event("lost"))).collect();
    let written = scene.driver.write(&scene.outbox, "lost", many, End::Rollback).await;
    drop(written.expect("written"));
    // What comes later is delivered, and nothing before it is.
    let ids = scene.commit("kept", [event("kept")]).await;
    scene.probe.wait_for(1).await;
    scene.outbox.shutdown().await;
    scene.probe.assert_each_once(&ids);
    assert_eq!(scene.orders().await, "kept");
    assert_eq!(scene.driver.store().count(&Query::default()).await.expect("count"), 1);
}

/// W7, W3.
pub async fn a_batch_of_thousands_comes_in_order<D: Driver>() {
    let scene = Scene::<D>::new().await;
    let ids = scene.commit("order-1", (0..5_000).map(|_| event("order-1"))).await;
    assert_eq!(ids.len(), 5_000);
    scene.probe.wait_for(5_000).await;
    scene.outbox.shutdown().await;
    scene.probe.assert_each_once(&ids);
    assert_eq!(scene.probe.log().ids(), ids, "one key, in the order of the batch");
}

/// W7, E1, E3, S5.
pub async fn every_field_comes_back_alone_and_in_a_batch<D: Driver>() {
    let scene = Scene::<D>::new().await;
    let headers: Headers = [("source", "web"), ("empty", ""), (HOSTILE, HOSTILE)].into_iter().collect();
    let all = || {
        [
            event("k")
                .aggregate("Order", "order-7")
                .tenant("acme")
                .headers(headers.clone())
                .occurred_at(Timestamp::from_micros(1_794_731_400_250_001)),
            Event::builder("Placed").key(HOSTILE).aggregate(HOSTILE, HOSTILE).tenant(HOSTILE).json(HOSTILE),
            Event::builder("Placed").occurred_at(Timestamp::from_micros(-1)).json("\0 \\u0000"),
            Event::builder("Placed").bytes("application/octet-stream", (0..=255).collect::<Vec<u8>>()),
            Event::builder("Placed").bytes("application/octet-stream", Vec::new()),
            Event::builder("Placed").deliver_after(Duration::ZERO).json("NULL"),
            Event::builder("Placed").available_at(Timestamp::from_micros(1)).json(""),
        ]
    };
    let batch: Vec<Event> = all().map(build).into();
    let mut written = batch.clone();
    scene.commit_all("batch", batch).await;
    for (place, builder) in all().into_iter().enumerate() {
        let one = build(builder);
        written.push(one.clone());
        scene.commit_all(&format!("one-{place}"), vec![one]).await;
    }
    scene.probe.wait_for(written.len()).await;
    scene.outbox.shutdown().await;
    let ids: Vec<EventId> = written.iter().map(Event::id).collect();
    scene.probe.assert_each_once(&ids);
    let log = scene.probe.log();
    for event in &written {
        // Once it is due, when that was is the row's affair.
        let read = log.event(event.id());
        assert_eq!((read.payload(), read.headers()), (event.payload(), event.headers()));
        assert_eq!((read.key(), read.tenant_id()), (event.key(), event.tenant_id()));
        assert_eq!(read.aggregate_type(), event.aggregate_type());
        assert_eq!((read.aggregate_id(), read.occurred_at()), (event.aggregate_id(), event.occurred_at()));
    }
}

/// W7, W9.
pub async fn a_delay_is_kept_alone_and_in_a_batch<D: Driver>() {
    let scene = Scene::<D>::new().await;
    let hour = Duration::from_hours(1);
    let far = Timestamp::from_micros(4_102_444_800_000_000);
    let delayed = || [event("a").deliver_after(hour), event("b").available_at(far)];
    scene.commit("batch", delayed()).await;
    for (order, event) in ["one", "two"].into_iter().zip(delayed()) {
        scene.commit(order, [event]).await;
    }
    let ids = scene.commit("prompt", [event("c")]).await;
    scene.probe.wait_for(1).await;
    scene.outbox.shutdown().await;
    scene.probe.assert_each_once(&ids);
    assert_eq!(scene.driver.sql(D::SQL.due_in_an_hour).await.trim(), "2");
    assert_eq!(scene.driver.sql(D::SQL.due_in_2100).await.trim(), "2");
}

/// W7, W10.
pub async fn a_dedup_key_keeps_the_first_event<D: Driver>() {
    let scene = Scene::<D>::new().await;
    let hour = Duration::from_hours(1);
    let keyed = |key: &str| build(event("k").dedup(key, hour));
    let lost = scene.driver.write(&scene.outbox, "lost", vec![keyed("a")], End::Rollback).await;
    assert_eq!(lost.expect("written").duplicates(), []);

    let first = scene.driver.write(&scene.outbox, "first", vec![keyed("a")], End::Commit).await.expect("written");
    assert_eq!(first.duplicates(), [], "a rollback has freed it");
    let second = vec![keyed("b"), keyed("a"), keyed("it's; \"c\" \\")];
    let second = scene.driver.write(&scene.outbox, "second", second, End::Commit).await.expect("written");
    assert_eq!(second.duplicates().len(), 1);
    assert_eq!(second.duplicates()[0].kept, first.ids()[0]);
    assert_eq!(second.ids()[1], first.ids()[0]);

    let ids = [first.ids()[0], second.ids()[0], second.ids()[2]];
    first.confirm();
    second.confirm();
    scene.probe.wait_for(3).await;
    scene.outbox.shutdown().await;
    scene.probe.assert_each_once(&ids);
}

/// W7.
pub async fn an_error_has_a_kind_that_decides_and_tells_no_password<D: Driver>() {
    let scene = Scene::<D>::new().await;
    for &(error, words, kind) in D::SQL.errors {
        for statement in (D::SQL.refuse)(error, words) {
            scene.driver.sql(&statement).await;
        }
        // Alone, and in a batch.
        for events in [1, 3] {
            let events = (0..events).map(|_| build(event("k"))).collect();
            let refused = scene.driver.write(&scene.outbox, "lost", events, End::Commit).await;
            let WriteError::Store(refused) = refused.expect_err("refused") else { panic!("not the store's error") };
            assert_eq!(refused.kind(), kind, "{error}: {refused}");
            let cause = std::error::Error::source(&refused).expect("the driver's error");
            let told = format!("{refused:?} {cause}");
            assert!(told.contains(words), "{told}");
            assert!(!told.contains("://"), "{told}");
        }
    }
    scene.outbox.shutdown().await;
    assert_eq!(scene.orders().await, "");
    assert_eq!(scene.driver.store().count(&Query::default()).await.expect("count"), 0);
}

const HOSTILE: &str = "'; delete from outbox_event; -- \" ` \\ {NULL,\"x\"} %_ $1 🦀";

struct Scene<D: Driver> {
    outbox: Outbox<D::Store>,
    probe: Probe,
    driver: D,
}

impl<D: Driver> Scene<D> {
    async fn new() -> Self {
        let driver = D::fresh().await;
        let probe = Probe::new();
        let outbox = Outbox::single_node(driver.store())
            .route("Placed", probe.handler())
            .route(("Order", "Placed"), probe.handler())
            .route((HOSTILE, "Placed"), probe.handler());
        Self { outbox: outbox.start().await.expect("start"), probe, driver }
    }

    async fn commit(&self, order: &str, events: impl IntoIterator<Item = EventBuilder>) -> Vec<EventId> {
        self.commit_all(order, events.into_iter().map(build).collect()).await
    }

    async fn commit_all(&self, order: &str, events: Vec<Event>) -> Vec<EventId> {
        let receipt = self.driver.write(&self.outbox, order, events, End::Commit).await.expect("written");
        let ids = receipt.ids().to_vec();
        receipt.confirm();
        ids
    }

    async fn orders(&self) -> String {
        self.driver.sql("select id from orders").await.trim().to_owned()
    }
}

fn event(key: &str) -> EventBuilder {
    Event::builder("Placed").key(key).json(&7)
}

fn build(builder: EventBuilder) -> Event {
    builder.build().expect("an event")
}

/// Makes a test of every case, for a type that implements [`Driver`](trait@crate::driver::Driver).
#[macro_export]
macro_rules! driver {
    ($driver:ty) => {
        $crate::driver!(@cases $driver:
            a_commit_delivers_the_event_once_with_its_data,
            a_rollback_leaves_neither_the_row_nor_the_event,
            a_batch_of_thousands_comes_in_order,
            every_field_comes_back_alone_and_in_a_batch,
            a_delay_is_kept_alone_and_in_a_batch,
            a_dedup_key_keeps_the_first_event,
            an_error_has_a_kind_that_decides_and_tells_no_password,
        );
    };
    (@cases $driver:ty: $($case:ident,)+) => {
        $(
            #[test]
            fn $case() {
                if let Some(why) = <$driver as $crate::driver::Driver>::missing() {
                    eprintln!("left out: {why}");
                    return;
                }
                $crate::conformance::run($crate::driver::$case::<$driver>());
            }
        )+
    };
}
