//! Executes commands. Each lane has an executor of its own; consecutive tasks are queued in
//! parallel. Every command is idempotent, so a failed one is retried until it succeeds or another
//! coordinator leads. A command that is refused several times is given up, and its run is paused
//! with the reason.

use std::time::Duration;

use millrace_queue::{Broker, BrokerError};
use millrace_schemas::limits::{MAX_COMMANDS_IN_FLIGHT, REFUSALS};
use millrace_schemas::notice::Notice;
use millrace_schemas::{Event, Task, subjects};
use millrace_telemetry::Health;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::fold::command::{Command, Commands};
use crate::fold::outstanding;
use crate::fold::state::Run;
use crate::shell::adopt;
use crate::shell::lanes::{LaneId, LaneWork, Lanes, StartedLane};
use crate::shell::leader::Term;
use crate::shell::shared::SharedState;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Timeout of one try of a command. A large batch over a slow connection takes minutes; a request
/// without an answer delays only its own lane.
const ATTEMPT: Duration = Duration::from_secs(600);

/// The executor's dependencies. Clones share them.
#[derive(Clone)]
pub struct Executor {
    /// The queue and object store on which commands are executed.
    pub broker: Broker,
    /// The state that outstanding commands follow from.
    pub shared: SharedState,
    /// Commands that wait, by lane.
    pub lanes: Lanes,
    /// The term within which this coordinator may act.
    pub term: Term,
    /// Receives reports of lanes without progress.
    pub health: Health,
}

/// The result of one try.
enum TryResult {
    Done,
    /// A transient failure: a retry may succeed.
    Failed(String),
    /// A refusal: a retry would most likely fail too.
    Refused(BrokerError),
}

/// Executes commands until the lanes are closed. When the term ends, the rest is left: another
/// coordinator executes it, or this one in its next term, which begins with all outstanding
/// commands.
///
/// Consumes: lanes with work. Produces: tasks, blobs, keys, purges, notices, paused runs. Waits
/// for: responses of the queue and of the object store, lane by lane. Unblocked by: the end of the
/// lanes, or of the term. On failure: retries until the term is over; a refused command,
/// [`REFUSALS`] times.
pub async fn run(executor: Executor, mut started: mpsc::UnboundedReceiver<StartedLane>) {
    let mut working = JoinSet::new();
    let mut generation = 0;
    loop {
        tokio::select! {
            biased;
            lane = started.recv() => {
                let Some(lane) = lane else { return };
                if lane.generation != generation {
                    generation = lane.generation;
                    // Executors of the earlier generation have nothing left to do.
                    working.abort_all();
                }
                working.spawn(work(executor.clone(), lane));
            }
            Some(_) = working.join_next() => {}
        }
    }
}

/// Executes the commands of one lane until none is waiting.
async fn work(executor: Executor, lane: StartedLane) {
    loop {
        let commands = match executor.lanes.next(&lane, MAX_COMMANDS_IN_FLIGHT) {
            LaneWork::Nothing => return,
            LaneWork::Commands(commands) => commands,
            LaneWork::Outstanding => executor.outstanding(&lane),
        };
        if lane.id == LaneId::Probe {
            executor.probe(&lane).await;
        }
        let mut commands = commands.into_iter();
        loop {
            let some: Commands = commands.by_ref().take(MAX_COMMANDS_IN_FLIGHT).collect();
            if some.is_empty() {
                break;
            }
            if let Err(refused) = executor.execute_all(&lane, some).await {
                executor.give_up(&lane, &refused).await;
                break;
            }
        }
    }
}

impl Executor {
    fn outstanding(&self, lane: &StartedLane) -> Commands {
        let state = self.shared.lock();
        self.lanes.caught_up(lane);
        match &lane.id {
            LaneId::All => outstanding::of_all(&state),
            LaneId::Run(run) => {
                let mut out = Commands::new();
                if let Some(run) = state.runs.get(run) {
                    outstanding::of_run(run, &mut out);
                }
                out
            }
            LaneId::Probe => Commands::new(),
        }
    }

    /// Executes commands in order, until the term is over.
    async fn execute_all(&self, lane: &StartedLane, commands: Commands) -> Result<(), BrokerError> {
        let mut tasks = Vec::new();
        for command in commands {
            if let Command::PutTask(task) = command {
                tasks.push(*task);
                continue;
            }
            self.put_tasks(lane, &mut tasks).await?;
            self.until_done(lane, || self.execute(&command)).await?;
        }
        self.put_tasks(lane, &mut tasks).await
    }

    async fn put_tasks(&self, lane: &StartedLane, tasks: &mut Vec<Task>) -> Result<(), BrokerError> {
        if tasks.is_empty() {
            return Ok(());
        }
        let left = tokio::sync::Mutex::new(std::mem::take(tasks));
        self.until_done(lane, || async {
            let mut tasks = left.lock().await;
            let mut results = self.broker.put_tasks(&tasks).await.into_iter();
            let mut worst = Ok(());
            tasks.retain(|_| match results.next() {
                Some(Ok(_)) => {
                    self.lanes.progress(lane);
                    false
                }
                Some(Err(error)) => {
                    // A refusal is more informative than a failure of the connection.
                    if worst.is_ok() || !error.is_transient() {
                        worst = Err(error);
                    }
                    true
                }
                None => true,
            });
            worst
        })
        .await
    }

