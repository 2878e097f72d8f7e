//! One run of one fleet: the coordinator, the queue in memory and the workers' run loop are the real
//! ones, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use millrace_coordinator::fold::books::Books;
use millrace_queue::{Broker, QueueSettings};
use millrace_workers::WorkerSettings;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::engine::EngineUse;
use super::figures::Figures;
use super::node::{Kind, Node};
use super::plant::Plant;
use super::scenario::{Fleet, Scenario};
use super::timeline::Timeline;
use crate::virtual_run::{self, VirtualRun};

/// The run's name.
const RUN: &str = "headline";
/// A run that does not end within this virtual time fails.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);
/// Seconds of a lease. Nothing but hanging resets needs one, and heartbeats take most of the real time.
const LEASE_S: f64 = 600.0;
/// Between two looks at the run.
const LOOK: Duration = Duration::from_millis(250);

/// Plays one run.
///
/// # Errors
/// It fails, or does not end.
pub(super) async fn play(scenario: &Scenario, fleet: &Fleet, seed: u64) -> anyhow::Result<Figures> {
    let settings = QueueSettings::default().with_ack_wait(LEASE_S)?;
    let began = Instant::now();
    let run = VirtualRun::start(settings).await?;
    let plant = Arc::new(Plant::new(seed, scenario.workload.clone(), scenario.device, fleet.clone()));
    let (mut workers, nodes) = start_workers(&plant, &run.broker);
    let (from, to) = scenario.measured();
    let (mut first, mut last) = (None, None);
    let look = || {
        for (meters, version) in [(&mut first, from), (&mut last, to)] {
            if meters.is_none() && plant.published(version).is_some() {
                *meters = Some(Meters::read(&plant, &nodes));
            }
        }
    };
    let played = run.play(&run_file(scenario, fleet, seed), LONGEST, LOOK, look).await;
    let (id, _) = played.with_context(|| format!("fleet={:?} seed={seed}", fleet.name))?;
    let last = last.unwrap_or_else(|| Meters::read(&plant, &nodes));
    let timeline = Timeline::read(&plant, &nodes, began);
    workers.shutdown().await;
    let shared = run.end().await?;
    let state = shared.lock();
    let books: &Books = &state.runs.get(&id).context("the run is gone")?.books;
    let first = first.context("the run ended before it was warm")?;
    let figures = Figures::of(&plant, books, scenario.measured(), first.until(&last))?;
    Ok(Figures { timeline, ..figures })
}

/// What was used, at one moment or between two.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meters {
    pub(super) at: Instant,
    pub(super) engines: EngineUse,
    /// Seconds in which the trainers trained.
    pub(super) trained_s: f64,
    /// Seconds of rewards, over all slots.
    pub(super) rewards_s: f64,
}

impl Meters {
    fn read(plant: &Plant, nodes: &[Arc<Node>]) -> Self {
        let engines = nodes.iter().map(|node| node.used()).sum();
        let journal = plant.journal();
        let (trained_s, rewards_s) = (journal.trained_s, journal.rewards_s);
        Self { at: Instant::now(), engines, trained_s, rewards_s }
    }

    /// What was used from here to `end`, and in how many seconds.
    fn until(&self, end: &Self) -> (Self, f64) {
        let engines = EngineUse {
            busy_s: end.engines.busy_s - self.engines.busy_s,
            slots_s: end.engines.slots_s - self.engines.slots_s,
        };
        let used = Self {
            at: end.at,
            engines,
            trained_s: end.trained_s - self.trained_s,
            rewards_s: end.rewards_s - self.rewards_s,
        };
        (used, (end.at - self.at).as_secs_f64())
    }
}

/// The workers of the fleet, at work.
fn start_workers(plant: &Arc<Plant>, broker: &Broker) -> (JoinSet<()>, Vec<Arc<Node>>) {
    let fleet = &plant.fleet;
    let machines = |gpus: u32| gpus / plant.device.gpus_per_worker;
    let generators = |gpus: u32| if fleet.is_central() { gpus.min(1) } else { machines(gpus) };
    let kinds = [
        (Kind::Generate, generators(fleet.generate)),
        (Kind::Train, plant.device.train_workers(fleet.train)),
        (Kind::Both, generators(fleet.both)),
        (Kind::Play, 1),
    ];
    let (mut workers, mut nodes) = (JoinSet::new(), Vec::new());
    for (kind, count) in kinds {
        for number in 0..count {
            let node = Node::new(kind, plant.clone(), broker.clone());
            let name = format!("{kind:?}-{number}").to_lowercase();
            workers.spawn(serve(broker.clone(), name, node.clone()));
            nodes.push(node);
        }
    }
    (workers, nodes)
}

