//! How much memory a process and all that came of it have, as the system tells whoever is outside.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

/// Processes of one tree that are looked at; above it there is a fault elsewhere.
const MOST: usize = 65_536;
/// Mappings of one tree at most: as many as four processes may have, or 512 of each of 512. The kernel tells of each
/// at every look, and beyond this a look would come too late to bound anything.
const MAPPINGS: usize = 262_144;
/// Looks of this process at once, each on a thread of the runtime's 512.
const AT_ONCE: usize = 16;
/// A look takes a tenth of the time at most.
const PAUSES: u32 = 10;

static ROOM: Semaphore = Semaphore::const_new(AT_ONCE);

/// What a tree of processes has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) bytes: u64,
    /// Counted no further than one above the bound.
    pub(crate) mappings: usize,
}

impl Memory {
    /// Whether it is no more than `most` bytes, in no more mappings than a sandbox may have.
    pub(crate) const fn is_within(&self, most: u64) -> bool {
        self.bytes <= most && self.mappings <= MAPPINGS
    }
}

/// Looks at something again and again, on threads that nobody else waits for: the kernel takes as long as the
/// processes have made it.
#[derive(Debug)]
pub(crate) struct Looks<F> {
    look: F,
    last: Duration,
}

/// Looks at a process and its descendants.
pub(crate) fn looks(pid: u32) -> Looks<impl Fn() -> Memory + Clone + Send + 'static> {
    Looks::by(move || of_tree(pid))
}

impl<F: Fn() -> Memory + Clone + Send + 'static> Looks<F> {
    pub(crate) const fn by(look: F) -> Self {
        Self { look, last: Duration::ZERO }
    }

    /// How long to wait at least before the next one.
    pub(crate) fn pause(&self) -> Duration {
        self.last * PAUSES
    }

    /// The next one. A runtime that ends sees nothing.
    pub(crate) async fn next(&mut self) -> Memory {
        let _room = ROOM.acquire().await;
        let look = self.look.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            (look(), began.elapsed())
        });
        let (memory, took) = looked.await.unwrap_or_default();
        self.last = took;
        memory
    }
}

/// What `pid` and its descendants have: the private pages of each process, and each shared
/// mapping once, at its full size. Pages of a shared mapping stay when the process that touched
/// them ends, and no process's own count has them then: so the size counts, not what is resident.
/// Files in memory are not counted, their file system is bounded by itself. A process that ended
/// meanwhile has none.
fn of_tree(pid: u32) -> Memory {
    let mut open = vec![pid];
    let mut memory = Memory::default();
    let mut shared = HashMap::new();
    for _ in 0..MOST {
        let Some(pid) = open.pop() else { break };
        // A process gives itself a name of any bytes.
        let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
        memory.bytes += private_pages(&String::from_utf8_lossy(&status));
        if let Ok(maps) = File::open(format!("/proc/{pid}/maps")) {
            let left = MAPPINGS - memory.mappings;
            memory.mappings += shared_mappings(BufReader::new(maps), left, &mut shared);
        }
        if memory.mappings > MAPPINGS {
            break;
        }
        open.extend(children(pid));
    }
    memory.bytes += shared.values().sum::<u64>();
    memory
}

/// Children of all its threads: a child belongs to the thread that started it.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_thread = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).ok();
    let lines: Vec<String> = threads.filter_map(of_thread).collect();
    lines.iter().flat_map(|line| line.split_whitespace()).filter_map(|child| child.parse().ok()).collect()
}

/// Bytes, of a process's `status`.
fn private_pages(status: &str) -> u64 {
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    // What was moved to swap is memory, too.
    (kib("RssAnon:").unwrap_or(0) + kib("VmSwap:").unwrap_or(0)) * 1024
}

/// Takes the shared mappings without a file of one process's `maps` in: by device and inode, the
/// furthest byte of each. Returns how many mappings there are, and stops at one more than `most`.
fn shared_mappings(mut maps: impl BufRead, most: usize, shared: &mut HashMap<String, u64>) -> usize {
    let (mut line, mut count) = (Vec::new(), 0);
    while count <= most && maps.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        count += 1;
        // The name of a file is any bytes.
        shared_mapping(&String::from_utf8_lossy(&line), shared);
        line.clear();
    }
    count
}

fn shared_mapping(line: &str, shared: &mut HashMap<String, u64>) {
    let mut fields = line.split_whitespace();
    let (Some(range), Some(rights)) = (fields.next(), fields.next()) else { return };
    if !rights.ends_with('s') {
        return;
    }
    let (Some(offset), Some(device), Some(inode)) = (fields.next(), fields.next(), fields.next()) else {
        return;
    };
    let name = fields.next().unwrap_or_default();
    if !["/dev/zero", "/memfd:", "/SYSV"].iter().any(|begin| name.starts_with(begin)) {
        return;
    }
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
    let (from, to) = range.split_once('-').unwrap_or_default();
    let end = number(offset).saturating_add(number(to).saturating_sub(number(from)));
    let known = shared.entry(format!("{device} {inode}")).or_default();
    *known = end.max(*known);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_mapping_counts_once_at_its_full_size() {
        // A name that is no text hides nothing behind it.
        let one = b"7f0000400000-7f0000500000 r--p 00000000 08:01 13 /tmp/\xff\n\
                    7f0000000000-7f0000100000 rw-s 00000000 00:01 77 /dev/zero (deleted)\n\
                    7f0000100000-7f0000200000 rw-p 00000000 00:00 0\n\
                    7f0000200000-7f0000300000 r--s 00000000 08:01 12 /usr/lib/locale\n";
        let other = b"7e0000000000-7e0000080000 rw-s 00100000 00:01 77 /dev/zero (deleted)\n\
                      7e0000100000-7e0000200000 rw-s 00000000 00:01 78 /dev/zero (deleted)\n";
        let mut shared = HashMap::new();
        assert_eq!(shared_mappings(&one[..], 10, &mut shared), 4);
        assert_eq!(shared_mappings(&other[..], 10, &mut shared), 2);
        let mut sizes: Vec<u64> = shared.into_values().collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [0x10_0000, 0x18_0000]);
    }

    #[test]
    fn mappings_beyond_their_bound_are_not_read() {
        let many = b"7f0000000000-7f0000100000 rw-p 00000000 00:00 0\n".repeat(100);
        assert_eq!(shared_mappings(&many[..], 5, &mut HashMap::new()), 6);
        let beyond = Memory { bytes: 0, mappings: MAPPINGS + 1 };
        assert!(!beyond.is_within(u64::MAX) && Memory { mappings: MAPPINGS, ..beyond }.is_within(0));
    }
}
