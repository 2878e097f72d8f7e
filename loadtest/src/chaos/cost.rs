//! What each fault cost, in seconds and in tokens.
//!
//! A fault is at work from its start until the first outcome, after its end, of a stage that it
//! concerns, but at most until `LONGEST` after its end.
//!
//! **Seconds**: a stretch of a run of length `t` in which `n` useful tokens came into the log cost
//! `t − n / r`, where `r` is the rate of useful tokens of the same runs undisturbed. The faults at
//! work share the cost equally. A stretch may have a negative cost, when delayed outcomes arrive at
//! once. Over all faults and the time between them, the costs add up to the delay of the runs.
//!
//! **Tokens**: sampled tokens that are in the log and in no batch, because their rollout restarted
//! or their task already had an outcome. The faults at work when the rollout restarted share them;
//! without such a fault, they count for the last fault before.

use std::collections::{BTreeMap, BTreeSet};

use millrace_schemas::{RolloutId, RunId, Stage, TaskKey};
use serde::Serialize;

use super::inject::Injected;
use super::observe::ObservedTurn;
use super::result::Played;
use super::role::Role;
use super::scenario::Kind;

/// Seconds after which a fault that was lifted is no longer at work, whatever is seen.
const LONGEST: f64 = 15.0;

/// Rollouts in batches that versions were trained on.
pub type Trained = BTreeSet<(RunId, RolloutId)>;

/// What the faults of one kind to one role cost.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What.
    pub kind: Kind,
    /// The role that the fault hits.
    pub role: Role,
    /// How many.
    pub times: u64,
    /// Seconds lost, in all.
    pub seconds: f64,
    /// Tokens lost, in all.
    pub tokens: f64,
}

/// What everything cost.
#[derive(Debug, Clone, Serialize)]
pub struct Costs {
    /// By kind and role.
    pub rows: Vec<Row>,
    /// Seconds lost while no fault was at work.
    pub between_s: f64,
    /// Useful tokens a second, undisturbed.
    pub rate: f64,
}

/// One series of runs, as far as it matters here.
pub struct Account<'a> {
    /// The runs.
    pub runs: &'a [Played],
    /// Outcomes in the order in which they were seen.
    pub seen: &'a [ObservedTurn],
    /// What was trained.
    pub trained: &'a Trained,
}

/// Counts what `faults` cost in `disturbed`.
#[must_use]
pub fn count(faults: &[Injected], disturbed: &Account<'_>, undisturbed: &Account<'_>) -> Costs {
    let rate = rate(undisturbed);
    let spans: Vec<(f64, f64)> =
        faults.iter().map(|fault| (fault.at_s, settled(fault, disturbed.seen))).collect();
    let mut lost = vec![(0.0, 0.0); faults.len()];
    let between_s = seconds(&spans, disturbed, rate, &mut lost);
    tokens(&spans, disturbed, &mut lost);
    let mut rows = BTreeMap::<(Kind, Role), Row>::new();
    for (fault, (seconds, tokens)) in faults.iter().zip(lost) {
        let Injected { kind, role, .. } = *fault;
        let new = Row { kind, role, times: 0, seconds: 0.0, tokens: 0.0 };
        let row = rows.entry((kind, role)).or_insert(new);
        row.times += 1;
        row.seconds += seconds;
        row.tokens += tokens;
    }
    Costs { rows: rows.into_values().collect(), between_s, rate }
}

/// Stages that a fault to a role holds up; a server or coordinator holds up all.
fn concerns(role: Role, stage: Stage) -> bool {
    role.stages().is_empty() || role.stages().contains(&stage)
}

/// When a fault is no longer at work.
fn settled(fault: &Injected, seen: &[ObservedTurn]) -> f64 {
    let after = seen.iter().find(|seen| seen.at_s > fault.until_s && concerns(fault.role, seen.key.stage()));
    after.map_or(fault.until_s, |seen| seen.at_s.min(fault.until_s + LONGEST))
}

