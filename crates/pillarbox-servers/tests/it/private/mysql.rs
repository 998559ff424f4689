//! A MariaDB or MySQL server of a test's own.

use pillarbox_servers::{
    MariaDb, MySql, Shared,
    mysql::{Options, Server},
};

use crate::client::{complaint, rows};

fn keeps_its_data_however_it_ends(server: &mut Server) {
    let database = server.database();
    let url = database.url();
    rows(&url, &["create table t (n int)", "insert into t values (1)"]);
    server.restart().unwrap();
    rows(&url, &["insert into t values (2)"]);
    server.kill_9();
    assert!(complaint(&url, &["select 1"]).contains("connect"));
    server.start_again().unwrap();
    assert_eq!(rows(&url, &["select sum(n) from t"]), "3");
}

#[test]
fn mariadb_keeps_its_data_however_it_ends() {
    keeps_its_data_however_it_ends(&mut MariaDb::start().unwrap());
}

#[test]
fn mysql_keeps_its_data_however_it_ends() {
    if Shared::MySql.is_there() {
        keeps_its_data_however_it_ends(&mut MySql::start().unwrap());
    } else {
        println!("there is no MySQL: not tested with it");
    }
}

#[test]
fn mariadb_has_the_settings_that_were_asked_for() {
    let mariadb = MariaDb::start_with(Options::default().durable().setting("max-connections", "77")).unwrap();
    assert_eq!(mariadb.client("", "select @@max_connections").unwrap().trim(), "77");
    assert_eq!(mariadb.client("", "select @@innodb_flush_log_at_trx_commit").unwrap().trim(), "1");
}
