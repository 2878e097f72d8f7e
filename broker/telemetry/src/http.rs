//! `/metrics` in Prometheus' text format, and `/healthz`.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;

use crate::health::Health;

/// Bounds of histograms whose names end in `_seconds`: a queue's microseconds to a step's minutes.
const SECONDS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0];
/// Interval between two clean-ups of the recorder.
const UPKEEP: Duration = Duration::from_secs(5);

/// Serves `/metrics` and `/healthz` until the runtime ends. Returns the address.
///
/// # Errors
/// The address cannot be listened on, or another recorder of metrics was installed before.
pub async fn serve(addr: SocketAddr, health: Health) -> anyhow::Result<SocketAddr> {
    let metrics = recorder()?;
    let listener = TcpListener::bind(addr).await.with_context(|| format!("failed to listen on {addr}"))?;
    let bound = listener.local_addr()?;
    tracing::info!(%bound, "serving /metrics and /healthz");
    let router = Router::new()
        .route("/metrics", get(async move || metrics_page(&metrics)))
        .route("/healthz", get(async move || health_page(&health)));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "stopped serving /metrics and /healthz");
        }
    });
    Ok(bound)
}

/// The process's recorder: installed on the first call, with its clean-up.
fn recorder() -> anyhow::Result<PrometheusHandle> {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    if let Some(handle) = RECORDER.get() {
        return Ok(handle.clone());
    }
    let builder =
        PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?;
    let handle = builder.install_recorder()?;
    let upkeep = handle.clone();
    tokio::spawn(async move {
        let mut interval = tokio::time::interval(UPKEEP);
        loop {
            interval.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(RECORDER.get_or_init(|| handle).clone())
}

fn metrics_page(handle: &PrometheusHandle) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], handle.render())
}

fn health_page(health: &Health) -> impl IntoResponse + use<> {
    let report = health.report();
    let status =
        if report.connected && !report.leaving { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = serde_json::to_vec(&report).expect("a report holds only what JSON can express");
    (status, [(header::CONTENT_TYPE, "application/json")], body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn fetch(addr: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn health_and_metrics_are_served() {
        let health = Health::default();
        let addr = serve("127.0.0.1:0".parse().unwrap(), health.clone()).await.unwrap();
        assert_ne!(addr.port(), 0);
        let page = fetch(addr, "/healthz").await;
        assert!(page.starts_with("HTTP/1.1 503"), "{page}");

        health.set_connected(true);
        health.set_stages(["generate".to_owned()]);
        health.progress();
        health.set_leader(true);
        health.set_trouble("run-a", Some("the store is away".to_owned()));
        let page = fetch(addr, "/metrics").await;
        for line in ["millrace_connected 1", "millrace_leader 1", r#"millrace_trouble{what="run-a"} 1"#] {
            assert!(page.contains(line), "{page}");
        }
        health.set_leader(false);
        health.set_trouble("run-a", None);
        let page = fetch(addr, "/metrics").await;
        assert!(page.contains("millrace_leader 0"), "{page}");
        assert!(page.contains(r#"millrace_trouble{what="run-a"} 0"#), "{page}");

        let page = fetch(addr, "/healthz").await;
        assert!(page.starts_with("HTTP/1.1 200"), "{page}");
        assert!(page.contains(r#""connected":true,"leader":false,"stages":["generate"]"#), "{page}");

        metrics::counter!("millrace_test_total", "stage" => "generate").increment(3);
        metrics::histogram!("millrace_test_seconds").record(0.002);
        let page = fetch(addr, "/metrics").await;
        assert!(page.contains(r#"millrace_test_total{stage="generate"} 3"#), "{page}");
        assert!(page.contains(r#"millrace_test_seconds_bucket{le="0.0025"} 1"#), "{page}");
    }
}
