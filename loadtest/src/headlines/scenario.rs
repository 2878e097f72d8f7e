//! A published figure and the assumptions under which it is reproduced.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use super::draw::Draw;
use super::engine::DecodePace;

/// A scenario, as in `scenarios/headlines/*.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    /// Its name, for the command line.
    pub(super) name: String,
    /// What is claimed, in words.
    pub(super) claim: String,
    /// The published figures, in words.
    pub(super) published: String,
    /// The least ratio that counts as reproduced.
    pub(super) goal: f64,
    /// What is assumed where the source is silent, and why; for people.
    pub(super) assumptions: Vec<String>,
    /// Whether all fleets have `gpus`. Default true; false where their number is the question.
    #[serde(default = "yes")]
    pub(super) same_hardware: bool,
    /// What one step is.
    pub(super) workload: Workload,
    /// What a GPU does.
    pub(super) device: DeviceModel,
    /// The fleets that are compared.
    pub(super) fleets: Vec<Fleet>,
}

const fn yes() -> bool {
    true
}

/// What one step is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Workload {
    /// GPUs of every fleet.
    pub(super) gpus: u32,
    /// Train steps that are played.
    pub(super) steps: u64,
    /// Steps at the start that are not measured.
    pub(super) warm: u64,
    /// Steps at the end that are not measured: the coordinator begins nothing that no step would train,
    /// so the fleet runs empty.
    pub(super) cool: u64,
    /// Groups of a batch.
    pub(super) groups: u32,
    /// Rollouts of a group.
    pub(super) group_size: u32,
    /// Turns of a rollout, rounded, 1 to 250. Default 1.
    #[serde(default = "once")]
    pub(super) turns: Draw,
    /// Tokens of a turn.
    pub(super) tokens: Draw,
    /// All turns of a prompt's rollouts are longer or shorter by a common factor, whose logarithm has
    /// this standard deviation. Default 0.
    #[serde(default)]
    pub(super) prompt_sigma: f64,
    /// Seconds of an environment's reset. Default 0.
    #[serde(default = "nothing")]
    pub(super) reset_s: Draw,
    /// Seconds of an environment's step. Default 0.
    #[serde(default = "nothing")]
    pub(super) step_s: Draw,
    /// Seconds of a reward. Default 0.
    #[serde(default = "nothing")]
    pub(super) reward_s: Draw,
    /// Share of the groups whose rewards are all equal: they are filtered and replaced. Default 0.
    #[serde(default)]
    pub(super) filtered: f64,
    /// GPU-seconds of training on a batch, all epochs.
    pub(super) train_gpu_s: f64,
    /// Seconds of a train step beside its computation. Default 0.
    #[serde(default)]
    pub(super) train_overhead_s: f64,
}

const fn once() -> Draw {
    Draw::Constant { value: 1.0 }
}

const fn nothing() -> Draw {
    Draw::ZERO
}

/// What a GPU does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceModel {
    /// Decoding.
    pub(super) decode: DecodePace,
    /// Seconds in which an engine loads a new version; it decodes nothing meanwhile.
    pub(super) reload_s: f64,
    /// Seconds from generating to training and back, where a GPU does both; once a step.
    pub(super) switch_s: f64,
    /// GPUs of a worker, which is a machine of the fleet.
    pub(super) gpus_per_worker: u32,
    /// GPUs that only train are one worker, whatever their number: a gang's rendezvous is not
    /// simulated. Default false.
    #[serde(default)]
    pub(super) one_trainer: bool,
}

impl DeviceModel {
    /// Workers that only train.
    pub(super) const fn train_workers(&self, gpus: u32) -> u32 {
        if self.one_trainer && gpus > 0 { 1 } else { gpus / self.gpus_per_worker }
    }
}

/// Which side of the ratio a fleet is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    /// The best of these is what it is compared with.
    Baseline,
    /// The best of these is compared.
    Ours,
    /// Printed beside them.
    Beside,
}

