//! A receiver of web hooks, which answers as the path says and remembers everything.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, StatusCode, Version, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use pillarbox_core::{
    Event,
    domain::Key,
    port::{Message, Sent, Sink},
};
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// The most bytes of a body.
pub(crate) const LARGEST: usize = 1_000_000;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) path: String,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

#[derive(Debug, Default)]
struct Memory {
    arrived: Vec<Arrived>,
    is_failing: bool,
    limited: Vec<Instant>,
    at_once: usize,
    most_at_once: usize,
}

/// The server; it ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Receiver {
    addr: SocketAddr,
    memory: Arc<Mutex<Memory>>,
    tls: Option<Arc<ServerConfig>>,
    runtime: Option<Runtime>,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    /// One that speaks TLS.
    pub(crate) fn start_with(tls: impl Into<Option<Arc<ServerConfig>>>) -> Self {
        let (addr, tls) = (([127, 0, 0, 1], 0).into(), tls.into());
        let mut receiver = Self { addr, memory: Arc::default(), tls, runtime: None };
        receiver.start_again();
        receiver
    }

    /// Ends it in the middle of whatever it does, with all connections.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// On the same port, with the same memory.
    pub(crate) fn start_again(&mut self) {
        self.kill();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (addr, told) = (self.addr, std::sync::mpsc::channel());
        let tls = self.tls.clone().map(TlsAcceptor::from);
        let app = Router::new().fallback(answer).with_state(Arc::clone(&self.memory));
        runtime.spawn(async move {
            let listener = loop {
                // The port is free as soon as the runtime before has ended.
                match TcpListener::bind(addr).await {
                    Ok(listener) => break listener,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            };
            told.0.send(listener.local_addr().unwrap()).unwrap();
            match tls {
                Some(acceptor) => axum::serve(Tls { listener, acceptor }, app).await.unwrap(),
                None => axum::serve(listener, app).await.unwrap(),
            }
        });
        self.addr = told.1.recv().unwrap();
        self.runtime = Some(runtime);
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Everything that has arrived, but questions whether it is there.
    pub(crate) fn arrived(&self) -> Vec<Arrived> {
        self.memory.lock().unwrap().arrived.clone()
    }

    /// Answers 500 to everything, or not any more.
    pub(crate) fn fail(&self, is_failing: bool) {
        self.memory.lock().unwrap().is_failing = is_failing;
    }

    pub(crate) fn most_at_once(&self) -> usize {
        self.memory.lock().unwrap().most_at_once
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Tls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            if let Ok((stream, addr)) = self.listener.accept().await
                && let Ok(stream) = self.acceptor.accept(stream).await
            {
                return (stream, addr);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

async fn answer(State(memory): State<Arc<Mutex<Memory>>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if parts.method == "HEAD" {
        let status =
            if parts.uri.path() == "/busy" { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::METHOD_NOT_ALLOWED };
        return status.into_response();
    }
    let Ok(body) = to_bytes(body, usize::MAX).await else { return StatusCode::BAD_REQUEST.into_response() };
    if memory.lock().unwrap().is_failing {
        return (StatusCode::INTERNAL_SERVER_ERROR, "not today").into_response();
    }
    if body.len() > LARGEST {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    }
    let path = parts.uri.to_string();
    if let Some(limit) = path.strip_prefix("/limited/") {
        let limit: usize = limit.parse().unwrap();
        let mut memory = memory.lock().unwrap();
        let now = Instant::now();
        memory.limited.retain(|taken| now - *taken < Duration::from_secs(1));
        if memory.limited.len() == limit {
            return (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "1")]).into_response();
        }
        memory.limited.push(now);
    }
    {
        let mut memory = memory.lock().unwrap();
        memory.arrived.push(Arrived { path: path.clone(), version: parts.version, headers: parts.headers, body });
        memory.at_once += 1;
        memory.most_at_once = memory.most_at_once.max(memory.at_once);
    }
    let response = answer_to(&path).await;
    memory.lock().unwrap().at_once -= 1;
    response
}

/// `/status/422/words` answers so; `/limited/20` takes twenty a second.
async fn answer_to(path: &str) -> Response {
    let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
    match parts[..] {
        ["status", status, words] => {
            (StatusCode::from_u16(status.parse().unwrap()).unwrap(), words.to_owned()).into_response()
        }
        ["retry", status, after] => {
            let after = after.replace("%20", " ");
            (StatusCode::from_u16(status.parse().unwrap()).unwrap(), [(header::RETRY_AFTER, after)]).into_response()
        }
        ["moved"] => (StatusCode::FOUND, [(header::LOCATION, "/elsewhere?token=1")]).into_response(),
        ["long"] => (StatusCode::BAD_REQUEST, "x".repeat(1_000_000)).into_response(),
        ["pause", millis] => {
            tokio::time::sleep(Duration::from_millis(millis.parse().unwrap())).await;
            StatusCode::OK.into_response()
        }
        // A body that never ends, after a status that says it all.
        ["endless", status] => {
            let status = StatusCode::from_u16(status.parse().unwrap()).unwrap();
            let (mut sender, body) = tokio::io::duplex(16);
            tokio::io::AsyncWriteExt::write_all(&mut sender, b"so far").await.unwrap();
            let body = futures_util::stream::unfold((sender, body), |(sender, mut body)| async move {
                let mut buffer = [0; 16];
                let count = tokio::io::AsyncReadExt::read(&mut body, &mut buffer).await.ok()?;
                Some((Ok::<_, io::Error>(buffer[..count].to_vec()), (sender, body)))
            });
            (status, Body::from_stream(body)).into_response()
        }
        _ => StatusCode::OK.into_response(),
    }
}

/// A message of its own key.
pub(crate) fn message(topic: &str) -> Message {
    let id = Event::builder("OrderPlaced").json(&()).build().unwrap().id();
    Message {
        topic: topic.into(),
        key: Some(Key::from(id.to_string())),
        id,
        content_type: "application/json".into(),
        attributes: vec![("specversion".into(), "1.0".into()), ("id".into(), id.to_string())],
        headers: Vec::new(),
        payload: Bytes::from_static(b"{}"),
    }
}

/// Sends one message, and has its answer.
pub(crate) async fn send(sink: &impl Sink, message: &Message) -> Sent {
    let mut answers = sink.send(std::slice::from_ref(message)).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}
