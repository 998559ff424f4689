//! A test has a database of its own, and leaves nothing behind.

use std::process::Stdio;

use pillarbox_servers::{Shared, login};

use crate::client::{client, complaint, rows, run, until};

const SERVERS: [Shared; 5] =
    [Shared::Postgres, Shared::PostgresNewest, Shared::PgBouncer, Shared::MariaDb, Shared::MySql];

/// The case on each server; MySQL may be missing.
fn on_each(case: impl Fn(Shared)) {
    for shared in SERVERS {
        if shared == Shared::MySql && !shared.is_there() {
            println!("there is no MySQL: not tested with it");
        } else {
            println!("{shared:?}");
            case(shared);
        }
    }
}

fn is_mysql(shared: Shared) -> bool {
    matches!(shared, Shared::MariaDb | Shared::MySql)
}

fn names(shared: Shared) -> String {
    let statement = if is_mysql(shared) { "show databases" } else { "select datname from pg_database" };
    shared.database().run_as_admin(statement).unwrap()
}

#[test]
fn database_is_made_and_gone() {
    on_each(|shared| {
        let database = shared.database();
        let name = database.name().to_owned();
        database.run("create table t (n int); insert into t values (1), (2);").unwrap();
        assert_eq!(rows(&database.url(), &["select sum(n) from t"]), "3");
        assert!(names(shared).contains(&name));
        drop(database);
        assert!(!names(shared).contains(&name));
    });
}

#[test]
fn database_goes_also_when_a_transaction_is_open() {
    on_each(|shared| {
        let database = shared.database();
        let name = database.name().to_owned();
        database.run("create table t (n int)").unwrap();
        let (sleep, sleepers) = if is_mysql(shared) {
            (
                "select sleep(100)",
                "select count(*) from information_schema.processlist where db = database() and info like '%p(100)'",
            )
        } else {
            (
                "select pg_sleep(100)",
                "select count(*) from pg_stat_activity where datname = current_database() and query like '%p(100)'",
            )
        };
        let mut sleeper = client(&database.url(), &["begin", "insert into t values (1)", sleep]);
        let mut sleeper = sleeper.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("the transaction is open", || database.run_as_admin(sleepers).unwrap().trim() == "1");
        drop(database);
        assert!(!names(shared).contains(&name));
        assert!(!sleeper.wait().unwrap().success());
    });
}

#[test]
fn passwords_are_asked_for() {
    on_each(|shared| {
        let database = shared.database();
        let wrong = database.url().replace(login::USER.password, "forged");
        let words = complaint(&wrong, &["select 1"]).to_lowercase();
        assert!(words.contains("authentication failed") || words.contains("denied"), "{words}");
    });
}

#[test]
fn user_may_do_what_an_application_may_and_no_more() {
    on_each(|shared| {
        let database = shared.database();
        if is_mysql(shared) {
            let transactions = ["select count(*) from information_schema.innodb_trx"];
            assert!(rows(&database.url(), &transactions).parse::<u32>().is_ok());
            let blind = database.url_for(login::BLIND);
            assert!(complaint(&blind, &transactions).contains("PROCESS"));
            assert_eq!(rows(&blind, &["create table t (n int)", "select count(*) from t"]), "0");
            assert!(!run(&database.url(), &["create database other"]).status.success());
        } else {
            let is_super = ["select rolsuper, rolcreatedb from pg_roles where rolname = current_user"];
            assert_eq!(rows(&database.url(), &is_super), "f|t");
            assert_eq!(rows(&database.admin_url(), &is_super), "t|t");
        }
    });
}
