//! Migrations, names, and rows that people insert by hand.

use std::time::Duration;

use pillarbox_core::Outbox as Engine;
use pillarbox_core::domain::{Key, Partition};
use pillarbox_core::port::{InboxUpkeep, Position, Row, StoreErrorKind, UpkeepStore};
use pillarbox_mysql::{MySqlInbox, MySqlStore, Options, VERSION};
use pillarbox_testkit::{
    Probe,
    servers::{Shared, login},
};
use sqlx::Executor as _;

use crate::support::{Outbox, event, keyed, on_each_server, page};

on_each_server!(
    eight_at_once_migrate_once,
    a_migration_that_was_cut_off_is_completed,
    tables_of_others_are_refused_and_nothing_is_made_beside_them,
    tables_of_a_newer_version_are_refused,
    the_text_of_the_migrations_runs_in_the_client,
    two_prefixes_share_a_database,
    the_tables_may_be_in_another_database,
    hostile_names_are_refused,
    events_written_with_the_client_are_delivered_and_those_of_a_key_in_order,
    a_plain_insert_by_hand_is_an_event,
    an_event_with_a_key_needs_the_partition_of_its_key,
    the_partition_of_a_key_is_the_same_everywhere,
    rows_that_can_not_be_are_refused_by_the_table,
    broken_rows_are_told_apart,
    keys_that_look_alike_are_different,
);

async fn eight_at_once_migrate_once(server: Shared) {
    let database = server.database();
    let starts = (0..8).map(|_| {
        let url = database.url();
        tokio::spawn(async move {
            let store = MySqlStore::open(url).await?;
            store.migrate().await?;
            store.check().await
        })
    });
    for start in starts.collect::<Vec<_>>() {
        start.await.unwrap().unwrap();
    }
    let store = MySqlStore::open(database.url()).await.unwrap();
    let applied: i64 = sqlx::query_scalar("select count(*) from outbox_schema").fetch_one(store.pool()).await.unwrap();
    assert_eq!(applied, VERSION);
}

async fn a_migration_that_was_cut_off_is_completed(server: Shared) {
    let outbox = Outbox::new(server).await;
    outbox.write([event()]).await;
    for cut in [
        "drop table outbox_schema",
        "drop table outbox_action",
        "drop table outbox_dedup",
        "delete from outbox_partition where number > 100",
        "drop function outbox_partition_of",
    ] {
        outbox.run("delete from outbox_schema").await;
        sqlx::raw_sql(cut).execute(outbox.pool()).await.unwrap();
        assert_eq!(outbox.check().await.unwrap_err().kind(), StoreErrorKind::Schema);
        outbox.migrate().await.unwrap();
        outbox.check().await.unwrap();
        assert_eq!(outbox.number("select count(*) from outbox_action").await, 0);
        assert_eq!(outbox.number("select count(*) from outbox_partition").await, 256);
        assert_eq!(outbox.number("select count(*) from outbox_event").await, 1, "what is there stays");
        assert!(outbox.number("select cast(outbox_partition_of('k') as signed)").await >= 0);
    }
}

async fn tables_of_others_are_refused_and_nothing_is_made_beside_them(server: Shared) {
    for (table, columns) in [
        // As Debezium's users have it.
        ("outbox_event", "id char(36) primary key, aggregatetype varchar(255), payload json"),
        ("outbox_schema", "name varchar(9) primary key"),
        ("outbox_action", "id bigint primary key, at datetime(6), actor text"),
        ("inbox_letter", "id varchar(64) primary key"),
        ("inbox_schema", "id varchar(64) primary key"),
    ] {
        let database = server.database();
        database.run(&format!("create table {table} ({columns})")).unwrap();
        let store = MySqlStore::open(database.url()).await.unwrap();
        let refused = match table.strip_prefix("inbox_") {
            Some(_) => InboxUpkeep::migrate(&MySqlInbox::new(&store)).await,
            None => UpkeepStore::migrate(&store).await,
        };
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Rejected, "{error:?}");
        let words = format!("a table {table} is there that Pillarbox did not make: choose another prefix");
        assert_eq!(error.to_string(), words);
        assert_eq!(database.run("show tables").unwrap().trim(), table);
        assert_eq!(store.check().await.unwrap_err().kind(), StoreErrorKind::Schema);

        let other = Options::new().prefix("mine_").open(database.url()).await.unwrap();
        other.migrate().await.unwrap();
        other.check().await.unwrap();
    }
}

async fn tables_of_a_newer_version_are_refused(server: Shared) {
    let outbox = Outbox::new(server).await;
    outbox.run("insert into outbox_schema (version) values (1000)").await;
    for result in [outbox.migrate().await, outbox.check().await] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Schema);
        assert!(error.to_string().contains("update the program"), "{error}");
    }
}

