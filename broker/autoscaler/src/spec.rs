//! The scaling file: which pools of workers there are, their bounds, and who makes them true.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use millrace_schemas::Stage;
use serde::Deserialize;

/// Pools in a file, at most.
const MAX_POOLS: usize = 64;
/// Workers of a pool, at most.
const MAX_WORKERS: u32 = 65_536;
/// Workers of a machine, at most: more than any machine has GPUs.
const MAX_PER_MACHINE: u32 = 64;
/// Seconds until a worker of an AWS group serves, by a rough guess: the instance boots, fetches the
/// release and its libraries, and loads a model.
const AWS_START_UP_S: f64 = 240.0;
/// The same elsewhere: a process starts.
const START_UP_S: f64 = 5.0;
/// Bytes of a pool's name, at most.
const MAX_NAME: usize = 64;

/// The scaling file, TOML.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalingFile {
    /// Seconds between two decisions.
    #[serde(default = "five")]
    pub interval_s: f64,
    /// Decide and tell, and start or end no worker.
    #[serde(default)]
    pub dry_run: bool,
    /// The pools.
    #[serde(rename = "pool", default)]
    pub pools: Vec<PoolSpec>,
}

/// One pool of workers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSpec {
    /// Its name: a-z, 0-9, '-' and '_'. Workers name it with `--member-of`.
    pub name: String,
    /// The stages that its workers serve.
    pub stages: BTreeSet<Stage>,
    /// Workers at least.
    #[serde(default)]
    pub min: u32,
    /// Workers at most.
    pub max: u32,
    /// Workers started or ended in one decision, at most. Those of one machine may always be.
    #[serde(default = "one")]
    pub step: u32,
    /// Workers that each machine of the target runs. `min`, `max` and `step` count workers; the target
    /// starts and ends whole machines.
    #[serde(default = "one")]
    pub workers_per_machine: u32,
    /// A pool shrinks to the most that it needed within so many seconds.
    #[serde(default = "thirty")]
    pub cooldown_s: f64,
    /// Seconds from a decision until a new worker serves, until that is measured; `None` for the
    /// target's usual one.
    #[serde(default)]
    pub start_up_s: Option<f64>,
    /// Relative price of a worker's hour. Where several pools serve the same stages, the cheaper ones
    /// are filled first.
    #[serde(default = "unit")]
    pub cost: f64,
    /// Who makes its decisions true.
    #[serde(default)]
    pub target: TargetSpec,
}

/// Who starts and ends the workers of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum TargetSpec {
    /// A process that follows the decisions: `millrace up --autoscale`. Workers that leave are asked
    /// to drain.
    #[default]
    Local,
    /// An AWS auto-scaling group.
    Aws {
        /// The group's name.
        group: String,
    },
    /// The scale subresource of a workload in the cluster of this process.
    Kubernetes {
        /// Its namespace.
        namespace: String,
        /// `deployments` or `statefulsets`.
        #[serde(default = "deployments")]
        resource: String,
        /// Its name.
        name: String,
    },
    /// A KEDA ScaledObject that reads the decision from this process's `/metrics`, or asks for it
    /// over gRPC.
    Keda,
}

const fn five() -> f64 {
    5.0
}
const fn thirty() -> f64 {
    30.0
}
const fn unit() -> f64 {
    1.0
}
const fn one() -> u32 {
    1
}
fn deployments() -> String {
    "deployments".to_owned()
}

/// Why a file is no scaling file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// It cannot be read.
    #[error("failed to read the scaling file {path}: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// It is not of this shape.
    #[error("the scaling file is not valid: {0}")]
    Shape(String),
    /// Values that cannot be, one line each.
    #[error("the scaling file is not valid:\n{}", .0.join("\n"))]
    Values(Vec<String>),
}

