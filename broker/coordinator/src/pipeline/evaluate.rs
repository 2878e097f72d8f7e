//! Evaluation on held-out prompts, before the first step, every so many steps, and after the last. No batch
//! is cut meanwhile, so the version under evaluation stands; training rollouts go on.

use millrace_schemas::PolicyVersion;
use millrace_schemas::api::Evaluation;
use millrace_schemas::limits::MAX_SHOWN_BYTES;
use millrace_schemas::notice::Notice;
use millrace_schemas::submit::mix;
use millrace_schemas::text::cut;
use std::collections::BTreeMap;

use crate::books::add_evaluation;
use crate::command::{Command, Commands};
use crate::pipeline::{admit, finish, train_shard};
use crate::rollout::Group;
use crate::state::{Evaluating, Run, Tally};

fn is_due(run: &Run, version: PolicyVersion) -> bool {
    let every = run.spec.evaluate.every;
    version.0 == 0 || version.0 == run.spec.steps || (every > 0 && version.0.is_multiple_of(every))
}

/// Begins an evaluation of the current version if one is due.
pub(super) fn begin_if_due(run: &mut Run, out: &mut Commands) {
    let version = run.version();
    let prompts = run.spec.evaluate.prompts;
    if prompts == 0 || !run.state.works() || !is_due(run, version) || !run.evaluated.insert(version) {
        return;
    }
    let mut groups = BTreeMap::new();
    let shares = run.spec.shares();
    let mut dealt = vec![0; shares.len()];
    for _ in 0..prompts {
        let domain = mix::deal(&shares, &mut dealt);
        let prompt = dealt[domain] - 1;
        let id = run.next_group;
        run.next_group += 1;
        let group = Group::new(&run.spec.part(domain as u32), prompt, None, 1, version);
        admit::put_group(run, id, &group, true, out);
        groups.insert(id, group);
    }
    let domains = vec![Tally::default(); run.books.domains.len()];
    run.evaluation = Some(Evaluating { version, groups, whole: Tally::default(), domains, reason: None });
    // Only the current version is ever asked for.
    run.evaluated.retain(|evaluated| *evaluated >= version);
}

/// A prompt was played to its end and scored.
pub(super) fn prompt_finished(run: &mut Run, id: u64, out: &mut Commands) {
    let Run { spec, evaluation, .. } = run;
    let Some(evaluation) = evaluation.as_mut() else { return };
    let Some(group) = evaluation.groups.remove(&id) else { return };
    let weights = spec.part(group.domain).reward_weights();
    for rollout in &group.rollouts {
        let reward = rollout.reward(weights.iter().copied());
        evaluation.count(group.domain, |tally| {
            tally.finished += 1;
            tally.solved += u32::from(rollout.success);
            tally.reward += reward;
        });
    }
    end_if_done(run, out);
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

fn result_of(version: PolicyVersion, tally: Tally, reason: Option<&String>, at_ms: u64) -> Evaluation {
    let mean = |sum: f64| (tally.finished > 0).then(|| sum / f64::from(tally.finished));
    Evaluation {
        version: version.0,
        success: mean(f64::from(tally.solved)),
        reward: mean(tally.reward),
        prompts: tally.finished,
        failed: tally.failed,
        reason: reason.filter(|_| tally.failed > 0).cloned(),
        at_ms,
    }
}

fn end_if_done(run: &mut Run, out: &mut Commands) {
    let Some(evaluation) = run.evaluation.take_if(|evaluation| evaluation.groups.is_empty()) else { return };
    let Evaluating { version, whole, domains, reason, .. } = evaluation;
    let result = result_of(version, whole, reason.as_ref(), run.at_ms);
    add_evaluation(&mut run.books.evaluations, result.clone());
    for (domain, tally) in run.books.domains.iter_mut().zip(domains) {
        add_evaluation(&mut domain.evaluations, result_of(version, tally, reason.as_ref(), run.at_ms));
    }
    out.push(Command::Notice(Box::new(Notice::Evaluated {
        run: run.spec.name.clone(),
        version,
        success: result.success,
        prompts: result.prompts,
        failed: result.failed,
        reason,
    })));
    finish::check(run, out);
    train_shard::cut(run, out);
}
