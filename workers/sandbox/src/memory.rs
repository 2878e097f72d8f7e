//! How much memory a process and all that came of it have, as the system tells whoever is outside.

use std::fs;

/// Processes of one tree that are looked at; above it there is a fault elsewhere.
const MOST: usize = 65_536;

/// Bytes of the pages that `pid` and its descendants have for themselves. A process that ended meanwhile has none.
pub(crate) fn of_tree(pid: u32) -> u64 {
    let mut open = vec![pid];
    let mut bytes = 0;
    for _ in 0..MOST {
        let Some(pid) = open.pop() else { break };
        bytes += own_pages(pid);
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        open.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    bytes
}

fn own_pages(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = kib.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
