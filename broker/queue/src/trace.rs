//! One trace per rollout, and one per version. All ids follow from names, so every process that
//! touches a task agrees on them without asking, also after a restart.

use std::fmt::Display;

use millrace_schemas::blob::Sha;
use millrace_schemas::{PolicyVersion, RolloutId, RunId, TaskKey};

/// The trace of a rollout, or of the step that makes a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Trace {
    /// The W3C trace id; not 0.
    pub id: u128,
}

impl Trace {
    /// The trace of a rollout. A replacement is another rollout.
    #[must_use]
    pub fn of_rollout(run: &RunId, rollout: RolloutId) -> Self {
        Self::named(run, &rollout)
    }

    /// The trace of the step that makes this version.
    #[must_use]
    pub fn of_version(run: &RunId, version: PolicyVersion) -> Self {
        Self::named(run, &version)
    }

    /// The trace that a task belongs to.
    #[must_use]
    pub fn of_task(run: &RunId, key: TaskKey) -> Self {
        match key {
            TaskKey::EnvStep { rollout, .. }
            | TaskKey::Generate { rollout, .. }
            | TaskKey::Reward { rollout, .. } => Self::of_rollout(run, rollout),
            TaskKey::TrainShard { makes: version, .. } | TaskKey::PublishWeights { version, .. } => {
                Self::of_version(run, PolicyVersion(version))
            }
        }
    }

    fn named(run: &RunId, name: &dyn Display) -> Self {
        let Sha(bytes) = Sha::of(format!("{run}/{name}").as_bytes());
        let id = bytes[..16].iter().fold(0, |id: u128, byte| id << 8 | u128::from(*byte));
        Self { id: id.max(1) }
    }

    /// The root span: the rollout itself, or the step.
    #[must_use]
    pub fn root(self) -> u64 {
        self.span("")
    }

    /// The span of this name within the trace; not 0.
    #[must_use]
    pub fn span(self, name: &str) -> u64 {
        let Sha(bytes) = Sha::of_parts([&self.id.to_be_bytes()[..], name.as_bytes()]);
        let id = bytes[..8].iter().fold(0, |id: u64, byte| id << 8 | u64::from(*byte));
        id.max(1)
    }
}

/// The W3C `traceparent` of a task's message: the root of its trace. It is flagged as sampled; a
/// process that records traces decides by the trace id.
#[must_use]
pub fn traceparent(run: &RunId, key: TaskKey) -> String {
    let trace = Trace::of_task(run, key);
    format!("00-{:032x}-{:016x}-01", trace.id, trace.root())
}

#[cfg(test)]
mod tests {
    use super::{Trace, traceparent};

    #[test]
    fn a_rollout_is_one_trace() {
        let run = "demo".parse().expect("a run name");
        let trace = |key: &str| Trace::of_task(&run, key.parse().expect("a task key"));
        assert_eq!(trace("g1r0a0-s1"), trace("g1r0a0-e1"), "same rollout, same trace");
        assert_ne!(trace("g1r0a0-s1"), trace("g1r1a0-s1"));
        assert_ne!(trace("g1r0a0-s1"), trace("g1r0a1-s1"), "a replacement is another rollout");
        assert_eq!(trace("s3k0a0"), trace("p3a0"), "a version's steps are one trace");
        let other = "demo2".parse().expect("a run name");
        assert_ne!(trace("p3a0"), Trace::of_version(&other, millrace_schemas::PolicyVersion(3)));
        let trace = trace("p3a0");
        assert_ne!(trace.span("p3a0"), trace.root());
    }

    /// Processes of two releases report parts of one trace: the ids must not change.
    #[test]
    fn ids_stay_as_they_are() {
        let run = "demo".parse().expect("a run name");
        let parent = traceparent(&run, "g1r0a0-s1".parse().expect("a task key"));
        assert_eq!(parent, "00-7850c2f0de45c6ca4278bf46311ed424-7e2ea391818ca1c4-01");
    }
}
