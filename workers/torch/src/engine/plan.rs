//! Schedules a step: one token more for each turn that is sampled, and a bounded part of the
//! contexts to prefill, so that a long prompt does not delay the others.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use millrace_policy::Ticket;

use super::blocks::Blocks;
use super::request::Active;
use crate::libtorch::common;

/// Bounds of [`allot_blocks`].
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchLimits {
    /// Requests that have blocks.
    pub(super) most: usize,
    /// Tokens of a common prefix that another request prefills now, for which it pays to wait a
    /// step.
    pub(super) worth_waiting: usize,
}

/// Allots blocks to the waiting requests, the oldest first, as long as there is room. `copy` gets
/// each copy from one block to another.
pub(super) fn allot_blocks(
    active: &mut BTreeMap<Ticket, Active>,
    waiting: &mut BTreeSet<Ticket>,
    blocks: &mut Blocks,
    BatchLimits { most, worth_waiting }: BatchLimits,
    mut copy: impl FnMut(usize, usize, usize),
) {
    let mut running = active.values().filter(|request| request.has_blocks()).count();
    let mut prefilling: Vec<Ticket> = prefilling(active).collect();
    for ticket in waiting.clone() {
        if running >= most {
            return;
        }
        let tokens = &active[&ticket].tokens;
        if is_computed_by_another(tokens, &prefilling, active, (blocks, worth_waiting)) {
            continue;
        }
        // Each running request may soon need one more block; without it one would be pre-empted at
        // once.
        let Some(found) = blocks.take(tokens, running) else { return };
        if let Some((from, to, positions)) = found.copy {
            copy(from, to, positions);
        }
        waiting.remove(&ticket);
        let request = active.get_mut(&ticket).expect("a waiting request is active");
        request.give_blocks(found.blocks, found.cached);
        if request.missing() > 1 {
            prefilling.push(ticket);
        }
        running += 1;
    }
}

/// Requests in prefill.
fn prefilling(active: &BTreeMap<Ticket, Active>) -> impl Iterator<Item = Ticket> {
    active
        .iter()
        .filter(|(_, request)| request.has_blocks() && request.missing() > 1)
        .map(|(&ticket, _)| ticket)
}

/// Whether a request should wait: another one now prefills much of what it lacks, as for the first
/// of a prompt's samples.
fn is_computed_by_another(
    tokens: &[u32],
    prefilling: &[Ticket],
    active: &BTreeMap<Ticket, Active>,
    (blocks, worth_waiting): (&Blocks, usize),
) -> bool {
    let shared = prefilling.iter().map(|other| common(&active[other].tokens, tokens)).max().unwrap_or(0);
    shared >= worth_waiting && shared.min(tokens.len() - 1) >= blocks.cached(tokens) + worth_waiting
}

/// The lanes of the next step: requests with blocks and how many tokens of each. At most `prefill`
/// tokens of contexts, the oldest first. Where blocks run out, the youngest requests are pre-empted
/// and wait.
pub(super) fn lanes(
    active: &mut BTreeMap<Ticket, Active>,
    waiting: &mut BTreeSet<Ticket>,
    blocks: &mut Blocks,
    prefill: usize,
) -> Vec<(Ticket, usize)> {
    let (mut lanes, mut left) = (Vec::new(), prefill);
    let mut preempted = HashSet::new();
    let running: Vec<Ticket> = active.iter().filter(|(_, one)| one.has_blocks()).map(|(&t, _)| t).collect();
    for &ticket in &running {
        if preempted.contains(&ticket) {
            continue;
        }
        let missing = active[&ticket].missing();
        let count = if missing == 1 { 1 } else { missing.min(left) };
        if count == 0 {
            continue;
        }
        while !reserve(active, blocks, ticket, count) {
            let youngest = running.iter().rev().copied().find(|other| !preempted.contains(other));
            let youngest = youngest.expect("a request that reserves a block has some");
            let request = active.get_mut(&youngest).expect("running requests are active");
            blocks.release(&request.take_blocks());
            waiting.insert(youngest);
            preempted.insert(youngest);
            if youngest == ticket {
                break;
            }
        }
        if !preempted.contains(&ticket) {
            left -= if missing == 1 { 0 } else { count };
            lanes.push((ticket, count));
        }
    }
    lanes
}

/// Gives a request blocks for `count` more tokens, if there are enough.
fn reserve(active: &mut BTreeMap<Ticket, Active>, blocks: &mut Blocks, ticket: Ticket, count: usize) -> bool {
    let request = active.get_mut(&ticket).expect("running requests are active");
    let positions = request.cached + count;
    blocks.extend(&mut request.blocks, positions)
}
