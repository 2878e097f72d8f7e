//! The command-line arguments of every binary for telemetry, and the handles that they start.

use std::net::SocketAddr;

use anyhow::Context;

use crate::health::Health;
use crate::http;
use crate::logs::{self, LogFormat};
use crate::otlp;
use crate::spans::Tracer;

/// Arguments of every process.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct TelemetryArgs {
    /// Format of log lines on standard error
    #[arg(long, env = "MILLRACE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Human)]
    pub log_format: LogFormat,
    /// Which lines are logged, as a tracing filter: `info`, `warn,millrace_queue=debug`
    #[arg(long, env = "MILLRACE_LOG", default_value = "info")]
    pub log: String,
    /// Where /metrics and /healthz are served; port 0 takes a free one
    #[arg(long, env = "MILLRACE_HTTP_ADDR", default_value = "127.0.0.1:0")]
    pub http_addr: SocketAddr,
}

/// Handles on the telemetry of a process.
#[derive(Debug)]
pub struct Telemetry {
    /// The health that `/healthz` reports; the process sets it.
    pub health: Health,
    /// Reports spans, if the environment names a receiver of traces.
    pub tracer: Tracer,
    /// Where /metrics and /healthz are.
    pub http: SocketAddr,
}

impl TelemetryArgs {
    /// Starts logs, metrics, traces and the HTTP server. Call once in a process, within a tokio
    /// runtime. `service` is the process's name in traces.
    ///
    /// # Errors
    /// The filter is invalid, the address cannot be listened on, or a variable of OpenTelemetry has
    /// a value that is not supported.
    pub async fn start(&self, service: &'static str) -> anyhow::Result<Telemetry> {
        logs::init(self.log_format, &self.log)?;
        let traced = otlp::Settings::read(|name| std::env::var(name).ok())?;
        let health = Health::default();
        let http = http::serve(self.http_addr, health.clone()).await.context("failed to serve metrics")?;
        // The metric exists from the start.
        health.set_connected(false);
        let exporter = traced.map(|settings| otlp::Exporter::start(settings, service)).transpose()?;
        let tracer = exporter.map(Tracer::new).unwrap_or_default();
        Ok(Telemetry { health, tracer, http })
    }
}
