//! The default name of a worker. Where possible it is the same after a restart, so that a restarted
//! worker takes its former name and no new one.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::OnceLock;

use millrace_schemas::WorkerId;
use millrace_schemas::blob::Sha;

/// Numbers for the workers of one machine; one more worker gets a new name at each start.
const NUMBERS: usize = 1_024;
/// Characters of the machine's name that are kept.
const HOST_CHARS: usize = 32;

/// Bound while the process lives, so that no other process of this machine takes the number.
static SOCKET: OnceLock<UnixListener> = OnceLock::new();

/// `<machine>-<digits>-<number>`. The digits identify this boot of this machine's kernel and
/// network. Within that, a process takes a number by binding a socket of that name. So two live
/// processes have two names, even where machines or containers share a host name.
pub(crate) fn default_name() -> WorkerId {
    let machine = machine();
    let taken =
        (0..NUMBERS).find_map(|number| Some((number, take(&format!("millrace-worker/{machine}/{number}"))?)));
    if let Some((number, listener)) = taken
        && let Ok(id) = format!("{machine}-{number}").parse()
        && SOCKET.set(listener).is_ok()
    {
        return id;
    }
    new()
}

/// A name that no other worker has or had.
fn new() -> WorkerId {
    format!("w-{}", uuid::Uuid::now_v7().simple()).parse().expect("hex digits are a worker's name")
}

fn take(name: &str) -> Option<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).ok()?).ok()
}

/// The machine's name, and digits that tell it from others of the same name. A container with its
/// own network counts as a machine.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let host = read("/proc/sys/kernel/hostname");
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let host: String = host.trim().chars().take(HOST_CHARS).map(plain).collect();
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let boot = format!("{}{}", read("/proc/sys/kernel/random/boot_id"), network.display());
    let digits: String = Sha::of(boot.as_bytes()).to_string().chars().take(8).collect();
    match host.trim_matches('-') {
        "" => format!("worker-{digits}"),
        host => format!("{host}-{digits}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_taken_once_and_free_after_its_process() {
        let name = format!("millrace-worker/test/{}", uuid::Uuid::now_v7());
        let first = take(&name).expect("it is free");
        assert!(take(&name).is_none());
        drop(first);
        assert!(take(&name).is_some());
    }

    #[test]
    fn a_name_is_the_machines_own_and_a_workers() {
        assert_eq!(machine(), machine());
        let id: WorkerId = format!("{}-1023", machine()).parse().expect("a worker's name");
        assert!(id.as_str().len() <= millrace_schemas::limits::MAX_WORKER_NAME_CHARS);
        assert_ne!(new(), new());
    }
}
