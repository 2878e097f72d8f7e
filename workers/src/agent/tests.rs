use std::collections::BTreeMap;

use async_trait::async_trait;
use millrace_gateway::{Ended, Gateway, Place, PlaceError, Program, Running, Walls};
use millrace_objects::choose_ring;
use millrace_queue::Objects;
use millrace_schemas::TaskBody;
use millrace_schemas::blob::Sha;
use millrace_schemas::dataset::{ChatMessage, ChatRole};
use millrace_schemas::env_step::{EnvStepDone, EnvironmentSpec, Split};
use millrace_schemas::policy::Policy;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::runtime::policies;
use codec::{tokens, words};
use outage::Outage;

#[path = "../../gateway/src/testing.rs"]
mod codec;
mod outage;

/// Longest wait for anything, and longer than any silence.
const PATIENCE: Duration = Duration::from_secs(60);

/// Walls behind which nothing runs: the test plays the agents. Or that cannot be put up.
#[derive(Debug)]
struct Stage(Option<mpsc::UnboundedSender<Program>>);

struct Scene {
    gateway: String,
    programs: mpsc::UnboundedSender<Program>,
}

struct Actor;

#[async_trait]
impl Walls for Stage {
    async fn place(&self, gateway: &Gateway, _: &[String]) -> Result<Box<dyn Place>, PlaceError> {
        let Some(programs) = self.0.clone() else {
            return Err(PlaceError::Broken("No space left on device".to_owned()));
        };
        Ok(Box::new(Scene { gateway: format!("http://{}", gateway.address), programs }))
    }
}

#[async_trait]
impl Place for Scene {
    fn folder(&self) -> &str {
        "/"
    }

    fn gateway(&self) -> &str {
        &self.gateway
    }

    fn path(&self) -> &str {
        ""
    }

    async fn write(&self, _: &BTreeMap<String, String>) -> Result<(), PlaceError> {
        Ok(())
    }

    async fn start(&self, program: Program) -> Result<Box<dyn Running>, PlaceError> {
        self.programs.send(program).unwrap();
        Ok(Box::new(Actor))
    }

    async fn clear(&self) -> Result<(), PlaceError> {
        Ok(())
    }

    async fn end(&self) {}
}

#[async_trait]
impl Running for Actor {
    async fn wait(&mut self) -> Result<Ended, PlaceError> {
        std::future::pending().await
    }

    async fn kill(&mut self) {}
}