async fn the_text_of_the_migrations_runs_in_the_client(server: Shared) {
    let database = server.database();
    let options = Options::new().prefix("mine_");
    let text = options.migration_sql().unwrap();
    // Twice: it may be run again.
    database.run(&text).unwrap();
    database.run(&text).unwrap();
    let store = options.open(database.url()).await.unwrap();
    store.check().await.unwrap();
    store.migrate().await.unwrap();
    let told = database.run("select mine_partition_of('order-7')").unwrap();
    assert_eq!(told.trim(), Partition::of_key(&Key::from("order-7")).0.to_string());
    assert!(Options::new().prefix("x; drop table y").migration_sql().is_err());
}

async fn two_prefixes_share_a_database(server: Shared) {
    let outbox = Outbox::new(server).await;
    let long = "x".repeat(32);
    for prefix in ["other_", "outbox_event_", "select", &long] {
        let other = Options::new().prefix(prefix).open(outbox.database.url()).await.unwrap();
        other.migrate().await.unwrap();
        outbox.write([event()]).await;
        assert!(page(&other, &Position::START, &mut |_| true).await.rows.is_empty());
    }
    assert_eq!(outbox.number("select count(*) from outbox_event").await, 4);
    assert_eq!(outbox.number("select count(*) from other_event").await, 0);
}

async fn the_tables_may_be_in_another_database(server: Shared) {
    let (application, outboxes) = (server.database(), server.database());
    let options = Options::new().schema(outboxes.name());
    let store = options.open(application.url()).await.unwrap();
    store.migrate().await.unwrap();
    store.check().await.unwrap();
    let outbox = Outbox { store, database: application };
    outbox.write([keyed("k"), event()]).await;
    assert_eq!(outbox.page(&Position::START).await.rows.len(), 2);
    let plain = MySqlStore::open(outboxes.url()).await.unwrap();
    plain.check().await.unwrap();
    assert_eq!(page(&plain, &Position::START, &mut |_| true).await.rows.len(), 2);
    assert_eq!(outbox.database.run("show tables").unwrap().trim(), "");
}

async fn hostile_names_are_refused(server: Shared) {
    let database = server.database();
    for options in [
        Options::new().prefix("x; drop table users; --"),
        Options::new().prefix("x`"),
        Options::new().schema("a`.`b"),
        Options::new().schema(""),
    ] {
        assert!(options.migration_sql().is_err());
        let refused = options.open(database.url()).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Rejected);
    }
}

/// W8: as the page of the tables shows it.
async fn events_written_with_the_client_are_delivered_and_those_of_a_key_in_order(server: Shared) {
    let outbox = Outbox::new(server).await;
    let probe = Probe::new();
    let engine = Engine::multi_node(outbox.another().await).route("Placed", probe.handler()).start().await.unwrap();
    for n in 0..10 {
        let transaction = format!(
            "start transaction;
            insert into outbox_event (event_type, payload) values ('Placed', '{n}');
            insert into outbox_event (event_type, payload, event_key, `partition`)
                values ('Placed', '{n}', 'order-7', outbox_partition_of('order-7'));
            commit"
        );
        outbox.database.run(&transaction).unwrap();
    }
    outbox
        .database
        .run("start transaction; insert into outbox_event (event_type, payload) values ('Placed', '10'); rollback")
        .unwrap();
    probe.wait_for(20).await;
    engine.shutdown().await;
    assert_eq!(outbox.number("select count(*) from outbox_event where status = 'DONE'").await, 20);
    probe.assert_in_order_per_key();
    assert_eq!(probe.log().begun(), 20);
}

async fn a_plain_insert_by_hand_is_an_event(server: Shared) {
    let outbox = Outbox::new(server).await;
    outbox
        .database
        .run("insert into outbox_event (event_type, payload) values ('Placed', '{\"a\": 1}'), ('Sent', '2')")
        .unwrap();
    let page = outbox.page(&Position::START).await;
    let [Row::Event(record), Row::Event(other)] = &page.rows[..] else { panic!("{page:?}") };
    assert_eq!(record.event.aggregate_type().as_str(), "__GLOBAL__");
    assert_eq!(record.event.payload().as_text(), Some("{\"a\": 1}"));
    assert_eq!(record.event.payload().content_type(), "application/json");
    assert_eq!((record.attempts, record.starts), (0, 0));
    assert!(record.created_at <= page.now && page.now.since(record.created_at) < Duration::from_secs(5));
    assert!(record.event.occurred_at() <= page.now && record.created_at.since(record.event.occurred_at()).is_zero());
    assert_ne!(record.event.id(), other.event.id());
    let millis = u64::try_from(record.created_at.as_micros() / 1_000).unwrap();
    assert!(record.event.id().as_ulid().timestamp_ms().abs_diff(millis) < 1_000, "the id tells the time");
    outbox.database.run(&"insert into outbox_event (event_type, payload) values ('a', '1');".repeat(200)).unwrap();
    assert!(outbox.number("select count(distinct `partition`) from outbox_event").await > 50, "spread");
}

