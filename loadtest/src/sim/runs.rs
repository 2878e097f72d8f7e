//! The runs of a seed: what a run file may ask for, drawn.

use millrace_schemas::BlobRef;
use millrace_schemas::env_step::{EnvironmentSpec, Latency};
use millrace_schemas::publish_weights::Retention;
use millrace_schemas::reward::RewardRule;
use millrace_schemas::submit::{
    Algorithm, ConsumeOrder, DomainSpec, EvaluateSpec, GangSpec, GroupFilter, ModelSpec, Precision,
    RewardSpec, RolloutSpec, RunSpec, StoredTurns,
};
use serde_json::json;

use super::executors::agents;
use super::scenario::RunShape;
use super::world::World;

/// The greatest async ratio that is drawn.
const MOST_ALPHA: u64 = 8;

/// Tokens of a call's context at most.
const AGENT_CONTEXT: u32 = 300;

/// The rows of agents.
pub(super) const AGENT_ROWS: &[u8] = b"rows";

/// How long the full batches of patient runs wait: less than a lease, more, and without end.
const PATIENCE_MS: [u64; 3] = [2_000, 60_000, 24 * 3_600_000];

/// Draws the runs.
pub(super) fn draw_runs(world: &World, shape: &RunShape) -> Vec<RunSpec> {
    (0..world.between(shape.count)).map(|number| draw_run(world, shape, number)).collect()
}

fn draw_run(world: &World, shape: &RunShape, number: u64) -> RunSpec {
    let count = |pair| world.between(pair) as u32;
    let groups_per_step = count(shape.groups_per_step);
    let alpha = draw_alpha(world, shape, groups_per_step);
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
            groups_per_step,
            group_size: count(shape.group_size),
            alpha,
            order: [ConsumeOrder::OldestFirst, ConsumeOrder::FinishOrder][count((0, 1)) as usize],
            filter: [GroupFilter::None, GroupFilter::EqualRewards][count((0, 1)) as usize],
            max_new_tokens: count((1, 12)),
            max_replacements: count(shape.max_replacements),
            ..RolloutSpec::default()
        },
        algorithm: Algorithm::default(),
        gang: GangSpec::default(),
        evaluate: EvaluateSpec {
            prompts: count(shape.evaluate_prompts),
            every: world.below(3),
            ..EvaluateSpec::default()
        },
        weights: Retention {
            newest: least,
            every: world.below(4),
            checkpoint_every: 1,
            ..Retention::default()
        },
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
        let percent = f64::from(count(shape.stored_turns));
        // A rollout that continues another's turns has none of its own to fork from.
        let share = if world.has_forks(&spec.name) { 0.0 } else { percent / 100.0 };
        spec.rollout.stored_turns = StoredTurns { share, ..StoredTurns::default() };
    }
    draw_by_seed(shape, &mut spec);
    if world.has_agents(&spec.name) {
        plays_agents(&mut spec);
    }
    assert_eq!(spec.refusals(), [], "what is drawn is a run");
    spec
}

/// What goes by the run's seed, so that all other draws are what they were.
fn draw_by_seed(shape: &RunShape, spec: &mut RunSpec) {
    let RolloutSpec { order, redundant_groups, alpha, .. } = spec.rollout;
    let may_wait = order == ConsumeOrder::OldestFirst && redundant_groups == 0 && alpha > 0.0;
    if shape.patient && may_wait && spec.seed.is_multiple_of(2) {
        spec.rollout.patience_ms = PATIENCE_MS[(spec.seed / 2 % 3) as usize];
    }
    if shape.deltas && !spec.seed.is_multiple_of(3) {
        spec.weights.anchor_every = 2 + spec.seed / 3 % 4;
    }
}

/// Makes a run's environment agents. They speak text to a model that does, whose turns are scripted all the same.
fn plays_agents(spec: &mut RunSpec) {
    spec.model = ModelSpec::HuggingFace {
        path: "scripted".to_owned(),
        context: AGENT_CONTEXT + spec.rollout.max_new_tokens,
        precision: Precision::default(),
    };
    spec.environment = Some(draw_agent(spec.seed));
    spec.algorithm.learning_rate = 1e-5;
    spec.rewards.truncate(1);
    spec.rollout.stored_turns = StoredTurns::default();
}

/// Agents with one to three sub-agents, by the run's seed, whose script reads no rows.
fn draw_agent(seed: u64) -> EnvironmentSpec {
    let (sub_agents, at_once) = (1 + seed as u32 % 3, 2 + seed as u32 / 3 % 3);
    let rows = BlobRef::of(AGENT_ROWS);
    let spec = json!({
        "name": "agent",
        "command": ["agent"],
        "reward": ["true"],
        "max_turns": agents::calls(sub_agents),
        "context_tokens": AGENT_CONTEXT,
        "forks": "separate",
        "parallel_calls": at_once,
        "rows": {
            "path": "rows.jsonl",
            "answer": "",
            "content": { "blob": rows, "train": 7, "held_out": 3 },
        },
    });
    serde_json::from_value(spec).expect("an agent's settings")
}

/// The async ratio. Rounding matters at a whole number of groups above the window.
fn draw_alpha(world: &World, shape: &RunShape, groups_per_step: u32) -> f64 {
    if !shape.any_alpha {
        return shape.alpha[world.below(shape.alpha.len() as u64) as usize];
    }
    let batch = u64::from(groups_per_step);
    match world.below(3) {
        0 => world.between((0, MOST_ALPHA)) as f64,
        1 => world.between((0, MOST_ALPHA * batch)) as f64 / batch as f64,
        _ => world.between((0, 100 * MOST_ALPHA)) as f64 / 100.0,
    }
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
