//! What a crash of the server undoes: see the module `life`.

use std::{process::Command, time::Duration};

use pillarbox_core::domain::{Delivery, PartitionSet};
use pillarbox_core::port::{
    Batch, Candidate, OwnStore as _, Page, Position, ReadStore as _, Scan, StoreError, StoreErrorKind,
};
use pillarbox_core::{Outbox as Engine, port::Settled};
use pillarbox_postgres::{Options, PostgresStore};
use pillarbox_testkit::{
    Call, Faulty,
    servers::{
        PgBouncer, Postgres,
        pgbouncer::PoolMode,
        postgres::{Stop, Version},
    },
};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::mpsc;

use crate::support::{MINUTE, Outbox, number_in, owner, page, run_in};

/// What ends.
#[derive(Clone, Copy, Debug)]
enum Crash {
    /// The server, with all its processes.
    Server,
    /// One session's process, after which the server throws all others out and recovers, and is never gone.
    Session,
}

/// A server that keeps its log to itself while nobody commits.
struct Forgetful {
    server: Postgres,
    bouncer: Option<PgBouncer>,
    outbox: Outbox,
}

impl Forgetful {
    async fn start(behind_pooler: bool) -> Self {
        let options = Postgres::options(Version::Debian).setting("wal_writer_delay", "10s");
        let server = options.setting("wal_level", "minimal").setting("max_wal_senders", "0").start().unwrap();
        let outbox = Outbox::on(server.database()).await;
        let bouncer = behind_pooler.then(|| PgBouncer::start(&server, PoolMode::Transaction).unwrap());
        Self { server, bouncer, outbox }
    }

    fn store(&self) -> PostgresStore {
        match &self.bouncer {
            Some(bouncer) => Options::new().behind_pooler().open(bouncer.url(self.outbox.database.name())).unwrap(),
            None => self.outbox.another(Options::new()),
        }
    }

    /// A transaction that takes a hundred numbers and stays open.
    async fn take_numbers(&self) -> PgConnection {
        let mut open = self.outbox.session().await;
        run_in(
            &mut open,
            "begin; insert into outbox_event (event_type, payload) select 'Placed', 'gone' from generate_series(1, 100)",
        )
        .await;
        open
    }

    async fn crash(&mut self, crash: Crash, mut open: PgConnection) {
        let process = number_in(&mut open, "select pg_backend_pid()::bigint").await;
        match crash {
            Crash::Server => {
                self.server.kill_9();
                self.server.start_again().unwrap();
            }
            Crash::Session => {
                // Who is thrown out for another's end tells that the server knows of it: until then it lets sessions in.
                let mut bystander = self.outbox.session().await;
                assert!(Command::new("kill").args(["-9", &process.to_string()]).status().unwrap().success());
                while open.ping().await.is_ok() {}
                while bystander.ping().await.is_ok() {}
            }
        }
    }