/// A division of the GPUs, and how they are scheduled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fleet {
    /// What it is, in words.
    pub(super) name: String,
    /// Which side of the ratio it is on.
    pub(super) role: Role,
    /// The staleness bound; 0 is synchronous.
    pub(super) alpha: f64,
    /// GPUs that generate.
    #[serde(default)]
    pub(super) generate: u32,
    /// GPUs that train.
    #[serde(default)]
    pub(super) train: u32,
    /// GPUs that do both in turn.
    #[serde(default)]
    pub(super) both: u32,
    /// Sequences that a GPU decodes at once.
    pub(super) slots: u32,
    /// Rollouts wait for each other: all sample a turn, then all environments make a step.
    #[serde(default)]
    pub(super) lockstep: bool,
    /// All samples of a prompt decode on one GPU.
    #[serde(default)]
    pub(super) pinned: bool,
    /// Groups in flight beyond the window.
    #[serde(default)]
    pub(super) redundant_groups: u32,
    /// Seconds that a full batch waits for what its step would make too old. Default 0.
    #[serde(default)]
    pub(super) patience_s: u32,
    /// Rewards at once. Default 65536.
    #[serde(default = "unbounded")]
    pub(super) reward_slots: u32,
    /// Share of the resets that hang until their time is over. Default 0.
    #[serde(default)]
    pub(super) resets_hang: f64,
    /// Why what is trained on is not distributed as what is offered, where that is expected.
    #[serde(default)]
    pub(super) biased_because: Option<String>,
}

const fn unbounded() -> u32 {
    65_536
}

impl Fleet {
    pub(super) const fn gpus(&self) -> u32 {
        self.generate + self.train + self.both
    }

    /// GPUs that generate, in turn or always.
    pub(super) const fn generators(&self) -> u32 {
        self.generate + self.both
    }

    /// One scheduler has all engines: rollouts wait for each other, or stay with their prompt.
    pub(super) const fn is_central(&self) -> bool {
        self.lockstep || self.pinned
    }

    /// GPUs that train, in turn or always.
    pub(super) const fn trainers(&self) -> u32 {
        self.train + self.both
    }
}

impl Scenario {
    /// Reads a scenario.
    ///
    /// # Errors
    /// The text is none: the error has field, value and remedy.
    pub(super) fn from_toml(text: &str) -> anyhow::Result<Self> {
        let scenario: Self = toml::from_str(text).context("failed to read the scenario")?;
        scenario.check().with_context(|| format!("failed to read the scenario {:?}", scenario.name))?;
        Ok(scenario)
    }

    /// The scenario of this name among the shipped ones, or else the one in the file of this name.
    ///
    /// # Errors
    /// There is neither, or what the file holds is no scenario.
    pub(super) fn read(name: &str) -> anyhow::Result<Self> {
        let shipped = Self::shipped();
        if let Some(scenario) = shipped.iter().find(|scenario| scenario.name == name) {
            return Ok(scenario.clone());
        }
        let names: Vec<&str> = shipped.iter().map(|scenario| scenario.name.as_str()).collect();
        let known = || format!("failed to read {name}; without a file: {}", names.join(", "));
        Self::from_toml(&std::fs::read_to_string(Path::new(name)).with_context(known)?)
    }

    /// Versions between which a run is measured.
    pub(super) const fn measured(&self) -> (u64, u64) {
        (self.workload.warm, self.workload.steps - self.workload.cool)
    }

    fn check(&self) -> anyhow::Result<()> {
        let Workload { steps, warm, cool, groups, group_size, filtered, train_gpu_s, .. } = self.workload;
        ensure!(self.goal > 0.0, "goal={} is no ratio; give more than 0", self.goal);
        ensure!(
            steps > warm + cool,
            "workload.steps={steps} leaves nothing to measure; give more than workload.warm + workload.cool={}",
            warm + cool
        );
        ensure!(groups > 0, "workload.groups=0 is no batch; give 1 or more");
        ensure!(group_size > 0, "workload.group_size=0 is no group; give 1 or more");
        ensure!(
            (0.0..1.0).contains(&filtered),
            "workload.filtered={filtered} is no share that leaves groups; give 0 or more and less than 1"
        );
        ensure!(train_gpu_s >= 0.0, "workload.train_gpu_s={train_gpu_s} is no time; give 0 or more");
        let sigma = self.workload.prompt_sigma;
        ensure!(sigma >= 0.0, "workload.prompt_sigma={sigma} is no deviation; give 0 or more");
        let draws = [
            ("turns", &self.workload.turns),
            ("tokens", &self.workload.tokens),
            ("reset_s", &self.workload.reset_s),
            ("step_s", &self.workload.step_s),
            ("reward_s", &self.workload.reward_s),
        ];
        if let Some((name, fault)) = draws.iter().find_map(|(name, draw)| Some((name, draw.fault()?))) {
            bail!("workload.{name}.{fault}");
        }
        for (field, value) in [
            ("decode.base_ms", self.device.decode.base_ms),
            ("decode.per_sequence_ms", self.device.decode.per_sequence_ms),
            ("reload_s", self.device.reload_s),
            ("switch_s", self.device.switch_s),
        ] {
            ensure!(value >= 0.0 && value.is_finite(), "device.{field}={value} is no time; give 0 or more");
        }
        ensure!(self.device.gpus_per_worker > 0, "device.gpus_per_worker=0 is no machine; give 1 or more");
        for role in [Role::Baseline, Role::Ours] {
            let any = self.fleets.iter().any(|fleet| fleet.role == role);
            ensure!(any, "fleets has none with role={role:?}; give one of `baseline` and one of `ours`");
        }
        self.fleets
            .iter()
            .try_for_each(|fleet| self.check_fleet(fleet).with_context(|| format!("fleet {:?}", fleet.name)))
    }

