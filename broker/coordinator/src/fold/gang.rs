//! Rank assignment: which workers make a step together. The rules are pure, like those of the
//! window. Steps of several ranks are made by members: train workers that send heartbeats. A
//! generation lasts while all of its members are present. A member keeps its rank from one
//! generation to the next where possible, and with it the state that it holds in memory.

use std::collections::BTreeMap;

use millrace_schemas::WorkerId;
use millrace_schemas::submit::GangSpec;
use serde::{Deserialize, Serialize};

/// Void attempts in a row after which one worker alone makes the step: the members are present but
/// cannot reach one another.
pub const VOIDS_BEFORE_ALONE: u32 = 3;

/// A worker that can be assigned a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Id of the worker's process: it changes when the worker restarts.
    pub instance: String,
    /// Position in the log at which it joined.
    pub joined: u64,
}

/// All members by name.
pub type Members = BTreeMap<WorkerId, Member>;

/// The members that make the steps of a run, with their ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Counts the generations of the run from 1.
    pub number: u64,
    /// Members by rank, and the position in the log at which each joined. `[world]`
    pub ranks: Vec<(WorkerId, u64)>,
}

/// The gang of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gang {
    /// The current generation; `None` while there are too few members.
    #[serde(rename = "formation")]
    pub generation: Option<Generation>,
    /// The number of the newest generation.
    #[serde(rename = "formed")]
    pub generations: u64,
    /// The run's time, in milliseconds, at which members became too few.
    pub short_since_ms: Option<u64>,
    /// The members' connections are broken: the next step needs a new generation.
    pub broken: bool,
    /// Void attempts since the last commit.
    pub voids: u32,
}

impl Gang {
    /// Whether any worker may make the step alone.
    #[must_use]
    pub const fn is_alone(&self, spec: &GangSpec) -> bool {
        spec.ranks <= 1 || self.voids >= VOIDS_BEFORE_ALONE
    }

    /// Whether every member of the generation whose rank is still `needed` is a member without
    /// interruption.
    #[must_use]
    pub fn is_intact(&self, members: &Members, needed: impl Fn(u32) -> bool) -> bool {
        let holds = |(rank, (worker, joined)): (u32, &(WorkerId, u64))| {
            !needed(rank) || members.get(worker).is_some_and(|m| m.joined == *joined)
        };
        self.generation.as_ref().is_some_and(|generation| (0..).zip(&generation.ranks).all(holds))
    }

    /// Forms the best generation that is possible: as many ranks as configured; fewer if no worker
    /// joined within the patience; `None` while there are too few.
    pub fn form(&mut self, spec: &GangSpec, members: &Members, at_ms: u64) {
        let ranks = self.candidates(spec, members);
        let before = self.generation.as_ref().map_or(0, |generation| generation.ranks.len());
        let (wanted, least) = (spec.ranks as usize, spec.least.max(1) as usize);
        if ranks.len() >= wanted {
            self.short_since_ms = None;
        } else if ranks.len() < before || self.generation.is_none() {
            let since = *self.short_since_ms.get_or_insert(at_ms);
            if ranks.len() < least || at_ms.saturating_sub(since) < spec.patience_ms {
                self.generation = None;
                return;
            }
        }
        if self.broken || self.generation.as_ref().is_none_or(|generation| generation.ranks != ranks) {
            self.broken = false;
            self.generations += 1;
            self.generation = Some(Generation { number: self.generations, ranks });
        }
    }

    /// Members in the order of rank, at most as many as configured. Members of the current
    /// generation come first.
    fn candidates(&self, spec: &GangSpec, members: &Members) -> Vec<(WorkerId, u64)> {
        let assigned = self.generation.iter().flat_map(|generation| &generation.ranks);
        let mut ranks: Vec<(WorkerId, u64)> = assigned
            .filter(|(worker, joined)| members.get(worker).is_some_and(|m| m.joined == *joined))
            .cloned()
            .collect();
        let mut others: Vec<(WorkerId, u64)> =
            members.iter().map(|(worker, member)| (worker.clone(), member.joined)).collect();
        others.retain(|other| !ranks.contains(other));
        others.sort_by_key(|(_, joined)| *joined);
        ranks.extend(others);
        ranks.truncate(spec.ranks as usize);
        ranks
    }
}

#[cfg(test)]
mod tests;
