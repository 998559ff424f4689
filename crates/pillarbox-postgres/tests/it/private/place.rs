//! Where the URL says that the server is.

use std::net::Ipv6Addr;

use pillarbox_core::port::{TransactStore as _, UpkeepStore as _};
use pillarbox_postgres::PostgresStore;
use pillarbox_testkit::servers::{Postgres, Shared, login::USER, postgres::Version};
use tokio::net::{TcpListener, TcpStream};

/// By the pool and by the store's own connections.
async fn is_reached(url: &str) {
    let store = PostgresStore::open(url).unwrap();
    store.migrate().await.unwrap();
    let tx = store.begin().await.unwrap();
    store.commit(tx).await.unwrap();
}

#[tokio::test]
async fn a_server_is_reached_by_its_socket_in_every_spelling() {
    let server = Postgres::start(Version::Debian).unwrap();
    server.create_database("shop").unwrap();
    let (user, password, port) = (USER.name, USER.password, server.port());
    let folder = server.socket_folder().display().to_string();
    let escaped = folder.replace('/', "%2F");
    for url in [
        format!("postgres://{user}:{password}@{escaped}:{port}/shop"),
        format!("postgres:///shop?host={folder}&port={port}&user={user}&password={password}"),
        format!("postgres://{user}:{password}@/shop?host={folder}&port={port}"),
        format!("postgres://{user}:{password}@:{port}/shop?host={escaped}"),
        format!("postgres://{user}@/shop?host={folder}&port={port}&password={password}"),
    ] {
        is_reached(&url).await;
    }
}

/// The shared servers listen on 127.0.0.1, so there is a way to them from ::1.
#[tokio::test]
async fn a_server_is_reached_by_an_address_of_ipv6() {
    let database = Shared::Postgres.database();
    let Ok(door) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await else {
        eprintln!("this machine has no ::1, and nothing is shown");
        return;
    };
    let (port, behind) = (door.local_addr().unwrap().port(), database.port());
    let open = tokio::spawn(async move {
        while let Ok((mut from, _)) = door.accept().await {
            tokio::spawn(async move {
                let mut to = TcpStream::connect(("127.0.0.1", behind)).await?;
                tokio::io::copy_bidirectional(&mut from, &mut to).await
            });
        }
    });
    is_reached(&database.url().replace(&format!("127.0.0.1:{behind}"), &format!("[::1]:{port}"))).await;
    open.abort();
}
