//! The client and its connections.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use pillarbox_core::port::SinkError;
use reqwest::{Client, Url, header::HeaderMap, redirect};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use rustls_platform_verifier::Verifier;

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
        tls: ClientConfig,
        headers: HeaderMap,
        connect_within: Duration,
        at_once: usize,
    ) -> Self {
        Self { tls, headers, connect_within, at_once, by_proxy: !is_loopback(url), client: Mutex::default() }
    }

    /// The headers of every request.
    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.headers
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
pub(crate) fn tls(url: &Url, root_certificates: Option<&Path>) -> Result<ClientConfig, SinkError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(SinkError::rejected)?;
    let builder = if url.scheme() == "https" {
        let roots = root_certificates.map(certificates).transpose()?.unwrap_or_default();
        let verifier = Verifier::new_with_extra_roots(roots, provider).map_err(SinkError::rejected)?;
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
    } else if root_certificates.is_some() {
        return Err(SinkError::rejected("root_certificates are for https, and the URL is http"));
    } else {
        // The machine's certificates need not be read.
        builder.with_root_certificates(RootCertStore::empty())
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec!["h2".into(), "http/1.1".into()];
    Ok(config)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, SinkError> {
    let failed = |error| SinkError::rejected(format_args!("root_certificates, {}: {error:?}", file.display()));
    let read: Vec<_> =
        CertificateDer::pem_file_iter(file).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    if read.is_empty() {
        return Err(SinkError::rejected(format_args!("root_certificates, {}: no certificate", file.display())));
    }
    Ok(read)
}
