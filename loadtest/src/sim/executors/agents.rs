//! Agents with sub-agents, whose turns are sampled side by side. The programs are scripts; what they and the fold's steps see of
//! each other is the gateway's own board. As there, a session lives in the process that had its reset, and a step that
//! comes to another process asks that one, which is lost once it has been silent for too long.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use millrace_gateway::{Board, Phase};
use millrace_schemas::env_step::{
    AgentSpec, EnvAction, EnvStepDone, EnvStepTask, EnvironmentSpec, TurnLimits,
};
use millrace_schemas::limits::{AGENT_SILENCE_MS, AGENT_WAIT_MS};
use millrace_schemas::outcome::{Lost, Returned};
use millrace_schemas::{OutcomeBody, RolloutId, RunId, Task, TaskBody, TaskKey};
use millrace_workers::{Cost, Executor, Failure, Verdict};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::forks::Forks;
use crate::sim::link::Link;
use crate::sim::world::World;

/// Between two looks at a session.
const LOOK: Duration = Duration::from_millis(100);
/// Of so many turns one is an agent's last, although others of it are being sampled.
const EARLY: u8 = 24;
/// An agent works so many milliseconds at most before its next call.
const WORKS_MS: u64 = 400;

/// Calls of an agent that has so many sub-agents: its own first and last one, and two of each sub-agent.
pub(in crate::sim) const fn calls(sub_agents: u32) -> u32 {
    2 + 2 * sub_agents
}

/// The processes that host agents, by number.
#[derive(Default)]
pub(in crate::sim) struct Hosts(Mutex<Vec<Weak<Host>>>);

impl Hosts {
    fn all(&self) -> MutexGuard<'_, Vec<Weak<Host>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, host: &Arc<Host>) -> u32 {
        let mut all = self.all();
        all.push(Arc::downgrade(host));
        all.len() as u32 - 1
    }

    fn get(&self, number: u32) -> Option<Arc<Host>> {
        self.all().get(number as usize)?.upgrade()
    }
}

/// A process that hosts agents.
struct Host {
    link: Link,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    by_rollout: BTreeMap<(RunId, RolloutId), Session>,
    /// The process ends, and hosts no further agent.
    is_over: bool,
}

impl Host {
    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the session of a rollout, if there is none. Returns whether there is one.
    fn begin(&self, name: &(RunId, RolloutId), spec: &AgentSpec) -> bool {
        let mut sessions = self.sessions();
        if !sessions.is_over && !sessions.by_rollout.contains_key(name) {
            let session = Session::new(&self.link.world, name, spec);
            sessions.by_rollout.insert(name.clone(), session);
        }
        sessions.by_rollout.contains_key(name)
    }

    /// What a step led to; `None` while it waits.
    fn step(&self, name: &(RunId, RolloutId), step: Step<'_>) -> Option<Result<EnvStepDone, String>> {
        match self.sessions().by_rollout.get_mut(name) {
            Some(session) => session.step(&self.link.world, name, step),
            None => Some(Err("its worker does not have the agent any more".to_owned())),
        }
    }
}

/// A step as the fold sends it.
#[derive(Clone, Copy)]
struct Step<'a> {
    number: u32,
    answers: u32,
    tokens: &'a [u32],
}

/// An agent, and its board.
struct Session {
    board: Board,
    sub_agents: u32,
    /// Calls that are sampled at once.
    at_once: u32,
    /// What each call followed.
    follows: Vec<u32>,
    /// What its next calls follow, while there is no room for them.
    wanted: Vec<u32>,
    /// Calls whose turns it has read, in order.
    read: Vec<u32>,
    works_until: Instant,
}

impl Session {
    fn new(world: &World, (run, rollout): &(RunId, RolloutId), spec: &AgentSpec) -> Self {
        let [works, ..] = world.lot(format_args!("{run} {rollout} begins"));
        Self {
            board: Board::default(),
            sub_agents: (spec.max_turns - 2) / 2,
            at_once: spec.parallel_calls,
            follows: Vec::new(),
            wanted: vec![0],
            read: Vec::new(),
            works_until: Instant::now() + Duration::from_millis(u64::from(works)),
        }
    }

    fn step(
        &mut self,
        world: &World,
        name: &(RunId, RolloutId),
        step: Step<'_>,
    ) -> Option<Result<EnvStepDone, String>> {
        if let Err(reason) = self.board.step(step.number, step.answers, step.tokens) {
            return Some(Err(reason));
        }
        self.act(world, name);
        match (self.board.led(step.number), &self.board.phase) {
            (Some(led), _) => Some(Ok(EnvStepDone::clone(led))),
            (None, Phase::Over(done)) => Some(Ok(EnvStepDone::clone(done))),
            (None, Phase::Lost(reason) | Phase::Impossible(reason)) => Some(Err(reason.clone())),
            (None, Phase::Working) => None,
        }
    }

