//! Decision 9: a settle of rows that a purge has just removed leaves the gap above the newest row to the writers.

use std::time::{Duration, Instant};

use pillarbox_core::{
    Delivery, Event, Outbox,
    domain::{Epoch, Lease, NodeId, Partition, PartitionSet, Seq},
    engine::{OnSuccess, PurgeOptions},
    port::{
        Batch, Change, Joining, NewRow, OwnStore as _, PurgeScope, ReadStore as _, Settlement, TransactStore as _,
        UpkeepStore as _, WriteStore as _,
    },
};
use pillarbox_mysql::MySqlStore;
use pillarbox_testkit::servers::Shared;

/// A settle that is still open while its rows, and the newest among them, are gone: the writers don't wait for it.
///
/// The settle waits for a row that another transaction has locked, and that is to be DEAD: those are written last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settle_of_purged_rows_that_is_held_up_stalls_no_writer() {
    let database = Shared::MariaDb.database();
    let store = MySqlStore::open(database.url()).await.unwrap();
    store.migrate().await.unwrap();
    for change in [Change::Done, Change::Delete, Change::Interrupted, retry()] {
        let seqs = insert(&store, 6).await;
        let (lease, epoch) = own(&store).await;
        // All but the first are gone, and the first is locked.
        for seq in &seqs[1..] {
            sqlx::query("delete from outbox_event where seq = ?").bind(seq.0).execute(store.pool()).await.unwrap();
        }
        let mut holder = store.pool().begin().await.unwrap();
        let lock = sqlx::query("select seq from outbox_event where seq = ? for update").bind(seqs[0].0);
        lock.execute(&mut *holder).await.unwrap();
        let dead = Change::Dead { attempts: 1, error: "no".into(), progress: None, hold: false };
        let mut outcomes = vec![outcome(seqs[0], epoch, dead)];
        outcomes.extend(seqs[1..].iter().map(|seq| outcome(*seq, epoch, change.clone())));
        let settling = tokio::spawn({
            let store = store.clone();
            async move { store.settle(&lease, &Batch { outcomes, ..Batch::default() }).await }
        });
        let waits = "select count(*) from information_schema.innodb_trx where trx_state = 'LOCK WAIT'
            and trx_query like '%outbox_event%'";
        let begun = Instant::now();
        while sqlx::query_scalar::<_, i64>(waits).fetch_one(store.pool()).await.unwrap() == 0 {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "the settle of {change:?} does not come to its last row"
            );
            // The view is made anew only for who has not looked for a tenth of a second.
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        let begun = Instant::now();
        insert(&store, 20).await;
        let took = begun.elapsed();
        holder.rollback().await.unwrap();
        settling.await.unwrap().unwrap();
        assert!(took < Duration::from_secs(2), "writers waited {took:?} for a settle of {change:?}");
    }
}

/// The whole engine: everything is purged as soon as it is there, delivered or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_go_on_while_what_is_settled_is_purged() {
    let database = Shared::MariaDb.database();
    let store = MySqlStore::open(database.url()).await.unwrap();
    let scope = PurgeScope::ByAge(Duration::ZERO);
    let purge = PurgeOptions { scope, batch: 50, every: Duration::from_millis(10), ..PurgeOptions::default() };
    let node = Outbox::single_node(store)
        .route("Placed", |_: Delivery| async { Ok::<_, std::io::Error>(()) })
        .on_success(OnSuccess::Delete)
        .purge(purge)
        .start()
        .await
        .unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4 {
        let outbox = Outbox::writer_only(MySqlStore::open(database.url()).await.unwrap()).start().await.unwrap();
        writers.spawn(async move {
            let mut slowest = Duration::ZERO;
            for n in 0..150 {
                let begun = Instant::now();
                let mut tx = outbox.begin().await.unwrap();
                let event = Event::builder("Placed").json(&n);
                tx.write(if n % 2 == 0 { event.key(format!("k{writer}")) } else { event }).await.unwrap();
                tx.commit().await.unwrap();
                slowest = slowest.max(begun.elapsed());
            }
            slowest
        });
    }
    let slowest = writers.join_all().await.into_iter().max().unwrap();
    println!("the slowest write took {slowest:?}");
    assert!(slowest < Duration::from_secs(4), "{slowest:?}");
    node.shutdown().await;
}

fn retry() -> Change {
    Change::Retry { attempts: 1, after: Duration::from_mins(1), error: None, progress: None }
}

fn outcome(seq: Seq, epoch: Epoch, change: Change) -> Settlement {
    Settlement { seq, partition: Partition(7), epoch, key: None, change }
}

async fn insert(store: &MySqlStore, count: usize) -> Vec<Seq> {
    let event = || Event::builder("Placed").json(&7).build().unwrap();
    let rows: Vec<_> = (0..count).map(|_| NewRow { event: event(), partition: Partition(7) }).collect();
    let mut tx = store.begin().await.unwrap();
    let seqs = store.insert(&mut tx, &rows).await.unwrap();
    store.commit(tx).await.unwrap();
    seqs
}

async fn own(store: &MySqlStore) -> (Lease, Epoch) {
    let node = NodeId::new("node");
    let joining = Joining { node, ttl: Duration::from_mins(5), routes: Vec::new(), in_flight: 1 };
    let lease = store.join(&joining).await.unwrap();
    let taken = store.take(&lease, PartitionSet::ALL).await.unwrap().unwrap();
    (lease, taken.iter().find(|taken| taken.partition == Partition(7)).unwrap().epoch)
}
