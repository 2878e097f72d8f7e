//! Who hands the runs in and looks after them: submits, submits again what the queue lost, and requeues the
//! step that stopped a run. Sees the queue as it is, without faults.

use std::time::Duration;

use millrace_coordinator::state::State;
use millrace_queue::Broker;
use millrace_schemas::env_step::{EnvironmentSpec, Latency};
use millrace_schemas::publish_weights::Retention;
use millrace_schemas::reward::RewardRule;
use millrace_schemas::submit::{
    Algorithm, ConsumeOrder, DomainSpec, EvaluateSpec, GangSpec, GroupFilter, ModelSpec, RewardSpec,
    RolloutSpec, RunSpec, StoredTurns,
};
use millrace_schemas::{Event, subjects};
use tokio::time::{Instant, sleep};

use super::scenario::RunShape;
use super::world::World;
use crate::checkers::history::{Entry, advance};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);

/// The operator.
pub(super) struct Operator<'a> {
    world: &'a World,
    broker: Broker,
    specs: Vec<RunSpec>,
    state: State,
    /// Power losses of the queue when the log was last read.
    losses: u64,
    /// The most tasks seen in the queue at once.
    pub(super) peak_queued: u64,
}

impl<'a> Operator<'a> {
    pub(super) fn new(world: &'a World, specs: Vec<RunSpec>) -> Self {
        Self { world, broker: world.plain(), specs, state: State::default(), losses: 0, peak_queued: 0 }
    }

    /// Hands in whatever the log does not know.
    pub(super) async fn submit(&mut self) -> anyhow::Result<()> {
        for spec in &self.specs {
            if !self.state.runs.contains_key(&spec.name) {
                let unix_ms = self.world.unix_ms();
                self.broker.append(subjects::ALL_RUNS, &Event::Tick { unix_ms }).await?;
                self.broker.append(spec.name.as_str(), &Event::Submitted(Box::new(spec.clone()))).await?;
            }
        }
        self.look().await
    }

    /// Looks after the runs until `end`; says whether all are over.
    pub(super) async fn tend(&mut self, end: Instant) -> anyhow::Result<bool> {
        while Instant::now() < end {
            sleep(LOOK).await;
            self.look().await?;
            self.submit().await?;
            self.requeue().await?;
            if self.state.runs.values().all(|run| run.is_closed()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Catches up with the log.
    async fn look(&mut self) -> anyhow::Result<()> {
        self.peak_queued = self.peak_queued.max(self.world.queue.queued());
        let losses = self.world.queue.losses();
        if losses != self.losses {
            (self.losses, self.state) = (losses, State::default());
        }
        let end = self.broker.queue().log_end().await?;
        if self.state.seq >= end {
            return Ok(());
        }
        let mut log = self.broker.read_log(self.state.seq + 1).await?;
        while self.state.seq < end {
            for logged in log.next(1_024).await? {
                let entry = Entry { seq: logged.seq, run: logged.run, event: logged.event.ok() };
                advance(&mut self.state, &entry);
            }
        }
        Ok(())
    }

    /// A step that was given up is tried again; whoever gave it up may have been cursed by a fault.
    async fn requeue(&self) -> anyhow::Result<()> {
        let runs = self.state.runs.values();
        let broken: Vec<_> = runs.filter_map(|run| Some((run.spec.name.clone(), run.broken?))).collect();
        if broken.is_empty() {
            return Ok(());
        }
        for letter in self.broker.dead_letters().await? {
            if letter.task.as_ref().is_some_and(|task| broken.contains(task)) {
                self.broker.requeue_dead(letter.seq).await?;
            }
        }
        Ok(())
    }
}

/// Draws the runs.
pub(super) fn draw_runs(world: &World, shape: &RunShape) -> Vec<RunSpec> {
    (0..world.between(shape.count)).map(|number| draw_run(world, shape, number)).collect()
}

fn draw_run(world: &World, shape: &RunShape, number: u64) -> RunSpec {
    let count = |pair| world.between(pair) as u32;
    let alpha = shape.alpha[world.below(shape.alpha.len() as u64) as usize];
    let least = (alpha.ceil() as u64).max(1) + 1;
    let rewards = [RewardRule::EnvReturn, RewardRule::Format];
    let rewards = rewards.iter().take(count((1, 2)) as usize);
    let mut spec = RunSpec {
        name: format!("run-{number}").parse().expect("a word and a number are a run's name"),
        seed: world.below(1 << 32),
        steps: world.between(shape.steps),
        model: ModelSpec::Scripted,
        environment: Some(EnvironmentSpec::Counter {
            turns: count(shape.turns),
            latency: Latency::default(),
        }),
        domains: Vec::new(),
        rewards: rewards.map(|rule| RewardSpec::of(*rule)).collect(),
        rollout: RolloutSpec {
            groups_per_step: count(shape.groups_per_step),
            group_size: count(shape.group_size),
            alpha,
            order: [ConsumeOrder::OldestFirst, ConsumeOrder::FinishOrder][count((0, 1)) as usize],
            filter: [GroupFilter::None, GroupFilter::EqualRewards][count((0, 1)) as usize],
            max_new_tokens: count((1, 3)),
            ..RolloutSpec::default()
        },
        algorithm: Algorithm::default(),
        gang: GangSpec::default(),
        evaluate: EvaluateSpec {
            prompts: count(shape.evaluate_prompts),
            every: world.below(3),
            ..EvaluateSpec::default()
        },
        weights: Retention { newest: least, every: world.below(4), checkpoint_every: 1 },
    };
    // Last, and only where a scenario has them, so that others draw what they drew.
    if shape.ranks.1 > 1 {
        spec.gang = GangSpec { ranks: count(shape.ranks), least: 1, patience_ms: 5_000, timeout_ms: 10_000 };
    }
    if shape.redundant_groups.1 > 0 {
        spec.rollout.redundant_groups = count(shape.redundant_groups);
    }
    if shape.partitions.1 > 1 {
        spec.rollout.partitions = count(shape.partitions);
    }
    let domains = if shape.domains.1 > 1 && alpha.fract() == 0.0 { count(shape.domains) } else { 1 };
    if domains > 1 {
        spec.environment = None;
        spec.domains = (0..domains).map(|number| draw_domain(world, shape, number)).collect();
    } else if shape.stored_turns.1 > 0 && spec.part(0).environment.max_turns() > 1 {
        let share = f64::from(count(shape.stored_turns)) / 100.0;
        spec.rollout.stored_turns = StoredTurns { share, ..StoredTurns::default() };
    }
    assert_eq!(spec.refusals(), [], "what is drawn is a run");
    spec
}

fn draw_domain(world: &World, shape: &RunShape, number: u32) -> DomainSpec {
    DomainSpec {
        name: format!("domain-{number}").parse().expect("a word and a number are a domain's name"),
        share: world.between((1, 5)) as f64,
        environment: EnvironmentSpec::Counter {
            turns: world.between(shape.turns) as u32,
            latency: Latency::default(),
        },
        rewards: None,
        max_new_tokens: None,
    }
}
