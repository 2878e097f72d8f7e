//! Runs end at every async ratio: rollouts take different times, some prompts three times as long
//! as others.

use std::collections::{BTreeMap, BTreeSet};

use millrace_schemas::api::RunState;
use millrace_schemas::submit::from_toml;
use millrace_schemas::train_shard::Batch;
use millrace_schemas::{Event, RunSpec, Task, TaskKey};

use super::harness::{Harness, RUN};
use millrace_coordinator::fold::status;

/// Numbers that look drawn (SplitMix64).
pub(super) struct Draws(pub(super) u64);

impl Draws {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }
}

/// Workers enough for all tasks at once, each of which takes its time.
#[derive(Default)]
pub(super) struct Timed {
    /// In tenths of a second. A tick comes with each task that ends.
    now: u64,
    begun: u64,
    /// By the time at which they end.
    busy: BTreeMap<(u64, u64), (Task, millrace_schemas::OutcomeBody)>,
}

impl Timed {
    /// Until nothing is queued or busy.
    pub(super) fn play(&mut self, harness: &mut Harness, draws: &mut Draws, slow: u64) {
        for _ in 0..400_000 {
            while let Some((_, task)) = harness.queue.pop_first() {
                // A turn is sampled by the version that is current when it starts.
                let body = harness.answer(&task);
                let ends = self.now + duration(&task, draws, slow);
                self.begun += 1;
                self.busy.insert((ends, self.begun), (task, body));
            }
            let Some(((now, _), (task, body))) = self.busy.pop_first() else { return };
            if now > self.now {
                harness.append(Event::Tick { unix_ms: 1_001_000 + 100 * now });
            }
            self.now = now;
            let stale = harness
                .policy
                .as_ref()
                .is_some_and(|policy| policy.is_stale(task.key, task.version, task.evaluate));
            if !stale {
                harness.append(super::outcome(task.key, Some(task.request_fingerprint()), body));
            }
        }
        panic!("it does not end");
    }
}

fn duration(task: &Task, draws: &mut Draws, slow: u64) -> u64 {
    let jitter = draws.below(8);
    match task.key {
        TaskKey::Generate { rollout, .. } if rollout.group % 3 == 0 => slow * (20 + jitter),
        TaskKey::Generate { .. } => 20 + jitter,
        TaskKey::EnvStep { .. } | TaskKey::Reward { .. } => 1 + jitter / 4,
        TaskKey::TrainShard { .. } => 10 + 10 * jitter,
        TaskKey::PublishWeights { .. } => 2,
    }
}

