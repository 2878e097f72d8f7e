//! What the gateway adds to a call of an agent: the production coordinator, run loop and gateway on a real server, with
//! an engine that takes no time. A call is an environment's step and a turn, each durable before the next.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use millrace_gateway::{
    Agents, AgentsSettings, BeginError, Plain, Sandboxed, SessionName, Start, Step, Walls,
};
use millrace_policy::text_codec::Codec;
use millrace_queue::testing::TestServer;
use millrace_queue::{Broker, JetStreamOptions, Objects};
use millrace_schemas::dataset::{ChatMessage, ChatRole, Row};
use millrace_schemas::env_step::{AgentSpec, EnvAction, EnvStepDone, EnvStepTask, Settings};
use millrace_schemas::generate::GenerateDone;
use millrace_schemas::outcome::Lost;
use millrace_schemas::submit::from_toml;
use millrace_schemas::{
    Event, OutcomeBody, PolicyVersion, RolloutId, RunId, RunSpec, Task, TaskBody, TaskKey,
};
use millrace_workers::{Cost, Executor, Verdict};
use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::lives::{self, Load};
use super::{median, publish};
use crate::chaos::stack::beside;

/// Which quantiles of its calls an agent tells, one each.
const QUANTILES: [&str; 2] = ["0.5", "0.95"];
/// What the engine says.
const ANSWER: &str = "one";
/// The pool of the agents' tasks.
const POOL: &str = "agents";
/// Tokens of what the agent says at most.
const OBSERVATION: u32 = 64;
/// Between two looks for room for an agent, and for results.
const LOOK: Duration = Duration::from_millis(20);
/// Longest wait for the agents of a row.
const PATIENCE: Duration = Duration::from_secs(300);

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A model directory; its tokenizer and chat template are used, and no weights
    #[arg(long)]
    model: PathBuf,
    /// Calls of an agent, one after another, each with all before it
    #[arg(long, default_value_t = 64)]
    calls: u32,
    /// Agents at once
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8])]
    at_once: Vec<usize>,
    /// Agents that are measured of each row; medians are printed
    #[arg(long, default_value_t = 16)]
    agents: usize,
    /// Where the figures go as JSON
    #[arg(long, default_value = "target/bench/gateway.json")]
    out: PathBuf,
}

/// What a call took, by those agents that told the same quantile.
#[derive(Debug, Serialize)]
struct Figures {
    way: &'static str,
    at_once: usize,
    calls: u32,
    agents: usize,
    p50_ms: f64,
    p95_ms: f64,
}

/// Measures and prints.
///
/// # Errors
/// There is no nats-server, no tokenizer, or no sandbox; or an agent has no result.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.calls > 1 && args.calls < 255, "--calls is from 2 to 254");
    ensure!(args.agents > 1 && !args.at_once.contains(&0), "--agents is at least 2, --at-once at least 1");
    let codec = Codec::read(|name| std::fs::read(args.model.join(name)).ok().map(Bytes::from));
    let codec = Arc::new(codec.with_context(|| format!("failed to read {}", args.model.display()))?);
    let guard = beside("millrace-agent-guard")?;
    let plain: Arc<dyn Walls> = Arc::new(Plain { guard: vec![guard.to_string_lossy().into_owned()] });
    let sandboxed: Arc<dyn Walls> = Arc::new(Sandboxed::open(beside("millrace-sandbox")?, Vec::new()).await?);
    let (server, objects) = (TestServer::start().await, Objects::memory());
    let mut all = vec![bare(args).await?];
    for &at_once in &args.at_once {
        for (way, walls) in [("the gateway", &plain), ("the gateway, from a sandbox", &sandboxed)] {
            let agents = AgentsSettings { most: at_once, ..AgentsSettings::new(walls.clone()) };
            let name = format!("gateway-{}", all.len());
            let told = play(args, (&server, &objects), &name, agents, codec.clone()).await?;
            let of = |wanted: usize| {
                let ms = told.iter().filter(|(quantile, _)| *quantile == wanted).map(|(_, s)| s * 1e3);
                median(ms.collect())
            };
            let (p50_ms, p95_ms) = (of(0), of(1));
            println!("{way}, {at_once} at once: {p50_ms:.2} ms, {p95_ms:.2} ms");
            all.push(Figures { way, at_once, calls: args.calls, agents: told.len(), p50_ms, p95_ms });
        }
    }
    publish(&args.out, &all, &table(&all))
}

