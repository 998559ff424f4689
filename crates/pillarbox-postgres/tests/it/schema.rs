//! Migrations, names, and rows that people insert by hand.

use std::time::Duration;

use pillarbox_core::Outbox as Engine;
use pillarbox_core::domain::{Key, Partition};
use pillarbox_core::port::{
    Position, ReadStore as _, Row, StoreErrorKind, TransactStore as _, UpkeepStore as _, WriteStore as _,
};
use pillarbox_postgres::{Options, PostgresStore, VERSION};
use pillarbox_testkit::{Probe, servers::Shared, told};

use crate::support::{Outbox, event, keyed, new_row, owner, page};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_at_once_migrate_once() {
    let cases = [(Shared::Postgres, None), (Shared::Postgres, Some("fresh")), (Shared::PostgresNewest, None)];
    for (server, schema) in cases {
        let database = server.database();
        let starts = (0..8).map(|_| {
            let options = schema.map_or(Options::new(), |schema| Options::new().schema(schema));
            let store = options.open(database.url()).unwrap();
            tokio::spawn(async move {
                store.migrate().await?;
                store.check().await
            })
        });
        for start in starts.collect::<Vec<_>>() {
            start.await.unwrap().unwrap();
        }
        let table = schema.map_or("outbox_schema".into(), |schema| format!("{schema}.outbox_schema"));
        let applied = database.run(&format!("select count(*) from {table}")).unwrap();
        assert_eq!(applied.trim(), VERSION.to_string());
    }
}

#[tokio::test]
async fn tables_of_a_newer_version_are_refused() {
    let outbox = Outbox::new().await;
    outbox.run("insert into outbox_schema (version) values (1000)").await;
    for result in [outbox.migrate().await, outbox.check().await] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Schema);
        assert!(error.to_string().contains("update the program"), "{error}");
    }
}

#[tokio::test]
async fn missing_tables_ask_for_the_migrations() {
    let database = Shared::Postgres.database();
    for options in [Options::new(), Options::new().schema("nowhere")] {
        let store = options.open(database.url()).unwrap();
        let mut tx = store.begin().await.unwrap();
        let insert = store.insert(&mut tx, &[new_row(event())]).await.unwrap_err();
        drop(tx);
        for error in [store.check().await.unwrap_err(), insert] {
            assert_eq!(error.kind(), StoreErrorKind::Schema, "{error:?}");
            assert!(error.to_string().contains("migrations"), "{error}");
        }
    }
}

#[tokio::test]
async fn outboxes_of_other_schemas_and_prefixes_are_apart() {
    let outbox = Outbox::new().await;
    outbox.write([event()]).await;
    for options in [
        Options::new().prefix("other_"),
        Options::new().schema("Sales"),
        Options::new().schema("order").prefix("MIXED_"),
    ] {
        let other = outbox.another(options);
        other.migrate().await.unwrap();
        other.check().await.unwrap();
        assert!(page(&other, &Position::START, 9).await.rows.is_empty());
        let mut tx = other.begin().await.unwrap();
        other.insert(&mut tx, &[new_row(event()), new_row(keyed("k"))]).await.unwrap();
        other.commit(tx).await.unwrap();
        assert_eq!(page(&other, &Position::START, 9).await.rows.len(), 2);
    }
    assert_eq!(outbox.number("select count(*) from \"Sales\".outbox_event").await, 2);
    assert_eq!(outbox.page(&Position::START).await.rows.len(), 1);
}

#[tokio::test]
async fn the_text_of_the_migrations_makes_the_tables_with_psql() {
    for options in [Options::new(), Options::new().schema("sales").prefix("mine_")] {
        let database = Shared::Postgres.database();
        database.run(&options.migration_sql().unwrap()).unwrap();
        let store = options.open(database.url()).unwrap();
        store.check().await.unwrap();
        store.migrate().await.unwrap();
    }
    assert!(Options::new().prefix("x; drop table y").migration_sql().is_err());
    assert!(Options::new().schema("x; drop table y").open("postgres://a@b/c").is_err());
}

/// W8: as the page of the tables shows it.
#[tokio::test]
async fn events_written_with_psql_are_delivered_and_those_of_a_key_in_order() {
    let outbox = Outbox::new().await;
    let probe = Probe::new();
    let engine = Engine::multi_node(outbox.another(Options::new())).route("Placed", probe.handler());
    let engine = engine.start().await.unwrap();
    for n in 0..10 {
        let transaction = format!(
            "begin;
            insert into outbox_event (event_type, payload) values ('Placed', '{n}');
            select outbox_publish('Placed', '{n}', key => 'order-7');
            insert into outbox_event (event_type, payload, event_key) values ('Placed', '{n}', 'order-7');
            commit"
        );
        outbox.database.run(&transaction).unwrap();
    }
    outbox.database.run("begin; select outbox_publish('Placed', '10'); rollback").unwrap();
    probe.wait_for(30).await;
    engine.shutdown().await;
    assert_eq!(outbox.number("select count(*) from outbox_event where status = 'DONE'").await, 30);
    probe.assert_in_order_per_key();
    assert_eq!(probe.log().begun(), 30);
}

