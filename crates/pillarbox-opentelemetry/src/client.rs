//! The way to the collector.

use std::{sync::Arc, time::Duration};

use reqwest::{Url, blocking::Client, redirect};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_platform_verifier::Verifier;

use crate::TelemetryError;

/// How long the collector may take for an answer.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Makes a client. It connects when something is sent, on the exporter's own thread.
pub(crate) fn client(endpoint: &Url) -> Result<Client, TelemetryError> {
    let mut client = Client::builder()
        .tls_backend_preconfigured(tls(endpoint)?)
        .user_agent(concat!("pillarbox/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .connect_timeout(ANSWER_WITHIN)
        .timeout(ANSWER_WITHIN);
    if endpoint.host_str().is_some_and(|host| host == "localhost" || host == "[::1]" || host.starts_with("127.")) {
        // The environment's proxy does not know this machine as itself.
        client = client.no_proxy();
    }
    // A blocking client is not made on a thread that has a runtime.
    let made = std::thread::spawn(move || client.build()).join();
    made.map_err(|_| TelemetryError::setup("the client panicked"))?.map_err(TelemetryError::setup)
}

/// With ring for this client alone: which provider is the process's is the application's choice.
fn tls(endpoint: &Url) -> Result<ClientConfig, TelemetryError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(TelemetryError::setup)?;
    let builder = if endpoint.scheme() == "https" {
        let verifier = Verifier::new(provider).map_err(TelemetryError::setup)?;
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
    } else {
        // The machine's certificates need not be read.
        builder.with_root_certificates(RootCertStore::empty())
    };
    Ok(builder.with_no_client_auth())
}
