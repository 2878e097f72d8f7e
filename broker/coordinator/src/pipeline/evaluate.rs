//! Evaluation on held-out prompts, before the first step, every so many steps, and after the last. No batch
//! is cut meanwhile, so the version under evaluation stands; training rollouts go on.

use millrace_schemas::api::Evaluation;
use millrace_schemas::env_step::EnvStepTask;
use millrace_schemas::limits::MAX_SHOWN_BYTES;
use millrace_schemas::notice::Notice;
use millrace_schemas::submit::mix;
use millrace_schemas::text::cut;
use millrace_schemas::{OutcomeBody, PolicyVersion, RolloutId, RunSpec, TaskBody, TaskKey};
use std::collections::BTreeMap;

use crate::books::add_evaluation;
use crate::command::{Command, Commands};
use crate::pipeline::play::Scene;
use crate::pipeline::{admit, env_step, finish, train_shard};
use crate::rollout::Group;
use crate::spread::fingerprint;
use crate::state::{Evaluating, Run, Tally};

fn is_due(run: &Run, version: PolicyVersion) -> bool {
    let every = run.spec.evaluate.every;
    version.0 == 0 || version.0 == run.spec.steps || (every > 0 && version.0.is_multiple_of(every))
}

/// Begins an evaluation of the current version if one is due.
pub(super) fn begin_if_due(run: &mut Run, out: &mut Commands) {
    let version = run.version();
    let wanted = run.spec.evaluate.prompts > 0 && run.state.works();
    if wanted && is_due(run, version) && run.evaluated.insert(version) {
        begin(run, version, 0, out);
    }
}

/// Plays all prompts at one of the temperatures.
fn begin(run: &mut Run, version: PolicyVersion, pass: u32, out: &mut Commands) {
    let domains = vec![Tally::default(); run.books.domains.len()];
    let (groups, shown) = (BTreeMap::new(), BTreeMap::new());
    let whole = Tally::default();
    run.evaluation = Some(Evaluating { version, pass, groups, shown, whole, domains, reason: None });
    // Only the current version is ever asked for.
    run.evaluated.retain(|evaluated| *evaluated >= version);
    let shares = run.spec.shares();
    let mut dealt = vec![0; shares.len()];
    let (_, samples) = run.evaluate_pass();
    for _ in 0..run.spec.evaluate.prompts {
        let domain = mix::deal(&shares, &mut dealt);
        let prompt = dealt[domain] - 1;
        let id = run.next_group;
        run.next_group += 1;
        let group = Group::new(&run.spec.part(domain as u32), prompt, None, samples, version);
        admit::put_group(run, id, &group, true, out);
        run.evaluation.iter_mut().for_each(|evaluation| {
            evaluation.groups.insert(id, group.clone());
        });
    }
}

/// An outcome came: if it shows the policy a prompt of the evaluation, keeps which that is. Prompts drawn twice are one
/// piece of evidence.
pub(super) fn prompt_shown(run: &mut Run, key: TaskKey, body: &OutcomeBody) {
    if let Some(evaluation) = run.evaluation.as_mut()
        && let TaskKey::EnvStep { rollout, turn: 0 } = key
        && evaluation.groups.contains_key(&rollout.group)
    {
        let shown = match body {
            OutcomeBody::EnvStep(done) => fingerprint(&done.observation),
            OutcomeBody::StepBrief(step) => step.check,
            _ => return,
        };
        evaluation.shown.insert(rollout.group, shown);
    }
}

/// A prompt was played to its end and scored.
pub(super) fn prompt_finished(run: &mut Run, id: u64, out: &mut Commands) {
    let Run { spec, evaluation, .. } = run;
    let Some(evaluation) = evaluation.as_mut() else { return };
    let Some(group) = evaluation.groups.remove(&id) else { return };
    // A state of before has no fingerprints; its prompts count as distinct.
    let shown = evaluation.shown.remove(&id).unwrap_or(id);
    let weights = spec.part(group.domain).reward_weights();
    let rollouts = group.rollouts.len() as u32;
    let solved = group.rollouts.iter().filter(|rollout| rollout.success).count() as u32;
    let reward: f64 = group.rollouts.iter().map(|rollout| rollout.reward(weights.iter().copied())).sum();
    evaluation.count(group.domain, |tally| {
        tally.finished += 1;
        tally.rollouts += rollouts;
        tally.solved += solved;
        tally.reward += reward;
        tally.spread.count(shown, rollouts, solved);
    });
    end_if_done(run, out);
}