pub(super) fn spec(alpha: f64, batch: u64, steps: u64, more: &str) -> RunSpec {
    let environment =
        if more.contains("domains") { "" } else { "environment = { name = \"counter\", turns = 2 }" };
    let (head, rollout) = more.split_once('/').unwrap_or(("", more));
    let text = format!(
        "name = \"{RUN}\"\nsteps = {steps}\nmodel = {{ kind = \"scripted\" }}\n{environment}\n{head}\n\
         weights = {{ newest = 99 }}\nevaluate = {{ prompts = 2 }}\n[rollout]\nalpha = {alpha:?}\ngroups_per_step = {batch}\ngroup_size = 2\n{rollout}"
    );
    from_toml(&text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Plays it, and returns what is wrong with it.
fn wrong(spec: &RunSpec, seed: u64, slow: u64) -> Option<String> {
    let mut harness = Harness::submit(spec, 0);
    Timed::default().play(&mut harness, &mut Draws(seed), slow);
    wrong_in(&harness)
}

/// What is wrong with a run that has been played.
pub(super) fn wrong_in(harness: &Harness) -> Option<String> {
    let run = harness.run();
    let spec = &run.spec;
    let ledger = status::ledger(run);
    if run.state != RunState::Finished || !ledger.balanced() {
        return Some(format!("{:?} at {} {:?} {ledger:?}", run.state, run.version(), run.load()));
    }
    let bound = spec.rollout.alpha.ceil() as u64;
    let share = match spec.rollout.alpha.fract() {
        0.0 => u64::from(spec.rollout.groups_per_step),
        fraction => (fraction * f64::from(spec.rollout.groups_per_step) + 1e-6) as u64,
    };
    for batch in batches(harness) {
        let staleness = |group: &millrace_schemas::train_shard::BatchGroup| {
            group.rollouts.iter().map(|rollout| batch.base.staleness(rollout.start_version)).max()
        };
        let ages: Vec<u64> = batch.groups.iter().filter_map(staleness).collect();
        let oldest = ages.iter().filter(|age| **age == bound && bound > 0).count() as u64;
        if ages.iter().any(|age| *age > bound) || oldest > share {
            return Some(format!("base={} ages={ages:?} bound={bound} share={share}", batch.base));
        }
    }
    None
}

fn batches(harness: &Harness) -> Vec<Batch> {
    let decode = |bytes: &bytes::Bytes| millrace_schemas::envelope::decode::<Batch>("batch", bytes).ok();
    harness.blobs.values().filter_map(decode).collect()
}

#[test]
fn a_fractional_alpha_ends_with_slow_prompts() {
    let mut found = Vec::new();
    for alpha in [0.25, 0.5, 1.25, 1.5, 2.75] {
        for seed in 0..6 {
            found
                .extend(wrong(&spec(alpha, 8, 4, ""), seed, 3).map(|w| format!("alpha={alpha} {seed}: {w}")));
        }
    }
    assert!(found.is_empty(), "{} of 30: {found:#?}", found.len());
}

#[test]
fn a_share_that_is_an_integer_in_decimals_is_exact() {
    let spec = spec(0.29, 100, 2, "");
    assert_eq!((spec.window_groups(), spec.oldest_groups(), spec.max_staleness()), (129, 29, 1));
    for seed in 0..3 {
        assert_eq!(wrong(&spec, seed, 3), None);
    }
}

#[test]
fn a_fraction_of_less_than_a_group_counts_as_zero() {
    let spec = spec(1.1, 4, 2, "");
    assert_eq!((spec.window_groups(), spec.oldest_groups(), spec.max_staleness()), (8, 4, 1));
}

#[test]
fn every_alpha_and_every_batch_end() {
    const DOMAINS: &str = "domains = [{ name = \"a\", share = 3.0, environment = { name = \"counter\", turns = 2 } }, \
                           { name = \"b\", share = 1.0, environment = { name = \"counter\", turns = 3 } }]/";
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for seed in 0..150 {
        let mut draws = Draws(seed);
        let whole = draws.below(3) == 0;
        let hundredths = if draws.below(2) == 0 { draws.below(200) } else { draws.below(801) };
        let alpha =
            if whole { hundredths / 100 } else { hundredths } as f64 / if whole { 1.0 } else { 100.0 };
        let (batch, steps, slow) = (1 + draws.below(9), 1 + draws.below(6), 1 + 2 * draws.below(3));
        let mut more = ["", "order = \"finish_order\"\n"][draws.below(2) as usize].to_owned();
        let may_wait = more.is_empty();
        more += ["", "filter = \"equal_rewards\"\n"][draws.below(2) as usize];
        if draws.below(3) == 0 {
            more += &format!("redundant_groups = {}\n", draws.below(4));
        } else if may_wait {
            more += &format!("patience_ms = {}\n", 1_000 * draws.below(20));
        }
        let domains = alpha.fract() == 0.0 && draws.below(2) == 0;
        let more = if domains { format!("{DOMAINS}{more}") } else { more };
        let mut spec = spec(alpha, batch, steps, &more);
        (spec.evaluate.prompts, spec.evaluate.every) = (draws.below(4) as u32, draws.below(3));
        seen.insert((whole, domains));
        let what = || format!("seed={seed} alpha={alpha} batch={batch} steps={steps} slow={slow} {more:?}");
        found.extend(wrong(&spec, seed, slow).map(|w| format!("{}: {w}", what())));
    }
    assert!(seen.len() >= 3);
    assert!(found.is_empty(), "{} of 150: {found:#?}", found.len());
}

#[test]
fn a_worker_that_is_behind_takes_no_occupied_place() {
    let mut spec = spec(0.5, 4, 3, "");
    spec.evaluate.prompts = 0;
    let mut harness = Harness::submit(&spec, 0);
    // Two groups are played until version 1 is committed: as many as may be one version behind.
    let mut held = Vec::new();
    while harness.run().version().0 == 0 {
        let (_, task) = harness.queue.pop_first().expect("something is queued");
        let is_held = matches!(task.key, TaskKey::Generate { rollout, .. } if rollout.group >= 4);
        if is_held { held.push(task) } else { harness.finish(&task) }
    }
    assert_eq!(held.len(), 4);
    // The turns of those that begin now are drawn by version 0 all the same.
    while harness.run().version().0 == 1 {
        let Some((_, task)) = harness.queue.pop_first() else { break };
        match task.key {
            TaskKey::Generate { rollout, .. } if rollout.attempt == 0 => {
                harness.say(task.key, super::turn(&[1], &[-0.5], &[(0, 1)]));
            }
            _ => harness.finish(&task),
        }
        let run = harness.run();
        let oldest = run.groups.values().filter(|group| group.staleness(run.version()) == 1).count();
        assert!(run.version().0 > 1 || oldest <= 2, "{oldest} after {}", task.key);
    }
    held.iter().for_each(|task| harness.finish(task));
    super::to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}