/// The useful tokens as they came: seconds, and how many up to then.
fn useful(account: &Account<'_>) -> Vec<(f64, f64)> {
    let lost: BTreeSet<usize> = wasted(account).into_iter().map(|(at, _)| at).collect();
    let mut sum = 0.0;
    let useful = account.seen.iter().enumerate().filter(|(at, seen)| seen.tokens > 0 && !lost.contains(at));
    useful
        .map(|(_, seen)| {
            sum += seen.tokens as f64;
            (seen.at_s, sum)
        })
        .collect()
}

/// Outcomes whose tokens were of no use, by place, and when that was decided.
fn wasted(account: &Account<'_>) -> Vec<(usize, f64)> {
    let mut slots = BTreeMap::<(&RunId, u64, u32), u32>::new();
    for (run, id) in account.trained {
        slots.insert((run, id.group, id.index), id.attempt);
    }
    let mut first = BTreeSet::<(&RunId, TaskKey)>::new();
    let mut begun = BTreeMap::<(&RunId, RolloutId), f64>::new();
    for seen in account.seen {
        if let Some(id) = seen.key.rollout() {
            begun.entry((&seen.run, id)).or_insert(seen.at_s);
        }
    }
    let mut wasted = Vec::new();
    for (at, seen) in account.seen.iter().enumerate().filter(|(_, seen)| seen.tokens > 0) {
        let Some(id) = seen.key.rollout() else { continue };
        if !first.insert((&seen.run, seen.key)) {
            wasted.push((at, seen.at_s));
        } else if slots.get(&(&seen.run, id.group, id.index)).is_some_and(|attempt| *attempt != id.attempt) {
            let next = RolloutId { attempt: id.attempt + 1, ..id };
            wasted.push((at, begun.get(&(&seen.run, next)).copied().unwrap_or(seen.at_s)));
        }
    }
    wasted
}

fn rate(account: &Account<'_>) -> f64 {
    let seconds: f64 = account.runs.iter().map(Played::seconds).sum();
    useful(account).last().map_or(0.0, |(_, tokens)| tokens / seconds)
}

/// Shares out lost seconds among the faults. Returns those that no fault caused.
fn seconds(spans: &[(f64, f64)], account: &Account<'_>, rate: f64, lost: &mut [(f64, f64)]) -> f64 {
    let useful = useful(account);
    let until = |at: f64| {
        let before = useful.partition_point(|(seen, _)| *seen <= at);
        before.checked_sub(1).map_or(0.0, |last| useful[last].1)
    };
    let runs = account.runs.iter().flat_map(|run| [run.from_s, run.to_s]);
    let mut cuts: Vec<f64> = spans.iter().flat_map(|(from, to)| [*from, *to]).chain(runs).collect();
    cuts.sort_by(f64::total_cmp);
    let mut between = 0.0;
    for pair in cuts.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        if to <= from || !account.runs.iter().any(|run| run.from_s <= from && to <= run.to_s) {
            continue;
        }
        let expected = if rate > 0.0 { (until(to) - until(from)) / rate } else { 0.0 };
        let cost = (to - from) - expected;
        let at_work: Vec<usize> =
            (0..spans.len()).filter(|i| spans[*i].0 <= from && to <= spans[*i].1).collect();
        match at_work.len() {
            0 => between += cost,
            n => at_work.into_iter().for_each(|i| lost[i].0 += cost / n as f64),
        }
    }
    between
}

/// Shares out lost tokens.
fn tokens(spans: &[(f64, f64)], account: &Account<'_>, lost: &mut [(f64, f64)]) {
    for (place, at) in wasted(account) {
        let tokens = account.seen[place].tokens as f64;
        let mut blamed: Vec<usize> =
            (0..spans.len()).filter(|i| spans[*i].0 <= at && at <= spans[*i].1).collect();
        if blamed.is_empty() {
            blamed.extend((0..spans.len()).rev().find(|i| spans[*i].0 <= at));
        }
        let n = blamed.len() as f64;
        blamed.into_iter().for_each(|i| lost[i].1 += tokens / n);
    }
}

#[cfg(test)]
mod tests;
