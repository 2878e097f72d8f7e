//! The folder of a `millrace up`: everything that a run needs and produces.
//!
//! | name | what |
//! |---|---|
//! | `run.json` | the run file as taken on, with all defaults |
//! | `nats/`, `nats.url`, `nats.conf` | the queue's store, where it is reached, and its configuration |
//! | `nats.nk` | the key that the queue asks for; readable by its owner alone |
//! | `objects/` | the object store |
//! | `logs/` | what every process wrote, by name |
//! | `pids.json` | process ids by name, while they live |
//! | `metrics.jsonl` | a line of metrics for each train step so far |
//! | `report.json`, `curve.svg`, `weights/` | the results, once the run is over |
//! | `earlier/` | results of earlier runs |
//! | `up.lock` | locked by the `millrace up` or the command that runs a server here; which of the two |

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use millrace_queue::args::{new_user_key, public_key};
use millrace_schemas::RunSpec;
use millrace_schemas::report::Report;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;

use crate::term::remark;

/// Data that is removed before a new run.
const DATA: [&str; 8] =
    ["nats", "nats.url", "nats.conf", "sync.conf", "objects", "logs", "pids.json", "run.json"];
/// The seed of the queue's key.
pub(crate) const KEY_FILE: &str = "nats.nk";
/// The key's user, as in the server's log and in inboxes.
const KEY_USER: &str = "up";
/// A line of metrics for each train step.
pub(super) const METRICS_FILE: &str = "metrics.jsonl";
/// Results, which are kept.
const RESULTS: [&str; 4] = [METRICS_FILE, "report.json", "curve.svg", "weights"];

/// The content of the lock's file while a command reads a folder whose `millrace up` has ended.
const READS: &[u8] = b"reads";
/// Pause between two tries to lock a folder that a command reads.
const LOCK_AGAIN: Duration = Duration::from_millis(10);
/// So many tries in a row must find a `millrace up`.
const LOOKS: u32 = 5;

/// A folder that no other `millrace up` uses at the same time.
pub(super) struct Folder {
    root: PathBuf,
    /// A lock that the kernel releases when the process ends.
    lock: Flock<File>,
}

/// The result of one try to lock a folder.
enum Locked {
    /// It is this process's.
    Own(Folder),
    /// A `millrace up` runs in it.
    ByUp,
    /// A command reads it, for a moment.
    ByReader,
}

/// How a run starts in a folder.
pub(super) enum Begin {
    /// As a new run.
    New,
    /// From its present state.
    Resumed,
    /// Not at all: it is over, with this result.
    Over(Box<Report>),
}

/// Whether a run starts over although the folder has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartOver {
    /// Never.
    No,
    /// If the run in the folder is over.
    IfOver,
    /// Always.
    Always,
}

impl Folder {
    /// Creates the folder if necessary, and locks it. Waits for commands that read it.
    pub(super) async fn open(root: &Path) -> Result<Self> {
        fs::create_dir_all(root).with_context(|| format!("failed to open folder={}", root.display()))?;
        match lock_after_readers(root, b"").await? {
            Some(folder) => Ok(folder),
            None => bail!(
                "another `millrace up` is running in folder={}; stop it, or choose another --dir",
                root.display()
            ),
        }
    }

    /// Locks the folder for a command that reads what is in it, after other such commands; `None`
    /// while a `millrace up` runs in it.
    pub(super) async fn open_to_read(root: &Path) -> Result<Option<Self>> {
        lock_after_readers(root, READS).await
    }

