//! The client and its connections.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use pillarbox_core::port::SinkError;
use reqwest::{Client, Url, header::HeaderMap, redirect};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_platform_verifier::BuilderVerifierExt;

use crate::options::is_loopback;

/// A client that can be dropped with all its connections, and is made again when it is needed.
pub(crate) struct Connection {
    tls: ClientConfig,
    headers: HeaderMap,
    connect_within: Duration,
    at_once: usize,
    by_proxy: bool,
    client: Mutex<Option<Arc<Client>>>,
}

impl Connection {
    pub(crate) fn new(
        url: &Url,
        headers: HeaderMap,
        connect_within: Duration,
        at_once: usize,
    ) -> Result<Self, SinkError> {
        let tls = tls(url.scheme() == "https").map_err(SinkError::rejected)?;
        let (by_proxy, client) = (!is_loopback(url), Mutex::default());
        Ok(Self { tls, headers, connect_within, at_once, by_proxy, client })
    }

    /// The client that there is, or a new one. It connects when a request asks for it.
    pub(crate) fn client(&self) -> Result<Arc<Client>, SinkError> {
        let mut kept = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &*kept {
            return Ok(Arc::clone(client));
        }
        let mut client = Client::builder()
            .tls_backend_preconfigured(self.tls.clone())
            .default_headers(self.headers.clone())
            .user_agent(concat!("pillarbox/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .connect_timeout(self.connect_within)
            .pool_max_idle_per_host(self.at_once);
        if !self.by_proxy {
            // The environment's proxy does not know this machine as itself.
            client = client.no_proxy();
        }
        let client = Arc::new(client.build().map_err(|error| SinkError::failed(error.without_url()))?);
        *kept = Some(Arc::clone(&client));
        Ok(client)
    }

    /// Forgets this client: its connections may be dead without knowing. Who uses it still may end in peace.
    pub(crate) fn lost(&self, client: &Arc<Client>) {
        let mut kept = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        kept.take_if(|kept| Arc::ptr_eq(kept, client));
    }

    pub(crate) fn close(&self) {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// With ring for this client alone: which provider is the process's is the application's choice.
fn tls(is_used: bool) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?;
    // Without https, the machine's certificates need not be read.
    let builder = if is_used {
        builder.with_platform_verifier()?
    } else {
        builder.with_root_certificates(RootCertStore::empty())
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec!["h2".into(), "http/1.1".into()];
    Ok(config)
}
