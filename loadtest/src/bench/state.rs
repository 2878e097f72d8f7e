//! What the coordinator's state costs: rollouts in flight by the ten thousand, long contexts, large gangs. The fold alone,
//! without a server.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::ensure;
use millrace_coordinator::fold::{Command, State, outstanding};
use millrace_schemas::env_step::EnvStepDone;
use millrace_schemas::envelope::{decode, encode};
use millrace_schemas::generate::GenerateDone;
use millrace_schemas::reward::RewardDone;
use millrace_schemas::submit::from_toml;
use millrace_schemas::train_shard::TrainShardDone;
use millrace_schemas::{Event, Outcome, OutcomeBody, PolicyVersion, Stage, Task, TaskBody, TaskKey};
use serde::Serialize;

use super::memory::resident_mb;
use super::publish;

/// Tokens that an environment shows each time.
const SHOWN: usize = 64;
const RUN: &str = "state";

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Rollouts in flight
    #[arg(long, default_value_t = 100_000)]
    rollouts: u32,
    /// Tokens of each
    #[arg(long, default_value_t = 8_192)]
    tokens: u32,
    /// Members of the gang that trains a batch of 512 such rollouts
    #[arg(long, default_value_t = 64)]
    ranks: u32,
    /// Turns of the rollout whose bytes are counted, to a context of 32,768 tokens
    #[arg(long, default_value_t = 20)]
    turns: u32,
    /// Where the figures go as JSON
    #[arg(long, default_value = "target/bench/state.json")]
    out: PathBuf,
}

/// The figures.
#[derive(Debug, Serialize)]
struct Figures {
    rollouts: u32,
    tokens: u32,
    resident_mb: f64,
    snapshot_mb: f64,
    encode_s: f64,
    /// From a snapshot's bytes to all that is outstanding.
    take_over_s: f64,
    /// Folding a turn of 16 tokens after a context of this many: microseconds by tokens.
    event_us: BTreeMap<u32, f64>,
    ranks: u32,
    /// Folding a step of 512 rollouts, from the batch's cut to the commit's task.
    gang_s: f64,
    /// Bytes of the tasks of the first turn and of the last.
    turn_bytes: [usize; 2],
}

/// Measures and prints.
///
/// # Errors
/// The fold does not do what is expected.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let gang_s = gang(args)?;
    let event_us = [1_024, 8_192, 65_536].into_iter().map(|tokens| Ok((tokens, event(tokens)?)));
    let event_us = event_us.collect::<anyhow::Result<_>>()?;
    let turn_bytes = turn_bytes(args.turns)?;
    let mut world = World::submit(args.rollouts / 16, 8, 2, "")?;
    // What a queue would hold is not the coordinator's, nor what the allocator keeps of it for a while.
    world.queues = |task| task.stage() != Stage::EnvStep || turn(task) == Some(0);
    world.play(|_| true, args.tokens as usize)?;
    let resident_mb = resident_mb(std::process::id())?;
    let started = Instant::now();
    let snapshot = encode(&world.state);
    let encode_s = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let state: State = decode("snapshot", &snapshot)?;
    let commands = outstanding::of(&state).len();
    let take_over_s = started.elapsed().as_secs_f64();
    ensure!(commands as u32 >= args.rollouts, "commands={commands} are outstanding");
    let snapshot_mb = snapshot.len() as f64 / 1e6;
    let Args { rollouts, tokens, ranks, .. } = *args;
    let figures = Figures {
        rollouts,
        tokens,
        resident_mb,
        snapshot_mb,
        encode_s,
        take_over_s,
        event_us,
        ranks,
        gang_s,
        turn_bytes,
    };
    publish(&args.out, &figures, &table(&figures))
}

fn table(figures: &Figures) -> String {
    let Figures { rollouts, tokens, ranks, .. } = figures;
    let events = figures.event_us.iter().map(|(tokens, us)| format!("{us:.1} µs at {tokens} tokens"));
    let [first, last] = figures.turn_bytes;
    format!(
        "| what | figure |\n|---|---|\n\
         | {rollouts} rollouts in flight, {tokens} tokens each: resident | {:.0} MB |\n\
         | the same: snapshot | {:.1} MB, encoded in {:.2} s |\n\
         | the same: take-over from the snapshot | {:.2} s |\n\
         | a turn folded | {} |\n\
         | a step of 512 rollouts by a gang of {ranks} folded | {:.3} s |\n\
         | bytes of a turn's tasks, first and last to 32,768 tokens | {first}, {last} |\n",
        figures.resident_mb,
        figures.snapshot_mb,
        figures.encode_s,
        figures.take_over_s,
        events.collect::<Vec<_>>().join(", "),
        figures.gang_s,
    )
}

/// Seconds of fold in a step by a gang.
fn gang(args: &Args) -> anyhow::Result<f64> {
    let ranks = format!("gang = {{ ranks = {0}, least = {0} }}", args.ranks);
    let mut world = World::submit(64, 8, 1, &ranks)?;
    for rank in 0..args.ranks {
        let worker = format!("w{rank}").parse()?;
        world.append(Event::Joined { worker, instance: "one".to_owned() });
    }
    world.play(|task| !is_step(task), args.tokens as usize)?;
    let shares: Vec<Task> = std::mem::take(&mut world.kept);
    ensure!(shares.len() as u32 == args.ranks, "shares={} are put", shares.len());
    let before = world.folding;
    for share in shares {
        world.finish(&share, 1);
    }
    ensure!(world.queue.iter().any(|task| task.stage() == Stage::PublishWeights), "no commit is put");
    Ok((world.folding - before).as_secs_f64() + world.cut.as_secs_f64())
}

