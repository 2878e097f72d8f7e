//! The life of one agent: its folder, its process, its time, its score.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millrace_schemas::dataset::Row;
use millrace_schemas::env_step::{AgentSpec, EnvStepDone, Speaker, Utterance};
use millrace_schemas::limits::MAX_REASON_BYTES;
use millrace_schemas::text::cut;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{SessionName, UNNEEDED};
use crate::folder::{self, Files};
use crate::process::{Ended, Gateway, Place, PlaceError, Program, Running, Walls};
use crate::score::{self, Score};
use crate::session::{Board, Clock, Phase, Session};

/// What an agent is to do.
#[derive(Debug)]
pub(super) struct Task {
    prompt: String,
    files: Files,
    reward_files: Files,
}

impl Task {
    /// The task of a row; its files win over those of the settings.
    pub(super) fn of(spec: &AgentSpec, row: Row) -> Result<Self, String> {
        let prompt: Vec<String> = row.messages.into_iter().map(|message| message.content).collect();
        let with = |common: &Files, field| {
            let own = folder::of_row(&row.fields, field)?;
            Ok::<_, String>(common.clone().into_iter().chain(own).collect())
        };
        let (files, reward_files) = (with(&spec.files, "files")?, with(&spec.reward_files, "reward_files")?);
        Ok(Self { prompt: prompt.join("\n\n"), files, reward_files })
    }
}

/// All that an agent's life needs.
pub(super) struct Life {
    pub(super) session: Arc<Session>,
    pub(super) spec: AgentSpec,
    pub(super) task: Task,
    pub(super) key: String,
    /// Where the gateway listens.
    pub(super) gateway: Gateway,
    pub(super) model: String,
    pub(super) walls: Arc<dyn Walls>,
    /// The agent is not needed any more.
    pub(super) cancel: CancellationToken,
}

/// Why an agent does not go on.
enum End {
    Exited(Result<Ended, PlaceError>),
    OwnTime(&'static str),
    Idle,
    Cancelled,
}

impl Life {
    /// Consumes the session's board, produces its last phase. Waits for the agent's exit, the end of
    /// its time, or the cancellation, whichever is first; all its processes are gone when this returns.
    pub(super) async fn run(&self, name: &SessionName) {
        let phase = self.live(name).await.unwrap_or_else(|phase| phase);
        match &phase {
            Phase::Lost(reason) => tracing::warn!(session = %name, reason, "agent lost"),
            Phase::Impossible(reason) => tracing::warn!(session = %name, reason, "agent cannot be run"),
            Phase::Over(done) => tracing::debug!(session = %name, score = done.reward, "agent scored"),
            Phase::Working => {}
        }
        self.session.end(phase);
    }

    async fn live(&self, name: &SessionName) -> Result<Phase, Phase> {
        let made = self.walls.place(&self.gateway, &self.spec.network);
        let made = self.cancel.run_until_cancelled(made).await;
        let place = made.ok_or_else(unneeded)?.map_err(unplayed)?;
        let played = self.play(name, &*place).await;
        place.end().await;
        played
    }

    async fn play(&self, name: &SessionName, place: &dyn Place) -> Result<Phase, Phase> {
        place.write(&self.task.files).await.map_err(|error| match error {
            // There is nothing of the agent's yet.
            PlaceError::InTheWay(reason) => {
                Phase::Impossible(format!("failed to place the task's files: {reason}"))
            }
            other => unplayed(other),
        })?;
        let mut agent = place.start(self.program(place)).await.map_err(unplayed)?;
        let end = self.supervise(&mut *agent).await;
        agent.kill().await;
        drop(agent);
        self.session.close();
        let why = match end {
            End::Cancelled => return Err(unneeded()),
            End::Idle => {
                let idle_ms = self.spec.idle_ms;
                return Err(Phase::Lost(format!("its turn was not sampled within idle_ms={idle_ms}")));
            }
            End::Exited(Err(error)) => return Err(Phase::Lost(error.to_string())),
            End::Exited(Ok(ended)) if self.session.watch().borrow().is_unasked() => {
                let output = cut(ended.output.trim(), MAX_REASON_BYTES / 2);
                let reason = format!("the agent made no call: {ended}; the end of its output: {output:?}");
                return Err(Phase::Impossible(reason));
            }
            End::Exited(Ok(ended)) => ended.to_string(),
            End::OwnTime(_) if self.session.watch().borrow().is_unasked() => {
                return Err(Phase::Impossible("the agent made no call within call_ms".to_owned()));
            }
            End::OwnTime(limit) => format!("ended after its {limit}"),
        };
        tracing::debug!(session = %name, why, "agent ended");
        // What it left behind must not see the reward's files.
        place.clear().await.map_err(unplayed)?;
        self.score(place, &why).await
    }

