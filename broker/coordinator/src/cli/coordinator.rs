//! `millrace coordinator`: one coordinator, until it is told to end.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use millrace_queue::{Broker, service};
use millrace_telemetry::TelemetryArgs;
use tokio_util::sync::CancellationToken;

use super::connect::{Api, Place, SERVICE_PATIENCE};
use super::signals::Signals;
use crate::driver::{self, DriverConfig};
use crate::shared::Shared;

/// Arguments of `millrace coordinator`.
#[derive(Debug, clap::Args)]
pub(super) struct CoordinatorArgs {
    /// Its name: of several, one acts; the same name takes up its own work at once after a restart
    #[arg(long, default_value = "coordinator-0")]
    id: String,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

impl CoordinatorArgs {
    pub(super) async fn run(self, place: &Place) -> Result<ExitCode> {
        let telemetry = self.telemetry.start().await?;
        let mut signals = Signals::listen()?;
        let shutdown = CancellationToken::new();
        let on_signal = shutdown.clone();
        tokio::spawn(async move {
            signals.next().await;
            tracing::info!("told to leave; writing a snapshot");
            on_signal.cancel();
        });
        let api = Api::connect(&place.nats_url()?, &place.connect, SERVICE_PATIENCE).await?;
        let broker = api.with_objects(place.open_objects()?);
        let shared = driver::restore(&broker).await?;
        let config = DriverConfig::new(&self.id);
        let drive = driver::run(broker.clone(), config, shared.clone(), telemetry.health, shutdown);
        let serve = serve_when_ready(&api, broker, shared);
        tokio::select! {
            driven = drive => driven?,
            served = serve => served?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Answers requests once all that stands in the log is known, and from then on.
///
/// # Errors
/// The queue cannot be reached, or the connection is closed.
async fn serve_when_ready(api: &Api, broker: Broker, shared: Shared) -> Result<()> {
    let end = broker.queue().log_end().await.context("failed to look at the log")?;
    shared.wait_for(end).await;
    tracing::info!(seq = end, "caught up with the log; serving the API");
    let handler = Arc::new(crate::api::Api::new(broker, shared));
    service::serve(api.queue(), env!("CARGO_PKG_VERSION"), handler).await.context("failed to serve the API")
}
