//! TLS, as the URL asks for it.

use pillarbox_core::port::{Position, StoreError, StoreErrorKind, TransactStore as _, UpkeepStore as _};
use pillarbox_mysql::MySqlStore;
use pillarbox_testkit::{
    servers::{Shared, login, mysql::Options},
    told,
};
use sqlx::Row as _;

use super::Own;
use crate::support::{MINUTE, on_each_server, owner, page, settle};

on_each_server!(
    a_socket_is_found_in_two_ways_and_an_address_of_ipv6_in_one,
    every_connection_is_encrypted_when_the_url_says_so,
    a_server_that_is_not_who_the_url_wants_is_refused_in_clear_words,
);

fn start(like: Shared, options: Options) -> (Own, String) {
    let server = Own::start(like, options.tls());
    let root = server.root_certificate().unwrap().display().to_string();
    (server, root)
}

async fn every_connection_is_encrypted_when_the_url_says_so(like: Shared) {
    let (server, root) = start(like, Options::default());
    let database = server.database();
    // From now on the server itself refuses every other connection of this user.
    let login = login::USER.name;
    database.run_as_admin(&format!("alter user '{login}'@'127.0.0.1' require ssl")).unwrap();
    let plain = MySqlStore::open(format!("{}?ssl-mode=DISABLED", database.url())).await;
    assert_eq!(plain.unwrap_err().kind(), StoreErrorKind::Rejected);

    let url = format!("{}?ssl-mode=VERIFY_IDENTITY&ssl-ca={root}", database.url());
    let store = MySqlStore::open(url).await.unwrap();
    store.migrate().await.unwrap();
    let (lease, _) = owner(&store, "n", MINUTE).await;
    page(&store, &Position::START, &mut |_| true).await;
    settle(&store, &lease, vec![]).await;
    let mut tx = store.begin().await.unwrap();
    let cipher = sqlx::query("show session status like 'Ssl_cipher'").fetch_one(&mut *tx).await.unwrap();
    assert_ne!(cipher.get::<String, _>(1), "");
}

async fn a_server_that_is_not_who_the_url_wants_is_refused_in_clear_words(like: Shared) {
    let (server, _) = start(like, Options::default());
    // It has a root as well, and makes no use of it.
    let off = if like == Shared::MySql { "tls-version" } else { "skip-ssl" };
    let (plain, of_another) = start(like, Options::default().setting(off, ""));
    let (url, plain) = (server.url("pb_any"), plain.url("pb_any"));
    for (url, says) in [
        (format!("{url}?ssl-mode=VERIFY_IDENTITY&ssl-ca={of_another}"), "certificate"),
        (format!("{url}?ssl-mode=VERIFY_CA&ssl-ca={of_another}"), "certificate"),
        // By the roots that all the world trusts.
        (format!("{url}?ssl-mode=VERIFY_IDENTITY"), "certificate"),
        (format!("{plain}?ssl-mode=REQUIRED"), "`ssl-mode`"),
    ] {
        let error = refusal(&url).await;
        assert_eq!(error.kind(), StoreErrorKind::Rejected, "{url}: {error:?}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
    if like == Shared::MySql {
        // Where nobody has logged in yet, the server must be told the password itself.
        let error = refusal(&format!("{plain}?ssl-mode=DISABLED")).await;
        assert_eq!(error.kind(), StoreErrorKind::Rejected, "{error:?}");
        assert!(error.to_string().contains("needs TLS"), "{error:?}");
    }
    let error = refusal(&format!("{url}?ssl-mode=VERIFY_IDENTITY&ssl-ca=/no/such/file")).await;
    assert!(error.to_string().contains("file"), "{error}");
}

async fn a_socket_is_found_in_two_ways_and_an_address_of_ipv6_in_one(like: Shared) {
    // It offers TLS on the socket as well.
    let (server, _) = start(like, Options::default().setting("bind-address", "*"));
    let login::Login { name, password } = login::MYSQL_ADMIN;
    for host in ["localhost", "::1"] {
        server.admin_client("", &format!("create user '{name}'@'{host}' identified by '{password}'")).unwrap();
        server.admin_client("", &format!("grant all on *.* to '{name}'@'{host}'")).unwrap();
    }
    let database = server.database();
    let socket = server.socket().display().to_string();
    let escaped = socket.replace('/', "%2F");
    for url in [
        format!("mysql://{name}:{password}@localhost:1/{}?socket={socket}", database.name()),
        format!("mysql://{name}:{password}@{escaped}/{}", database.name()),
        format!("mysql://{name}:{password}@[::1]:{}/{}", server.port(), database.name()),
    ] {
        let store = MySqlStore::open(&url).await.unwrap_or_else(|error| panic!("{url}: {error:?}"));
        store.migrate().await.unwrap();
    }
}

/// What the store says, which is not the password.
async fn refusal(url: &str) -> StoreError {
    let error = MySqlStore::open(url).await.unwrap_err();
    assert!(!told::by(&error).contains(login::USER.password), "{error:?}");
    error
}
