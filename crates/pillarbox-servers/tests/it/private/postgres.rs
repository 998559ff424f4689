//! A PostgreSQL server of a test's own.

use pillarbox_servers::{
    PgBouncer, Postgres, login,
    pgbouncer::PoolMode,
    postgres::{Stop, Version},
};

use crate::client::{complaint, rows};

#[test]
fn postgres_keeps_its_data_however_it_ends() {
    for version in [Version::Debian, Version::Newest] {
        let mut postgres = Postgres::start(version).unwrap();
        let database = postgres.database();
        let url = database.url();
        rows(&url, &["create table t (n int)", "insert into t values (1)"]);
        postgres.restart(Stop::Fast).unwrap();
        rows(&url, &["insert into t values (2)"]);
        postgres.restart(Stop::Immediate).unwrap();
        rows(&url, &["insert into t values (3)"]);
        postgres.kill_9();
        assert!(complaint(&url, &["select 1"]).contains("refused"));
        postgres.start_again().unwrap();
        assert_eq!(rows(&url, &["select sum(n) from t"]), "6");
    }
}

#[test]
fn postgres_as_a_standby_only_reads_until_it_is_promoted() {
    let mut postgres = Postgres::start(Version::Debian).unwrap();
    let database = postgres.database();
    rows(&database.url(), &["create table t (n int)", "insert into t values (1)"]);
    postgres.restart_as_standby().unwrap();
    assert_eq!(rows(&database.url(), &["select sum(n) from t"]), "1");
    assert!(complaint(&database.url(), &["insert into t values (2)"]).contains("read-only"));
    postgres.promote().unwrap();
    rows(&database.url(), &["insert into t values (2)"]);
}

#[test]
fn postgres_has_the_settings_that_were_asked_for() {
    let relaxed = Postgres::start(Version::Debian).unwrap();
    assert_eq!(relaxed.psql("postgres", "show fsync").unwrap().trim(), "off");
    assert_eq!(relaxed.psql("postgres", "show max_connections").unwrap().trim(), "300");
    let durable = Postgres::options(Version::Debian).durable().setting("max_connections", "11").start().unwrap();
    assert_eq!(durable.psql("postgres", "show fsync").unwrap().trim(), "on");
    assert_eq!(durable.psql("postgres", "show synchronous_commit").unwrap().trim(), "on");
    assert_eq!(durable.psql("postgres", "show max_connections").unwrap().trim(), "11");
}

#[test]
fn postgres_is_reached_by_its_unix_socket_and_asks_for_a_password_there() {
    let postgres = Postgres::start(Version::Debian).unwrap();
    let url = |password: &str| {
        let (socket, port) = (postgres.socket_folder().display().to_string(), postgres.port());
        format!("postgres://{}:{password}@/postgres?host={socket}&port={port}", login::USER.name)
    };
    assert_eq!(rows(&url(login::USER.password), &["select inet_client_addr() is null"]), "t");
    assert!(complaint(&url("forged"), &["select 1"]).contains("password"));
}

#[test]
fn postgres_proves_who_it_is_by_its_certificate() {
    let postgres = Postgres::options(Version::Debian).tls().start().unwrap();
    let root = postgres.root_certificate().unwrap().display().to_string();
    let is_encrypted = ["select ssl from pg_stat_ssl where pid = pg_backend_pid()"];
    let url = postgres.url("postgres");
    assert_eq!(rows(&format!("{url}?sslmode=disable"), &is_encrypted), "f");
    assert_eq!(rows(&format!("{url}?sslmode=require"), &is_encrypted), "t");
    assert_eq!(rows(&format!("{url}?sslmode=verify-full&sslrootcert={root}"), &is_encrypted), "t");
    let other = Postgres::options(Version::Debian).tls().start().unwrap();
    let stranger = format!("{}?sslmode=verify-full&sslrootcert={root}", other.url("postgres"));
    assert!(complaint(&stranger, &["select 1"]).contains("certificate verify failed"));
    let plain = Postgres::start(Version::Newest).unwrap();
    assert!(complaint(&format!("{}?sslmode=require", plain.url("postgres")), &["select 1"]).contains("SSL"));
}

#[test]
fn pgbouncer_pools_by_transaction_and_comes_back_after_a_stop() {
    let postgres = Postgres::start(Version::Debian).unwrap();
    let mut pgbouncer = PgBouncer::start(&postgres, PoolMode::Transaction).unwrap();
    postgres.create_database("any_name").unwrap();
    assert_eq!(rows(&pgbouncer.url("any_name"), &["select current_database()"]), "any_name");
    let console = login::POSTGRES_ADMIN.url("postgres", pgbouncer.port(), "pgbouncer");
    assert!(rows(&console, &["show config"]).lines().any(|line| line.starts_with("pool_mode|transaction")));
    pgbouncer.stop();
    assert!(complaint(&pgbouncer.url("any_name"), &["select 1"]).contains("refused"));
    pgbouncer.start_again().unwrap();
    assert_eq!(rows(&pgbouncer.url("any_name"), &["select 1"]), "1");
}
