//! The port for metrics and health.
//!
//! | path | what it says |
//! |---|---|
//! | `/metrics` | all metrics, as Prometheus reads them |
//! | `/health/live` | the process answers |
//! | `/health/ready` | 200 when the database answers and the relay is one of its nodes, else 503 with the reason |
//!
//! A sink that is down does not make a relay unready: its events wait, and others go on. `circuit_open` tells of it.

use std::{net::SocketAddr, time::Duration};

use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use metrics_util::layers::FanoutBuilder;
use pillarbox::{AnyStore, Outbox, opentelemetry::Telemetry, port::AdminStore as _};
use pillarbox_relay::config::Http;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::AbortHandle};

use crate::error::Error;

/// From a tenth of a millisecond to a minute.
const SECONDS: [f64; 17] =
    [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0, 60.0];

/// How long the database may take to say that it is there.
const READY_WITHIN: Duration = Duration::from_secs(2);

const NO_METRICS: &str = "the metrics could not be set up";

/// How often what was measured is summed up. Until then each value is kept, and nobody may ever ask for them.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Ends a task when it is dropped.
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The port, which nobody answers at yet, and what is counted.
pub(super) struct Port {
    listener: TcpListener,
    address: SocketAddr,
    metrics: PrometheusHandle,
    upkeep: Task,
}

/// Ends the server when it is dropped.
pub(super) struct Server {
    _serving: Task,
    _upkeep: Task,
}

#[derive(Clone)]
struct Shown {
    metrics: PrometheusHandle,
    outbox: Outbox<AnyStore>,
    enabled: bool,
}

/// Takes the port, if there is to be one, and makes this process count, for who asks it and for the collector. Where nobody
/// can ask, nothing is counted.
pub(super) async fn open(http: &Http, prefix: &str, telemetry: Option<&Telemetry>) -> Result<Option<Port>, Error> {
    if !http.enabled {
        if let Some(telemetry) = telemetry {
            install(telemetry.recorder())?;
        }
        return Ok(None);
    }
    let listener = TcpListener::bind(http.listen).await.map_err(|error| {
        Error::new(format!("http.listen: {} can't be listened on", http.listen))
            .caused_by(error)
            .advice("choose another with --set http.listen=127.0.0.1:0, or set http.enabled=false")
    })?;
    let address = listener.local_addr().map_err(|error| Error::new("the port is not known").caused_by(error))?;
    let recorder = recorder(prefix)?;
    let metrics = recorder.handle();
    match telemetry {
        Some(telemetry) => {
            let both = FanoutBuilder::default().add_recorder(recorder).add_recorder(telemetry.recorder());
            install(both.build())?;
        }
        None => install(recorder)?,
    }
    let upkeep = keep_up(metrics.clone(), UPKEEP_EVERY);
    Ok(Some(Port { listener, address, metrics, upkeep }))
}

impl Port {
    /// Answers until the server is dropped.
    pub(super) fn serve(self, outbox: Outbox<AnyStore>, enabled: bool) -> Server {
        let Self { listener, address, metrics, upkeep } = self;
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
        Server { _serving: Task(serving.abort_handle()), _upkeep: upkeep }
    }
}

fn recorder(prefix: &str) -> Result<PrometheusRecorder, Error> {
    let builder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Prefix(prefix.to_owned()), &SECONDS);
    Ok(builder.map_err(|error| Error::new(NO_METRICS).caused_by(error))?.build_recorder())
}

fn install(recorder: impl metrics::Recorder + Sync + 'static) -> Result<(), Error> {
    metrics::set_global_recorder(recorder).map_err(|_| Error::new(NO_METRICS))
}

fn keep_up(metrics: PrometheusHandle, every: Duration) -> Task {
    let upkeep = tokio::spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            metrics.run_upkeep();
        }
    });
    Task(upkeep.abort_handle())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The handle's picture of itself is the only one that tells what is kept.
    #[tokio::test]
    async fn what_is_measured_is_summed_up_though_nobody_asks() {
        let recorder = recorder("shop").unwrap();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || metrics::histogram!("shop_seconds").record(0.1));
        let summed = |handle: &PrometheusHandle| {
            let shown = format!("{handle:?}");
            let (_, sums) = shown.split_once("distributions: ").expect("a field");
            sums.split("distribution_builder").next().is_some_and(|sums| sums.contains("shop_seconds"))
        };
        assert!(!summed(&handle));
        let _upkeep = keep_up(handle.clone(), Duration::from_millis(1));
        let looking = async {
            while !summed(&handle) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), looking).await.expect("to be summed up");
    }
}
