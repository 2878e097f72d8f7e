//! How much memory a process and all that came of it have, as the system tells whoever is outside.

use std::collections::HashMap;
use std::fs;

/// Processes of one tree that are looked at; above it there is a fault elsewhere.
const MOST: usize = 65_536;

/// Bytes that `pid` and its descendants have: the private pages of each process, and each shared
/// mapping once, at its full size. Pages of a shared mapping stay when the process that touched
/// them ends, and no process's own count has them then: so the size counts, not what is resident.
/// Files in memory are not counted, their file system is bounded by itself. A process that ended
/// meanwhile has none.
pub(crate) fn of_tree(pid: u32) -> u64 {
    let mut open = vec![pid];
    let mut bytes = 0;
    let mut shared = HashMap::new();
    for _ in 0..MOST {
        let Some(pid) = open.pop() else { break };
        bytes += private_pages(pid);
        if let Ok(maps) = fs::read_to_string(format!("/proc/{pid}/maps")) {
            shared_mappings(&maps, &mut shared);
        }
        open.extend(children(pid));
    }
    bytes + shared.values().sum::<u64>()
}

/// Children of all its threads: a child belongs to the thread that started it.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_thread = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).ok();
    let lines: Vec<String> = threads.filter_map(of_thread).collect();
    lines.iter().flat_map(|line| line.split_whitespace()).filter_map(|child| child.parse().ok()).collect()
}

fn private_pages(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    // What was moved to swap is memory, too.
    (kib("RssAnon:").unwrap_or(0) + kib("VmSwap:").unwrap_or(0)) * 1024
}

/// Takes the shared mappings without a file of one process's `maps` in: by device and inode, the
/// furthest byte of each.
fn shared_mappings(maps: &str, shared: &mut HashMap<String, u64>) {
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(rights), Some(offset), Some(device), Some(inode)) =
            (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let name = fields.next().unwrap_or_default();
        let without_file = ["/dev/zero", "/memfd:", "/SYSV"].iter().any(|begin| name.starts_with(begin));
        if !rights.ends_with('s') || !without_file {
            continue;
        }
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
        let (from, to) = range.split_once('-').unwrap_or_default();
        let end = number(offset).saturating_add(number(to).saturating_sub(number(from)));
        let known = shared.entry(format!("{device} {inode}")).or_default();
        *known = end.max(*known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_mapping_counts_once_at_its_full_size() {
        let one = "7f0000000000-7f0000100000 rw-s 00000000 00:01 77 /dev/zero (deleted)\n\
                   7f0000100000-7f0000200000 rw-p 00000000 00:00 0\n\
                   7f0000200000-7f0000300000 r--s 00000000 08:01 12 /usr/lib/locale\n";
        let other = "7e0000000000-7e0000080000 rw-s 00100000 00:01 77 /dev/zero (deleted)\n\
                     7e0000100000-7e0000200000 rw-s 00000000 00:01 78 /dev/zero (deleted)\n";
        let mut shared = HashMap::new();
        shared_mappings(one, &mut shared);
        shared_mappings(other, &mut shared);
        let mut sizes: Vec<u64> = shared.into_values().collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [0x10_0000, 0x18_0000]);
    }
}
