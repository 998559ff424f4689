//! The port for metrics and health.
//!
//! | path | what it says |
//! |---|---|
//! | `/metrics` | all metrics, as Prometheus reads them |
//! | `/health/live` | the process answers |
//! | `/health/ready` | 200 when the database answers and the relay is one of its nodes, else 503 with the reason |
//!
//! A sink that is down does not make a relay unready: its events wait, and others go on. `circuit_open` tells of it.

use std::time::Duration;

use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_util::layers::FanoutBuilder;
use pillarbox::{AnyStore, Outbox, opentelemetry::Telemetry, port::AdminStore as _};
use pillarbox_relay::config::Http;
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use crate::error::Error;

/// From a tenth of a millisecond to a minute.
const SECONDS: [f64; 17] =
    [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0, 60.0];

/// How long the database may take to say that it is there.
const READY_WITHIN: Duration = Duration::from_secs(2);

/// Ends the server when it is dropped.
pub(super) struct Server(AbortHandle);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Clone)]
struct Shown {
    metrics: PrometheusHandle,
    outbox: Outbox<AnyStore>,
    enabled: bool,
}

/// Makes this process count, for who asks it and for the collector.
pub(super) fn metrics(prefix: &str, telemetry: Option<&Telemetry>) -> Result<PrometheusHandle, Error> {
    let what = "the metrics could not be set up";
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Prefix(prefix.to_owned()), &SECONDS)
        .map_err(|error| Error::new(what).caused_by(error))?
        .build_recorder();
    let handle = recorder.handle();
    let installed = match telemetry {
        Some(telemetry) => {
            let both = FanoutBuilder::default().add_recorder(recorder).add_recorder(telemetry.recorder());
            metrics::set_global_recorder(both.build()).map_err(|_| ())
        }
        None => metrics::set_global_recorder(recorder).map_err(|_| ()),
    };
    installed.map_err(|()| Error::new(what))?;
    Ok(handle)
}

/// Listens, and answers until the server is dropped.
pub(super) async fn start(
    http: &Http,
    metrics: PrometheusHandle,
    outbox: Outbox<AnyStore>,
    enabled: bool,
) -> Result<Server, Error> {
    let listener = tokio::net::TcpListener::bind(http.listen).await.map_err(|error| {
        Error::new(format!("http.listen: {} can't be listened on", http.listen))
            .caused_by(error)
            .advice("choose another with --set http.listen=127.0.0.1:0, or set http.enabled=false")
    })?;
    let address = listener.local_addr().map_err(|error| Error::new("the port is not known").caused_by(error))?;
    tracing::info!(%address, "metrics and health");
    let routes = Router::new()
        .route("/metrics", get(async |State(shown): State<Shown>| shown.metrics.render()))
        .route("/health/live", get(async || Json(json!({ "live": true }))))
        .route("/health/ready", get(ready))
        .with_state(Shown { metrics, outbox, enabled });
    let serving = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            tracing::error!(error = &error as &dyn std::error::Error, "metrics and health are no longer served");
        }
    });
    Ok(Server(serving.abort_handle()))
}

async fn ready(State(Shown { outbox, enabled, .. }): State<Shown>) -> (StatusCode, Json<Value>) {
    let not = |why: String| (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "ready": false, "why": why })));
    match tokio::time::timeout(READY_WITHIN, outbox.store().fleet()).await {
        Err(_) => not(format!("the database does not answer within {READY_WITHIN:?}")),
        Ok(Err(error)) => not(format!("the database fails: {error}")),
        Ok(Ok(fleet)) => {
            let live = fleet.nodes.iter().filter(|node| node.is_live(fleet.now)).count();
            let owned = outbox.partitions_owned();
            if !enabled {
                return (StatusCode::OK, Json(json!({ "ready": true, "enabled": false, "nodes": live })));
            }
            if !outbox.is_joined() {
                return not("the relay has no lease, and is about to join again".into());
            }
            (StatusCode::OK, Json(json!({ "ready": true, "partitions": owned, "nodes": live })))
        }
    }
}
