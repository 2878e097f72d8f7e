//! What a step computes: one token more of each turn that is being sampled, and a bounded piece of the contexts that
//! are not computed yet, so that a long prompt holds nobody up.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::blocks::Blocks;
use super::request::Active;
use crate::policy::Ticket;
use crate::policy::torch::common;

/// Bounds of [`seat`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Seats {
    /// Requests that have blocks.
    pub(super) most: usize,
    /// Tokens of a context that another request is just computing, for which it is worth to wait a step.
    pub(super) worth_waiting: usize,
}

/// Gives blocks to those who wait, the oldest first, as long as there is room. `copy` is told what is to be copied from
/// which block to which.
pub(super) fn seat(
    active: &mut BTreeMap<Ticket, Active>,
    waiting: &mut BTreeSet<Ticket>,
    blocks: &mut Blocks,
    Seats { most, worth_waiting }: Seats,
    mut copy: impl FnMut(usize, usize, usize),
) {
    let mut seated = active.values().filter(|request| request.is_seated()).count();
    let mut prefilling: Vec<Ticket> = prefilling(active).collect();
    for ticket in waiting.clone() {
        if seated >= most {
            return;
        }
        let tokens = &active[&ticket].tokens;
        if is_computed_by_another(tokens, &prefilling, active, (blocks, worth_waiting)) {
            continue;
        }
        // Each of the others may soon need a block more; without it one of them would have to give way at once.
        let Some(found) = blocks.take(tokens, seated) else { return };
        if let Some((from, to, positions)) = found.copy {
            copy(from, to, positions);
        }
        waiting.remove(&ticket);
        let request = active.get_mut(&ticket).expect("who waits is active");
        request.seat(found.blocks, found.cached);
        if request.missing() > 1 {
            prefilling.push(ticket);
        }
        seated += 1;
    }
}

/// Requests that have blocks and whose context is not computed.
fn prefilling(active: &BTreeMap<Ticket, Active>) -> impl Iterator<Item = Ticket> {
    active
        .iter()
        .filter(|(_, request)| request.is_seated() && request.missing() > 1)
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
    let mut gave_way = HashSet::new();
    let seated: Vec<Ticket> = active.iter().filter(|(_, one)| one.is_seated()).map(|(&t, _)| t).collect();
    for &ticket in &seated {
        if gave_way.contains(&ticket) {
            continue;
        }
        let missing = active[&ticket].missing();
        let count = if missing == 1 { 1 } else { missing.min(left) };
        if count == 0 {
            continue;
        }
        while !reserve(active, blocks, ticket, count) {
            let youngest = seated.iter().rev().copied().find(|other| !gave_way.contains(other));
            let youngest = youngest.expect("who asks for a block has some");
            let request = active.get_mut(&youngest).expect("seated requests are active");
            blocks.release(&request.unseat());
            waiting.insert(youngest);
            gave_way.insert(youngest);
            if youngest == ticket {
                break;
            }
        }
        if !gave_way.contains(&ticket) {
            left -= if missing == 1 { 0 } else { count };
            lanes.push((ticket, count));
        }
    }
    lanes
}

/// Sees to it that a request has blocks for `count` tokens more.
fn reserve(active: &mut BTreeMap<Ticket, Active>, blocks: &mut Blocks, ticket: Ticket, count: usize) -> bool {
    let request = active.get_mut(&ticket).expect("seated requests are active");
    let positions = request.cached + count;
    blocks.extend(&mut request.blocks, positions)
}