async fn serve(broker: Broker, name: String, node: Arc<Node>) {
    let id = name.parse().expect("a kind and a number are a worker's name");
    let settings = WorkerSettings {
        report: Duration::from_secs(3_600),
        time_division: node.division.clone(),
        ..WorkerSettings::new(id)
    };
    virtual_run::serve(broker, settings, node.stages(), |stage, policies| node.executor(stage, policies))
        .await;
}

fn run_file(scenario: &Scenario, fleet: &Fleet, seed: u64) -> String {
    let work = &scenario.workload;
    let machines = |gpus: u32| gpus / scenario.device.gpus_per_worker;
    let both = if fleet.is_central() { fleet.both.min(1) } else { machines(fleet.both) };
    let ranks = scenario.device.train_workers(fleet.train) + both;
    let filter = if work.filtered > 0.0 { "equal_rewards" } else { "none" };
    let newest = fleet.alpha.ceil() as u64 + 2;
    format!(
        r#"
        name = "{RUN}"
        seed = {seed}
        steps = {steps}
        model = {{ kind = "scripted" }}
        environment = {{ name = "counter", turns = 250 }}
        rewards = [{{ rule = "success" }}]
        evaluate = {{ prompts = 0 }}
        gang = {{ ranks = {ranks}, patience_ms = 5000 }}
        weights = {{ newest = {newest} }}
        [rollout]
        groups_per_step = {groups}
        group_size = {size}
        alpha = {alpha:?}
        redundant_groups = {redundant}
        patience_ms = {patience_ms}
        filter = "{filter}"
        max_new_tokens = 1
        "#,
        steps = work.steps,
        groups = work.groups,
        size = work.group_size,
        alpha = fleet.alpha,
        redundant = fleet.redundant_groups,
        patience_ms = 1_000 * u64::from(fleet.patience_s),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtual_time::in_virtual_time;

    /// 8 rollouts of 1,000 tokens at 10 ms on 2 GPUs, and 8 GPU-seconds of training.
    fn tiny(fleets: &str) -> Scenario {
        let text = format!(
            r#"
            name = "tiny"
            claim = "none"
            published = "nothing"
            goal = 1.0
            assumptions = []
            [workload]
            gpus = 2
            steps = 8
            warm = 2
            cool = 2
            groups = 4
            group_size = 2
            tokens = {{ kind = "constant", value = 1000.0 }}
            train_gpu_s = 8.0
            [device]
            decode = {{ base_ms = 10.0, per_sequence_ms = 0.0 }}
            reload_s = 0.0
            switch_s = 0.0
            gpus_per_worker = 1
            {fleets}
            [[fleets]]
            name = "divided"
            role = "ours"
            alpha = 1.0
            generate = 1
            train = 1
            slots = 8
            "#
        );
        Scenario::from_toml(&text).unwrap()
    }

    #[test]
    fn constant_lengths_take_what_the_closed_form_says() {
        for lockstep in [false, true] {
            let fleets = format!(
                "[[fleets]]\nname = \"in turn\"\nrole = \"baseline\"\nalpha = 0.0\nboth = 2\nslots = 4\nlockstep = {lockstep}"
            );
            let scenario = tiny(&fleets);
            let step_s = |fleet: &Fleet| in_virtual_time(play(&scenario, fleet, 1)).unwrap();
            // L_g, because all decode at once, and E N μ_t / K.
            let in_turn = step_s(&scenario.fleets[0]);
            assert!((in_turn.step_s - 14.0).abs() < 0.5, "lockstep={lockstep} {in_turn:?}");
            assert!(in_turn.findings().is_empty() && in_turn.dropped.is_empty(), "{in_turn:?}");
            // One trainer needs 8 s, during which a generator makes a batch and waits.
            let divided = step_s(&scenario.fleets[1]);
            assert!(divided.step_s >= 8.0 && divided.step_s < 11.0, "{divided:?}");
        }
    }
}
