//! `env_step`: an environment resets or takes one action. The built-in ones compute for
//! microseconds, in place; a user's program gets a request. An environment that speaks text needs
//! the tokenizer of the run's model.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millrace_policy::text_codec::Codec;
use millrace_schemas::dataset::DatasetSpec;
use millrace_schemas::env_step::{AgentSpec, EnvAction, EnvStepDone, EnvStepTask, EnvironmentSpec, Settings};
use millrace_schemas::{OutcomeBody, PoolName, RunId, Task, TaskBody};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::agent::AgentSteps;
use crate::envs::counter;
use crate::envs::dataset::{Acted, Dataset};
use crate::envs::datasets::Datasets;
use crate::envs::spoken::{TextStep, TextTurns};
use crate::envs::{self, EnvError};
use crate::mcp::{McpServers, objects};
use crate::model::codecs::Codecs;
use crate::program::{Answer, EnvAnswer, Program, ProgramRequest};
use crate::runtime::{Cost, Executor, Failure, Verdict};

/// Executes `env_step` tasks. By default only those of environments that speak tokens.
#[derive(Clone, Default)]
pub struct EnvStep {
    codecs: Option<Codecs>,
    datasets: Option<Datasets>,
    program: Option<Arc<Program>>,
    agents: Option<Arc<AgentSteps>>,
    servers: Arc<McpServers>,
}

impl EnvStep {
    /// The same, with these codecs for environments that speak text, and these rows.
    #[must_use]
    pub fn speaking(codecs: Codecs, datasets: Datasets) -> Self {
        Self { codecs: Some(codecs), datasets: Some(datasets), ..Self::default() }
    }

    /// The same, with the environments of `program`.
    #[must_use]
    pub fn asking(self, program: Option<Arc<Program>>) -> Self {
        Self { program, ..self }
    }

    /// The same, with agents.
    #[must_use]
    pub fn hosting(self, agents: Option<Arc<AgentSteps>>) -> Self {
        Self { agents, ..self }
    }

    /// The same, with servers of tools.
    #[must_use]
    pub fn calling(self, servers: Arc<McpServers>) -> Self {
        Self { servers, ..self }
    }

    async fn host(&self, task: &Task, spec: &AgentSpec, step: &EnvStepTask) -> Verdict {
        let Some(agents) = &self.agents else { return Failure::from(EnvError::NoAgents).into() };
        let row = async || {
            let (Some(codecs), Some(datasets)) = (&self.codecs, &self.datasets) else {
                return Err(EnvError::NoRows(spec.rows.path.clone()).into());
            };
            let codec = codecs.of(&task.run).await?;
            let rows = datasets.of(&task.run, &spec.rows).await?;
            let asked = step.row.ok_or_else(|| EnvError::NoRows(spec.rows.path.clone()))?;
            let (_, row) = rows.row(step.split, asked, &spec.rows).map_err(EnvError::from)?;
            Ok((row, codec))
        };
        agents.execute(task, step, spec, row).await
    }

    async fn step(&self, task: &Task) -> Result<EnvStepDone, Failure> {
        let TaskBody::EnvStep(step) = &task.body else { return Err(Failure::misrouted(task)) };
        if let EnvironmentSpec::Counter { latency, .. } = &step.environment {
            tokio::time::sleep(counter::drawn(*latency, &task.key)).await;
        }
        let codec = match &self.codecs {
            Some(codecs) if step.environment.speaks_text() => Some(codecs.of(&task.run).await?),
            _ => None,
        };
        match &step.environment {
            EnvironmentSpec::Dataset(spec) => self.ask_row((&task.run, spec), step, codec.as_deref()).await,
            EnvironmentSpec::Custom { pool, system, prompt_tokens, settings, .. } => {
                let (environment, codec, prompt_tokens) = (pool.as_str(), codec.as_deref(), *prompt_tokens);
                let text_turns = TextTurns { environment, codec, system, prompt_tokens };
                self.ask((pool, settings), &text_turns, step).await
            }
            _ => Ok(envs::answer(step, codec.as_deref())?),
        }
    }

    /// Plays a dataset's row. The servers of its tools are asked where the policy is told of them, or
    /// calls one.
    async fn ask_row(
        &self,
        (run, spec): (&RunId, &DatasetSpec),
        step: &EnvStepTask,
        codec: Option<&Codec>,
    ) -> Result<EnvStepDone, Failure> {
        let Some(datasets) = &self.datasets else {
            return Err(EnvError::NoRows(spec.path.clone()).into());
        };
        let rows = datasets.of(run, spec).await?;
        let act = |tools: &[Value]| Dataset { spec, rows: &rows, codec, tools }.act(step);
        if let EnvAction::Step { .. } = &step.action
            && let Acted::Done(done) = act(&[])?
        {
            return Ok(*done);
        }
        // A turn that calls tools is read again with their schemas: some forms write values without
        // types.
        let declared = self.servers.declared(&spec.tools).await?;
        let tools = objects(&declared);
        let turn = match act(&tools)? {
            Acted::Done(done) => return Ok(*done),
            Acted::Calls(turn) => turn,
        };
        let called = turn.call(&declared, Duration::from_millis(spec.tool_ms)).await?;
        Ok(Dataset { spec, rows: &rows, codec, tools: &tools }.show(step, turn, &called)?)
    }

    /// Sends the task to the program.
    async fn ask(
        &self,
        (pool, settings): (&PoolName, &Settings),
        text_turns: &TextTurns<'_>,
        step: &EnvStepTask,
    ) -> Result<EnvStepDone, Failure> {
        let program = self.program.as_ref().ok_or_else(|| EnvError::Foreign(pool.to_string()))?;
        let reply = text_turns.decode_reply(step)?;
        let request = match &step.action {
            EnvAction::Reset => {
                ProgramRequest::Reset { environment: pool, settings, split: step.split, seed: step.seed }
            }
            EnvAction::Step { state, .. } => {
                let state: Value = serde_json::from_slice(state).map_err(|error| {
                    Failure::impossible(format!("failed to read the state of {pool}: {error}"))
                })?;
                ProgramRequest::Step { environment: pool, settings, state, said: &reply }
            }
        };
        let answer = match program.ask(&request).await? {
            Answer::Step(answer) => answer,
            Answer::Refused(refusal) => return Err(refusal.into()),
            Answer::Score(_) => return Err(Failure::impossible("the program answered with a score")),
        };
        let EnvAnswer { state, text, reward, done, success, valid } = answer;
        let state = if done { Vec::new() } else { state.to_string().into_bytes() };
        let step_text = TextStep { state, text, reward, done, success, valid };
        Ok(text_turns.encode_step(step, reply, step_text)?)
    }
}

#[async_trait]
impl Executor for EnvStep {
    fn hand_back(&self) -> bool {
        // Agents end with the grace period. Their rollouts restart elsewhere.
        if let Some(agents) = &self.agents {
            agents.agents().end_all();
        }
        false
    }

    async fn linger(&self) {
        if let Some(agents) = &self.agents {
            agents.agents().all_ended().await;
        }
    }

    async fn execute(&self, task: Task, _cancel: CancellationToken) -> Verdict {
        if let TaskBody::EnvStep(step) = &task.body
            && let EnvironmentSpec::Agent(spec) = &step.environment
        {
            return self.host(&task, spec, step).await;
        }
        let done = self.step(&task).await;
        done.map(|done| (OutcomeBody::EnvStep(done), Cost::default())).into()
    }
}

#[cfg(test)]
mod tests;