    fn program(&self, place: &dyn Place) -> Program {
        let (gateway, key) = (place.gateway(), &self.key);
        let own = [
            ("OPENAI_BASE_URL", format!("{gateway}/v1")),
            ("OPENAI_API_BASE", format!("{gateway}/v1")),
            ("OPENAI_API_KEY", key.clone()),
            ("ANTHROPIC_BASE_URL", gateway.to_owned()),
            ("ANTHROPIC_API_KEY", key.clone()),
            ("MILLRACE_MODEL", self.model.clone()),
            ("MILLRACE_PROMPT", self.task.prompt.clone()),
        ];
        let mut env: BTreeMap<String, String> = own.map(|(name, value)| (name.to_owned(), value)).into();
        let fill = |value: &String| value.replace("{gateway}", gateway).replace("{key}", key);
        env.extend(self.spec.env.iter().map(|(name, value)| (name.clone(), fill(value))));
        let argv = self.spec.command.iter().map(|word| word.replace("{prompt}", &self.task.prompt)).collect();
        Program { argv, env }
    }

    async fn supervise(&self, agent: &mut dyn Running) -> End {
        let mut board = self.session.watch();
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => End::Cancelled,
            ended = agent.wait() => End::Exited(ended),
            end = self.time_is_over(&mut board) => end,
        }
    }

    /// Waits until the agent, or the model for it, has taken too long.
    async fn time_is_over(&self, board: &mut watch::Receiver<Board>) -> End {
        let ms = Duration::from_millis;
        loop {
            let (until, end) = {
                match board.borrow_and_update().clock() {
                    Clock::Model(since) => (since + ms(self.spec.idle_ms), End::Idle),
                    Clock::Agent(since, own) => {
                        let left = ms(self.spec.time_ms).saturating_sub(own);
                        match left < ms(self.spec.call_ms) {
                            true => (since + left, End::OwnTime("time_ms")),
                            false => (since + ms(self.spec.call_ms), End::OwnTime("call_ms")),
                        }
                    }
                }
            };
            tokio::select! {
                biased;
                _ = board.changed() => {}
                () = tokio::time::sleep_until(until) => return end,
            }
        }
    }

    /// Runs the reward's program where the agent was. That what the agent left keeps it from running is
    /// a result.
    async fn score(&self, place: &dyn Place, why: &str) -> Result<Phase, Phase> {
        let scored = async {
            place.write(&self.task.reward_files).await?;
            let program = Program { argv: self.spec.reward.clone(), env: BTreeMap::new() };
            score::run(place, program, Duration::from_millis(self.spec.reward_ms)).await
        };
        let scored = self.cancel.run_until_cancelled(scored).await.ok_or_else(unneeded)?;
        let score = match scored {
            Err(PlaceError::InTheWay(reason)) => Score { value: 0.0, reason },
            scored => scored.map_err(unplayed)?,
        };
        let text = format!("agent: {why}; reward: {}", score.reason);
        Ok(Phase::Over(Arc::new(EnvStepDone {
            reward: score.value,
            done: true,
            success: score.value >= 1.0,
            valid: true,
            said: vec![Utterance { speaker: Speaker::Environment, text }],
            ..EnvStepDone::default()
        })))
    }
}

fn unneeded() -> Phase {
    Phase::Lost(UNNEEDED.to_owned())
}

/// A program that does not start would not start elsewhere either.
#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes an error so")]
fn unplayed(error: PlaceError) -> Phase {
    match error {
        PlaceError::Start { .. } | PlaceError::Network(_) => Phase::Impossible(error.to_string()),
        PlaceError::InTheWay(_) | PlaceError::Broken(_) => Phase::Lost(error.to_string()),
    }
}

impl Board {
    /// Whether the agent has had an answer to a call.
    pub(super) fn has_turn(&self) -> bool {
        (1..=self.calls()).any(|call| self.turn(call).is_some())
    }

    /// Whether the agent has never called.
    fn is_unasked(&self) -> bool {
        self.calls() == 0 && matches!(self.phase, Phase::Working)
    }
}
