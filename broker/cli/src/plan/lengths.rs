//! How long a run's rollouts were, from the batches that it trained on last.

use millrace_coordinator::shell::audit::read_version;
use millrace_queue::Objects;
use millrace_schemas::plan::Spread;
use millrace_schemas::train_shard::BatchRollout;
use millrace_schemas::{PolicyVersion, RunId};

/// Versions whose batches are read: lengths change while a policy learns.
const NEWEST: u64 = 8;

/// Lengths of rollouts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Lengths {
    /// Turns of a rollout.
    pub(super) turns: Spread,
    /// Tokens of a turn.
    pub(super) tokens: Spread,
    /// Rollouts that were read.
    pub(super) rollouts: usize,
}

/// Reads them; `None` if no batch can be read, of a run without a step for example.
pub(super) async fn read(objects: &Objects, run: &RunId, newest: PolicyVersion) -> Option<Lengths> {
    let (mut turns, mut tokens) = (Vec::new(), Vec::new());
    for version in newest.0.saturating_sub(NEWEST - 1).max(1)..=newest.0 {
        let Ok(Some(Ok(stored))) = read_version(objects, run, PolicyVersion(version)).await else { continue };
        let groups = stored.batch.into_iter().flat_map(|batch| batch.groups);
        for rollout in groups.flat_map(|group| group.rollouts) {
            let BatchRollout { turns: its, .. } = rollout;
            turns.push(its.len().max(1) as f64);
            tokens.extend(its.iter().map(|turn| turn.tokens().max(1) as f64));
        }
    }
    let rollouts = turns.len();
    Some(Lengths { turns: Spread::of_sample(turns)?, tokens: Spread::of_sample(tokens)?, rollouts })
}