fn table(all: &[Figures]) -> String {
    let mut table = format!(
        "Calls of an agent to a model that takes no time, {} one after another, each with all before it.\n\n\
         | to | agents at once | p50 ms | p95 ms |\n|---|---|---|---|\n",
        all[0].calls
    );
    for Figures { way, at_once, p50_ms, p95_ms, .. } in all {
        table += &format!("| {way} | {at_once} | {p50_ms:.2} | {p95_ms:.2} |\n");
    }
    table
}

/// Plays agents until enough have told what their calls took: the number of a quantile, and seconds.
async fn play(
    args: &Args,
    (server, objects): (&TestServer, &Objects),
    name: &str,
    settings: AgentsSettings,
    codec: Arc<Codec>,
) -> anyhow::Result<Vec<(usize, f64)>> {
    let broker = async || Broker::new(server.connect(JetStreamOptions::default()).await, objects.clone());
    let (coordinator, worker) = (broker().await, broker().await);
    let at_once = settings.most;
    let executor = Arc::new(Host::new(args, Agents::start(settings).await?, codec)?);
    let stop = CancellationToken::new();
    // Others wait for their place, so that there is always one to begin.
    let load = Load::of(2 * u32::try_from(at_once)?, u8::try_from(args.calls)?);
    let decides = tokio::spawn(lives::coordinate(coordinator.clone(), name.to_owned(), stop.clone()));
    let works = tokio::spawn(lives::work(worker, POOL, executor.clone(), 2 * at_once as u32, stop.clone()));
    let spec = endless(name, load, executor.turn.len())?;
    coordinator.append(name, &Event::Submitted(Box::new(spec))).await?;
    let since = Instant::now();
    // The first of them start while the machine is still at other things.
    let wanted = args.agents + at_once;
    while !executor.has_told(at_once, wanted) {
        ensure!(
            since.elapsed() < PATIENCE,
            "{} of {wanted} agents ended in {PATIENCE:?}",
            lock(&executor.told).len()
        );
        if let Some(reason) = lock(&executor.lost).take() {
            anyhow::bail!("an agent was lost: {reason}");
        }
        sleep(LOOK).await;
    }
    let told = lock(&executor.told).split_off(at_once);
    executor.agents.end_all();
    lives::end(&coordinator, name, &stop, [works, decides]).await?;
    Ok(told)
}

/// A run without an end, whose environment takes any token.
fn endless(name: &str, Load { groups, size, turns, .. }: Load, turn: usize) -> anyhow::Result<RunSpec> {
    let context = usize::from(turns) * (OBSERVATION as usize + turn);
    Ok(from_toml(&format!(
        r#"
        name = "{name}"
        steps = 1000000
        model = {{ kind = "hugging_face", path = "none", context = {context} }}
        algorithm = {{ learning_rate = 1e-5 }}
        environment = {{ name = "custom", pool = "{POOL}", max_turns = {turns}, prompt_tokens = {OBSERVATION} }}
        rewards = [{{ rule = "success" }}]
        evaluate = {{ prompts = 0 }}
        rollout = {{ groups_per_step = {groups}, group_size = {size}, alpha = 0, max_new_tokens = {turn} }}
        "#
    ))?)
}

/// What is behind the mutex: a panic leaves no list half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A worker that hosts agents, and an engine beside it that says the same each time, at once.
struct Host {
    agents: Arc<Agents>,
    codec: Arc<Codec>,
    spec: AgentSpec,
    /// The tokens of what the engine says.
    turn: Vec<u32>,
    /// The number of its quantile, and seconds, by agent.
    told: Mutex<Vec<(usize, f64)>>,
    /// Why one has no result.
    lost: Mutex<Option<String>>,
}

impl Host {
    fn new(args: &Args, agents: Arc<Agents>, codec: Arc<Codec>) -> anyhow::Result<Self> {
        let mut turn = codec.encode(ANSWER)?;
        turn.extend(codec.end_tokens().first());
        let spec = serde_json::from_value(json!({
            "command": ["python3", "-E", "-s", "agent.py"],
            "reward": ["python3", "-E", "-s", "quantile.py"],
            "rows": { "path": "none" },
            "files": { "agent.py": include_str!("gateway/agent.py") },
            "reward_files": { "quantile.py": include_str!("gateway/quantile.py") },
            "env": { "CALLS": args.calls.to_string() },
            "max_turns": args.calls,
            "context_tokens": args.calls * 2 * OBSERVATION,
        }))?;
        Ok(Self { agents, codec, spec, turn, told: Mutex::default(), lost: Mutex::default() })
    }

