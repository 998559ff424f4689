//! Web hooks over TLS.

use std::{sync::Arc, time::Duration};

use axum::http::Version;
use pillarbox_core::port::{Sink, SinkErrorKind::Unavailable};
use pillarbox_http::Options;
use pillarbox_testkit::servers::{Certificate, Proxy};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tempfile::TempDir;

use crate::receiver::{Receiver, message, send};

/// A root, and a certificate for localhost that it signs, as files.
fn certificate() -> (TempDir, Certificate) {
    let folder = TempDir::new().unwrap();
    let certificate = Certificate::create(folder.path(), "DNS:localhost").unwrap();
    (folder, certificate)
}

fn receiver(certificate: &Certificate, protocol: &str) -> Receiver {
    let chain = vec![CertificateDer::from_pem_file(&certificate.file).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&certificate.key).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![protocol.into()];
    Receiver::start_with(Arc::new(config))
}

#[tokio::test]
async fn both_versions_of_http_go_over_tls() {
    let (_folder, certificate) = certificate();
    for (protocol, version) in [("http/1.1", Version::HTTP_11), ("h2", Version::HTTP_2)] {
        let receiver = receiver(&certificate, protocol);
        let url = format!("https://localhost:{}/hooks", receiver.addr().port());
        let sink = Options::new(url).root_certificates(&certificate.root).open().unwrap();
        let batch: Vec<_> = (0..50).map(|_| message("orders")).collect();
        let answers = sink.send(&batch).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        let arrived = receiver.arrived();
        assert_eq!(arrived.len(), 50);
        assert!(arrived.iter().all(|arrived| arrived.version == version), "{:?}", arrived[0]);
    }
}

#[tokio::test]
async fn a_connection_that_swallows_requests_is_not_used_again() {
    let (_folder, certificate) = certificate();
    // With h2, one connection is for all requests.
    let receiver = receiver(&certificate, "h2");
    let proxy = Proxy::to(receiver.addr()).unwrap();
    let options = Options::new(format!("https://localhost:{}", proxy.port())).answer_within(Duration::from_millis(500));
    let sink = options.root_certificates(&certificate.root).open().unwrap();
    for _ in 0..3 {
        assert_eq!(send(&sink, &message("orders")).await, Ok(()));
        proxy.lose_answers();
        assert_eq!(send(&sink, &message("orders")).await.unwrap_err().kind(), Unavailable);
        proxy.resume();
    }
}

#[tokio::test]
async fn a_receiver_whom_nobody_vouches_for_gets_nothing() {
    let (_folder, certificate) = certificate();
    let receiver = receiver(&certificate, "http/1.1");
    let port = receiver.addr().port();
    let strange = Options::new(format!("https://localhost:{port}")).open().unwrap();
    // The certificate is for another name.
    let other = Options::new(format!("https://127.0.0.1:{port}"));
    let other = other.root_certificates(&certificate.root).open().unwrap();
    for sink in [strange, other] {
        let error = send(&sink, &message("orders")).await.unwrap_err();
        assert_eq!(error.kind(), Unavailable, "{error}");
        assert!(error.to_string().contains("certificate"), "{error}");
    }
    assert!(receiver.arrived().is_empty());
}
