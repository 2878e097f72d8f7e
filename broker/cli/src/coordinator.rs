//! `millrace coordinator`: runs one coordinator until a signal ends it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use millrace_autoscaler::{Autoscaler, Board, ExternalScaler, ScalingFile, external, targets};
use millrace_queue::{Broker, JetStreamOptions, QueueSettings, service, without_password};
use millrace_schemas::limits;
use millrace_telemetry::TelemetryArgs;
use tokio_util::sync::CancellationToken;

use super::connect::{Api, ConnectionArgs, SERVICE_PATIENCE};
use super::signals::Signals;
use millrace_coordinator::shell::driver::{self, DriverConfig};
use millrace_coordinator::shell::shared::SharedState;

mod streams;

/// Arguments of `millrace coordinator`.
#[derive(Debug, clap::Args)]
pub(super) struct CoordinatorArgs {
    /// Its name. One coordinator of several is the leader; after a restart under the same name it
    /// leads again at once
    #[arg(long, default_value = "coordinator-0")]
    id: String,
    #[command(flatten)]
    made: Made,
    /// Scale pools of workers as this file says. Each coordinator needs the same file
    #[arg(long, env = "MILLRACE_SCALE_FILE", value_name = "FILE")]
    scale: Option<PathBuf>,
    /// Where KEDA's external scaler protocol (gRPC, without TLS) is served while this coordinator
    /// leads. Needs --scale. Default: nowhere
    #[arg(long, env = "MILLRACE_KEDA_ADDR", value_name = "ADDR")]
    keda_addr: Option<SocketAddr>,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

/// Settings of what it creates on the server. Existing streams are not changed.
#[derive(Debug, clap::Args)]
struct Made {
    /// Visibility timeout of a task, in seconds: without a heartbeat for so long, a worker's tasks
    /// are redelivered. Choose it longer than any network outage. Workers send three heartbeats in
    /// this time
    #[arg(long, value_name = "SECONDS", default_value_t = limits::ACK_WAIT_MS as f64 / 1000.0)]
    ack_wait: f64,
    /// Servers of a cluster that keep a copy of everything: 1, 3 or 5. With 3, one may fail at any
    /// time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    replicas: u8,
}

impl Made {
    fn options(&self, who: JetStreamOptions) -> Result<JetStreamOptions> {
        if self.replicas.is_multiple_of(2) {
            bail!(
                "--replicas {}: an even number survives no more failures than one less; give 1, 3 or 5",
                self.replicas
            );
        }
        let settings = QueueSettings::default().with_ack_wait(self.ack_wait).context("--ack-wait")?;
        Ok(JetStreamOptions { replicas: self.replicas.into(), settings, ..who })
    }
}

impl CoordinatorArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let scaling = self.scale.as_deref().map(ScalingFile::read).transpose()?.map(Arc::new);
        if self.keda_addr.is_some() && scaling.is_none() {
            bail!("--keda-addr without --scale: there are no decisions to tell; give the scaling file too");
        }
        let telemetry = self.telemetry.start("millrace-coordinator").await?;
        let mut signals = Signals::listen()?;
        let shutdown = CancellationToken::new();
        let on_signal = shutdown.clone();
        tokio::spawn(async move {
            signals.next().await;
            tracing::info!("shutting down");
            on_signal.cancel();
        });
        let options = self.made.options(connection.who()?.options()?)?;
        let (objects, url) = (connection.open_objects()?, connection.nats_url()?);
        tracing::info!(url = without_password(&url), within = ?SERVICE_PATIENCE, "connecting to nats-server");
        let connecting = shutdown.run_until_cancelled(Api::coordinate(&url, options)).await;
        let Some(api) = connecting else { return Ok(ExitCode::SUCCESS) };
        let api = api?;
        let broker = api.with_objects(objects);
        let shared = driver::restore(&broker).await?;
        let config = DriverConfig { tracer: telemetry.tracer.clone(), ..DriverConfig::new(&self.id) };
        let scale = scale(scaling, self.keda_addr, &broker, &shared, &config, shutdown.clone()).await?;
        let drive = driver::run(broker.clone(), config, shared.clone(), telemetry.health, shutdown);
        let serve = serve_when_ready(&api, broker, shared);
        tokio::select! {
            driven = drive => driven?,
            served = serve => served?,
            () = scale => {}
            () = streams::report(api.queue()) => {}
        }
        telemetry.tracer.finish().await;
        Ok(ExitCode::SUCCESS)
    }
}

/// The autoscaler of this coordinator; never ends before `shutdown`, also without a file.
///
/// # Errors
/// A target of the file cannot be set up, or KEDA cannot be served at its address.
async fn scale(
    file: Option<Arc<ScalingFile>>,
    keda_addr: Option<SocketAddr>,
    broker: &Broker,
    shared: &SharedState,
    config: &DriverConfig,
    shutdown: CancellationToken,
) -> Result<impl Future<Output = ()> + use<>> {
    let scaler = match file {
        None => None,
        Some(file) => {
            let targets = targets::of(&file, broker).await?;
            let board = Board::default();
            let keda = match keda_addr {
                Some(addr) => {
                    let (board, term, file) = (board.clone(), config.term.clone(), file.clone());
                    let scaler = ExternalScaler { board, term, file };
                    let serve = external::serve(addr, scaler, shutdown.clone()).await;
                    Some(serve.with_context(|| format!("--keda-addr {addr}: failed to listen"))?)
                }
                None => None,
            };
            let autoscaler = Autoscaler {
                broker: broker.clone(),
                shared: shared.clone(),
                term: config.term.clone(),
                clock: config.clock.clone(),
                file,
                board,
            };
            Some((autoscaler, targets, keda))
        }
    };
    Ok(async move {
        if let Some((autoscaler, targets, keda)) = scaler {
            let keda = async {
                if let Some(keda) = keda {
                    keda.await;
                }
            };
            tokio::join!(millrace_autoscaler::run(autoscaler, targets, shutdown), keda);
        }
        // What ends the coordinator is its driver, which writes its last snapshot.
        std::future::pending().await
    })
}

/// Interval between two checks whether the log can be folded.
const LOOK: Duration = Duration::from_millis(500);

/// Serves the API once the log is folded up to its present end.
///
/// # Errors
/// The queue cannot be reached, or the connection is closed.
async fn serve_when_ready(api: &Api, broker: Broker, shared: SharedState) -> Result<()> {
    let end = broker.queue().log_end().await.context("failed to read the end of the log")?;
    // A coordinator that cannot fold the log serves the API too, and responds with the reason.
    while !shared.wait_for(end, LOOK).await && shared.blocked().is_none() {}
    tracing::info!(seq = end, "serving the API");
    let handler = Arc::new(millrace_coordinator::shell::api::Api::new(broker, shared));
    service::serve(api.queue(), env!("CARGO_PKG_VERSION"), handler).await.context("failed to serve the API")
}
