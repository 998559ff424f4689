//! TLS, as the URL asks for it.

use std::time::Duration;

use pillarbox_core::domain::Seq;
use pillarbox_core::port::{
    Position, ReadStore as _, StoreError, StoreErrorKind, TransactStore as _, UpkeepStore as _, WakeStore as _,
};
use pillarbox_postgres::PostgresStore;
use pillarbox_testkit::{
    servers::{Postgres, Shared, login, postgres::Version},
    told,
};

use crate::support::{owner, page, settle};

fn server() -> (Postgres, String) {
    let server = Postgres::options(Version::Debian).tls().start().unwrap();
    let root = server.root_certificate().unwrap().display().to_string();
    (server, root)
}

#[tokio::test]
async fn every_connection_is_encrypted_when_the_url_says_so() {
    let (server, root) = server();
    let database = server.database();
    let store = PostgresStore::open(format!("{}?sslmode=verify-full&sslrootcert={root}", database.url())).unwrap();
    store.migrate().await.unwrap();
    let (lease, _) = owner(&store, "n").await;
    page(&store, &Position::START, 1).await;
    settle(&store, &lease, vec![]).await;
    tokio::time::timeout(Duration::from_secs(10), store.news()).await.unwrap().unwrap();
    let _tx = store.begin().await.unwrap();
    let count = "select count(*) filter (where ssl), count(*) filter (where not ssl)
        from pg_stat_ssl join pg_stat_activity using (pid)
        where datname = current_database() and pid <> pg_backend_pid()";
    // One each for the lease, the reads, the settles and the news, and one of the pool.
    assert_eq!(database.run(count).unwrap().trim(), "5|0");
}

#[tokio::test]
async fn a_server_that_is_not_who_the_url_wants_is_refused_in_clear_words() {
    let (server, _) = server();
    let (_stranger, of_another) = self::server();
    let url = server.url("postgres");
    let plain = Shared::Postgres.database().url();
    for (url, says) in [
        (format!("{url}?sslmode=verify-full&sslrootcert={of_another}"), "certificate"),
        (format!("{url}?sslmode=verify-ca&sslrootcert={of_another}"), "certificate"),
        // By the roots that all the world trusts.
        (format!("{url}?sslmode=verify-full"), "certificate"),
        (format!("{plain}?sslmode=require"), "`sslmode`"),
    ] {
        for error in refusals(&url).await {
            assert_eq!(error.kind(), StoreErrorKind::Rejected, "{url}: {error:?}");
            assert!(error.to_string().contains(says), "{url}: {error}");
        }
    }
    let missing = format!("{url}?sslmode=verify-full&sslrootcert=/no/such/file");
    for error in refusals(&missing).await {
        assert!(error.to_string().contains("file"), "{error}");
    }
}

/// What the pool and the store's own connections say, and none of them tells the password.
async fn refusals(url: &str) -> [StoreError; 2] {
    let store = PostgresStore::open(url).unwrap();
    let errors = [store.begin().await.unwrap_err(), store.rows(&[Seq(1)]).await.unwrap_err()];
    for error in &errors {
        assert!(!format!("{} {store:?}", told::by(error)).contains(login::USER.password), "{error:?}");
    }
    errors
}
