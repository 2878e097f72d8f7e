//! What a step computes: one token more of each turn that is being sampled, and a bounded piece of the contexts that
//! are not computed yet, so that a long prompt holds nobody up.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::blocks::Blocks;
use super::request::Active;
use crate::policy::Ticket;
use crate::policy::torch::common;

/// Bounds of [`allot_blocks`].
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchLimits {
    /// Requests that have blocks.
    pub(super) most: usize,
    /// Tokens of a context that another request is just computing, for which it is worth to wait a step.
    pub(super) worth_waiting: usize,
}

/// Gives blocks to those who wait, the oldest first, as long as there is room. `copy` is told what is to be copied from
/// which block to which.
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
        // Each of the others may soon need a block more; without it one of them would have to give way at once.
        let Some(found) = blocks.take(tokens, running) else { return };
        if let Some((from, to, positions)) = found.copy {
            copy(from, to, positions);
        }
        waiting.remove(&ticket);
        let request = active.get_mut(&ticket).expect("who waits is active");
        request.give_blocks(found.blocks, found.cached);
        if request.missing() > 1 {
            prefilling.push(ticket);
        }
        running += 1;
    }
}

/// Requests that have blocks and whose context is not computed.
fn prefilling(active: &BTreeMap<Ticket, Active>) -> impl Iterator<Item = Ticket> {
    active
        .iter()
        .filter(|(_, request)| request.has_blocks() && request.missing() > 1)
        .map(|(&ticket, _)| ticket)
}

/// Whether a request does better to wait: much of what is missing of its tokens is just being computed for another,
/// as for the first of a prompt's samples.
fn is_computed_by_another(
    tokens: &[u32],
    prefilling: &[Ticket],
    active: &BTreeMap<Ticket, Active>,
    (blocks, worth_waiting): (&Blocks, usize),
) -> bool {
    let shared = prefilling.iter().map(|other| common(&active[other].tokens, tokens)).max().unwrap_or(0);
    shared >= worth_waiting && shared.min(tokens.len() - 1) >= blocks.held(tokens) + worth_waiting
}

/// What the next step computes of each request that has blocks: who and how many tokens. At most `prefill` tokens of
/// contexts, the oldest first. Where blocks run out, the youngest give theirs back and wait.
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
            let youngest = youngest.expect("who asks for a block has some");
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

/// Sees to it that a request has blocks for `count` tokens more.
fn reserve(active: &mut BTreeMap<Ticket, Active>, blocks: &mut Blocks, ticket: Ticket, count: usize) -> bool {
    let request = active.get_mut(&ticket).expect("running requests are active");
    let positions = request.cached + count;
    blocks.extend(&mut request.blocks, positions)
}
