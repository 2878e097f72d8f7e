//! Evaluation on held-out prompts, before the first step, every so many steps, and after the last. No batch
//! is cut meanwhile, so the version under evaluation stands; training rollouts go on.

use millrace_schemas::PolicyVersion;
use millrace_schemas::api::Evaluation;
use millrace_schemas::notice::Notice;
use std::collections::BTreeMap;

use crate::command::{Command, Commands};
use crate::pipeline::{admit, finish, train_shard};
use crate::rollout::Group;
use crate::state::{Evaluating, Run};

fn is_due(run: &Run, version: PolicyVersion) -> bool {
    let every = run.spec.evaluate.every;
    version.0 == 0 || version.0 == run.spec.steps || (every > 0 && version.0.is_multiple_of(every))
}

/// Begins an evaluation of the current version if one is due.
pub(super) fn begin_if_due(run: &mut Run, out: &mut Commands) {
    let version = run.version();
    let prompts = run.spec.evaluate.prompts;
    if prompts == 0 || !is_due(run, version) || !run.evaluated.insert(version) {
        return;
    }
    let mut groups = BTreeMap::new();
    for prompt in 0..u64::from(prompts) {
        let id = run.next_group;
        run.next_group += 1;
        let group = Group::new(prompt, 1, version, run.spec.rewards.len());
        admit::put_group(run, id, &group, true, out);
        groups.insert(id, group);
    }
    run.evaluation = Some(Evaluating { version, groups, solved: 0, reward: 0.0, finished: 0, failed: 0 });
}

/// A prompt was played to its end and scored.
pub(super) fn prompt_finished(run: &mut Run, id: u64, out: &mut Commands) {
    let weights = run.reward_weights();
    let Some(evaluation) = run.evaluation.as_mut() else { return };
    let Some(group) = evaluation.groups.remove(&id) else { return };
    for rollout in &group.rollouts {
        evaluation.finished += 1;
        evaluation.solved += u32::from(rollout.success);
        evaluation.reward += rollout.reward(weights.iter().copied());
    }
    end_if_done(run, out);
}

/// A prompt is given up; it counts as neither solved nor unsolved.
pub(super) fn prompt_failed(run: &mut Run, id: u64, out: &mut Commands) {
    let Some(evaluation) = run.evaluation.as_mut() else { return };
    if evaluation.groups.remove(&id).is_some() {
        evaluation.failed += 1;
    }
    end_if_done(run, out);
}

fn end_if_done(run: &mut Run, out: &mut Commands) {
    let Some(evaluation) = run.evaluation.take_if(|evaluation| evaluation.groups.is_empty()) else { return };
    let mean = |sum: f64| sum / f64::from(evaluation.finished.max(1));
    let result = Evaluation {
        version: evaluation.version.0,
        success: mean(f64::from(evaluation.solved)),
        reward: mean(evaluation.reward),
        prompts: evaluation.finished,
        failed: evaluation.failed,
        at_ms: run.at_ms,
    };
    run.books.evaluations.push(result);
    out.push(Command::Notice(Box::new(Notice::Evaluated {
        run: run.spec.name.clone(),
        version: evaluation.version,
        success: result.success,
        prompts: result.prompts,
    })));
    finish::check(run, out);
    train_shard::cut(run);
}
