use millrace_schemas::counters::RunCounters;
use millrace_schemas::notice::StageCounters;

use super::*;

/// Ten steps of a second: 4,000 tokens each, of which a sequence makes 250 a second; ten rollouts of 4
/// turns of 100 tokens a step.
fn status() -> Status {
    let mut status = crate::sample::status(10);
    status.evaluations.clear();
    status.counters =
        RunCounters { sampled_tokens: 40_000, turns: 400, trained_turns: 400, ..RunCounters::default() };
    status.ledger.trained = 100;
    status.busy_us = [
        ("generate".to_owned(), 160_000_000),
        ("env_step".to_owned(), 50_000_000),
        ("reward".to_owned(), 1_000_000),
        ("train_shard".to_owned(), 9_000_000),
        ("publish_weights".to_owned(), 2_000_000),
    ]
    .into();
    status
}

/// Workers of a stage that have worked for ten seconds of busy time each.
fn workers(of: &[(&str, Stage, u64)]) -> BTreeMap<String, WorkerNotice> {
    let notice = |(name, stage, tokens): &(&str, Stage, u64)| {
        let counters = StageCounters { tokens: *tokens, busy_us: 10_000_000, ..StageCounters::default() };
        let stages = [(*stage, counters)].into();
        ((*name).to_owned(), WorkerNotice { worker: (*name).to_owned(), stages, ..WorkerNotice::default() })
    };
    of.iter().map(notice).collect()
}

#[test]
fn latencies_follow_from_what_a_run_counts() {
    let workers = workers(&[
        ("generate-0", Stage::Generate, 20_000),
        ("generate-1", Stage::Generate, 20_000),
        ("train-0", Stage::TrainShard, 0),
    ]);
    let figures = RunFigures::of_status(&status(), &workers).unwrap();
    assert_eq!((figures.step_s, figures.turns, figures.tokens), (1.0, 4.0, 100.0));
    assert_eq!(
        (figures.slot_tokens_per_s, figures.generator_tokens_per_s, figures.slots()),
        (250.0, 2_000.0, 8)
    );
    assert_eq!((figures.env_s, figures.reward_s), (0.1, 0.01));
    assert_eq!((figures.train_gpu_s, figures.publish_s), (0.9, 0.2));
    // 4,000 tokens a step of one second, by two workers of 2,000 tokens a second.
    assert_eq!(figures.busy(), (1.0, 0.9));
}

/// Evaluations are in the workers' times and not in the run's counters.
#[test]
fn evaluations_do_not_make_a_worker_look_slow() {
    let mut status = status();
    let evaluation = Evaluation { prompts: 50, samples: 2, ..crate::sample::status(1).evaluations.remove(0) };
    status.evaluations = vec![evaluation];
    for stage in ["generate", "env_step", "reward"] {
        *status.busy_us.get_mut(stage).unwrap() *= 2;
    }
    let workers = workers(&[("generate-0", Stage::Generate, 80_000), ("train-0", Stage::TrainShard, 0)]);
    let figures = RunFigures::of_status(&status, &workers).unwrap();
    assert_eq!((figures.slot_tokens_per_s, figures.env_s, figures.reward_s), (250.0, 0.1, 0.01));
}

#[test]
fn a_run_that_says_too_little_is_refused_with_what_it_lacks() {
    let refused = |status: &Status, of: &[(&str, Stage, u64)]| {
        RunFigures::of_status(status, &workers(of)).unwrap_err().to_string()
    };
    let both = [("generate-0", Stage::Generate, 20_000), ("train-0", Stage::TrainShard, 0)];
    let mut young = status();
    young.version = PolicyVersion(1);
    assert!(refused(&young, &both).contains("has made steps=1"));
    assert!(refused(&status(), &both[..1]).contains("train workers=0"));
    assert!(refused(&status(), &both[1..]).contains("generate workers=0"));
    let mut silent = status();
    silent.counters.turns = 0;
    assert!(refused(&silent, &both).contains("measure a run whose workers are there"));
}

#[test]
fn a_side_that_idles_for_a_third_of_the_time_is_worth_a_plan() {
    assert_eq!(hint(0.75, 0.9, "here"), None);
    let said = hint(0.69, 0.92, "here").unwrap();
    assert!(said.starts_with("generate workers idle 31.0 % of the time"), "{said}");
    assert!(said.contains("millrace plan RUN.toml --gpus N --measured here"), "{said}");
    assert!(hint(0.65, 0.6, "here").unwrap().starts_with("train workers idle 40.0 %"));
}
