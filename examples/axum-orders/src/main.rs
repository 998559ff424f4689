//! An order service: each request's data and events are one transaction, on SQLite or PostgreSQL.
//!
//! `cargo run -p axum-orders` serves on port 3000, `cargo run -p axum-orders -- --demo` places some orders and ends.
//!
//! | variable | default | |
//! |---|---|---|
//! | `DATABASE_URL` | a SQLite file in the folder for temporary files | `sqlite:...` or `postgres://...` |
//! | `LISTEN` | `127.0.0.1:3000` | the address; port 0 takes a free one |
//! | `WAREHOUSE_URL` | none: shipments are printed | gets a POST for each order to ship |
//!
//! | file | what it does |
//! |---|---|
//! | `api` | the requests, and the one transaction of each |
//! | `problem` | what is answered when a request fails |
//! | `shipping` | the handlers: what happens after the commit |
//! | `database` | the business queries, on either database |
//! | `demo` | a client |

mod api;
mod database;
mod demo;
mod problem;
mod shipping;

use std::{env, error::Error, future::Future, io::Write as _};

use database::Database;
use pillarbox::{AnyStore, prelude::*};
use shipping::Shipping;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    // The warehouse may be reached by TLS. An error means that somebody has chosen already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let warehouse = env::var("WAREHOUSE_URL").ok();
    if env::args().any(|arg| arg == "--demo") {
        return demo::run(env::var("DATABASE_URL").ok()).await;
    }
    let url = env::var("DATABASE_URL").unwrap_or_else(|_| {
        let file = env::temp_dir().join("axum-orders.db");
        format!("sqlite:{}", file.display())
    });
    let listener = TcpListener::bind(env::var("LISTEN").as_deref().unwrap_or("127.0.0.1:3000")).await?;
    // Flushed, for whoever waits for it at the other end of a pipe.
    println!("listening on http://{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    serve(listener, &url, warehouse, asked_to_stop()?).await
}

/// Serves until it is asked to stop: then the running requests end, and after them the outbox.
async fn serve(
    listener: TcpListener,
    url: &str,
    warehouse: Option<String>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Failure> {
    let store = AnyStore::open(url).await?;
    let database = Database::new(&store)?;
    database.create_tables().await?;
    // For several instances on one PostgreSQL: `multi_node`.
    let outbox = Outbox::single_node(store).handlers(Shipping::new(database.clone(), warehouse)).start().await?;

    let app = api::router(outbox.clone(), database);
    let served = axum::serve(listener, app).with_graceful_shutdown(stop).await;

    // After the last request, so that none finds an outbox that has stopped. What is not delivered yet stays in the
    // database for the next start.
    outbox.shutdown().await;
    Ok(served?)
}

/// Ends with Ctrl-C or SIGTERM.
fn asked_to_stop() -> Result<impl Future<Output = ()> + Send + 'static, Failure> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        println!("stopping");
    })
}