#[tokio::test]
async fn an_event_by_hand_is_an_event() {
    let outbox = Outbox::new().await;
    outbox.run("insert into outbox_event (event_type, payload) values ('Placed', '{\"a\": 1}')").await;
    outbox.run("insert into outbox_event (event_type, payload, event_key) values ('Placed', '1', 'order-7')").await;
    outbox
        .run(
            "select outbox_publish('Placed', '2', key => 'order-7', tenant_id => 't', headers => '{\"a\": \"b\"}',
                aggregate_type => 'Order', aggregate_id => '7')",
        )
        .await;
    outbox.run("select outbox_publish('Placed', '3', deliver_after => '1 hour')").await;
    let page = outbox.page(&Position::START).await;
    let records: Vec<_> = page
        .rows
        .iter()
        .map(|row| match row {
            Row::Event(record) => record,
            broken @ Row::Broken { .. } => panic!("{broken:?}"),
        })
        .collect();
    let [plain, keyed, published] = records[..] else { panic!("{page:?}") };
    assert_eq!(plain.event.aggregate_type().as_str(), "__GLOBAL__");
    assert_eq!(plain.event.payload().as_text(), Some("{\"a\": 1}"));
    assert_eq!(plain.event.payload().content_type(), "application/json");
    assert!(plain.created_at <= page.now && page.now.since(plain.created_at) < Duration::from_mins(1));
    assert!(plain.event.occurred_at() <= plain.created_at.saturating_add(Duration::from_secs(1)));
    let home = Partition::of_key(&Key::from("order-7"));
    assert_eq!((keyed.partition, published.partition), (home, home));
    assert_eq!(published.event.headers().get("a"), Some("b"));
    assert_eq!((published.event.tenant_id(), published.event.aggregate_id()), (Some("t"), Some("7")));
    assert_eq!(outbox.number("select count(*) from outbox_event where available_at > now()").await, 1);
}

#[tokio::test]
async fn ids_made_by_the_database_tell_the_time_and_are_not_alike() {
    let outbox = Outbox::new().await;
    let ids: Vec<String> = sqlx::query_scalar("select outbox_new_id() from generate_series(1, 1000)")
        .fetch_all(outbox.pool())
        .await
        .unwrap();
    let parsed: std::collections::BTreeSet<_> =
        ids.iter().map(|id| id.parse::<pillarbox_core::EventId>().unwrap()).collect();
    assert_eq!(parsed.len(), 1_000);
    let now = outbox.number("select (extract(epoch from now()) * 1000)::bigint").await;
    let time = i64::try_from(parsed.first().unwrap().as_ulid().timestamp_ms()).unwrap();
    assert!((now - time).abs() < 60_000, "{now} {time}");
}

#[tokio::test]
async fn the_databases_partitions_are_those_of_the_library() {
    let outbox = Outbox::new().await;
    let mut keys: Vec<String> = (0..300).map(|n| format!("order-{n}")).collect();
    keys.extend((0..40).map(|n| "x".repeat(n)));
    keys.extend(["!", "!C", "!Ce", "ünïcode 🦀", "The quick brown fox jumps over the lazy dog"].map(String::from));
    let found: Vec<i16> = sqlx::query_scalar(
        "select outbox_partition_of(key) from unnest($1::text[]) with ordinality as k (key, n) order by n",
    )
    .bind(&keys)
    .fetch_all(outbox.pool())
    .await
    .unwrap();
    for (key, found) in keys.iter().zip(found) {
        assert_eq!(i16::from(Partition::of_key(&Key::from(key)).0), found, "{key}");
    }
    // The published vectors end in these bytes.
    for (key, byte) in [("", 0x00), ("!", 0xf4), ("!C", 0x7a), ("!Ce", 0x34)] {
        assert_eq!(outbox.number(&format!("select outbox_partition_of('{key}')::bigint")).await, byte);
    }
}

#[tokio::test]
async fn what_is_no_event_is_refused_by_the_table() {
    let outbox = Outbox::new().await;
    for sql in [
        "insert into outbox_event (event_type, payload, given_partition) values ('a', '1', 256)",
        "insert into outbox_event (event_type, payload, status) values ('a', '1', 'new')",
        "insert into outbox_event (event_type) values ('a')",
        "insert into outbox_event (event_type, payload, payload_bytes) values ('a', '1', '1')",
        "insert into outbox_event (seq, event_type, payload) values (1, 'a', '1')",
    ] {
        assert!(sqlx::query(sql).execute(outbox.pool()).await.is_err(), "{sql}");
    }
}

#[tokio::test]
async fn a_role_with_another_isolation_level_changes_nothing() {
    let outbox = Outbox::new().await;
    let name = outbox.database.name().to_owned();
    let sql = format!("alter database {name} set default_transaction_isolation = 'serializable'");
    outbox.database.run(&sql).unwrap();
    let store = PostgresStore::open(outbox.database.url()).unwrap();
    let (lease, taken) = owner(&store, "n").await;
    outbox.write([event()]).await;
    let page = page(&store, &Position::START, 9).await;
    let done = crate::support::outcome(&page.rows[0], &taken, pillarbox_core::port::Change::Delete);
    crate::support::settle(&store, &lease, vec![done]).await;
    assert_eq!(outbox.number("select count(*) from outbox_event").await, 0);
}

/// An event is not to blame for it: none becomes dead, and when the column is as it was they are read.
#[tokio::test]
async fn a_column_of_another_type_is_an_error_that_names_it() {
    let outbox = Outbox::new().await;
    let seqs = outbox.write([event()]).await;
    outbox.run("alter table outbox_event alter column headers type jsonb using headers::jsonb").await;
    let error = outbox.rows(&seqs).await.unwrap_err();
    let told = told::by(&error);
    assert!(told.contains("headers") && told.contains("JSONB"), "{told}");
    outbox.run("alter table outbox_event alter column headers type text using headers::text").await;
    assert_eq!(outbox.another(Options::new()).rows(&seqs).await.unwrap().len(), 1);
}