/// A call of the agent: the status, and the answer.
async fn ask(program: Program, messages: Value) -> (u16, Value) {
    choose_ring();
    let url = format!("{}/chat/completions", program.env["OPENAI_BASE_URL"]);
    let asked = reqwest::Client::new().post(url).bearer_auth(&program.env["OPENAI_API_KEY"]);
    let body = json!({ "model": "any", "messages": messages }).to_string();
    let answer = asked.header("content-type", "application/json").body(body).send().await.unwrap();
    let status = answer.status().as_u16();
    let answer: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    (status, answer["choices"][0]["message"].clone())
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

/// What all workers share.
struct World {
    queue: Arc<Outage>,
    broker: Broker,
    policies: PolicyTable,
    spec: AgentSpec,
}

/// A worker, and the programs that it started.
struct Host {
    steps: Arc<AgentSteps>,
    programs: mpsc::UnboundedReceiver<Program>,
}

impl World {
    fn new() -> Self {
        let queue = Arc::new(Outage::new());
        let broker = Broker::new(queue.clone(), Objects::memory());
        let (policies, watch) = policies(broker.clone());
        tokio::spawn(watch.run());
        let spec = json!({ "command": ["agent"], "reward": ["true"], "rows": { "path": "rows.jsonl" }, "max_turns": 4,
                           "call_ms": 300_000 });
        Self { queue, broker, policies, spec: serde_json::from_value(spec).unwrap() }
    }

    async fn host_within(&self, name: &str, walls: Stage) -> Arc<AgentSteps> {
        let settings = AgentsSettings { most: 4, ..AgentsSettings::new(Arc::new(walls)) };
        let (broker, policies) = (self.broker.clone(), self.policies.clone());
        Arc::new(AgentSteps::start(broker, name.parse().unwrap(), policies, settings).await.unwrap())
    }

    async fn host(&self, name: &str) -> Host {
        let (sender, programs) = mpsc::unbounded_channel();
        Host { steps: self.host_within(name, Stage(Some(sender))).await, programs }
    }

    /// Executes the step of this number of an attempt at the rollout.
    fn execute(
        &self,
        steps: &Arc<AgentSteps>,
        (attempt, turn, version): (u32, u32, u64),
        action: EnvAction,
    ) -> JoinHandle<Verdict> {
        let (steps, spec) = (steps.clone(), self.spec.clone());
        let (split, row) = (Split::Train, Some(0));
        let environment = EnvironmentSpec::Agent(Box::new(spec.clone()));
        let step = EnvStepTask { environment, split, seed: 1, row, action, answers: None, prefix: vec![] };
        let task = Task {
            run: "lake".parse().unwrap(),
            key: TaskKey::EnvStep { rollout: RolloutId { group: 0, index: 0, attempt }, turn },
            pool: "agent".parse().unwrap(),
            version: PolicyVersion(version),
            evaluate: false,
            body: TaskBody::EnvStep(step.clone()),
        };
        let messages = vec![ChatMessage { role: ChatRole::User, content: "do it".to_owned() }];
        let row = async move || Ok((Row { messages, fields: BTreeMap::new() }, codec::codec()));
        tokio::spawn(async move { steps.execute(&task, &step, &spec, row).await })
    }

    /// Begins an attempt at version 10: the worker, the program that asked, its answer, and the state.
    async fn begin(&self, host: &mut Host, attempt: u32) -> (Program, JoinHandle<(u16, Value)>, Vec<u8>) {
        let reset = self.execute(&host.steps, (attempt, 0, 10), EnvAction::Reset);
        let program = host.programs.recv().await.unwrap();
        let asked = tokio::spawn(ask(program.clone(), json!([user("hi")])));
        let first = done(reset.await.unwrap());
        assert_eq!(words(&first.observation), "<user>hi$<assistant>");
        (program, asked, first.state)
    }

    /// Commits version 12, for which nothing before 11 counts.
    async fn advance(&self) {
        let (version, floor) = (PolicyVersion(12), PolicyVersion(11));
        let policy =
            Policy { version, manifest: Sha::of(b""), floor, attempt: 0, partitions: 1, ended: false };
        self.broker.set_policy(&"lake".parse().unwrap(), &policy).await.unwrap();
        let mut table = self.policies.clone();
        while table.get(&"lake".parse().unwrap()).is_none() {
            assert!(table.changed().await);
        }
    }
}

fn step(state: &[u8], turn: &str) -> EnvAction {
    EnvAction::Step { state: state.to_vec(), tokens: tokens(turn) }
}

fn done(verdict: Verdict) -> EnvStepDone {
    match verdict {
        Verdict::Done(OutcomeBody::EnvStep(done), _) => done,
        other => panic!("{other:?}"),
    }
}

fn lost(verdict: Verdict) -> String {
    match verdict {
        Verdict::Done(OutcomeBody::Lost(lost), _) => lost.reason,
        other => panic!("{other:?}"),
    }
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let met = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, met).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
}

/// The rollout counts from version 11, which sampled its first turn; only the worker that forwards the step knows.
#[tokio::test]
async fn an_agent_whose_steps_are_forwarded_counts_from_its_first_turn() {
    let world = World::new();
    let (mut host, other) = (world.host("a").await, world.host("b").await);
    let (program, asked, state) = world.begin(&mut host, 0).await;
    let forwarded = world.execute(&other.steps, (0, 1, 11), step(&state, "x$"));
    let (status, said) = asked.await.unwrap();
    assert_eq!((status, &said["content"]), (200, &json!("x")));
    world.advance().await;
    let asked = tokio::spawn(ask(program, json!([user("hi"), said, user("and?")])));
    let next = done(forwarded.await.unwrap());
    assert_eq!(words(&next.observation), "<user>and?$<assistant>");
    world.execute(&other.steps, (0, 2, 11), step(&next.state, "y$"));
    assert_eq!(asked.await.unwrap().0, 200);
}