impl ScalingFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// It cannot be read, or is not valid: all wrong values at once.
    pub fn read(path: &Path) -> Result<Self, SpecError> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| SpecError::Unreadable { path: path.display().to_string(), reason: e.to_string() })?;
        Self::parse(&text)
    }

    /// Reads and checks a file's text.
    ///
    /// # Errors
    /// It is not valid: all wrong values at once.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let file: Self =
            toml::from_str(text).map_err(|e| SpecError::Shape(e.to_string().trim().to_owned()))?;
        let mistakes = file.mistakes();
        if mistakes.is_empty() { Ok(file) } else { Err(SpecError::Values(mistakes)) }
    }

    /// The time between two decisions.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.interval_s)
    }

    /// Every wrong value, with the remedy.
    fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        let mut seconds = |field: String, value: f64, least: f64| {
            if !(least..=86_400.0).contains(&value) {
                mistakes.push(format!("{field} = {value}: give {least} to 86400 seconds"));
            }
        };
        seconds("interval_s".to_owned(), self.interval_s, 0.1);
        for pool in &self.pools {
            seconds(format!("pool {:?}: cooldown_s", pool.name), pool.cooldown_s, 0.0);
            seconds(format!("pool {:?}: start_up_s", pool.name), pool.start_up_s(), 0.0);
        }
        if self.pools.is_empty() || self.pools.len() > MAX_POOLS {
            mistakes.push(format!("pools = {}: give 1 to {MAX_POOLS} [[pool]] tables", self.pools.len()));
        }
        let mut names = BTreeMap::new();
        for pool in &self.pools {
            *names.entry(&pool.name).or_insert(0) += 1;
            mistakes.extend(pool.mistakes());
        }
        let twice = names.into_iter().filter(|(_, times)| *times > 1);
        mistakes.extend(
            twice.map(|(name, n)| format!("pool {name:?} occurs {n} times: give each a name of its own")),
        );
        mistakes
    }
}

