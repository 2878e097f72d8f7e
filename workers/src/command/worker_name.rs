//! A worker's name where nobody gave it one: the same from one life of the process to the next where that can be, so
//! that a restarted worker takes its own place and not one more.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::OnceLock;

use millrace_schemas::WorkerId;
use millrace_schemas::blob::Sha;

/// Workers of one machine that have a name of their place; one more gets a new name at each start.
const PLACES: usize = 1_024;
/// Characters of the machine's name that are kept.
const HOST_CHARS: usize = 32;

/// Held for as long as the process lives: no other process of this machine has the place then.
static PLACE: OnceLock<UnixListener> = OnceLock::new();

/// `<machine>-<digits>-<place>`: the digits stand for this boot of this machine's kernel and network, in which the
/// place is taken by binding a name; so two that live have two names, also where machines or containers share one.
pub(crate) fn of_this_place() -> WorkerId {
    let machine = machine();
    let taken =
        (0..PLACES).find_map(|place| Some((place, take(&format!("millrace-worker/{machine}/{place}"))?)));
    if let Some((place, listener)) = taken
        && let Ok(id) = format!("{machine}-{place}").parse()
        && PLACE.set(listener).is_ok()
    {
        return id;
    }
    new()
}

/// A name that no other worker has, nor had.
fn new() -> WorkerId {
    format!("w-{}", uuid::Uuid::now_v7().simple()).parse().expect("hex digits are a worker's name")
}

fn take(name: &str) -> Option<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).ok()?).ok()
}

/// The machine's name, and what tells it from others of the same name. Containers with a network of their own are
/// machines of their own.
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
    fn a_place_is_taken_once_and_free_again_after() {
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