    /// Writes three events, each in a transaction of its own, and one more that only takes a transaction id before.
    async fn write(&self) -> Vec<i64> {
        let mut session = loop {
            match PgConnection::connect(&self.outbox.database.url()).await {
                Ok(session) => break session,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        run_in(&mut session, "select pg_current_xact_id()").await;
        let mut seqs = Vec::new();
        for _ in 0..3 {
            let sql = "insert into outbox_event (event_type, payload) values ('Placed', '7') returning seq";
            seqs.push(number_in(&mut session, sql).await);
        }
        seqs
    }
}

/// The first answer of a server that accepts calls.
async fn answer<T>(mut call: impl AsyncFnMut() -> Result<T, StoreError>) -> Result<T, StoreErrorKind> {
    loop {
        match call().await {
            Err(error) if error.kind() == StoreErrorKind::Unavailable => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            answered => return answered.map_err(|error| error.kind()),
        }
    }
}

async fn read_on(store: &PostgresStore, after: &Position) -> Result<Page, StoreErrorKind> {
    let scan = || Scan { partitions: PartitionSet::ALL, after, limit: 10, skip_recent: Duration::ZERO };
    answer(async || store.page(scan(), &mut |_: Candidate<'_>| true).await).await
}

async fn a_lease_of_before_is_void(crash: Crash, behind_pooler: bool) {
    let mut forgetful = Forgetful::start(behind_pooler).await;
    let store = forgetful.store();
    let (lease, _) = owner(&store, "n").await;
    let open = forgetful.take_numbers().await;
    let position = page(&store, &Position::START, 10).await.position;
    forgetful.crash(crash, open).await;
    let written = forgetful.write().await;
    assert!(written.iter().all(|seq| *seq <= position.seq.0), "the test needs {written:?} up to {position:?}");

    let batch = Batch::default();
    let refused = [
        answer(async || store.settle(&lease, &batch).await).await.map(drop),
        answer(async || store.renew(&lease, MINUTE).await).await.map(drop),
        answer(async || store.take(&lease, PartitionSet::ALL).await).await.map(drop),
        read_on(&store, &position).await.map(drop),
    ];
    assert_eq!(refused, [Err(StoreErrorKind::Rewound); 4], "{crash:?}");

    let (lease, taken) = owner(&store, "n").await;
    let mark = taken.iter().map(|taken| taken.mark).min().unwrap();
    let found = read_on(&store, &Position::at(mark)).await.unwrap();
    assert_eq!(found.rows.iter().map(|row| row.seq().0).collect::<Vec<_>>(), written, "{crash:?}");
    assert_eq!(store.settle(&lease, &batch).await.unwrap(), Settled::Applied { stale: 0 });
}

#[tokio::test]
async fn a_lease_of_before_a_crash_is_void() {
    for crash in [Crash::Server, Crash::Session] {
        a_lease_of_before_is_void(crash, false).await;
    }
}

#[tokio::test]
async fn a_lease_of_before_a_crash_is_void_also_behind_a_pooler() {
    for crash in [Crash::Server, Crash::Session] {
        a_lease_of_before_is_void(crash, true).await;
    }
}

#[tokio::test]
async fn a_restart_leaves_the_lease_in_force() {
    let mut forgetful = Forgetful::start(false).await;
    let store = forgetful.store();
    let (lease, _) = owner(&store, "n").await;
    let position = page(&store, &Position::START, 10).await.position;
    forgetful.server.restart(Stop::Fast).unwrap();
    assert!(answer(async || store.renew(&lease, MINUTE).await).await.unwrap().is_some());
    read_on(&store, &position).await.unwrap();
}

/// A node that lives on, has read past numbers that nobody had committed, and commits nothing itself.
async fn numbers_that_come_again_are_delivered(crash: Crash, behind_pooler: bool) {
    let mut forgetful = Forgetful::start(behind_pooler).await;
    let (delivered, mut deliveries) = mpsc::unbounded_channel();
    let store = Faulty::new(forgetful.store());
    let engine = Engine::multi_node(store.clone())
        .route("Placed", move |delivery: Delivery| {
            let _ = delivered.send(delivery.event().payload().clone());
            async {}
        })
        .heartbeat(Duration::from_secs(20))
        .stale_after(MINUTE)
        .poll_interval(Duration::from_millis(10), Duration::from_millis(20))
        .start()
        .await
        .unwrap();
    let open = forgetful.take_numbers().await;
    // The page under way may have begun before.
    let read = store.faults().calls(Call::Page) + 3;
    while store.faults().calls(Call::Page) < read {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    forgetful.crash(crash, open).await;
    let written = forgetful.write().await;
    assert!(written.iter().all(|seq| *seq <= 100), "the test needs numbers that come again: {written:?}");
    for _ in &written {
        let payload = tokio::time::timeout(MINUTE, deliveries.recv()).await.expect("delivered within a minute");
        assert_eq!(payload.unwrap().as_bytes().as_ref(), b"7");
    }
    engine.shutdown().await;
}

#[tokio::test]
async fn numbers_that_a_crashed_server_gives_out_again_are_delivered() {
    for crash in [Crash::Server, Crash::Session] {
        numbers_that_come_again_are_delivered(crash, false).await;
    }
}

#[tokio::test]
async fn numbers_that_a_crashed_server_gives_out_again_are_delivered_behind_a_pooler() {
    for crash in [Crash::Server, Crash::Session] {
        numbers_that_come_again_are_delivered(crash, true).await;
    }
}
