//! Web hooks, to a receiver in this process.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{Router, body::Bytes, extract::State, http::StatusCode, routing::post};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use pillarbox_core::port::Message;
use reqwest::Client;
use tokio::{net::TcpListener, task::AbortHandle};

use super::{super::arrivals::Inbox, Arrivals, Broker, Names, sink};
use crate::{Result, backend::EVENT_TYPE};

type Listener = Arc<Mutex<Option<Inbox>>>;

/// A receiver that takes everything at once.
#[derive(Debug)]
pub(in crate::relay) struct Http {
    address: SocketAddr,
    listener: Listener,
    server: AbortHandle,
}

impl Http {
    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

impl Broker for Http {
    const NAMES: Names =
        Names { rate: "relay_http", memory: "http_memory", latency: "http_latency", start: "http_start" };
    const WINDOWS: &'static [usize] = &[8, 16, 32, 64];
    const WINDOW: &'static str = "requests under way:";
    const KEEPS: bool = false;
    const CONFIRM: &'static str = "the receiver's answer";
    const SEEN: &'static str = "seen by the receiver";

    async fn start() -> Result<Self> {
        let listener = Listener::default();
        let routes = Router::new().route(&format!("/{EVENT_TYPE}"), post(receive)).with_state(listener.clone());
        let socket = TcpListener::bind("127.0.0.1:0").await?;
        let address = socket.local_addr()?;
        let server = tokio::spawn(async move { axum::serve(socket, routes).await });
        Ok(Self { address, listener, server: server.abort_handle() })
    }

    fn place(&self) -> Result<String> {
        Ok("HTTP/1.1 without TLS or signatures, a receiver in the process of the bench that answers at once".into())
    }

    fn sink(&self) -> Vec<String> {
        sink("http", &[("url", self.url())])
    }

    async fn clear(&self) -> Result<()> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }

    async fn limit(&self, messages: &[Message], window: usize) -> Result<Duration> {
        // The client asks for one, though nothing here is encrypted. Another may have been faster, and that is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().no_proxy().pool_max_idle_per_host(window).build()?;
        let url = format!("{}{EVENT_TYPE}", self.url());
        let begun = Instant::now();
        let asking = stream::iter(messages).map(|message| {
            let mut request = client.post(&url).header("content-type", &*message.content_type);
            request = request.header("idempotency-key", message.id.to_string());
            for (name, value) in &message.attributes {
                request = request.header(format!("ce-{name}"), value);
            }
            let request = request.body(message.payload.clone());
            async move { request.send().await?.error_for_status()?.bytes().await }
        });
        asking.buffer_unordered(window).try_for_each(async |_| Ok(())).await?;
        Ok(begun.elapsed())
    }

    async fn listen(&self) -> Result<Arrivals> {
        let (inbox, arrivals) = Arrivals::channel();
        *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(inbox);
        Ok(arrivals)
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn receive(State(listener): State<Listener>, payload: Bytes) -> StatusCode {
    if let Some(inbox) = &*listener.lock().unwrap_or_else(PoisonError::into_inner) {
        inbox.put(&payload);
    }
    StatusCode::NO_CONTENT
}
