//! What every binary takes on its command line, and what it gets for it.

use std::net::SocketAddr;

use anyhow::Context;

use crate::health::Health;
use crate::http;
use crate::logs::{self, LogFormat};

/// Arguments of every process.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct TelemetryArgs {
    /// How log lines look on standard error
    #[arg(long, env = "MILLRACE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Human)]
    pub log_format: LogFormat,
    /// What is logged, as a tracing filter: `info`, `warn,millrace_queue=debug`
    #[arg(long, env = "MILLRACE_LOG", default_value = "info")]
    pub log: String,
    /// Where /metrics and /healthz are served; port 0 takes a free one
    #[arg(long, env = "MILLRACE_HTTP_ADDR", default_value = "127.0.0.1:0")]
    pub http_addr: SocketAddr,
}

/// A process that can be watched.
#[derive(Debug)]
pub struct Telemetry {
    /// To be told how the process is.
    pub health: Health,
    /// Where /metrics and /healthz are.
    pub http: SocketAddr,
}

impl TelemetryArgs {
    /// Starts logs, metrics and the HTTP server. Call once in a process, within a tokio runtime.
    ///
    /// # Errors
    /// The filter is none, or the address cannot be listened on.
    pub async fn start(&self) -> anyhow::Result<Telemetry> {
        logs::init(self.log_format, &self.log)?;
        let health = Health::default();
        let http = http::serve(self.http_addr, health.clone()).await.context("failed to serve metrics")?;
        Ok(Telemetry { health, http })
    }
}
