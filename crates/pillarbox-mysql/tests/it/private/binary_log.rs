//! A server that writes a binary log, as MySQL does by default, and lets only those with SUPER make functions.

use pillarbox_core::port::{Position, UpkeepStore as _};
use pillarbox_mysql::{MySqlStore, Options};
use pillarbox_testkit::servers::{Shared, mysql::Options as Settings};

use super::Own;
use crate::support::{Outbox, on_each_server, page};

on_each_server!(
    what_is_left_of_a_migration_is_told_with_its_remedy,
    the_text_of_the_migrations_makes_all_tables_before_it_needs_more_rights,
);

fn start(like: Shared) -> Own {
    Own::start(like, Settings::default().setting("log-bin", "binlog"))
}

async fn what_is_left_of_a_migration_is_told_with_its_remedy(like: Shared) {
    let server = start(like);
    let database = server.database();
    let store = MySqlStore::open(database.url()).await.unwrap();
    // The second time the tables are there.
    for _ in 0..2 {
        let left = store.migrate_and_tell().await.unwrap();
        let [words] = &left[..] else { panic!("{left:?}") };
        for part in ["outbox_partition_of is missing", "binary log", "set global log_bin_trust_function_creators = 1"] {
            assert!(words.contains(part), "{part}: {words}");
        }
        store.migrate().await.unwrap();
        store.check().await.unwrap();
    }
    let keyed = "insert into outbox_event (event_type, payload, event_key, `partition`)
        values ('Placed', '1', 'k', outbox_partition_of('k'))";
    assert!(database.run(keyed).is_err());

    server.admin_client("", "set global log_bin_trust_function_creators = 1").unwrap();
    assert!(store.migrate_and_tell().await.unwrap().is_empty());
    database.run(keyed).unwrap();
    assert_eq!(page(&store, &Position::START, &mut |_| true).await.rows.len(), 1);
}

async fn the_text_of_the_migrations_makes_all_tables_before_it_needs_more_rights(like: Shared) {
    let server = start(like);
    let database = server.database();
    let text = Options::new().migration_sql().unwrap();
    let stopped = database.run(&text).unwrap_err().to_string();
    assert!(stopped.contains("1419"), "{stopped}");
    let outbox = Outbox { store: MySqlStore::open(database.url()).await.unwrap(), database };
    outbox.check().await.unwrap();
    outbox.database.run("insert into outbox_event (event_type, payload) values ('Placed', '1')").unwrap();
    assert_eq!(outbox.page(&Position::START).await.rows.len(), 1);
    // And an administrator completes it.
    outbox.database.run_as_admin(&text).unwrap();
    assert!(outbox.migrate_and_tell().await.unwrap().is_empty());
}
