//! A settle is durable when it is answered, whatever the database's default.

use pillarbox_core::port::{Batch, Change, Position, ReadStore as _, Settled};
use pillarbox_postgres::Options;
use sqlx::AssertSqlSafe;

use crate::support::{Outbox, event, outcome, owner, page};

async fn settles_wait_for_the_log(options: Options) {
    let outbox = Outbox::new().await;
    let name: String = sqlx::query_scalar("select current_database()::text").fetch_one(outbox.pool()).await.unwrap();
    let lazy = format!("alter database {name} set synchronous_commit = off");
    sqlx::raw_sql(AssertSqlSafe(lazy)).execute(outbox.pool()).await.unwrap();
    outbox
        .run(
            "create table seen (setting text);
             create function see() returns trigger language plpgsql as $$ begin
                 insert into seen values (current_setting('synchronous_commit')); return new; end $$;
             create trigger see after update on outbox_event for each row execute function see()",
        )
        .await;
    outbox.write([event()]).await;
    // Its sessions begin under the new default.
    let store = outbox.another(options);
    let (lease, taken) = owner(&store, "node").await;
    let rows = page(&store, &Position::START, 10).await.rows;
    let outcomes = vec![outcome(&rows[0], &taken, Change::Done)];
    let settled = store.settle(&lease, &Batch { outcomes, ..Batch::default() }).await.unwrap();
    assert_eq!(settled, Settled::Applied { stale: 0 });
    assert_eq!(outbox.number("select count(*) from seen where setting = 'on'").await, 1);
}

#[tokio::test]
async fn a_settle_waits_for_the_log_where_commits_do_not_by_default() {
    settles_wait_for_the_log(Options::new()).await;
}

#[tokio::test]
async fn a_settle_waits_for_the_log_also_as_it_is_done_behind_a_pooler() {
    settles_wait_for_the_log(Options::new().behind_pooler()).await;
}
