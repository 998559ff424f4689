//! Kafka over TLS.

use std::{net::SocketAddr, sync::Arc};

use pillarbox_core::port::{Sink as _, SinkErrorKind::Unavailable};
use pillarbox_kafka::Options;
use pillarbox_testkit::servers::Certificate;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tempfile::TempDir;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use crate::cluster::{ANSWER_WITHIN, Cluster, Detour, send};

/// The mock speaks no TLS: this does it for its one broker, which tells clients to come here.
async fn encrypted(cluster: &Cluster, certificate: &Certificate) -> SocketAddr {
    let chain = vec![CertificateDer::from_pem_file(&certificate.file).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&certificate.key).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let acceptor = TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()));
    let detour = Detour::to(cluster.brokers.parse().expect("one broker"));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    detour.lead_to(addr.port());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (acceptor, broker) = (acceptor.clone(), detour.addr());
            tokio::spawn(async move {
                let mut client = acceptor.accept(client).await?;
                copy_bidirectional(&mut client, &mut TcpStream::connect(broker).await?).await
            });
        }
    });
    addr
}

fn over_tls(broker: SocketAddr) -> Options {
    Options::new(broker.to_string()).answer_within(ANSWER_WITHIN).property("security.protocol", "ssl")
}

#[tokio::test(flavor = "multi_thread")]
async fn records_go_over_tls() {
    let (cluster, folder) = (Cluster::start(1, 3), TempDir::new().unwrap());
    let certificate = Certificate::create(folder.path(), Certificate::LOCAL).unwrap();
    let broker = encrypted(&cluster, &certificate).await;
    let sink = over_tls(broker).property("ssl.ca.location", certificate.root.to_str().unwrap()).open().unwrap();
    let batch = cluster.messages(100);
    let answers = sink.send(&batch).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let mut sent: Vec<_> = batch.iter().map(|message| message.id.to_string()).collect();
    sent.sort();
    assert_eq!(cluster.ids(), sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_whom_nobody_vouches_for_gets_nothing() {
    let (cluster, folder) = (Cluster::start(1, 1), TempDir::new().unwrap());
    // Signed by a root that clients are told of, for another name; and signed by a root that they are not told of.
    let other = Certificate::create(folder.path(), "DNS:kafka.example").unwrap();
    let broker = encrypted(&cluster, &other).await;
    let told = over_tls(broker).property("ssl.ca.location", other.root.to_str().unwrap()).open().unwrap();
    let untold = over_tls(broker).open().unwrap();
    for sink in [told, untold] {
        let error = send(&sink, &cluster.message()).await.unwrap_err();
        assert_eq!(error.kind(), Unavailable, "{error}");
        assert!(error.to_string().contains("certificate"), "{error}");
    }
    assert!(cluster.ids().is_empty());
}
