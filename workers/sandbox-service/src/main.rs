//! `millrace-sandboxes` serves sandboxes over HTTP to clients that speak ROCK's protocol or E2B's.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use millrace_sandbox::live::{Bounds, Host, Settings as HostSettings};
use millrace_sandbox_service::keys::Keys;
use millrace_sandbox_service::service::{Service, Settings};
use millrace_sandbox_service::surfaces;

/// A year: any moment within it can be told.
const MOST_LIFE_S: u64 = 365 * 86_400;

/// Serves sandboxes over HTTP to clients that speak ROCK's protocol or E2B's.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Where to listen. Port 0: any that is free. There is no TLS: keep it on a loopback or a private
    /// network, or put a proxy with TLS before it.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// A file with bearer keys, one a line.
    #[arg(long)]
    keys: PathBuf,
    /// The program `millrace-sandbox`. Default: beside this one.
    #[arg(long)]
    sandbox: Option<PathBuf>,
    /// Sandboxes that wait with their namespaces made.
    #[arg(long, default_value_t = 8)]
    warm: usize,
    /// Sandboxes at once.
    #[arg(long, default_value_t = 1_000)]
    most: usize,
    /// Names of images that stand for this machine's own programs.
    #[arg(long, value_delimiter = ',', default_value = "python:3.11,base")]
    images: Vec<String>,
    /// MiB of memory of each sandbox at most.
    #[arg(long, default_value_t = 2_048)]
    memory_mib: u64,
    /// MiB of files of each sandbox at most; they are in memory, too.
    #[arg(long, default_value_t = 1_024)]
    disk_mib: u64,
    /// Seconds without use until a sandbox ends, at most: ROCK's.
    #[arg(long, default_value_t = 1_800)]
    idle_s: u64,
    /// Seconds until a sandbox ends, used or not, at most: E2B's.
    #[arg(long, default_value_t = 86_400, value_parser = clap::value_parser!(u64).range(1..=MOST_LIFE_S))]
    life_s: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args = Args::parse();
    let keys = std::fs::read_to_string(&args.keys)
        .with_context(|| format!("failed to read --keys {}", args.keys.display()))?;
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("millrace-sandbox"));
    let program = args.sandbox.map_or_else(beside, Ok)?;
    let host = Host::open(HostSettings { warm: args.warm, ..HostSettings::new(program) }).await?;
    let bounds =
        Bounds { memory_bytes: args.memory_mib << 20, disk_bytes: args.disk_mib << 20, ..Bounds::default() };
    let settings = Settings {
        keys: Keys::parse(&keys)?,
        images: args.images,
        most: args.most,
        bounds,
        idle: Duration::from_secs(args.idle_s),
        life: Duration::from_secs(args.life_s),
    };
    let service = Service::start(host, settings);
    let listener = tokio::net::TcpListener::bind(args.listen).await.context("failed to listen")?;
    writeln!(std::io::stdout(), "listening on http://{}", listener.local_addr()?)?;
    // Requests that are still open end with their sandboxes.
    tokio::select! {
        served = axum::serve(listener, surfaces::routes(service)) => Ok(served?),
        () = ended() => Ok(()),
    }
}

/// Ends on the signals by which programs are asked to end. Sandboxes end with the process.
async fn ended() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
