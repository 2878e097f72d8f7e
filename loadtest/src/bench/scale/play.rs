//! One run under one rule, and one on a fleet that a spot market decides on.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_schemas::Stage;
use tokio::time::{Instant, sleep, sleep_until};

use super::figures::{Figures, Replayed};
use super::ground::{Ground, Progress};
use super::machines::{Machines, Preemption, Shape};
use super::rules::Rule;
use super::trace::Trace;
use super::work::{Law, TURNS};

/// A run that does not end within this time of the fleet fails.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Between two looks at the run, in the time of its tasks.
const LOOK: Duration = Duration::from_millis(500);
/// Rollouts of a group.
const GROUP: u32 = 8;
/// Tasks in flight of a worker.
const SLOTS: u32 = 16;
/// The same of a worker on a spot instance: fewer, so that rollouts never lack where the market is
/// generous, and the workers alone limit the throughput.
const SPOT_SLOTS: u32 = 8;

/// What is played.
pub(super) struct Setting {
    pub(super) law: Law,
    pub(super) steps: u64,
    pub(super) groups: u32,
}

impl Setting {
    /// The pools that are scaled, as large as the static fleet.
    pub(super) fn shapes(&self) -> [Shape; 2] {
        let generate = Shape {
            name: "generate",
            stages: &[Stage::Generate],
            most: self.groups.div_ceil(2),
            slots: SLOTS,
        };
        let env =
            Shape { name: "env", stages: &[Stage::EnvStep, Stage::Reward], most: self.groups, slots: SLOTS };
        [generate, env]
    }

    /// The pools as a user would write them.
    pub(super) fn scaling_file(&self, cooldown_s: f64) -> String {
        let time = |seconds: f64| seconds / self.law.fleet_faster;
        let (cooldown_s, start_up_s, interval_s) = (time(cooldown_s), time(45.0), time(5.0));
        let pool = |Shape { name, stages, most, .. }: Shape| {
            let stages: Vec<String> = stages.iter().map(|stage| format!("{:?}", stage.name())).collect();
            format!(
                "[[pool]]\nname = {name:?}\nstages = [{}]\nmax = {most}\nstep = 8\ncooldown_s = {cooldown_s:?}\nstart_up_s = \
                 {start_up_s:?}\n",
                stages.join(", ")
            )
        };
        format!("interval_s = {interval_s:?}\n{}", self.shapes().map(pool).join("\n"))
    }

    pub(super) fn run_file(&self) -> String {
        let (seed, steps, groups) = (self.law.seed, self.steps.min(1_000_000), self.groups);
        format!(
            r#"
            name = "bursty"
            seed = {seed}
            steps = {steps}
            model = {{ kind = "scripted" }}
            environment = {{ name = "counter", turns = {TURNS} }}
            rewards = [{{ rule = "success" }}]
            evaluate = {{ prompts = 0 }}
            rollout = {{ groups_per_step = {groups}, group_size = {GROUP}, alpha = 2.0, max_new_tokens = 1 }}
            "#
        )
    }

    /// A run under one rule.
    pub(super) async fn play(
        &self,
        ground: Arc<dyn Ground>,
        rule: Rule,
        preemption: Option<Preemption>,
    ) -> anyhow::Result<Figures> {
        let machines = |shape| {
            let (host, pace) = (ground.host(), ground.pace().clone());
            match rule == Rule::Budget && ground.drains() {
                true => Machines::told(host, pace, shape),
                false => Machines::new(host, pace, shape, preemption),
            }
        };
        let pools: Vec<Arc<Machines>> = self.shapes().map(machines).into();
        let trainer = trainers(&ground, 1);
        let began = Instant::now();
        ground.submit(&self.run_file()).await?;
        let scaling = rule.apply(&ground, &pools);
        let played = self.to_the_end(&*ground, began, async |_| Ok(())).await;
        let took = began.elapsed();
        scaling.abort();
        let worker_s: f64 = pools.iter().map(|pool| pool.paid_s()).sum();
        let interrupted = pools.iter().map(|pool| pool.interrupted()).sum();
        for pool in pools.iter().chain([&trainer]) {
            pool.end().await;
        }
        let Progress { turns, trained_turns, dropped, .. } =
            played.with_context(|| format!("{rule:?}, seed {}", self.law.seed))?;
        let virtual_s = |seconds: f64| seconds * self.law.fleet_faster;
        Ok(Figures {
            rule,
            seed: self.law.seed,
            faster: self.law.fleet_faster,
            interrupted_every_s: preemption.map(|preemption| preemption.every.as_secs()),
            announced: preemption.is_some_and(|preemption| preemption.announced),
            step_s: virtual_s(took.as_secs_f64()) / self.steps as f64,
            worker_s: virtual_s(worker_s),
            dropped,
            wasted_turns: turns.saturating_sub(trained_turns),
            interrupted,
        })
    }

