//! What the simulator tries on the system: the shape of the runs and the kinds of faults.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

pub use fault_kind::FaultKind;

mod fault_kind;

/// A scenario, as in `scenarios/*.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name, for people.
    pub name: String,
    /// Seconds in which faults come; after that the system is left alone and must finish.
    pub seconds: u64,
    /// Mean milliseconds between two faults.
    pub every_ms: u64,
    /// What an acknowledged write is worth when the queue's machine loses its power. Default `synced`.
    #[serde(default)]
    pub durability: Durability,
    /// Milliseconds until a task whose worker is silent is given to another. Default 30000.
    #[serde(default = "usual_ack_wait")]
    pub ack_wait_ms: u64,
    /// Whether the workers that train also generate, in turn on one device. Every second seed has no
    /// other generators then.
    #[serde(default)]
    pub time_division: bool,
    /// The runs that are submitted.
    #[serde(default)]
    pub runs: RunShape,
    /// How often each kind of fault is drawn, beside the others. A kind that is left out does not come.
    pub faults: BTreeMap<FaultKind, u32>,
}

const fn usual_ack_wait() -> u64 {
    millrace_schemas::limits::ACK_WAIT_MS
}

/// What an acknowledged write is worth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// It is on disk, or on the disks of other machines.
    #[default]
    Synced,
    /// It will be on disk at the next sync.
    Interval,
}

/// The runs. Pairs are the least and the most, drawn evenly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunShape {
    /// Runs at once.
    pub count: (u64, u64),
    /// Train steps.
    pub steps: (u64, u64),
    /// Groups of a batch.
    pub groups_per_step: (u64, u64),
    /// Rollouts of a group.
    pub group_size: (u64, u64),
    /// Turns of a rollout.
    pub turns: (u64, u64),
    /// Held-out prompts of an evaluation.
    pub evaluate_prompts: (u64, u64),
    /// Async ratios to draw from.
    pub alpha: Vec<f64>,
    /// Draw the async ratio from 0 to 8 instead: whole numbers, what a whole number of groups more makes, and hundredths.
    pub any_alpha: bool,
    /// Restarts of a rollout that failed before its group is dropped.
    pub max_replacements: (u64, u64),
    /// Workers that make a step together.
    pub ranks: (u64, u64),
    /// Groups in flight beyond the window.
    pub redundant_groups: (u64, u64),
    /// Queues of turns to sample.
    pub partitions: (u64, u64),
    /// Domains, where the async ratio allows several.
    pub domains: (u64, u64),
    /// Percent of the groups that start from a turn of an earlier rollout, where there is one domain.
    pub stored_turns: (u64, u64),
    /// Full batches of every second run wait for what their step would make too old.
    pub patient: bool,
    /// Two runs in three store some versions as what changed since an anchor.
    pub deltas: bool,
    /// Observations of two runs in three at times follow an earlier turn than the last. Those runs start from no stored turns.
    pub forks: bool,
    /// Two runs in three are of agents with sub-agents, whose turns are sampled side by side.
    pub agents: bool,
}

impl Default for RunShape {
    fn default() -> Self {
        Self {
            count: (1, 2),
            steps: (3, 10),
            groups_per_step: (2, 4),
            group_size: (2, 3),
            turns: (1, 3),
            evaluate_prompts: (0, 3),
            alpha: vec![0.0, 0.5, 1.0, 2.0],
            any_alpha: false,
            max_replacements: (3, 3),
            ranks: (1, 1),
            redundant_groups: (0, 0),
            partitions: (1, 1),
            domains: (1, 1),
            stored_turns: (0, 0),
            patient: false,
            deltas: false,
            forks: false,
            agents: false,
        }
    }
}

impl Scenario {
    /// Reads a scenario.
    ///
    /// # Errors
    /// The text is no scenario; the error names the wrong field.
    pub fn from_toml(text: &str) -> anyhow::Result<Self> {
        let scenario: Self = toml::from_str(text).context("failed to read the scenario")?;
        if scenario.every_ms == 0 || scenario.faults.values().all(|weight| *weight == 0) {
            bail!("failed to read the scenario: every_ms and the sum of faults must be more than 0");
        }
        let shape = &scenario.runs;
        let pairs =
            [shape.count, shape.steps, shape.groups_per_step, shape.group_size, shape.turns, shape.ranks];
        if pairs.iter().any(|(least, most)| *least == 0 || least > most) || shape.alpha.is_empty() {
            bail!("failed to read the scenario: runs must have pairs of least and most, each 1 or more");
        }
        Ok(scenario)
    }

    /// The scenario of this name among those that come with the program, or else the one in the file of this name.
    ///
    /// # Errors
    /// There is neither, or what the file holds is no scenario.
    pub fn read(name: &str) -> anyhow::Result<Self> {
        let shipped = Self::shipped();
        if let Some(scenario) = shipped.iter().find(|scenario| scenario.name == name) {
            return Ok(scenario.clone());
        }
        let names = shipped.iter().map(|scenario| scenario.name.as_str());
        let known =
            || format!("failed to read {name}; without a file: {}", names.collect::<Vec<_>>().join(", "));
        Self::from_toml(&std::fs::read_to_string(name).with_context(known)?)
    }

    /// The scenarios that come with the program.
    ///
    /// # Panics
    /// Never: a test reads them.
    #[must_use]
    pub fn shipped() -> Vec<Self> {
        let texts = [
            include_str!("../../scenarios/everything.toml"),
            include_str!("../../scenarios/power-loss.toml"),
            include_str!("../../scenarios/gangs.toml"),
            include_str!("../../scenarios/rollouts.toml"),
            include_str!("../../scenarios/wide.toml"),
            include_str!("../../scenarios/replicas.toml"),
            include_str!("../../scenarios/repairs.toml"),
            include_str!("../../scenarios/time-division.toml"),
            include_str!("../../scenarios/agents.toml"),
        ];
        texts.map(|text| Self::from_toml(text).expect("shipped scenarios are valid")).into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn shipped_scenarios_are_valid_and_wrong_ones_are_refused() {
        let shipped = Scenario::shipped();
        assert_eq!(shipped.len(), 9);
        let drawn: BTreeSet<FaultKind> =
            shipped.iter().flat_map(|scenario| scenario.faults.keys().copied()).collect();
        assert_eq!(drawn, FaultKind::ALL.into(), "each kind of fault comes in some scenario");
        let unknown = "name = \"x\"\nseconds = 1\nevery_ms = 5\ncolour = 3\n[faults]\nkill = 1";
        assert!(format!("{:#}", Scenario::from_toml(unknown).expect_err("unknown")).contains("colour"));
        let none = "name = \"x\"\nseconds = 1\nevery_ms = 5\n[faults]\nkill = 0";
        assert!(Scenario::from_toml(none).is_err());
    }
}
