//! `env_step`: an environment resets or takes one action. The built-in ones compute for
//! microseconds, in place; a user's program gets a request. An environment that speaks text needs
//! the tokenizer of the run's model.

use std::sync::Arc;

use async_trait::async_trait;
use millrace_schemas::dataset::DatasetSpec;
use millrace_schemas::env_step::{EnvAction, EnvStepDone, EnvStepTask, EnvironmentSpec, Settings};
use millrace_schemas::{OutcomeBody, PoolName, RunId, Task, TaskBody};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::envs::counter;
use crate::envs::dataset::Dataset;
use crate::envs::datasets::Datasets;
use crate::envs::spoken::{TextStep, TextTurns};
use crate::envs::{self, EnvError};
use crate::model::text_codec::{Codec, Codecs};
use crate::program::{Answer, EnvAnswer, Program, ProgramRequest};
use crate::runtime::{Cost, Executor, Verdict};

/// Executes `env_step` tasks. By default only those of environments that speak tokens.
#[derive(Debug, Clone, Default)]
pub struct EnvStep {
    codecs: Option<Codecs>,
    datasets: Option<Datasets>,
    program: Option<Arc<Program>>,
}

impl EnvStep {
    /// The same, with these codecs for environments that speak text, and these rows.
    #[must_use]
    pub const fn speaking(codecs: Codecs, datasets: Datasets) -> Self {
        Self { codecs: Some(codecs), datasets: Some(datasets), program: None }
    }

    /// The same, with the environments of `program`.
    #[must_use]
    pub fn asking(self, program: Option<Arc<Program>>) -> Self {
        Self { program, ..self }
    }

    /// Plays a dataset's row.
    async fn ask_row(
        &self,
        (run, spec): (&RunId, &DatasetSpec),
        step: &EnvStepTask,
        codec: Option<&Codec>,
    ) -> Result<EnvStepDone, Verdict> {
        let Some(datasets) = &self.datasets else {
            return Err(EnvError::NoRows(spec.path.clone()).verdict());
        };
        let rows = datasets.of(run, spec).await?;
        Dataset { spec, rows: &rows, codec }.act(step).map_err(|error| error.verdict())
    }

    /// Sends the task to the program.
    async fn ask(
        &self,
        (pool, settings): (&PoolName, &Settings),
        text_turns: &TextTurns<'_>,
        step: &EnvStepTask,
    ) -> Result<EnvStepDone, Verdict> {
        let program = self.program.as_ref().ok_or_else(|| EnvError::Foreign(pool.to_string()).verdict())?;
        let reply = text_turns.decode_reply(step).map_err(|error| error.verdict())?;
        let request = match &step.action {
            EnvAction::Reset => {
                ProgramRequest::Reset { environment: pool, settings, split: step.split, seed: step.seed }
            }
            EnvAction::Step { state, .. } => {
                let state: Value = serde_json::from_slice(state).map_err(|error| {
                    Verdict::Poison(format!("failed to read the state of {pool}: {error}"))
                })?;
                ProgramRequest::Step { environment: pool, settings, state, said: &reply }
            }
        };
        let answer = match program.ask(&request).await.map_err(|error| Program::verdict(&error))? {
            Answer::Step(answer) => answer,
            Answer::Refused(refusal) => return Err(refusal.verdict()),
            Answer::Score(_) => return Err(Verdict::Poison("the program answered with a score".to_owned())),
        };
        let EnvAnswer { state, text, reward, done, success, valid } = answer;
        let state = if done { Vec::new() } else { state.to_string().into_bytes() };
        let step_text = TextStep { state, text, reward, done, success, valid };
        text_turns.encode_step(step, reply, step_text).map_err(|error| error.verdict())
    }
}

#[async_trait]
impl Executor for EnvStep {
    async fn execute(&self, task: Task, _cancel: CancellationToken) -> Verdict {
        let TaskBody::EnvStep(step) = &task.body else { return Verdict::misrouted(&task) };
        if let EnvironmentSpec::Counter { latency, .. } = &step.environment {
            tokio::time::sleep(counter::drawn(*latency, &task.key)).await;
        }
        let codec = match &self.codecs {
            Some(codecs) if step.environment.speaks_text() => match codecs.of(&task.run).await {
                Ok(codec) => Some(codec),
                Err(verdict) => return verdict,
            },
            _ => None,
        };
        let answer = match &step.environment {
            EnvironmentSpec::Dataset(spec) => self.ask_row((&task.run, spec), step, codec.as_deref()).await,
            EnvironmentSpec::Custom { pool, system, prompt_tokens, settings, .. } => {
                let (environment, codec, prompt_tokens) = (pool.as_str(), codec.as_deref(), *prompt_tokens);
                let text_turns = TextTurns { environment, codec, system, prompt_tokens };
                self.ask((pool, settings), &text_turns, step).await
            }
            _ => envs::answer(step, codec.as_deref()).map_err(|error| error.verdict()),
        };
        match answer {
            Ok(done) => Verdict::Done(OutcomeBody::EnvStep(done), Cost::default()),
            Err(verdict) => verdict,
        }
    }
}
