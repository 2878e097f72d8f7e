//! What a rollout's tasks depend on besides the rollout.

use millrace_schemas::submit::Domain;
use millrace_schemas::{PolicyVersion, RolloutId, RunSpec};

use crate::fold::rollout::Group;
use crate::fold::staleness;
use crate::fold::state::Run;

/// The context of one rollout. A task is a function of this and of the rollout.
#[derive(Debug, Clone, Copy)]
pub struct TaskContext<'a> {
    /// The run file.
    pub spec: &'a RunSpec,
    /// The newest committed version.
    pub version: PolicyVersion,
    /// Whether the rollout is for evaluation.
    pub evaluate: bool,
    /// Sampling temperature of evaluation rollouts; others ignore it.
    pub evaluate_temperature: f64,
    /// The rollout.
    pub id: RolloutId,
    /// Its domain.
    pub domain: Domain<'a>,
    /// The prompt's number within its domain and split.
    pub prompt: u64,
}

impl<'a> TaskContext<'a> {
    /// The context of rollout `id` of `group`.
    #[must_use]
    pub fn of(run: &'a Run, group: &Group, id: RolloutId) -> Self {
        Self {
            spec: &run.spec,
            version: run.version(),
            evaluate: run.is_held_out(id.group),
            evaluate_temperature: run.evaluate_pass().0,
            id,
            domain: run.spec.part(group.domain),
            prompt: group.prompt,
        }
    }

    /// The oldest version that may have sampled a token of the rollout: `staleness::floor`.
    #[must_use]
    pub fn floor(&self) -> PolicyVersion {
        staleness::floor(self.spec, self.version, self.evaluate)
    }
}

/// Why an outcome is refused. The rollout fails, as if the task were a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(pub String);
