//! The environment `agent`: a session of the gateway answers its tasks. The state names the worker
//! that hosts it; any other worker asks that one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use millrace_gateway::{Agents, AgentsSettings, BeginError, Session, SessionName, Start, Step};
use millrace_policy::text_codec::Codec;
use millrace_queue::Broker;
use millrace_schemas::dataset::Row;
use millrace_schemas::env_step::{AgentSpec, AgentState, EnvAction, EnvStepTask};
use millrace_schemas::limits::{AGENT_WAIT_MS, MAX_REASON_BYTES};
use millrace_schemas::outcome::{Lost, Returned};
use millrace_schemas::text::cut;
use millrace_schemas::{OutcomeBody, PolicyVersion, RolloutId, Task, TaskKey, WorkerId};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::runtime::{Cost, Failure, PolicyTable, Retry, Verdict};
use forward::Forward;

mod forward;

/// Between two looks for room for a further agent.
const ROOM: Duration = Duration::from_millis(500);

/// The agents of this worker, and the way to those of others.
pub struct AgentSteps {
    agents: Arc<Agents>,
    forward: Arc<Forward>,
    background: Vec<JoinHandle<()>>,
}

impl Drop for AgentSteps {
    fn drop(&mut self) {
        self.background.iter().for_each(JoinHandle::abort);
    }
}

impl AgentSteps {
    /// Starts the gateway, listens to other workers, and ends the agents that no run needs.
    ///
    /// # Errors
    /// The gateway's address cannot be listened on.
    pub async fn start(
        broker: Broker,
        worker: WorkerId,
        policies: PolicyTable,
        settings: AgentsSettings,
    ) -> io::Result<Self> {
        let agents = Agents::start(settings).await?;
        let forward = Arc::new(Forward::new(broker, worker));
        let background = vec![
            tokio::spawn(forward.clone().listen(agents.clone())),
            tokio::spawn(forward.clone().announce(agents.clone())),
            tokio::spawn(end_unneeded(agents.clone(), policies)),
        ];
        Ok(Self { agents, forward, background })
    }

    /// The agents here.
    #[must_use]
    pub const fn agents(&self) -> &Arc<Agents> {
        &self.agents
    }

    /// Does a task. Dropping the future loses nothing: a repeated task gets the same.
    pub(crate) async fn execute(
        &self,
        task: &Task,
        step: &EnvStepTask,
        spec: &AgentSpec,
        row: impl AsyncFnOnce() -> Result<(Row, Arc<Codec>), Failure>,
    ) -> Verdict {
        self.outcome(task, step, spec, row).await.map(|body| (body, Cost::default())).into()
    }

    async fn outcome(
        &self,
        task: &Task,
        step: &EnvStepTask,
        spec: &AgentSpec,
        row: impl AsyncFnOnce() -> Result<(Row, Arc<Codec>), Failure>,
    ) -> Result<OutcomeBody, Failure> {
        let TaskKey::EnvStep { rollout, turn: number } = task.key else {
            return Err(Failure::misrouted(task));
        };
        let wait = Duration::from_millis(AGENT_WAIT_MS);
        match timeout(wait, self.follow(task, (rollout, number), step, spec, row)).await {
            Ok(followed) => {
                let (state, step) = followed?;
                outcome_of(&state, step)
            }
            Err(_) => {
                let reason = "the agent works, or there is no room for it yet".to_owned();
                Ok(OutcomeBody::Returned(Returned::undone(reason)))
            }
        }
    }