    /// The agent reads the turns that there are, and asks for others.
    fn act(&mut self, world: &World, (run, rollout): &(RunId, RolloutId)) {
        if self.board.has_ended() || Instant::now() < self.works_until {
            return;
        }
        let lot = |what: &str, of: u32| world.lot(format_args!("{run} {rollout} {what} {of}"));
        for call in 1..=self.board.calls() {
            if self.board.turn(call).is_none() || self.read.contains(&call) {
                continue;
            }
            self.read.push(call);
            match (call, self.follows[call as usize - 1]) {
                (1, _) => self.wanted.extend((0..self.sub_agents).map(|_| 0)),
                // A sub-agent goes on once.
                (call, 0) => self.wanted.push(call),
                _ => {}
            }
            let read = self.read.len() as u32;
            if read == 1 + 2 * self.sub_agents {
                self.wanted.push(1);
            }
            let [early, score, works, ..] = lot("reads", read);
            if read == calls(self.sub_agents) || early.is_multiple_of(EARLY) {
                let reward = f64::from(score % 2);
                let over = EnvStepDone {
                    reward,
                    done: true,
                    success: reward > 0.0,
                    valid: true,
                    ..EnvStepDone::default()
                };
                self.board.phase = Phase::Over(Arc::new(over));
                return;
            }
            self.works_until = Instant::now() + Duration::from_millis(u64::from(works) * WORKS_MS / 256);
        }
        let open = (1..=self.board.calls()).filter(|call| self.board.turn(*call).is_none()).count();
        let room = (self.at_once as usize - open).min(self.wanted.len());
        for follows in self.wanted.drain(..room) {
            self.follows.push(follows);
            let call = self.follows.len() as u32;
            let [token, most, ..] = lot("asks", call);
            let max_new_tokens = (most % 2 == 0).then_some(u32::from(most % 5) + 1);
            self.board.ask(EnvStepDone {
                observation: vec![call, u32::from(token % 100)],
                follows: Some(follows),
                valid: true,
                limits: TurnLimits { max_new_tokens, ..TurnLimits::default() },
                ..EnvStepDone::default()
            });
        }
    }
}

/// Executes steps of agents; those of other environments `inner` does.
pub(super) struct Agents {
    inner: Forks,
    host: Arc<Host>,
    number: u32,
}

impl Agents {
    /// Those of a process.
    pub(super) fn new(inner: Forks, link: &Link) -> Self {
        let host = Arc::new(Host { link: link.clone(), sessions: Mutex::default() });
        Self { inner, number: link.world.hosts.add(&host), host }
    }

    /// The process of this number; `None` where it is silent.
    async fn reach(&self, number: u32) -> Option<Arc<Host>> {
        if number == self.number {
            return Some(self.host.clone());
        }
        let answers = async {
            loop {
                if let Some(host) = self.host.link.world.hosts.get(number) {
                    host.link.awake().await;
                    if !host.link.is_off() {
                        return host;
                    }
                }
                sleep(LOOK).await;
            }
        };
        timeout(Duration::from_millis(AGENT_SILENCE_MS), answers).await.ok()
    }

    async fn follow(
        &self,
        task: &Task,
        step: &EnvStepTask,
        spec: &AgentSpec,
    ) -> Result<OutcomeBody, Failure> {
        let TaskKey::EnvStep { rollout, turn: number } = task.key else {
            return Err(Failure::impossible("it is not for this stage"));
        };
        let name = (task.run.clone(), rollout);
        let (host, step) = match &step.action {
            EnvAction::Reset => {
                while !self.host.begin(&name, spec) {
                    sleep(LOOK).await;
                }
                (self.number, Step { number, answers: 0, tokens: &[] })
            }
            EnvAction::Step { state, tokens } => {
                let host = state.as_slice().try_into().map(u32::from_le_bytes);
                let host = host.map_err(|_| Failure::impossible("its state is none of an agent"))?;
                (host, Step { number, answers: step.answers.unwrap_or(number), tokens })
            }
        };
        loop {
            let lost = |reason: String| Ok(OutcomeBody::Lost(Lost { reason }));
            let Some(reached) = self.reach(host).await else {
                return lost("its worker is silent".to_owned());
            };
            match reached.step(&name, step) {
                Some(Ok(done)) if done.done => return Ok(OutcomeBody::EnvStep(done)),
                Some(Ok(done)) => {
                    let state = host.to_le_bytes().to_vec();
                    return Ok(OutcomeBody::EnvStep(EnvStepDone { state, ..done }));
                }
                Some(Err(reason)) => return lost(reason),
                None => sleep(LOOK).await,
            }
        }
    }
}

#[async_trait]
impl Executor for Agents {
    async fn execute(&self, task: Task, cancel: CancellationToken) -> Verdict {
        let TaskBody::EnvStep(step) = &task.body else { return self.inner.execute(task, cancel).await };
        let EnvironmentSpec::Agent(spec) = &step.environment else {
            return self.inner.execute(task, cancel).await;
        };
        let wait = Duration::from_millis(AGENT_WAIT_MS);
        let followed = match timeout(wait, self.follow(&task, step, spec)).await {
            Ok(followed) => followed,
            Err(_) => Ok(OutcomeBody::Returned(Returned::undone("the agent works".to_owned()))),
        };
        followed.map(|body| (body, Cost::default())).into()
    }

    fn hand_back(&self) -> bool {
        let mut sessions = self.host.sessions();
        sessions.is_over = true;
        for session in sessions.by_rollout.values_mut().filter(|session| !session.board.has_ended()) {
            session.board.phase = Phase::Lost("its worker leaves".to_owned());
        }
        self.inner.hand_back()
    }
}
