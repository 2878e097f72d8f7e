//! Evaluation on held-out prompts, before the first step, every so many steps, and after the last.
//! No batch is cut during an evaluation, so its version remains the newest. Training rollouts
//! continue.

use std::collections::BTreeMap;

use millrace_schemas::api::Evaluation;
use millrace_schemas::env_step::EnvStepTask;
use millrace_schemas::notice::Notice;
use millrace_schemas::submit::mix;
use millrace_schemas::{PolicyVersion, RolloutId, RunSpec, TaskBody};

use crate::fold::books::add_evaluation;
use crate::fold::command::{Command, Commands};
use crate::fold::context::TaskContext;
use crate::fold::milestone::Milestone;
use crate::fold::rollout::Group;
use crate::fold::stages::env_step;
use crate::fold::state::{Evaluating, EvaluationCounts, Run};
use crate::fold::tasks;

fn is_due(run: &Run, version: PolicyVersion) -> bool {
    let every = run.spec.evaluate.every;
    version.0 == 0 || version.0 == run.spec.steps || (every > 0 && version.0.is_multiple_of(every))
}

/// Ends the current evaluation if all its prompts are done, and starts the one that is due.
pub(super) fn end_and_begin(run: &mut Run, out: &mut Commands) {
    end_if_done(run, out);
    let Some(version) = run.policy.as_ref().map(|policy| policy.version) else { return };
    let wanted = run.spec.evaluate.prompts > 0 && run.state.works();
    if wanted && is_due(run, version) && run.evaluated.insert(version) {
        begin(run, version, 0, out);
    }
}

/// Starts all prompts at one of the temperatures.
fn begin(run: &mut Run, version: PolicyVersion, pass: u32, out: &mut Commands) {
    let domains = vec![EvaluationCounts::default(); run.books.domains.len()];
    let (groups, shown) = (BTreeMap::new(), BTreeMap::new());
    let whole = EvaluationCounts::default();
    run.evaluation = Some(Evaluating { version, pass, groups, shown, whole, domains, reason: None });
    // Only the current version is ever looked up.
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
        run.evaluation.iter_mut().for_each(|evaluation| {
            evaluation.groups.insert(id, group.clone());
        });
        let rollouts = (0..samples).map(|index| RolloutId { group: id, index, attempt: 0 });
        let admitted = |rollout| Milestone::Admitted { rollout, version, evaluate: true };
        run.books.milestones.add_each(rollouts, admitted);
        tasks::put_group(run, id, &group, out);
    }
}

/// The resets of all held-out prompts of a run, in order. Baselines play the same prompts.
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
        let context =
            TaskContext { spec, version, evaluate: true, evaluate_temperature: 0.0, id, domain, prompt };
        let tasks = group.rollouts.iter().map(|rollout| env_step::task(&context, rollout, 0).body);
        resets.extend(tasks.filter_map(|body| match body {
            TaskBody::EnvStep(task) => Some(task),
            _ => None,
        }));
    }
    resets
}

fn result_of(
    version: PolicyVersion,
    (temperature, samples): (f64, u32),
    counts: &EvaluationCounts,
    reason: Option<&String>,
    at_ms: u64,
) -> Evaluation {
    // A snapshot of an older version has no count of rollouts: it played each prompt once.
    let rollouts = counts.rollouts.max(counts.finished);
    let mean = |sum: f64| (rollouts > 0).then(|| sum / f64::from(rollouts));
    Evaluation {
        version: version.0,
        temperature,
        success: mean(f64::from(counts.solved)),
        standard_error: counts.spread.standard_error(),
        reward: mean(counts.reward),
        prompts: counts.finished,
        distinct: counts.spread.prompts.len() as u32,
        samples,
        pass: counts.spread.pass(counts.finished),
        failed: counts.failed,
        reason: reason.filter(|_| counts.failed > 0).cloned(),
        at_ms,
    }
}

fn end_if_done(run: &mut Run, out: &mut Commands) {
    let how = run.evaluate_pass();
    let Some(evaluation) = run.evaluation.take_if(|evaluation| evaluation.groups.is_empty()) else { return };
    let Evaluating { version, pass, whole, domains, reason, .. } = evaluation;
    let result = result_of(version, how, &whole, reason.as_ref(), run.at_ms);
    add_evaluation(&mut run.books.evaluations, result.clone());
    for (domain, counts) in run.books.domains.iter_mut().zip(&domains) {
        add_evaluation(&mut domain.evaluations, result_of(version, how, counts, reason.as_ref(), run.at_ms));
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
        begin(run, version, next, out);
    }
}