async fn an_event_with_a_key_needs_the_partition_of_its_key(server: Shared) {
    let outbox = Outbox::new(server).await;
    let insert = "insert into outbox_event (event_type, payload, event_key) values ('a', '1', 'k')";
    // Also where the server is lenient.
    for mode in ["", "set sql_mode = ''; "] {
        let refused = outbox.database.run(&format!("{mode}{insert}")).unwrap_err().to_string();
        assert!(refused.contains("outbox_key_needs_its_partition"), "{refused}");
    }
    outbox
        .database
        .run(
            "insert into outbox_event (event_type, payload, event_key, `partition`)
                values ('a', '1', 'ключ', outbox_partition_of('ключ'))",
        )
        .unwrap();
    let rows = outbox.page(&Position::START).await.rows;
    assert_eq!(rows[0].key(), Some(&Key::from("ключ")));
    assert_eq!(rows[0].partition(), Partition::of_key(&Key::from("ключ")));
}

async fn the_partition_of_a_key_is_the_same_everywhere(server: Shared) {
    let outbox = Outbox::new(server).await;
    let long = "🦀".repeat(128);
    let keys = ["", "a", "ab", "abc", "abcd", "abcde", "a ", "A", "ü", "key\0nul", "%", &long];
    let numbered: Vec<String> = (0..50).map(|n| format!("order-{n}")).collect();
    for key in keys.into_iter().chain(numbered.iter().map(String::as_str)) {
        let told: i64 = sqlx::query_scalar("select cast(outbox_partition_of(?) as signed)")
            .bind(key)
            .fetch_one(outbox.pool())
            .await
            .unwrap();
        assert_eq!(told, i64::from(Partition::of_key(&Key::from(key)).0), "{key:?}");
    }
    let none: Option<i64> =
        sqlx::query_scalar("select cast(outbox_partition_of(null) as signed)").fetch_one(outbox.pool()).await.unwrap();
    assert_eq!(none, None);
}

async fn rows_that_can_not_be_are_refused_by_the_table(server: Shared) {
    let outbox = Outbox::new(server).await;
    for sql in [
        "insert into outbox_event (event_type, payload, `partition`) values ('y', 'z', 256)",
        "insert into outbox_event (event_type, payload, `partition`) values ('y', 'z', -1)",
        "insert into outbox_event (event_type, payload, status) values ('y', 'z', 'OLD')",
        "insert into outbox_event (event_type) values ('y')",
        "insert into outbox_event (event_type, payload, payload_bytes) values ('y', 'z', 'z')",
    ] {
        assert!(outbox.pool().execute(sql).await.is_err(), "{sql}");
    }
}

async fn broken_rows_are_told_apart(server: Shared) {
    let outbox = Outbox::new(server).await;
    outbox.write((0..5).map(|_| keyed("k"))).await;
    for sql in [
        "update outbox_event set event_id = 'no-ulid' where seq = 1",
        "update outbox_event set headers = '{oops' where seq = 2",
        "update outbox_event set attempts = -1 where seq = 3",
        "update outbox_event set event_type = '' where seq = 4",
    ] {
        outbox.run(sql).await;
    }
    let rows = outbox.page(&Position::START).await.rows;
    for (row, word) in rows.iter().zip(["event_id", "headers", "attempts", "event type"]) {
        let Row::Broken { reason, .. } = row else { panic!("{row:?} is not broken") };
        assert!(reason.contains(word), "{reason}");
    }
    assert_eq!(rows[0].key(), Some(&Key::from("k")));
    assert!(matches!(rows[4], Row::Event(_)));
}

/// Also for the user without PROCESS, who may do all else.
async fn keys_that_look_alike_are_different(server: Shared) {
    use pillarbox_core::{domain::Seq, port::ReadStore as _};

    let outbox = Outbox::new(server).await;
    let blind = MySqlStore::open(outbox.database.url_for(login::BLIND)).await.unwrap();
    let alike = ["a", "a ", "a  ", "A", "á", "a\u{301}", " a"];
    let written = outbox.write(alike.map(keyed)).await;
    for (key, seq) in alike.into_iter().zip(written) {
        let key = Key::from(key);
        let lane = blind.lane(Partition::of_key(&key), &key, Seq(0), 10).await.unwrap();
        assert_eq!(lane.iter().map(|row| (row.seq(), row.key().cloned())).collect::<Vec<_>>(), [(seq, Some(key))]);
    }
}
