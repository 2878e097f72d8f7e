//! `millrace-sandboxes` serves sandboxes over HTTP to clients that speak ROCK's protocol or E2B's.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use millrace_sandbox::egress::rules::{Private, Rule};
use millrace_sandbox::live::{Bounds, Host, ImageCache, Settings as HostSettings};
use millrace_sandbox_service::gem;
use millrace_sandbox_service::images::ImageStore;
use millrace_sandbox_service::keys::Keys;
use millrace_sandbox_service::network::Network;
use millrace_sandbox_service::service::{Service, Settings};
use millrace_sandbox_service::surfaces;

/// Of the client's 300 s a start may wait for 60 s and say its offer within 60 s.
const MOST_STEP_S: u64 = 150;
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
    /// The object store with other images, which `millrace env push` puts there: a folder, or
    /// s3://bucket/prefix with AWS_… in the environment.
    #[arg(long, value_name = "LOCATION", requires = "image_cache")]
    image_store: Option<String>,
    /// Where their layers are unpacked. Processes of one user share it; its file system may not be an
    /// overlay.
    #[arg(long, value_name = "DIR", requires = "image_store")]
    image_cache: Option<PathBuf>,
    /// MiB of unpacked layers that stay while no sandbox uses them; the least recently used leave first.
    /// Default: no bound.
    #[arg(long, value_name = "MIB", requires = "image_cache")]
    image_cache_mib: Option<u64>,
    /// With what the names begin under which clients may store their sandboxes as images, for all keys to
    /// use. Default: none may.
    #[arg(long, value_name = "PREFIX", requires = "image_store")]
    image_commits: Option<String>,
    /// The program `millrace`, which fetches and stores layers. Default: beside this one.
    #[arg(long)]
    millrace: Option<PathBuf>,
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
    /// Seconds for which the files of a stopped sandbox stay, for `restart`, where ROCK's client sends no
    /// auto_delete_seconds. They take the place of a sandbox that could run. Default: none stay.
    #[arg(long, default_value_t = 0)]
    keep_stopped_s: u64,
    /// The most that a client may ask for by auto_delete_seconds.
    #[arg(long, default_value_t = 86_400)]
    keep_stopped_most_s: u64,
    /// Hosts that E2B's clients may open for their sandboxes by `network.allow_out`: pypi.org:443, or
    /// *.pythonhosted.org:443 for all names below one. Default: none.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    network: Vec<Rule>,
    /// Those of them that sandboxes reach whose clients cannot ask for any: ROCK's, and its environments.
    /// Default: none.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', requires = "network")]
    network_unasked: Vec<Rule>,
    /// Private addresses that these hosts may have.
    #[arg(long, value_name = "ADDRESS:PORT", value_delimiter = ',', requires = "network")]
    network_private: Vec<Private>,
    /// Serves environments to ROCK's `rock.make`: a line for `sh`, run in a sandbox for each environment,
    /// `python3 -m millrace.adapters gem` for example. Without it there are none.
    #[arg(long, value_name = "COMMAND")]
    gem: Option<String>,
    /// Folders that environments may read at the same place: their program and its packages.
    #[arg(long, value_delimiter = ',', requires = "gem")]
    gem_read: Vec<PathBuf>,
    /// The image of --image-store in which environments run. Default: this machine's own programs.
    #[arg(long, value_name = "NAME", requires_all = ["gem", "image_store"])]
    gem_image: Option<String>,
    /// Environments at once.
    #[arg(long, default_value_t = 256, value_parser = most_environments)]
    gem_most: usize,
    /// Seconds that an environment may take over one answer; the client has 300 for the request.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=MOST_STEP_S))]
    gem_step_s: u64,
}

fn most_environments(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|most| (1..=100_000).contains(most)).ok_or_else(|| "1 to 100000".to_owned())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args = Args::parse();
    let keys = std::fs::read_to_string(&args.keys)
        .with_context(|| format!("failed to read --keys {}", args.keys.display()))?;
    let beside = |name: &str| Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name(name));
    let program = args.sandbox.map_or_else(|| beside("millrace-sandbox"), Ok)?;
    let store = match args.image_store.zip(args.image_cache) {
        None => None,
        Some((location, cache)) => Some(ImageStore {
            program: args.millrace.map_or_else(|| beside("millrace"), Ok)?,
            location,
            cache: ImageCache::open(&cache)?,
            cache_bytes: args.image_cache_mib.map(|mib| mib.saturating_mul(1 << 20)),
            commits: args.image_commits,
        }),
    };
    let host = Host::open(HostSettings { warm: args.warm, ..HostSettings::new(program) }).await?;
    let bounds =
        Bounds { memory_bytes: args.memory_mib << 20, disk_bytes: args.disk_mib << 20, ..Bounds::default() };
    let settings = Settings {
        keys: Keys::parse(&keys)?,
        images: args.images,
        store,
        most: args.most,
        bounds,
        idle: Duration::from_secs(args.idle_s),
        life: Duration::from_secs(args.life_s),
        keep: (Duration::from_secs(args.keep_stopped_s), Duration::from_secs(args.keep_stopped_most_s)),
        network: Network::new(args.network.into_iter().collect(), args.network_private)
            .with_unasked(args.network_unasked.into_iter().collect())?,
    };
    let step = Duration::from_secs(args.gem_step_s);
    let (read, image, most) = (args.gem_read, args.gem_image, args.gem_most);
    let gem = args.gem.map(|command| gem::Settings { command, read, image, most, step });
    let service = Service::start(host, settings);
    let listener = tokio::net::TcpListener::bind(args.listen).await.context("failed to listen")?;
    writeln!(std::io::stdout(), "listening on http://{}", listener.local_addr()?)?;
    // Requests that are still open end with their sandboxes.
    tokio::select! {
        served = axum::serve(listener, surfaces::routes(service, gem)) => Ok(served?),
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