    /// What follows the task, and the state from then on.
    async fn follow(
        &self,
        task: &Task,
        (rollout, number): (RolloutId, u32),
        step: &EnvStepTask,
        spec: &AgentSpec,
        row: impl AsyncFnOnce() -> Result<(Row, Arc<Codec>), Failure>,
    ) -> Result<(AgentState, Step), Failure> {
        let name = SessionName { run: task.run.clone(), rollout };
        match &step.action {
            EnvAction::Reset => {
                let (row, codec) = row().await?;
                let state = self.forward.state(number);
                loop {
                    let start = Start {
                        name: name.clone(),
                        version: task.version,
                        evaluate: task.evaluate,
                        spec,
                        row: row.clone(),
                        codec: codec.clone(),
                    };
                    match self.agents.begin(start) {
                        Ok(session) => {
                            self.forward.begun(&name).await;
                            return Ok((state, self.first_step(&name, &session).await?));
                        }
                        Err(BeginError::Full(_)) => sleep(ROOM).await,
                        Err(error @ BeginError::Row(_)) => return Err(Failure::impossible(error)),
                    }
                }
            }
            EnvAction::Step { state, tokens } => {
                let state: AgentState = serde_json::from_slice(state).map_err(|error| {
                    Failure::impossible(format!("failed to read the state of agent: {error}"))
                })?;
                let next = AgentState { turn: number, ..state.clone() };
                // Where calls are answered side by side, all steps have the state of the reset.
                if step.answers.is_none() && state.turn + 1 != number {
                    let reason = format!("state of turn={} for the step of turn={number}", state.turn);
                    return Ok((next, Step::Lost(reason)));
                }
                let (answers, version) = (step.answers.unwrap_or(number), Some(task.version));
                let step = SessionStep { name: &name, number, answers, version, tokens };
                let followed = match self.forward.is_here(&state) {
                    true => step.here(&self.agents).await,
                    false => self.forward.ask(&state, step).await?,
                };
                Ok((next, followed))
            }
        }
    }

    /// What a session leads to first. What broke before its agent did anything is no loss: another worker may start it.
    async fn first_step(&self, name: &SessionName, session: &Arc<Session>) -> Result<Step, Failure> {
        match session.step(0, 0, &[]).await {
            Step::Lost(reason) if self.agents.forget_broken(name, session) => {
                Err(Failure::Retry(Retry::Elsewhere, reason))
            }
            step => Ok(step),
        }
    }
}

/// A step of a session.
#[derive(Clone, Copy)]
struct SessionStep<'a> {
    name: &'a SessionName,
    number: u32,
    /// The call whose turn it hands over; 0 for none.
    answers: u32,
    /// The version that the rollout's staleness counts from; `None` where the worker that asks does not tell.
    version: Option<PolicyVersion>,
    tokens: &'a [u32],
}

impl SessionStep<'_> {
    /// Lets a session of this worker have it.
    async fn here(self, agents: &Agents) -> Step {
        if let Some(version) = self.version {
            agents.note(self.name, version);
        }
        match agents.session(self.name) {
            Some(session) => session.step(self.number, self.answers, self.tokens).await,
            None => Step::Lost("the worker that hosted the agent does not have it any more".to_owned()),
        }
    }
}

fn outcome_of(state: &AgentState, step: Step) -> Result<OutcomeBody, Failure> {
    Ok(match step {
        Step::Done(mut done) => {
            if !done.done {
                done.state = serde_json::to_vec(state).expect("a state holds only what JSON can express");
            }
            OutcomeBody::EnvStep(*done)
        }
        Step::Lost(reason) => OutcomeBody::Lost(Lost { reason: cut(&reason, MAX_REASON_BYTES).to_owned() }),
        Step::Impossible(reason) => return Err(Failure::Impossible(reason)),
    })
}

/// Consumes changes of policies, produces the end of agents whose run is over or that are too old.
/// Waits for the next change. Ends with the watch.
async fn end_unneeded(agents: Arc<Agents>, mut policies: PolicyTable) {
    while policies.changed().await {
        agents.retain(|name, version, is_unbound| {
            let key = TaskKey::EnvStep { rollout: name.rollout, turn: 0 };
            !policies.is_stale(&name.run, key, version, is_unbound)
        });
    }
}

#[cfg(test)]
mod tests;
