//! Control groups: the kernel's own bound of the memory of each sandbox. `memory.rs` looks now and
//! then and counts exactly; a group holds at any moment, also while this process is stopped, but it
//! counts files in memory, too. So a group is wider, by what these may be.

mod place;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

pub use place::JOIN;
use place::{Version, is_left_behind, prefix};

/// Bytes for what the kernel keeps of a sandbox: page tables, pipes, the trees of its mounts.
const SLACK: u64 = 64 * 1024 * 1024;

/// Bytes that the kernel takes for no bound.
const MOST: u64 = 1 << 62;

/// Where this process makes groups, for all its sandboxes, or why it makes none.
static GROUPS: OnceLock<Result<Groups, String>> = OnceLock::new();

fn groups() -> &'static Result<Groups, String> {
    GROUPS.get_or_init(|| {
        let groups = Groups::open();
        tracing::info!(memory = words(&groups), "sandboxes are bounded");
        groups
    })
}

/// For people: what bounds the memory of sandboxes on this machine, and why it is no more.
#[must_use]
pub fn memory_bound() -> String {
    words(groups())
}

fn words(groups: &Result<Groups, String>) -> String {
    match groups {
        Ok(Groups { version, parent, .. }) => format!("control groups {version} in {}", parent.display()),
        Err(reason) => format!("looks from outside alone: {reason}"),
    }
}

/// A folder of groups.
#[derive(Debug)]
struct Groups {
    version: Version,
    parent: PathBuf,
    /// What the names of our groups begin with.
    prefix: String,
    next: AtomicU64,
    left: mpsc::Sender<PathBuf>,
}

impl Groups {
    fn open() -> Result<Self, String> {
        let (version, parent) = place::find()?;
        let prefix = prefix(std::process::id()).ok_or("/proc does not tell when this process began")?;
        let (left, leaves) = mpsc::channel();
        let removes = std::thread::Builder::new().name("groups".to_owned());
        removes.spawn(move || remove_when_empty(&leaves)).map_err(|error| error.to_string())?;
        let groups = Self { version, parent, prefix, next: AtomicU64::new(0), left };
        // What a group lets us do shows in one.
        let tried = groups.make().and_then(|group| group.bound(0, 0, false));
        tried.map_err(|error| format!("a group in {} fails: {error}", groups.parent.display()))?;
        Ok(groups)
    }

    fn make(&self) -> io::Result<Group> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = self.parent.join(format!("{}{number}", self.prefix));
        fs::create_dir(&folder)?;
        Ok(Group { folder, version: self.version, left: self.left.clone() })
    }
}

/// The group of one sandbox. Its folder goes with this value, and not before its processes.
#[derive(Debug)]
pub(crate) struct Group {
    folder: PathBuf,
    version: Version,
    left: mpsc::Sender<PathBuf>,
}

impl Group {
    /// An empty one, where there are groups.
    pub(crate) fn make() -> io::Result<Option<Self>> {
        groups().as_ref().map_or(Ok(None), |groups| groups.make().map(Some))
    }

    /// The words by which `millrace-sandbox` joins it before anything else.
    pub(crate) fn words(&self) -> [&std::ffi::OsStr; 2] {
        [JOIN.as_ref(), self.folder.as_os_str()]
    }

    /// Bounds what its processes have: `memory` bytes besides `files` bytes of files in memory.
    /// Beyond it the kernel kills the largest process, or all of them where `all` and it can.
    pub(crate) fn bound(&self, memory: u64, files: u64, all: bool) -> io::Result<()> {
        let bytes = memory.saturating_add(files).saturating_add(SLACK).min(MOST).to_string();
        let write = |file: &str, text: &str| fs::write(self.folder.join(file), text);
        match self.version {
            Version::One => {
                write("memory.limit_in_bytes", &bytes)?;
                where_it_is(write("memory.memsw.limit_in_bytes", &bytes))
            }
            Version::Two => {
                write("memory.max", &bytes)?;
                where_it_is(write("memory.swap.max", "0"))?;
                where_it_is(write("memory.oom.group", if all { "1" } else { "0" }))
            }
        }
    }

    /// Processes that the kernel killed, because the group had no more memory.
    pub(crate) fn kills(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.and_then(|kills| kills.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if fs::remove_dir(&self.folder).is_err() {
            let _ = self.left.send(std::mem::take(&mut self.folder));
        }
    }
}

/// Puts this process into a group. `millrace-sandbox` does it before anything else.
///
/// # Errors
/// The group is not there, or not ours.
pub fn join(folder: &Path) -> io::Result<()> {
    fs::write(folder.join("cgroup.procs"), "0")
}

/// Not every kernel has all files.
fn where_it_is(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Removes groups when the last of their processes has ended. Whatever ended a sandbox has killed
/// them already, and the kernel takes a moment.
fn remove_when_empty(leaves: &mpsc::Receiver<PathBuf>) {
    const LOOK: Duration = Duration::from_millis(20);
    let mut left: Vec<PathBuf> = Vec::new();
    loop {
        let next = if left.is_empty() { leaves.recv().ok() } else { leaves.recv_timeout(LOOK).ok() };
        if next.is_none() && left.is_empty() {
            return;
        }
        left.extend(next);
        left.retain(|folder| {
            fs::remove_dir(folder).is_err_and(|error| error.kind() != io::ErrorKind::NotFound)
        });
    }
}

/// Removes the groups of owners that ended without removing them.
pub(crate) fn sweep() {
    let Ok(groups) = groups() else { return };
    for entry in fs::read_dir(&groups.parent).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_left_behind) {
            // Its processes may be about to end.
            let _ = groups.left.send(entry.path());
        }
    }
}
