//! Counts round trips on the way to a server: whenever a client speaks after the server has answered, one more.
//! So statements that are sent together count once, as they should, and begin and commit count like others.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::Result;

/// A port that leads to the server.
#[derive(Debug)]
pub(crate) struct Wire {
    port: u16,
    turns: Arc<AtomicU64>,
    accepts: JoinHandle<()>,
}

impl Wire {
    pub(crate) async fn to(server: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let turns = Arc::new(AtomicU64::new(0));
        let counter = turns.clone();
        let accepts = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, turns) = (server.clone(), counter.clone());
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(server).await {
                        join(client, server, turns);
                    }
                });
            }
        });
        Ok(Self { port, turns, accepts })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.accepts.abort();
    }
}

fn join(client: TcpStream, server: TcpStream, turns: Arc<AtomicU64>) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let answered = Arc::new(AtomicBool::new(true));
    let asked = answered.clone();
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
            if asked.swap(false, Ordering::AcqRel) {
                turns.fetch_add(1, Ordering::Relaxed);
            }
            if to_server.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
        // A client that goes says so to the server.
        let _ = to_server.shutdown().await;
    });
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            answered.store(true, Ordering::Release);
            if to_client.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
        let _ = to_client.shutdown().await;
    });
}

/// A URL with another address in it.
pub(crate) fn redirected(url: &str, address: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let login = authority.rsplit_once('@').map_or(String::new(), |(login, _)| format!("{login}@"));
    Some(format!("{scheme}://{login}{address}/{path}"))
}

/// A URL with another database in it.
pub(crate) fn with_database(url: &str, name: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let parameters = path.split_once('?').map_or(String::new(), |(_, parameters)| format!("?{parameters}"));
    Some(format!("{scheme}://{authority}/{name}{parameters}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_url_are_replaced_and_the_rest_stays() {
        let url = "postgres://me:p@ss@db.example:5432/shop?sslmode=disable";
        assert_eq!(
            redirected(url, "127.0.0.1:7").as_deref(),
            Some("postgres://me:p@ss@127.0.0.1:7/shop?sslmode=disable")
        );
        assert_eq!(
            with_database(url, "other").as_deref(),
            Some("postgres://me:p@ss@db.example:5432/other?sslmode=disable")
        );
        assert_eq!(with_database("mysql://me@host", "other").as_deref(), Some("mysql://me@host/other"));
    }

    #[tokio::test]
    async fn bytes_sent_together_are_one_turn() {
        let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = echo.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut socket, _) = echo.accept().await.unwrap();
            let mut buffer = [0; 4];
            while socket.read_exact(&mut buffer).await.is_ok() {
                socket.write_all(&buffer).await.unwrap();
            }
        });
        let wire = Wire::to(server).await.unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", wire.port())).await.unwrap();
        for _ in 0..3 {
            client.write_all(b"as").await.unwrap();
            client.write_all(b"k!").await.unwrap();
            client.read_exact(&mut [0; 4]).await.unwrap();
        }
        assert_eq!(wire.turns(), 3);
    }
}
