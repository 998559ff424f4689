//! The process under test, and its database.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use pillarbox_servers::Shared;
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, SqliteConnection};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use super::warehouse::Warehouse;

const LONGEST: Duration = Duration::from_secs(30);

/// An empty database of the test's own.
pub(super) enum Database {
    Sqlite(TempDir),
    Postgres(pillarbox_servers::Database),
}

impl Database {
    pub(super) fn sqlite() -> Self {
        Self::Sqlite(TempDir::new().unwrap())
    }

    pub(super) fn postgres() -> Self {
        Self::Postgres(Shared::Postgres.database())
    }

    fn url(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("orders.db").display()),
            Self::Postgres(database) => database.url(),
        }
    }

    /// What a query for one number says.
    pub(super) async fn number(&self, sql: &'static str) -> i64 {
        match self {
            Self::Sqlite(_) => {
                let mut session = SqliteConnection::connect(&self.url()).await.unwrap();
                sqlx::query_scalar(sql).fetch_one(&mut session).await.unwrap()
            }
            Self::Postgres(_) => {
                let mut session = PgConnection::connect(&self.url()).await.unwrap();
                sqlx::query_scalar(sql).fetch_one(&mut session).await.unwrap()
            }
        }
    }

    /// Waits until nothing is left to deliver.
    pub(super) async fn drained(&self) {
        let begin = Instant::now();
        while self.number("select count(*) from outbox_event where status in ('NEW', 'RETRY')").await > 0 {
            wait(begin, "the events are delivered").await;
        }
    }
}

/// A running service.
pub(super) struct Service {
    process: Child,
    address: String,
    client: Client,
}

impl Service {
    pub(super) async fn start(database: &Database, warehouse: &Warehouse) -> Self {
        let mut process = command(&database.url())
            .env("WAREHOUSE_URL", warehouse.url())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let first = lines.next_line().await.unwrap().unwrap();
        let address = first.strip_prefix("listening on ").unwrap().to_owned();
        // Read on, so that the process never finds its output closed.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        // A client with TLS in it wants to know whose, also where it needs none.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self { process, address, client: Client::new() }
    }

    pub(super) fn request(&self, path: &str) -> RequestBuilder {
        self.client.post(format!("{}{path}", self.address))
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Response {
        self.request(path).json(body).send().await.unwrap()
    }

    pub(super) async fn get(&self, path: &str) -> Response {
        self.client.get(format!("{}{path}", self.address)).send().await.unwrap()
    }

    /// Places an order for tea; its id.
    pub(super) async fn place(&self, quantity: i64) -> String {
        let answer = self.post("/orders", &json!({ "item": "tea", "quantity": quantity })).await;
        assert_eq!(answer.status(), StatusCode::CREATED);
        answer.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned()
    }

    /// Waits until the order is shipped.
    pub(super) async fn shipped(&self, order: &str) {
        let begin = Instant::now();
        while self.get(&format!("/orders/{order}")).await.json::<Value>().await.unwrap()["status"] != "shipped" {
            wait(begin, "the order is shipped").await;
        }
    }

    /// Asks it to stop, as a service manager does, and expects that it ends well.
    pub(super) async fn stop(mut self) {
        let id = self.process.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
        let ended = tokio::time::timeout(LONGEST, self.process.wait()).await.expect("the service stops");
        assert!(ended.unwrap().success());
    }

    /// Ends it without a word.
    pub(super) async fn kill(mut self) {
        self.process.kill().await.unwrap();
    }
}

/// Starts the service on a database that it can't take; its exit code and its words.
pub(super) async fn fails_to_start(url: &str) -> (Option<i32>, String) {
    let output = command(url).output().await.unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn command(url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_axum-orders"));
    command.env("DATABASE_URL", url).env("LISTEN", "127.0.0.1:0").env_remove("WAREHOUSE_URL");
    command
}

pub(super) async fn wait(begin: Instant, until: &str) {
    assert!(begin.elapsed() < LONGEST, "waited {LONGEST:?} until {until}");
    tokio::time::sleep(Duration::from_millis(10)).await;
}
