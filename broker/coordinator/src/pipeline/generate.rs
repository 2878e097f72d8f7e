//! After a sampled turn: the environment takes it as its action.

use millrace_schemas::generate::{Finish, GenerateDone, GenerateTask, Sampling};
use millrace_schemas::train_shard::BatchTurn;
use millrace_schemas::{EntryRef, PolicyVersion, Task, TaskBody, TaskKey, partition};

use std::ops::RangeInclusive;

use crate::pipeline::play::{Refused, Scene};
use crate::pipeline::seeds::{Purpose, seed};
use crate::rollout::{Phase, Rollout};

/// The task that samples the rollout's next turn.
#[must_use]
pub fn task(scene: &Scene<'_>, rollout: &Rollout) -> Task {
    let turn = rollout.turns.len() as u32 + 1;
    let (id, spec) = (scene.id, scene.spec);
    let numbers = [id.group, u64::from(id.index), u64::from(id.attempt), u64::from(turn)];
    Task {
        run: spec.name.clone(),
        key: TaskKey::Generate { rollout: id, turn },
        pool: partition::of_group(&spec.name, id.group, spec.rollout.partitions),
        version: rollout.version(),
        evaluate: scene.evaluate,
        body: TaskBody::Generate(GenerateTask {
            context: Vec::new(),
            prefix: rollout.trajectory.clone(),
            latest: Vec::new(),
            min_version: rollout.newest_version(),
            max_new_tokens: scene.domain.max_new_tokens,
            sampling: sampling(scene),
            seed: seed(spec.seed, Purpose::Turn, &numbers),
        }),
    }
}

/// How the turns of the rollout are drawn.
fn sampling(scene: &Scene<'_>) -> Sampling {
    let Scene { spec, evaluate, evaluate_temperature, .. } = scene;
    spec.sampling(if *evaluate { *evaluate_temperature } else { spec.rollout.temperature })
}

/// Refuses tokens that the model does not have: it could not be trained on them.
pub(super) fn check_tokens(what: &str, tokens: &[u32], below: Option<u32>) -> Result<(), Refused> {
    let Some(below) = below else { return Ok(()) };
    match tokens.iter().find(|token| **token >= below) {
        Some(token) => Err(Refused(format!("{what} has token={token}; each must be below {below}"))),
        None => Ok(()),
    }
}

/// Takes a turn in that is sound by itself and stands at `seq` of the log. Gives its tokens.
///
/// # Errors
/// The turn could not be trained on: too many tokens, one that may not be sampled, or a version that may not
/// sample.
pub(super) fn done(
    rollout: &mut Rollout,
    scene: &Scene<'_>,
    may_sample: RangeInclusive<PolicyVersion>,
    (seq, done): (u64, GenerateDone),
) -> Result<Vec<u32>, Refused> {
    let spec = scene.spec;
    let entry = EntryRef::of_turn(seq, &done);
    // A rollout never goes back to an older version than its last turn's.
    let oldest = rollout.start.map_or(*may_sample.start(), |_| rollout.newest_version());
    done.check_versions(oldest, *may_sample.end()).map_err(|e| Refused(e.to_string()))?;
    let most = scene.domain.max_new_tokens;
    if done.tokens.len() > most as usize {
        return Err(Refused(format!("turn has tokens={}, more than {most}", done.tokens.len())));
    }
    if sampling(scene).cuts() && done.uncut_logprobs.is_empty() {
        return Err(Refused(
            "turn has no uncut_logprobs, and is of a run that cuts unlikely tokens off".to_owned(),
        ));
    }
    check_tokens("turn", &done.tokens, spec.sample_below().or(spec.model.vocabulary()))?;
    if rollout.start.is_none() {
        rollout.start = done.segments.first().map(|segment| segment.version);
    }
    // A turn of one token has no other end.
    rollout.truncated = most > 1 && done.finish == Finish::Length;
    rollout.trajectory.push(entry);
    rollout.turns.push(BatchTurn { at: 0, logprobs: Vec::new(), segments: done.segments, reward: 0.0 });
    rollout.phase = Phase::EnvStep;
    Ok(done.tokens)
}