    /// Retries while the term lasts. Returns the refusal for which it gave up.
    async fn until_done<F>(&self, lane: &StartedLane, op: impl Fn() -> F) -> Result<(), BrokerError>
    where
        F: Future<Output = Result<(), BrokerError>>,
    {
        let (mut pause, mut refusals) = (FIRST_PAUSE, 0);
        while self.term.holds() {
            let tried = match timeout(ATTEMPT, op()).await {
                Ok(Ok(())) => TryResult::Done,
                Ok(Err(error)) if error.is_transient() => TryResult::Failed(error.to_string()),
                Ok(Err(error)) => TryResult::Refused(error),
                Err(_) => TryResult::Failed("no response".to_owned()),
            };
            match tried {
                TryResult::Done => {
                    self.lanes.progress(lane);
                    self.health.set_trouble(lane.id.name(), None);
                    return Ok(());
                }
                TryResult::Failed(reason) => self.report_failure(lane, pause, reason),
                TryResult::Refused(error) => {
                    refusals += 1;
                    if refusals >= REFUSALS {
                        return Err(error);
                    }
                    self.report_failure(lane, pause, error.to_string());
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
    }

    fn report_failure(&self, lane: &StartedLane, pause: Duration, reason: String) {
        let name = lane.id.name();
        metrics::counter!("millrace_command_failures_total").increment(1);
        if pause >= LONGEST_PAUSE {
            tracing::error!(lane = name, reason, "a command failed; retrying");
        } else {
            tracing::warn!(lane = name, reason, "a command failed; retrying");
        }
        self.health.set_trouble(name, Some(reason));
    }

    /// Pauses the run of a command that was refused repeatedly, until a person resumes it. Nothing
    /// is lost: outstanding commands are executed when the run is resumed.
    async fn give_up(&self, lane: &StartedLane, refused: &BrokerError) {
        self.lanes.forget(lane);
        self.lanes.progress(lane);
        let name = lane.id.name();
        tracing::error!(lane = name, error = %refused, "a command is refused; giving it up");
        self.health.set_trouble(name, Some(format!("given up: {refused}")));
        let LaneId::Run(run) = &lane.id else { return };
        let works = |run: &Run| run.state.works();
        if !self.shared.lock().runs.get(run).is_some_and(works) {
            return;
        }
        let remedy = format!("repair what the reason names, then `millrace resume {run}`");
        let paused = Event::Paused { reason: refused.to_string(), remedy };
        let pausing = self.until_done(lane, || async {
            self.broker.append_led(run.as_str(), &paused, self.term.epoch()).await.map(|_| ())
        });
        if let Err(error) = pausing.await {
            tracing::error!(lane = name, %error, "failed to pause the run; it makes no progress");
        }
    }

    /// Checks that the queue and the object store respond, even with a refusal.
    async fn probe(&self, lane: &StartedLane) {
        let probed = self.until_done(lane, || async {
            self.broker.queue().log_end().await?;
            match self.broker.objects().get(&millrace_schemas::blob::paths::probe()).await {
                Err(error) if error.is_transient() => Err(error.into()),
                Ok(_) | Err(_) => Ok(()),
            }
        });
        // A refusal is a response.
        if probed.await.is_err() {
            self.lanes.progress(lane);
        }
    }

    async fn execute(&self, command: &Command) -> Result<(), BrokerError> {
        let broker = &self.broker;
        match command {
            Command::EnsurePools { pools, .. } => {
                for (stage, pool) in pools {
                    broker.queue().ensure_pool(*stage, pool).await?;
                }
            }
            Command::RemovePools(pools) => {
                for (stage, pool) in pools {
                    broker.queue().remove_pool(*stage, pool).await?;
                }
            }
            Command::EnsurePartitions { stage, pools, .. } => {
                for pool in pools {
                    broker.queue().ensure_partition(*stage, pool).await?;
                }
            }
            Command::PutBlob { run, content } => {
                broker.objects().put_blob(run, content.clone()).await?;
            }
            Command::PutTask(task) => {
                if let Some(Err(error)) = broker.put_tasks(std::slice::from_ref(&**task)).await.pop() {
                    return Err(error);
                }
            }
            Command::Purge { stage, filter, .. } => {
                broker.queue().purge(*stage, filter).await?;
            }
            Command::Adopt { run, version } => {
                adopt::append_committed(broker, run, *version, self.term.epoch()).await?;
            }
            Command::SetPolicy { run, policy } => {
                let later = broker.set_policy_led(run, policy, self.term.epoch()).await?;
                // If this process still holds the lease, it takes a later epoch and repeats this
                // command.
                later.into_iter().for_each(|later| self.shared.saw_epoch(later));
            }
            Command::Notice(notice) => publish_notice(broker, notice).await,
            // The driver took it.
            Command::Report { .. } => {}
        }
        Ok(())
    }
}

pub(crate) async fn publish_notice(broker: &Broker, notice: &Notice) {
    let kind = notice.kind();
    let subject = notice.run().map_or_else(|| subjects::notice_all(kind), |run| subjects::notice(run, kind));
    broker.notice(subject, notice).await;
}