impl PoolSpec {
    fn mistakes(&self) -> Vec<String> {
        let Self { name, stages, min, max, step, cost, .. } = self;
        let mut mistakes = Vec::new();
        let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_letter) {
            mistakes.push(format!("pool {name:?}: a name has 1 to {MAX_NAME} of a-z, 0-9, '-' and '_'"));
        }
        let mut wrong = |what: String| mistakes.push(format!("pool {name:?}: {what}"));
        if stages.is_empty() {
            wrong(
                "stages = []: name at least one of generate, env_step, reward, train_shard, publish_weights"
                    .into(),
            );
        }
        if stages.contains(&Stage::Submit) {
            wrong("stages has \"submit\": no worker serves it".into());
        }
        if *max == 0 || *max > MAX_WORKERS {
            wrong(format!("max = {max}: give 1 to {MAX_WORKERS}"));
        }
        if min > max {
            wrong(format!("min = {min} is above max = {max}"));
        }
        for mistake in self.per_machine_mistakes() {
            wrong(mistake);
        }
        if *step == 0 {
            wrong("step = 0: the pool could never change; give 1 or more".into());
        }
        if !(cost.is_finite() && *cost > 0.0) {
            wrong(format!("cost = {cost}: give a number above 0"));
        }
        if let TargetSpec::Aws { group } = &self.target
            && group.is_empty()
        {
            wrong("target.group is empty: name the auto-scaling group".into());
        }
        if let TargetSpec::Kubernetes { namespace, resource, name: workload } = &self.target {
            for (field, value) in [("namespace", namespace), ("name", workload)] {
                let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
                if value.is_empty() || value.len() > 253 || !value.chars().all(fits) {
                    wrong(format!("target.{field} = {value:?}: give a name as Kubernetes allows it"));
                }
            }
            if !["deployments", "statefulsets"].contains(&resource.as_str()) {
                wrong(format!("target.resource = {resource:?}: give deployments or statefulsets"));
            }
        }
        mistakes
    }

    fn per_machine_mistakes(&self) -> Vec<String> {
        let Self { max, workers_per_machine: each, target, .. } = self;
        let mut mistakes = Vec::new();
        if *each == 0 || *each > MAX_PER_MACHINE {
            return vec![format!("workers_per_machine = {each}: give 1 to {MAX_PER_MACHINE}")];
        }
        if *each > 1 && !matches!(target, TargetSpec::Aws { .. }) {
            mistakes.push(format!(
                "workers_per_machine = {each}: only the target \"aws\" has machines of several workers; leave it out"
            ));
        }
        if max % each != 0 {
            mistakes.push(format!(
                "max = {max} counts workers, and is no multiple of workers_per_machine = {each}; give {}",
                max.next_multiple_of(*each)
            ));
        }
        mistakes
    }

    /// Seconds from a decision until a new worker serves, as expected before it is measured.
    #[must_use]
    pub fn start_up_s(&self) -> f64 {
        let usual = if matches!(self.target, TargetSpec::Aws { .. }) { AWS_START_UP_S } else { START_UP_S };
        self.start_up_s.unwrap_or(usual)
    }

    /// `workers`, rounded up to those of whole machines.
    #[must_use]
    pub fn of_whole_machines(&self, workers: u32) -> u32 {
        workers.checked_next_multiple_of(self.workers_per_machine).unwrap_or(workers)
    }

    /// The cool-down.
    #[must_use]
    pub fn cooldown(&self) -> Duration {
        Duration::from_secs_f64(self.cooldown_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        interval_s = 2
        [[pool]]
        name = "generate"
        stages = ["generate"]
        max = 8
        step = 4
        target = { kind = "aws", group = "millrace-generate" }
        [[pool]]
        name = "env"
        stages = ["env_step", "reward"]
        min = 1
        max = 2
    "#;

    #[test]
    fn a_file_has_pools_with_bounds_and_targets() {
        let file = ScalingFile::parse(GOOD).unwrap();
        assert_eq!(file.pools[0].target, TargetSpec::Aws { group: "millrace-generate".into() });
        assert_eq!(file.pools[1].target, TargetSpec::Local);
        assert_eq!(file.pools[1].stages, [Stage::EnvStep, Stage::Reward].into());
        assert_eq!((file.pools[1].step, file.dry_run), (1, false));
    }

    #[test]
    fn a_new_instance_is_expected_later_than_a_new_process() {
        let file = ScalingFile::parse(GOOD).unwrap();
        assert_eq!([file.pools[0].start_up_s(), file.pools[1].start_up_s()], [240.0, 5.0]);
        let file = ScalingFile::parse(&GOOD.replace("step = 4", "start_up_s = 90")).unwrap();
        assert_eq!(file.pools[0].start_up_s(), 90.0, "what the file says counts");
    }

    #[test]
    fn bounds_that_machines_of_several_workers_cannot_have_are_refused() {
        let with = |line: &str| ScalingFile::parse(&GOOD.replace("step = 4", line)).map(drop);
        with("workers_per_machine = 4").unwrap();
        let said = with("workers_per_machine = 3").unwrap_err().to_string();
        assert!(said.contains("max = 8 counts workers") && said.contains("give 9"), "{said}");
        let said = with("workers_per_machine = 0").unwrap_err().to_string();
        assert!(said.contains("workers_per_machine = 0: give 1 to 64"), "{said}");
        let local = GOOD.replace("min = 1", "workers_per_machine = 2");
        let said = ScalingFile::parse(&local).unwrap_err().to_string();
        assert!(said.contains("only the target \"aws\""), "{said}");
    }

    #[test]
    fn all_mistakes_of_a_file_are_told_at_once() {
        let text = r#"
            interval_s = 0
            [[pool]]
            name = "../etc"
            stages = []
            min = 3
            max = 2
            step = 0
            cost = -1
            [[pool]]
            name = "b"
            stages = ["submit"]
            max = 0
            target = { kind = "kubernetes", namespace = "a/../b", name = "x" }
            [[pool]]
            name = "b"
            stages = ["reward"]
            max = 1
        "#;
        let Err(SpecError::Values(mistakes)) = ScalingFile::parse(text) else { panic!("it is valid") };
        let all = mistakes.join("\n");
        let expected = [
            "interval_s = 0",
            "\"../etc\"",
            "stages = []",
            "min = 3 is above max = 2",
            "step = 0",
            "cost = -1",
            "no worker serves it",
            "max = 0",
            "target.namespace",
            "\"b\" occurs 2 times",
        ];
        for part in expected {
            assert!(all.contains(part), "{part} is missing in:\n{all}");
        }
    }

    #[test]
    fn a_word_that_is_not_known_is_refused() {
        let error = ScalingFile::parse("[[pool]]\nname = \"a\"\nstages = [\"generate\"]\nmaximum = 3\n");
        assert!(error.unwrap_err().to_string().contains("maximum"));
    }
}
