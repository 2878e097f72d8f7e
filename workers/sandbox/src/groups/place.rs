//! Where a process may make control groups.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The word before the folder of a group that `millrace-sandbox` joins.
pub const JOIN: &str = "--group";

/// Where our own processes go: in version 2 a group that bounds others holds no processes itself.
const OWN: &str = "millrace-own";
const NAME: &str = "millrace-sandbox-";
const REMEDY: &str = "a unit of systemd gets them by Delegate=memory";

/// A version of the kernel's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One => "v1",
            Self::Two => "v2",
        })
    }
}

/// The folder below which this process makes groups, or why there is none.
pub(super) fn find() -> Result<(Version, PathBuf), String> {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let (mounts, own) = (read("/proc/self/mountinfo")?, read("/proc/self/cgroup")?);
    let two = || {
        let folder = folder(Version::Two, &mounts, &own).ok_or("control groups v2 are not mounted")?;
        prepare(&folder).map(|folder| (Version::Two, folder))
    };
    let one = || folder(Version::One, &mounts, &own).map(|folder| (Version::One, folder));
    two().or_else(|reason: String| one().ok_or(reason))
}

/// The folder of the group of this process, by `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn folder(version: Version, mounts: &str, own: &str) -> Option<PathBuf> {
    let (kind, option) = match version {
        Version::One => ("cgroup", "memory"),
        Version::Two => ("cgroup2", ""),
    };
    let path = own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == option).then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        let (ours, theirs) = line.split_once(" - ")?;
        let mut theirs = theirs.split(' ');
        let is_of_kind = theirs.next() == Some(kind);
        let has_option = option.is_empty() || theirs.next_back()?.split(',').any(|name| name == option);
        let mut ours = ours.split(' ').skip(3);
        let (root, at) = (ours.next()?, ours.next()?);
        // A group beyond the mount, as in some containers, cannot be seen.
        let below = Path::new(path).strip_prefix(root).ok()?;
        (is_of_kind && has_option).then(|| Path::new(at).join(below))
    })
}

/// Makes `folder`, of version 2, one whose groups have bounds of memory.
fn prepare(folder: &Path) -> Result<PathBuf, String> {
    // A process beside us was here before and has moved all that there was.
    let is_moved = folder.file_name().is_some_and(|name| name == OWN);
    let folder = if is_moved { folder.parent().unwrap_or(folder) } else { folder };
    let at = folder.display();
    let has = |file: &str| {
        let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
        text.split_whitespace().any(|name| name == "memory")
    };
    if !has("cgroup.controllers") {
        return Err(format!("the control group {at} has no memory controller; {REMEDY}"));
    }
    if has("cgroup.subtree_control") {
        return Ok(folder.to_owned());
    }
    // What is not delegated is systemd's to arrange, whatever our rights.
    if !is_root(folder) && !is_delegated(folder) {
        return Err(format!("the control group {at} is not ours to arrange; {REMEDY}"));
    }
    let enable = || fs::write(folder.join("cgroup.subtree_control"), "+memory");
    let enabled = enable().or_else(|error| {
        if error.kind() != ErrorKind::ResourceBusy {
            return Err(error);
        }
        let own = folder.join(OWN);
        fs::create_dir(&own).or_else(|error| match error.kind() {
            ErrorKind::AlreadyExists => Ok(()),
            _ => Err(error),
        })?;
        for pid in fs::read_to_string(folder.join("cgroup.procs"))?.lines() {
            fs::write(own.join("cgroup.procs"), pid)?;
        }
        enable()
    });
    enabled.map(|()| folder.to_owned()).map_err(|error| format!("the control group {at}: {error}; {REMEDY}"))
}

/// The machine's root, or the root that a container sees, has no group above it.
fn is_root(folder: &Path) -> bool {
    folder.parent().is_none_or(|above| !above.join("cgroup.procs").exists())
}

/// Whether systemd marked a group as its unit's own.
fn is_delegated(folder: &Path) -> bool {
    ["trusted.delegate", "user.delegate"].iter().any(|name| {
        let mut value = [0; 1];
        rustix::fs::getxattr(folder, *name, &mut value).is_ok_and(|bytes| value[..bytes] == *b"1")
    })
}

/// What the groups of a process are called, before their numbers. The time of its start tells it
/// from others of its number.
pub(super) fn prefix(pid: u32) -> Option<String> {
    Some(format!("{NAME}{pid}-{}-", began(pid)?))
}

/// When a process began, in ticks of the machine's clock.
fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name, in parentheses, may hold anything.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Whether a group of this name is of a process that has ended.
pub(super) fn is_left_behind(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(NAME) else { return false };
    let mut parts = rest.splitn(3, '-').map(str::parse::<u64>);
    let (Some(Ok(pid)), Some(Ok(start))) = (parts.next(), parts.next()) else { return false };
    u32::try_from(pid).is_ok_and(|pid| began(pid) != Some(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        35 31 0:32 /docker/a /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        36 31 0:33 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const OWN_GROUPS: &str = "8:pids:/\n4:cpu,memory:/docker/a/b\n0::/system.slice/worker.service\n";

    #[test]
    fn the_group_of_this_process_is_found_below_its_mount() {
        let two = folder(Version::Two, MOUNTS, OWN_GROUPS).unwrap();
        assert_eq!(two, Path::new("/sys/fs/cgroup/unified/system.slice/worker.service"));
        let one = folder(Version::One, MOUNTS, OWN_GROUPS).unwrap();
        assert_eq!(one, Path::new("/sys/fs/cgroup/memory/b"));
        assert_eq!(folder(Version::One, MOUNTS, "4:memory:/elsewhere\n"), None, "it is beyond the mount");
        assert_eq!(folder(Version::Two, "", OWN_GROUPS), None);
    }

    #[test]
    fn a_group_without_the_controller_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "cpu pids\n").unwrap();
        let reason = prepare(folder.path()).unwrap_err();
        assert!(reason.contains("no memory controller") && reason.contains("Delegate=memory"), "{reason}");
    }

    #[test]
    fn groups_of_the_living_stay() {
        let own = prefix(std::process::id()).unwrap();
        assert!(!is_left_behind(&format!("{own}7")));
        // The same number, begun at another time; no number at all; the groups of others.
        assert!(is_left_behind(&format!("{NAME}{}-1-7", std::process::id())));
        assert!(is_left_behind(&format!("{NAME}4294967294-1-7")));
        for name in ["millrace-sandbox-x-1-7", "millrace-own", "system.slice"] {
            assert!(!is_left_behind(name), "{name}");
        }
    }
}