/// Its first turn will be sampled by the newest version.
#[tokio::test]
async fn an_agent_without_a_turn_is_not_too_old() {
    let world = World::new();
    let mut host = world.host("a").await;
    let (_, asked, state) = world.begin(&mut host, 0).await;
    world.advance().await;
    world.execute(&host.steps, (0, 1, 12), step(&state, "x$"));
    assert_eq!(asked.await.unwrap().0, 200);
}

#[tokio::test]
async fn a_worker_whose_sandbox_is_broken_passes_resets_to_others() {
    let world = World::new();
    let broken = world.host_within("a", Stage(None)).await;
    // More than it has room for.
    for _ in 0..10 {
        match world.execute(&broken, (0, 0, 10), EnvAction::Reset).await.unwrap() {
            Verdict::RetryAfter(after, reason) => {
                assert!(after > Duration::ZERO && reason.contains("No space left"), "{after:?} {reason}");
            }
            other => panic!("{other:?}"),
        }
        let name = SessionName {
            run: "lake".parse().unwrap(),
            rollout: RolloutId { group: 0, index: 0, attempt: 0 },
        };
        assert!(broken.agents().session(&name).is_none() && broken.agents().running() == 0);
    }
    let mut sound = world.host("b").await;
    world.begin(&mut sound, 0).await;
}

#[tokio::test]
async fn an_outage_of_the_queue_loses_no_agent_of_another_worker_and_its_death_does() {
    let world = World::new();
    let (mut host, other) = (world.host("a").await, world.host("b").await);
    let (program, asked, state) = world.begin(&mut host, 0).await;
    let mut forwarded = world.execute(&other.steps, (0, 1, 10), step(&state, "x$"));
    let said = asked.await.unwrap().1;
    tokio::time::pause();
    world.queue.hang(true);
    let waited = timeout(PATIENCE, &mut forwarded).await;
    assert!(waited.is_err(), "the agent works, and nobody can say so: {waited:?}");
    world.queue.hang(false);
    tokio::time::resume();
    tokio::spawn(ask(program, json!([user("hi"), said, user("and?")])));
    let next = done(forwarded.await.unwrap());
    assert_eq!(words(&next.observation), "<user>and?$<assistant>");

    drop(host);
    tokio::time::pause();
    let orphan = world.execute(&other.steps, (0, 2, 10), step(&next.state, "y$"));
    let reason = lost(timeout(PATIENCE, orphan).await.unwrap().unwrap());
    assert!(reason.contains("worker=a") && reason.contains("has not answered"), "{reason}");
}

#[tokio::test]
async fn an_attempt_that_begins_ends_the_one_before_on_another_worker() {
    let world = World::new();
    let (mut host, mut other) = (world.host("a").await, world.host("b").await);
    let (_, asked, _) = world.begin(&mut host, 0).await;
    let agents = host.steps.agents().clone();
    assert_eq!(agents.running(), 1);
    world.begin(&mut other, 1).await;
    until("the first attempt has ended", || agents.running() == 0).await;
    assert_eq!(asked.await.unwrap().0, 410);
    assert_eq!(other.steps.agents().running(), 1);
}

/// The host of the earlier attempt was cut off when the next one began.
#[tokio::test]
async fn an_attempt_that_goes_on_is_announced_again() {
    let world = World::new();
    let (mut host, mut other) = (world.host("a").await, world.host("b").await);
    let (_, asked, _) = world.begin(&mut host, 0).await;
    world.queue.hang(true);
    world.begin(&mut other, 1).await;
    world.queue.hang(false);
    let agents = host.steps.agents().clone();
    assert_eq!(agents.running(), 1);
    tokio::time::pause();
    let ended = async {
        while agents.running() > 0 {
            sleep(ROOM).await;
        }
    };
    timeout(PATIENCE, ended).await.expect("it hears of the next attempt");
    tokio::time::resume();
    assert_eq!(asked.await.unwrap().0, 410);
}