    fn check_fleet(&self, fleet: &Fleet) -> anyhow::Result<()> {
        let (gpus, machine) = (self.workload.gpus, self.device.gpus_per_worker);
        ensure!(
            !self.same_hardware || fleet.gpus() == gpus,
            "generate + train + both={} is not workload.gpus={gpus}; compare the same hardware, or set \
             same_hardware = false",
            fleet.gpus()
        );
        ensure!(fleet.generators() > 0, "generate=0 and both=0: nothing generates; give one of them GPUs");
        ensure!(fleet.trainers() > 0, "train=0 and both=0: nothing trains; give one of them GPUs");
        for (field, count) in [("generate", fleet.generate), ("train", fleet.train), ("both", fleet.both)] {
            ensure!(
                count % machine == 0,
                "{field}={count} is no whole number of machines; give a multiple of \
                 device.gpus_per_worker={machine}"
            );
        }
        ensure!(fleet.slots > 0, "slots=0: a GPU decodes nothing; give 1 or more");
        ensure!(fleet.alpha >= 0.0, "alpha={} is no bound; give 0 or more", fleet.alpha);
        ensure!(
            fleet.both == 0 || fleet.alpha == 0.0,
            "alpha={} with both={}: sequences would be cut by a step; give alpha = 0 or a split",
            fleet.alpha,
            fleet.both
        );
        let hang = fleet.resets_hang;
        ensure!((0.0..1.0).contains(&hang), "resets_hang={hang} is no share; give 0 or more and less than 1");
        Ok(())
    }

    /// The scenarios that come with the program, in the order of the published table.
    ///
    /// # Panics
    /// Never: a test reads them.
    pub(super) fn shipped() -> Vec<Self> {
        let texts = [
            include_str!("../../scenarios/headlines/rlvr.toml"),
            include_str!("../../scenarios/headlines/scaling.toml"),
            include_str!("../../scenarios/headlines/split-40.toml"),
            include_str!("../../scenarios/headlines/alpha.toml"),
            include_str!("../../scenarios/headlines/alfworld.toml"),
            include_str!("../../scenarios/headlines/swe.toml"),
            include_str!("../../scenarios/headlines/env-async.toml"),
            include_str!("../../scenarios/headlines/env-sigma-1.toml"),
            include_str!("../../scenarios/headlines/env-sigma-10.toml"),
            include_str!("../../scenarios/headlines/redundant-env.toml"),
            include_str!("../../scenarios/headlines/queue.toml"),
            include_str!("../../scenarios/headlines/queue-redundant.toml"),
            include_str!("../../scenarios/headlines/replication-32x16.toml"),
            include_str!("../../scenarios/headlines/replication-64x16.toml"),
            include_str!("../../scenarios/headlines/replication-16x64.toml"),
            include_str!("../../scenarios/headlines/rewards.toml"),
            include_str!("../../scenarios/headlines/failures.toml"),
        ];
        texts.map(|text| Self::from_toml(text).expect("shipped scenarios are valid")).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RLVR: &str = include_str!("../../scenarios/headlines/rlvr.toml");

    fn refusal(text: &str) -> String {
        format!("{:#}", Scenario::from_toml(text).expect_err("refused"))
    }

    #[test]
    fn a_wrong_scenario_is_refused_with_field_value_and_remedy() {
        assert!(!Scenario::shipped().is_empty());
        let unknown = refusal(&RLVR.replacen("warm = ", "warn = ", 1));
        assert!(unknown.contains("warn"), "{unknown}");
        let short = refusal(&RLVR.replacen("steps = ", "steps = 1 # ", 1));
        assert!(short.contains("workload.steps=1 leaves") && short.contains("give more"), "{short}");
        let split = refusal(&RLVR.replacen("both = 128", "both = 64", 1));
        assert!(split.contains("=64 is not workload.gpus=128") && split.contains("same hardware"), "{split}");
        let negative = refusal(&RLVR.replacen("sigma = ", "sigma = -", 1));
        assert!(negative.contains("workload.tokens.sigma=-") && negative.contains("give 0"), "{negative}");
    }
}