    /// What follows a step of a rollout's agent.
    async fn step(&self, run: &RunId, rollout: RolloutId, turn: u32, step: &EnvStepTask) -> Step {
        let name = SessionName { run: run.clone(), rollout };
        // A task may name its turn's place in the log instead of the tokens.
        let tokens = if matches!(step.action, EnvAction::Reset) { &[] } else { &self.turn[..] };
        loop {
            let quantile = QUANTILES[quantile_of(rollout)];
            let start = Start {
                name: name.clone(),
                version: PolicyVersion(0),
                evaluate: false,
                spec: &self.spec,
                row: Row {
                    messages: vec![ChatMessage { role: ChatRole::User, content: String::new() }],
                    fields: Settings::from_iter([(
                        "reward_files".to_owned(),
                        json!({ "quantile": quantile }),
                    )]),
                },
                codec: self.codec.clone(),
            };
            match self.agents.begin(start) {
                Ok(session) => return session.step(turn, turn, tokens).await,
                Err(BeginError::Full(_)) => sleep(LOOK).await,
                Err(error @ BeginError::Row(_)) => return Step::Impossible(error.to_string()),
            }
        }
    }

    /// The outcome of a step of a rollout's agent.
    async fn outcome(&self, run: &RunId, rollout: RolloutId, turn: u32, step: &EnvStepTask) -> OutcomeBody {
        match self.step(run, rollout, turn, step).await {
            Step::Done(mut done) => {
                if done.done {
                    self.ended(rollout, &done);
                } else {
                    // A step that goes on has a state. The session is found by the rollout's name.
                    done.state = vec![1];
                }
                OutcomeBody::EnvStep(*done)
            }
            Step::Lost(reason) | Step::Impossible(reason) => {
                *lock(&self.lost) = Some(reason.clone());
                OutcomeBody::Lost(Lost { reason })
            }
        }
    }

    /// Whether so many agents ended, and of those after the first `skipped` one for each quantile.
    fn has_told(&self, skipped: usize, wanted: usize) -> bool {
        let told = lock(&self.told);
        let tells = |quantile| told[skipped..].iter().any(|(of, _)| *of == quantile);
        told.len() >= wanted.max(skipped) && (0..QUANTILES.len()).all(tells)
    }

    fn ended(&self, rollout: RolloutId, done: &EnvStepDone) {
        lock(&self.told).push((quantile_of(rollout), done.reward));
        if done.reward == 0.0 {
            *lock(&self.lost) = Some(format!("{:?}", done.said));
        }
    }

    /// The engine's turn.
    fn turn(&self, mut done: GenerateDone) -> GenerateDone {
        done.tokens.clone_from(&self.turn);
        done.logprobs = vec![-0.5; self.turn.len()];
        done.segments.iter_mut().for_each(|segment| segment.tokens = self.turn.len() as u32);
        done
    }
}

/// Which of [`QUANTILES`] the agent of a rollout tells.
const fn quantile_of(rollout: RolloutId) -> usize {
    rollout.index as usize % QUANTILES.len()
}

#[async_trait]
impl Executor for Host {
    async fn execute(&self, task: Task, _: CancellationToken) -> Verdict {
        let body =
            if let (TaskKey::EnvStep { rollout, turn }, TaskBody::EnvStep(step)) = (task.key, &task.body) {
                self.outcome(&task.run, rollout, turn, step).await
            } else {
                match lives::outcome(task.body, 0) {
                    OutcomeBody::Generate(done) => OutcomeBody::Generate(self.turn(done)),
                    other => other,
                }
            };
        Verdict::Done(body, Cost::default())
    }
}

/// The same agent, and a server that answers at once.
async fn bare(args: &Args) -> anyhow::Result<Figures> {
    let folder = tempfile::tempdir()?;
    let python = |script: &str| {
        let mut command = Command::new("python3");
        command.args(["-E", "-s", "-c", script]).current_dir(folder.path()).kill_on_drop(true);
        command
    };
    let mut server = python(include_str!("gateway/bare.py")).stdout(Stdio::piped()).spawn()?;
    let mut port = String::new();
    let stdout = server.stdout.take().context("the server has no output")?;
    BufReader::new(stdout).read_line(&mut port).await?;
    let status = python(include_str!("gateway/agent.py"))
        .env("OPENAI_BASE_URL", format!("http://127.0.0.1:{}", port.trim()))
        .env("OPENAI_API_KEY", "none")
        .env("CALLS", args.calls.to_string())
        .status()
        .await?;
    ensure!(status.success(), "the agent ended with {status}");
    let times: Vec<f64> = serde_json::from_slice(&std::fs::read(folder.path().join("times.json"))?)?;
    let at = |share: f64| times[(times.len() as f64 * share) as usize] * 1e3;
    let (p50_ms, p95_ms) = (at(0.5), at(0.95));
    Ok(Figures { way: "a bare server in Python", at_once: 1, calls: args.calls, agents: 1, p50_ms, p95_ms })
}
