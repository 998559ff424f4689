//! Numbers of inserted rows, and large events.

use pillarbox_core::domain::Seq;
use pillarbox_core::port::{Position, Row, StoreErrorKind, TransactStore as _, WriteStore as _};
use pillarbox_core::{Delivery, Event, Outbox as Engine};
use pillarbox_testkit::servers::Shared;
use sqlx::Executor as _;

use crate::support::{Outbox, event, new_row, on_each_server, page};

on_each_server!(
    numbers_follow_the_order_of_the_rows_at_every_size,
    another_step_of_the_counter_is_refused,
    large_events_are_written_in_several_statements,
    an_outbox_has_four_connections_beside_its_pool,
);

async fn numbers_follow_the_order_of_the_rows_at_every_size(server: Shared) {
    let outbox = Outbox::new(server).await;
    for size in [0, 1, 2, 3, 100, 127, 128, 300] {
        let rows: Vec<_> = (0..size).map(|n| new_row(Event::builder("a").json(&n))).collect();
        let mut tx = outbox.begin().await.unwrap();
        let seqs = outbox.insert(&mut tx, &rows).await.unwrap();
        outbox.commit(tx).await.unwrap();
        assert!(seqs.is_sorted_by(|a, b| a < b));
        let mut position = Position::at(Seq(seqs.first().map_or(0, |first| first.0 - 1)));
        let mut read = Vec::new();
        while read.len() < rows.len() {
            let last = page(&outbox, &position, &mut |c| c.seq > position.seq).await;
            read.extend(last.rows);
            position = last.position;
        }
        for ((row, seq), written) in read.iter().zip(&seqs).zip(&rows) {
            let Row::Event(record) = row else { panic!("{row:?}") };
            assert_eq!((record.seq, record.event.id()), (*seq, written.event.id()));
        }
    }
}

async fn another_step_of_the_counter_is_refused(server: Shared) {
    let outbox = Outbox::new(server).await;
    let mut tx = outbox.begin().await.unwrap();
    tx.execute("set session auto_increment_increment = 3").await.unwrap();
    let one = outbox.insert(&mut tx, &[new_row(event())]).await.unwrap();
    assert_eq!(one.len(), 1, "of one row the number is known");
    let error = outbox.insert(&mut tx, &[new_row(event()), new_row(event())]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("auto_increment_increment is 3"), "{error}");
    tx.execute("set session auto_increment_increment = 1").await.unwrap();
    outbox.rollback(tx).await.unwrap();
}

async fn large_events_are_written_in_several_statements(server: Shared) {
    let outbox = Outbox::new(server).await;
    let rows: Vec<_> = (0..70).map(|n: u8| new_row(Event::builder("Big").bytes("a/b", vec![n; 1024 * 1024]))).collect();
    let mut tx = outbox.begin().await.unwrap();
    let seqs = outbox.insert(&mut tx, &rows).await.unwrap();
    outbox.commit(tx).await.unwrap();
    let read = outbox.page(&Position::START).await.rows;
    assert_eq!(read.iter().map(Row::seq).collect::<Vec<_>>(), seqs);
    for (row, written) in read.iter().zip(&rows) {
        let Row::Event(record) = row else { panic!("{:?} is broken", row.seq()) };
        assert!(record.event.payload() == written.event.payload());
    }
}

async fn an_outbox_has_four_connections_beside_its_pool(server: Shared) {
    let outbox = Outbox::new(server).await;
    let engine = Engine::multi_node(outbox.another().await).route("a", |_: Delivery| async {}).start().await.unwrap();
    for n in 0..50 {
        let mut tx = engine.begin().await.unwrap();
        let event = Event::builder("a").json(&n);
        tx.write(if n % 2 == 0 { event.key("k") } else { event }).await.unwrap();
        tx.commit().await.unwrap();
    }
    while outbox.number("select count(*) from outbox_event where status <> 'DONE'").await > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let count = "select count(*) from information_schema.processlist where db = database()";
    let all = outbox.number(count).await;
    // The test's own store has migrated and was opened: two beside its pool.
    let pools = i64::from(outbox.pool().size()) + i64::from(engine.store().pool().size());
    assert!(all - pools - 2 <= 4, "{all} connections, of which {pools} are in pools");
    engine.shutdown().await;
}
