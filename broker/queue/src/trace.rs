//! One trace per rollout. The ids follow from names alone, so every process that touches a task agrees on
//! them without asking, also after a restart.

use millrace_schemas::blob::Sha;
use millrace_schemas::{RunId, TaskKey};

/// The W3C `traceparent` of a task: the trace is its rollout, or its version for the steps that concern a
/// whole version; the span is the task.
#[must_use]
pub fn traceparent(run: &RunId, key: &TaskKey) -> String {
    let trace = match key {
        TaskKey::EnvStep { rollout, .. }
        | TaskKey::Generate { rollout, .. }
        | TaskKey::Reward { rollout, .. } => format!("{run}/{rollout}"),
        TaskKey::TrainShard { makes: version, .. } | TaskKey::PublishWeights { version, .. } => {
            format!("{run}/v{version}")
        }
    };
    let trace = Sha::of(trace.as_bytes());
    let span = Sha::of(key.to_string().as_bytes());
    format!("00-{}-{}-01", hex::encode(&trace.0[..16]), hex::encode(&span.0[..8]))
}

#[cfg(test)]
mod tests {
    use super::traceparent;

    #[test]
    fn a_rollout_is_one_trace() {
        let run = "demo".parse().expect("a run name");
        let parent = |key: &str| traceparent(&run, &key.parse().expect("a task key"));
        let (first, second) = (parent("g1r0a0-s1"), parent("g1r0a0-e1"));
        assert_eq!(first[..35], second[..35], "same rollout, same trace");
        assert_ne!(first[35..], second[35..], "another task, another span");
        assert_ne!(first[..35], parent("g1r1a0-s1")[..35]);
        assert_eq!(parent("s3k0a0")[..35], parent("p3a0")[..35], "a version's steps are one trace");
        assert_eq!(first.len(), 55);
    }
}