    /// Waits for the run's end. `meanwhile` is called at each look before it.
    pub(super) async fn to_the_end(
        &self,
        ground: &dyn Ground,
        began: Instant,
        mut meanwhile: impl AsyncFnMut(&Progress) -> anyhow::Result<()>,
    ) -> anyhow::Result<Progress> {
        loop {
            let progress = ground.progress().await?;
            if progress.over {
                return Ok(progress);
            }
            let longest = LONGEST.div_f64(self.law.fleet_faster);
            ensure!(began.elapsed() < longest, "the run did not end within {} s", longest.as_secs());
            meanwhile(&progress).await?;
            sleep(LOOK.div_f64(self.law.work_faster)).await;
        }
    }

    /// A run whose workers that generate are as many as the trace says. They alone limit it: there are
    /// enough environments, and a train step is short.
    pub(super) async fn replay(
        &self,
        ground: Arc<dyn Ground>,
        trace: &Trace,
        announced: bool,
    ) -> anyhow::Result<Replayed> {
        let [generate, env] = self.shapes();
        let machines = |shape| Machines::new(ground.host(), ground.pace().clone(), shape, None);
        let spot = machines(Shape { most: trace.most(), slots: SPOT_SLOTS, ..generate });
        let (env, trainer) = (machines(env), trainers(&ground, 1));
        env.has(env.shape.most);
        spot.has(trace.counts()[0].1.max(1));
        ground.submit(&self.run_file()).await?;
        let longest = Instant::now() + LONGEST.div_f64(self.law.fleet_faster);
        // The first steps are not measured: workers start, and the window fills.
        while ground.progress().await?.trained_turns < 3 * self.batch_turns() {
            ensure!(Instant::now() < longest, "the run makes no version");
            sleep(LOOK.div_f64(self.law.work_faster)).await;
        }
        let market = tokio::spawn(market(spot.clone(), trace.clone(), self.law.fleet_faster, announced));
        let before = ground.progress().await?;
        let measured = self.measured(&*ground, &spot, trace.lasts().div_f64(self.law.fleet_faster)).await?;
        market.abort();
        let after = ground.progress().await?;
        let interrupted = spot.interrupted();
        for pool in [&spot, &env, &trainer] {
            pool.end().await;
        }
        let (turns, worker_s, took) = measured;
        Ok(Replayed {
            seed: self.law.seed,
            work_faster: self.law.work_faster,
            fleet_faster: self.law.fleet_faster,
            announced,
            taken: trace.taken(),
            interrupted,
            workers: worker_s / took,
            turns_per_worker_s: turns as f64 / worker_s / self.law.work_faster,
            dropped: after.dropped - before.dropped,
        })
    }

    fn batch_turns(&self) -> u64 {
        u64::from(self.groups * GROUP) * u64::from(TURNS)
    }

    /// Trained turns, seconds of workers and seconds, from one version to another one: a batch counts
    /// whole.
    async fn measured(
        &self,
        ground: &dyn Ground,
        spot: &Machines,
        lasts: Duration,
    ) -> anyhow::Result<(u64, f64, f64)> {
        let end = Instant::now() + lasts;
        let mut seen: Vec<(u64, f64, Instant)> = Vec::new();
        while Instant::now() < end {
            let trained = ground.progress().await?.trained_turns;
            if seen.last().is_none_or(|(before, _, _)| *before != trained) {
                seen.push((trained, spot.served_s(), Instant::now()));
            }
            sleep(LOOK.div_f64(self.law.work_faster) / 5).await;
        }
        // The first look comes in the middle of a step.
        let (Some(first), Some(last)) = (seen.get(1), seen.last()) else {
            anyhow::bail!("no version was made")
        };
        ensure!(last.0 > first.0, "one version was made while the trace was replayed");
        Ok((last.0 - first.0, last.1 - first.1, (last.2 - first.2).as_secs_f64()))
    }
}

/// The trainers, which are always there. One has the step; others stand by.
pub(super) fn trainers(ground: &Arc<dyn Ground>, count: u32) -> Arc<Machines> {
    let shape =
        Shape { name: "train", stages: &[Stage::TrainShard, Stage::PublishWeights], most: count, slots: 1 };
    let trainers = Machines::new(ground.host(), ground.pace().clone(), shape, None);
    trainers.has(count);
    trainers
}

/// Replays the trace on a pool.
async fn market(spot: Arc<Machines>, trace: Trace, faster: f64, announced: bool) {
    let start = Instant::now();
    for (at, count) in trace.counts() {
        sleep_until(start + at.div_f64(faster)).await;
        spot.is_left(*count, announced);
    }
}