    fn try_lock(root: &Path, mark: &[u8]) -> Result<Locked> {
        let fail = || format!("failed to open folder={}", root.display());
        let root = root.canonicalize().with_context(fail)?;
        let path = root.join("up.lock");
        // What the present owner wrote must stay.
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        match Flock::lock(file.with_context(fail)?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                write_mark(&lock, mark).with_context(fail)?;
                Ok(Locked::Own(Self { root, lock }))
            }
            Err((_, Errno::EWOULDBLOCK)) => {
                let reads = fs::read(&path).with_context(fail)? == READS;
                Ok(if reads { Locked::ByReader } else { Locked::ByUp })
            }
            Err((_, e)) => Err(e).with_context(fail),
        }
    }

    /// The path of `name` in the folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Decides how `spec` starts here, and prepares the folder.
    pub(super) fn begin(&self, spec: &RunSpec, start_over: StartOver) -> Result<Begin> {
        let Some(text) = self.read("run.json")? else { return self.begin_new(spec) };
        let report = self.read("report.json")?;
        match (start_over, report) {
            (StartOver::Always, _) | (StartOver::IfOver, Some(_)) => {
                self.set_aside()?;
                self.begin_new(spec)
            }
            (StartOver::No, Some(report)) => {
                Ok(Begin::Over(serde_json::from_slice(&report).context("failed to read report.json")?))
            }
            (StartOver::No | StartOver::IfOver, None) => {
                let known: RunSpec = serde_json::from_slice(&text).context("failed to read run.json")?;
                self.refuse_another(&known, spec)?;
                Ok(Begin::Resumed)
            }
        }
    }

    fn begin_new(&self, spec: &RunSpec) -> Result<Begin> {
        for name in ["nats", "objects", "logs"] {
            fs::create_dir_all(self.path(name)).with_context(|| format!("failed to create folder={name}"))?;
        }
        self.write_json("run.json", spec)?;
        Ok(Begin::New)
    }

    fn refuse_another(&self, known: &RunSpec, spec: &RunSpec) -> Result<()> {
        if known == spec {
            return Ok(());
        }
        let (known_value, value) = (serde_json::to_value(known)?, serde_json::to_value(spec)?);
        let keys = value.as_object().into_iter().flat_map(serde_json::Map::keys);
        let differing: Vec<&str> =
            keys.map(String::as_str).filter(|key| known_value.get(key) != value.get(key)).collect();
        bail!(
            "folder={} has run={}, which is not over and was started with another run file or options: {} differ. Give the same \
             ones to resume it, choose another --dir, or give it up with --fresh",
            self.root.display(),
            known.name,
            differing.join(", ")
        );
    }

    /// Moves results to `earlier/<n>` and removes the data.
    fn set_aside(&self) -> Result<()> {
        let number = (1..).find(|n| !self.path(&format!("earlier/{n}")).exists());
        let earlier = self.path(&format!("earlier/{}", number.unwrap_or_default()));
        for name in RESULTS.iter().filter(|name| self.path(name).exists()) {
            fs::create_dir_all(&earlier).context("failed to create a folder for earlier results")?;
            fs::rename(self.path(name), earlier.join(name))
                .with_context(|| format!("failed to move {name} to earlier/"))?;
        }
        // The run file is removed last, so that an interrupted removal is completed the next time.
        for name in DATA {
            let path = self.path(name);
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match removed {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(e).with_context(|| format!("failed to remove path={}", path.display()));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// The port of this folder's queue: that of the last time if it is free, so that clients keep
    /// working.
    pub(super) fn nats_port(&self) -> Result<u16> {
        let known = self.read("nats.url")?.and_then(|text| port_of(&String::from_utf8_lossy(&text)));
        let known = known.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
        let port = known.map_or_else(millrace_server::free_port, Ok).context("failed to find a free port")?;
        fs::write(self.path("nats.url"), format!("nats://127.0.0.1:{port}\n"))
            .context("failed to write nats.url")?;
        Ok(port)
    }

    /// The key of this folder's queue, which keeps out other users of the machine. Returns the path
    /// of its file, and the public key.
    pub(super) fn server_key(&self) -> Result<(PathBuf, String)> {
        let path = self.path(KEY_FILE);
        if !path.exists() {
            let (seed, _) = new_user_key(KEY_USER);
            let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
            let written = file.and_then(|mut file| file.write_all(seed.as_bytes()));
            written.with_context(|| format!("failed to write path={}", path.display()))?;
        }
        let public = public_key(&path)?;
        Ok((path, public))
    }

    /// Writes `name` atomically.
    pub(super) fn write_json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        write_whole(&self.path(name), &(serde_json::to_string_pretty(value)? + "\n"))
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match fs::read(self.path(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).with_context(|| format!("failed to read {name} in {}", self.root.display())),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The next to lock it is taken for one that reads until it has left its own mark.
        let _ = write_mark(&self.lock, READS);
    }
}

/// Writes the content of the lock's file; what is there already is never absent in between.
fn write_mark(lock: &File, mark: &[u8]) -> std::io::Result<()> {
    lock.write_all_at(mark, 0)?;
    lock.set_len(mark.len() as u64)
}

/// Locks a folder and leaves `mark` in the lock's file; `None` if a `millrace up` has it. What reads
/// the folder ends by itself, so it is waited for.
async fn lock_after_readers(root: &Path, mark: &[u8]) -> Result<Option<Folder>> {
    let (mut told, mut looks) = (false, 0);
    loop {
        match Folder::try_lock(root, mark)? {
            Locked::Own(folder) => return Ok(Some(folder)),
            // Where an `up` was killed, a reader may have locked it and not left its mark yet.
            Locked::ByUp if looks >= LOOKS => return Ok(None),
            Locked::ByUp => looks += 1,
            Locked::ByReader => {
                if !told {
                    remark(format_args!("waiting for another command that reads {}", root.display()));
                    told = true;
                }
                looks = 0;
            }
        }
        tokio::time::sleep(LOCK_AGAIN).await;
    }
}

/// Writes a file atomically: a reader sees the old text or the new.
pub(super) fn write_whole(path: &Path, text: &str) -> Result<()> {
    let beside = path.with_extension("new");
    fs::write(&beside, text)
        .and_then(|()| fs::rename(&beside, path))
        .with_context(|| format!("failed to write path={}", path.display()))
}

fn port_of(url: &str) -> Option<u16> {
    url.trim().rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    fn spec(steps: u64) -> RunSpec {
        let text = format!(
            "name = 'test'\nsteps = {steps}\nmodel = {{ kind = 'scripted' }}\nenvironment = {{ name = 'counter', turns = 2 }}"
        );
        millrace_schemas::submit::from_toml(&text).unwrap()
    }

    #[tokio::test]
    async fn one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let held = Folder::open(dir.path()).await.unwrap();
        let error = Folder::open(dir.path()).await.err().unwrap().to_string();
        assert!(error.contains("another `millrace up`"), "{error}");
        assert!(Folder::open_to_read(dir.path()).await.unwrap().is_none(), "its server answers");
        drop(held);
        Folder::open(dir.path()).await.unwrap();
    }

    #[tokio::test]
    async fn what_reads_a_folder_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let reader = Folder::open_to_read(dir.path()).await.unwrap().unwrap();
        let mut next = Box::pin(Folder::open(dir.path()));
        assert!(timeout(3 * LOCK_AGAIN, &mut next).await.is_err(), "it is read");
        drop(reader);
        next.await.unwrap();
        // A reader that was killed left its mark, and no lock.
        fs::write(dir.path().join("up.lock"), READS).unwrap();
        let up = Folder::open(dir.path()).await.unwrap();
        assert!(Folder::open_to_read(dir.path()).await.unwrap().is_none());
        drop(up);
    }

    #[tokio::test]
    async fn a_run_goes_on_only_as_it_began() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).await.unwrap();
        assert!(matches!(folder.begin(&spec(3), StartOver::No).unwrap(), Begin::New));
        assert!(matches!(folder.begin(&spec(3), StartOver::IfOver).unwrap(), Begin::Resumed));
        let error = folder.begin(&spec(4), StartOver::No).err().unwrap().to_string();
        assert!(error.contains("steps differ"), "{error}");
        assert!(matches!(folder.begin(&spec(4), StartOver::Always).unwrap(), Begin::New));
    }

    #[tokio::test]
    async fn results_are_set_aside_and_data_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).await.unwrap();
        folder.begin(&spec(3), StartOver::No).unwrap();
        for n in 1..3 {
            fs::write(folder.path("objects/x"), "x").unwrap();
            fs::write(folder.path("curve.svg"), n.to_string()).unwrap();
            folder.begin(&spec(3), StartOver::Always).unwrap();
            assert!(!folder.path("objects/x").exists() && !folder.path("curve.svg").exists());
            assert_eq!(
                fs::read_to_string(folder.path(&format!("earlier/{n}/curve.svg"))).unwrap(),
                n.to_string()
            );
        }
    }

    #[tokio::test]
    async fn the_key_stays_and_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).await.unwrap();
        let (path, public) = folder.server_key().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(folder.server_key().unwrap(), (path, public));
    }

    #[tokio::test]
    async fn the_port_stays_unless_it_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).await.unwrap();
        let port = folder.nats_port().unwrap();
        assert_eq!(folder.nats_port().unwrap(), port);
        let _other = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert_ne!(folder.nats_port().unwrap(), port);
    }
}
