//! What an event costs, on a server of its own: the log of a server tells of everyone's writes.

use std::time::Duration;

use pillarbox_core::domain::Event;
use pillarbox_core::port::{Batch, Change, Position, ReadStore as _};
use pillarbox_testkit::servers::{Postgres, postgres::Version};

use crate::support::{Outbox, outcome, owner, page};

/// S6 of the design: from its insert until it is gone, an event of 256 bytes costs at most 600 bytes of log.
#[tokio::test]
async fn an_event_costs_at_most_600_bytes_of_log() {
    let server = Postgres::options(Version::Debian)
        .setting("full_page_writes", "off")
        .setting("autovacuum", "off")
        .setting("checkpoint_timeout", "1h");
    let server = server.start().unwrap();
    let outbox = Outbox::on(server.database()).await;
    let (lease, taken) = owner(&outbox, "n").await;
    let position = "select (pg_current_wal_insert_lsn() - '0/0')::bigint";
    for (keyed, limit) in [(false, 600), (true, 700)] {
        let payload = format!("\"{}\"", "x".repeat(254));
        let event = |n: usize| {
            let event = Event::builder("OrderPlaced").json_text(payload.clone());
            if keyed { event.key(format!("order-{}", n % 1_000)) } else { event }
        };
        let before = outbox.number(position).await;
        for batch in 0..50 {
            outbox.write((0..100).map(|n| event(batch * 100 + n))).await;
        }
        let written = outbox.number(position).await;
        let mut after = Position::START;
        let mut settled = 0;
        while settled < 5_000 {
            let read = page(&outbox, &after, 500).await;
            let outcomes: Vec<_> = read.rows.iter().map(|row| outcome(row, &taken, Change::Delete)).collect();
            settled += outcomes.len();
            let batch = Batch { outcomes, mark: Some(read.position.mark), ..Batch::default() };
            outbox.settle(&lease, &batch).await.unwrap();
            after = read.position;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let gone = outbox.number(position).await;
        let (insert, settle) = ((written - before) / 5_000, (gone - written) / 5_000);
        println!("keyed: {keyed}, {insert} bytes to insert and {settle} to settle an event");
        assert!(insert + settle <= limit, "{insert} + {settle} bytes of log for an event (keyed: {keyed})");
    }
}