/// The resets of all held-out prompts of a run, in order: what rules that learn nothing are played on beside it.
#[must_use]
pub fn resets(spec: &RunSpec) -> Vec<EnvStepTask> {
    let shares = spec.shares();
    let mut dealt = vec![0; shares.len()];
    let version = PolicyVersion(0);
    let mut resets = Vec::new();
    for _ in 0..spec.evaluate.prompts {
        let number = mix::deal(&shares, &mut dealt);
        let (domain, prompt) = (spec.part(number as u32), dealt[number] - 1);
        let group = Group::new(&domain, prompt, None, 1, version);
        let id = RolloutId { group: 0, index: 0, attempt: 0 };
        let scene = Scene { spec, version, evaluate: true, evaluate_temperature: 0.0, id, domain, prompt };
        let tasks = group.rollouts.iter().map(|rollout| env_step::task(&scene, rollout).body);
        resets.extend(tasks.filter_map(|body| match body {
            TaskBody::EnvStep(task) => Some(task),
            _ => None,
        }));
    }
    resets
}

/// A prompt is given up; it counts as neither solved nor unsolved.
pub(super) fn prompt_failed(run: &mut Run, id: u64, reason: &str, out: &mut Commands) {
    let Some(evaluation) = run.evaluation.as_mut() else { return };
    if let Some(group) = evaluation.groups.remove(&id) {
        evaluation.count(group.domain, |tally| tally.failed += 1);
        evaluation.reason = Some(cut(reason, MAX_SHOWN_BYTES).to_owned());
    }
    end_if_done(run, out);
}

fn result_of(
    version: PolicyVersion,
    (temperature, samples): (f64, u32),
    tally: &Tally,
    reason: Option<&String>,
    at_ms: u64,
) -> Evaluation {
    // What a state of before counted are prompts of one rollout.
    let rollouts = tally.rollouts.max(tally.finished);
    let mean = |sum: f64| (rollouts > 0).then(|| sum / f64::from(rollouts));
    Evaluation {
        version: version.0,
        temperature,
        success: mean(f64::from(tally.solved)),
        standard_error: tally.spread.standard_error(),
        reward: mean(tally.reward),
        prompts: tally.finished,
        distinct: tally.spread.prompts.len() as u32,
        samples,
        pass: tally.spread.pass(tally.finished),
        failed: tally.failed,
        reason: reason.filter(|_| tally.failed > 0).cloned(),
        at_ms,
    }
}

fn end_if_done(run: &mut Run, out: &mut Commands) {
    let how = run.evaluate_pass();
    let Some(evaluation) = run.evaluation.take_if(|evaluation| evaluation.groups.is_empty()) else { return };
    let Evaluating { version, pass, whole, domains, reason, .. } = evaluation;
    let result = result_of(version, how, &whole, reason.as_ref(), run.at_ms);
    add_evaluation(&mut run.books.evaluations, result.clone());
    for (domain, tally) in run.books.domains.iter_mut().zip(&domains) {
        add_evaluation(&mut domain.evaluations, result_of(version, how, tally, reason.as_ref(), run.at_ms));
    }
    out.push(Command::Notice(Box::new(Notice::Evaluated {
        run: run.spec.name.clone(),
        version,
        success: result.success,
        prompts: result.prompts,
        failed: result.failed,
        reason,
    })));
    let next = pass + 1;
    if next < run.spec.evaluate.passes() {
        return begin(run, version, next, out);
    }
    finish::check(run, out);
    train_shard::cut(run, out);
}