fn is_step(task: &Task) -> bool {
    matches!(task.key, TaskKey::TrainShard { makes, .. } if makes > 0)
}

/// The turn that a task belongs to.
const fn turn(task: &Task) -> Option<u32> {
    match task.key {
        TaskKey::Generate { turn, .. } | TaskKey::EnvStep { turn, .. } => Some(turn),
        _ => None,
    }
}

/// Microseconds to fold a turn of 16 tokens, and the environment's answer, after a context of so many tokens.
fn event(context: u32) -> anyhow::Result<f64> {
    let mut world = World::submit(4, 8, 3, "")?;
    world.play(|task| task.stage() != Stage::EnvStep || turn(task) == Some(0), context as usize)?;
    let mut folded = 0;
    let before = world.folding;
    for _ in 0..2 {
        let tasks: Vec<Task> = world.kept.drain(..).chain(world.queue.drain(..)).collect();
        for task in tasks {
            folded += 1;
            world.finish(&task, 16);
        }
    }
    Ok((world.folding - before).as_secs_f64() * 1e6 / f64::from(folded))
}

/// Bytes of the tasks of the first turn and of the last.
fn turn_bytes(turns: u32) -> anyhow::Result<[usize; 2]> {
    let mut world = World::submit(1, 2, turns, "")?;
    let mut bytes = BTreeMap::<u32, usize>::new();
    let each = (32_768 / turns as usize).saturating_sub(SHOWN);
    world.play(
        |task| {
            let counts = matches!(task.key, TaskKey::Generate { rollout, .. } | TaskKey::EnvStep { rollout, .. } if rollout.group == 0 && rollout.index == 0);
            if let (true, Some(turn)) = (counts, turn(task).filter(|turn| *turn > 0)) {
                *bytes.entry(turn).or_default() += task.to_bytes().len();
            }
            !is_step(task)
        },
        each,
    )?;
    Ok([bytes[&1], bytes[&turns]])
}

/// A run without a server: tasks in order, and answers of a stated length.
struct World {
    state: State,
    seq: u64,
    queue: VecDeque<Task>,
    /// Tasks that nobody does.
    kept: Vec<Task>,
    /// Of other tasks only the first is kept.
    queues: fn(&Task) -> bool,
    /// Time spent in the fold.
    folding: Duration,
    /// The longest of it for one event.
    cut: Duration,
}

impl World {
    fn submit(groups: u32, size: u32, turns: u32, more: &str) -> anyhow::Result<Self> {
        let text = format!(
            "name = \"{RUN}\"\nsteps = 4\nmodel = {{ kind = \"scripted\" }}\n{more}\n\
             environment = {{ name = \"counter\", turns = {turns} }}\nevaluate = {{ prompts = 0 }}\n\
             [rollout]\ngroups_per_step = {groups}\ngroup_size = {size}\nalpha = 1.0\nmax_new_tokens = 65536\n"
        );
        let spec = from_toml(&text).map_err(|error| anyhow::anyhow!("{error}"))?;
        let (queue, kept) = (VecDeque::new(), Vec::new());
        let (folding, cut) = (Duration::ZERO, Duration::ZERO);
        let mut world = Self { state: State::default(), seq: 0, queue, kept, queues: |_| true, folding, cut };
        world.append(Event::Tick { unix_ms: 1_000 });
        world.append(Event::Submitted(Box::new(spec)));
        Ok(world)
    }

    fn append(&mut self, event: Event) {
        self.seq += 1;
        let started = Instant::now();
        let commands = self.state.advance(self.seq, RUN, event);
        let took = started.elapsed();
        self.folding += took;
        self.cut = self.cut.max(took);
        for command in commands {
            match command {
                Command::PutTask(task) if (self.queues)(&task) => self.queue.push_back(*task),
                Command::PutTask(task) if self.kept.is_empty() => self.kept.push(*task),
                _ => {}
            }
        }
    }

    /// Does the queued tasks that `does` accepts; other tasks are kept.
    fn play(&mut self, mut does: impl FnMut(&Task) -> bool, tokens: usize) -> anyhow::Result<()> {
        while let Some(task) = self.queue.pop_front() {
            if does(&task) {
                self.finish(&task, tokens);
            } else {
                self.kept.push(task);
            }
        }
        ensure!(!self.kept.is_empty(), "the run went on to its end");
        Ok(())
    }

    fn finish(&mut self, task: &Task, tokens: usize) {
        let version = self.state.runs.values().next().map(|run| run.version()).unwrap_or_default();
        let worker = "w".parse().expect("a name");
        let outcome = Outcome {
            key: task.key,
            worker,
            busy_us: 1,
            request_fingerprint: Some(task.request_fingerprint()),
            body: answer(task, tokens, version),
        };
        self.append(Event::Outcome(outcome));
    }
}

fn answer(task: &Task, tokens: usize, version: PolicyVersion) -> OutcomeBody {
    match &task.body {
        TaskBody::Generate(_) => {
            OutcomeBody::Generate(GenerateDone::sampled(&vec![7; tokens], &vec![-0.5; tokens], version))
        }
        TaskBody::EnvStep(_) => OutcomeBody::EnvStep(EnvStepDone {
            state: vec![1; 256],
            observation: vec![3; SHOWN],
            valid: true,
            ..EnvStepDone::default()
        }),
        TaskBody::Reward(_) => OutcomeBody::Reward(RewardDone { score: 1.0, ..RewardDone::default() }),
        TaskBody::TrainShard(_) => {
            OutcomeBody::TrainShard(TrainShardDone { files: Vec::new(), metrics: BTreeMap::new() })
        }
        TaskBody::PublishWeights(publish) => OutcomeBody::PublishWeights(publish.committed(1)),
    }
}
