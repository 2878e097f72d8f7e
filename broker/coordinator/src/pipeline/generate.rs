//! After a sampled turn: the environment takes it as its action.

use millrace_schemas::generate::{GenerateDone, GenerateTask, Sampling};
use millrace_schemas::subjects::GENERATE_POOL;
use millrace_schemas::submit::RolloutSpec;
use millrace_schemas::train_shard::BatchTurn;
use millrace_schemas::{PolicyVersion, Task, TaskBody, TaskKey};

use std::ops::RangeInclusive;

use crate::pipeline::play::{Refused, Scene};
use crate::pipeline::seeds::{Purpose, seed};
use crate::pipeline::submit::pool;
use crate::rollout::{Phase, Rollout};

/// The task that samples the rollout's next turn.
#[must_use]
pub fn task(scene: &Scene<'_>, rollout: &Rollout) -> Task {
    let turn = rollout.turns.len() as u32 + 1;
    let (id, spec) = (scene.id, scene.spec);
    let numbers = [id.group, u64::from(id.index), u64::from(id.attempt), u64::from(turn)];
    let temperature = if scene.evaluate { spec.evaluate.temperature } else { spec.rollout.temperature };
    Task {
        run: spec.name.clone(),
        key: TaskKey::Generate { rollout: id, turn },
        pool: pool(GENERATE_POOL),
        version: rollout.version(),
        evaluate: scene.evaluate,
        body: TaskBody::Generate(GenerateTask {
            context: rollout.tokens.clone(),
            min_version: rollout.newest_version(),
            max_new_tokens: spec.rollout.max_new_tokens,
            sampling: Sampling { temperature, stop_tokens: Vec::new(), sample_below: spec.sample_below() },
            seed: seed(spec.seed, Purpose::Turn, &numbers),
        }),
    }
}

/// Takes a turn in.
///
/// # Errors
/// The turn could not be trained on: arrays of different lengths, a log-probability that is none, too many
/// tokens, or a version that may not sample.
pub(super) fn done(
    rollout: &mut Rollout,
    spec: &RolloutSpec,
    may_sample: RangeInclusive<PolicyVersion>,
    done: GenerateDone,
) -> Result<(), Refused> {
    let refused = |e: &dyn std::fmt::Display| Refused(e.to_string());
    done.check().map_err(|e| refused(&e))?;
    // A rollout never goes back to an older version than its last turn's.
    let oldest = rollout.start.map_or(*may_sample.start(), |_| rollout.newest_version());
    done.check_versions(oldest, *may_sample.end()).map_err(|e| refused(&e))?;
    if done.tokens.len() > spec.max_new_tokens as usize {
        return Err(Refused(format!(
            "turn has tokens={}, more than {}",
            done.tokens.len(),
            spec.max_new_tokens
        )));
    }
    if rollout.start.is_none() {
        rollout.start = done.segments.first().map(|segment| segment.version);
    }
    let at = rollout.tokens.len() as u32;
    rollout.tokens.extend_from_slice(&done.tokens);
    rollout.turns.push(BatchTurn { at, logprobs: done.logprobs, segments: done.segments, reward: 0.0 });
    rollout.phase = Phase::EnvStep;
    Ok(())
}
