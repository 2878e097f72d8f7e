//! Results of an evaluation: each temperature, distinct prompts, the standard error over them,
//! pass@k.

use std::collections::BTreeMap;

use millrace_coordinator::fold::decide::evaluation::resets;
use millrace_schemas::api::Evaluation;
use millrace_schemas::env_step::{EnvAction, EnvStepDone, Split};
use millrace_schemas::{OutcomeBody, RunSpec, TaskBody};

use super::harness::{Harness, outcome};

fn spec(evaluate: &str) -> RunSpec {
    let mut spec = super::spec("alpha = 1.0");
    spec.evaluate = toml_of(evaluate);
    spec
}

fn toml_of(evaluate: &str) -> millrace_schemas::submit::EvaluateSpec {
    serde_json::from_str(evaluate).expect("an evaluation")
}

/// Plays to the end. Held-out prompts have one of three observations, so that some are drawn twice.
/// Returns how often each temperature, in tenths, was sampled at for evaluation.
fn play(harness: &mut Harness, spec: &RunSpec) -> BTreeMap<u64, usize> {
    let seeds: Vec<u64> = resets(spec).iter().map(|reset| reset.seed).collect();
    let mut sampled = BTreeMap::new();
    while let Some((name, task)) =
        harness.queue.first_key_value().map(|(name, task)| (name.clone(), task.clone()))
    {
        match &task.body {
            TaskBody::Generate(turn) if task.evaluate => {
                *sampled.entry((10.0 * turn.sampling.temperature) as u64).or_default() += 1;
                harness.work();
            }
            TaskBody::EnvStep(step) if step.action == EnvAction::Reset && step.split == Split::HeldOut => {
                let prompt = seeds.iter().position(|seed| *seed == step.seed);
                let prompt = prompt.expect("a prompt of the evaluation") as u32;
                harness.queue.remove(&name);
                let shown = EnvStepDone {
                    state: vec![0],
                    observation: vec![prompt % 3],
                    valid: true,
                    ..EnvStepDone::default()
                };
                harness.append(outcome(
                    task.key,
                    Some(task.request_fingerprint()),
                    OutcomeBody::EnvStep(shown),
                ));
            }
            _ => {
                harness.work();
            }
        }
    }
    sampled
}

fn results(harness: &Harness) -> Vec<Evaluation> {
    let results = harness.run().books.evaluations.iter().cloned();
    results.map(|evaluation| Evaluation { at_ms: 0, ..evaluation }).collect()
}

#[test]
fn every_temperature_is_evaluated_with_its_standard_error_and_pass_at_k() {
    let spec = spec(r#"{ "prompts": 5, "every": 4, "temperatures": [0.0, 1.0], "samples": 4 }"#);
    let mut harness = Harness::submit(&spec, 0);
    let sampled = play(&mut harness, &spec);
    assert_eq!(sampled.keys().copied().collect::<Vec<_>>(), [0, 10]);
    assert!(sampled[&10] > 2 * sampled[&0], "four rollouts of a prompt at temperature 1: {sampled:?}");
    let results = results(&harness);
    let of = results.iter().map(|e| (e.version, e.temperature, e.samples, e.prompts, e.distinct));
    assert_eq!(of.collect::<Vec<_>>(), [0, 4, 6].map(|v| [(v, 0.0, 1, 5, 3), (v, 1.0, 4, 5, 3)]).concat());
    for evaluation in &results {
        assert!(evaluation.standard_error.is_some(), "{evaluation:?}");
        let pass: Vec<u32> = evaluation.pass.iter().map(|pass| pass.k).collect();
        assert_eq!(pass, if evaluation.samples == 4 { vec![1, 2, 4] } else { vec![] });
        assert!(evaluation.pass.is_sorted_by_key(|pass| pass.success), "{evaluation:?}");
        let success = evaluation.success.expect("it was played");
        assert!(evaluation.pass.first().is_none_or(|one| (one.success - success).abs() < 1e-12));
    }
}

#[test]
fn one_temperature_is_evaluated_as_before() {
    let spec = spec(r#"{ "prompts": 5, "temperature": 0.5 }"#);
    let mut harness = Harness::submit(&spec, 0);
    let sampled = play(&mut harness, &spec);
    assert_eq!(sampled.keys().copied().collect::<Vec<_>>(), [5]);
    let of = results(&harness).iter().map(|e| (e.version, e.samples, e.pass.len())).collect::<Vec<_>>();
    assert_eq!(of, [(0, 1, 0), (6, 1, 0)]);
}

#[test]
fn a_restart_changes_nothing_of_an_evaluation() {
    let spec = spec(r#"{ "prompts": 4, "temperatures": [0.0, 0.7], "samples": 2 }"#);
    let of = |restart_every| {
        let mut harness = Harness::submit(&spec, restart_every);
        play(&mut harness, &spec);
        results(&harness)
    };
    assert_eq!(of(0), of(7));
}
