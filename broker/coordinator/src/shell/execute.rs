//! Commands are done lane by lane, each lane by an executor of its own, tasks many at a time. Each command may be done
//! again without harm, so a failure is tried again until it works or another coordinator leads. What is refused is
//! given up after some tries, and the run is paused with the reason.

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
use crate::shell::lanes::{Begun, LaneId, Lanes, Work};
use crate::shell::leader::Term;
use crate::shell::shared::Shared;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// For one try of a command. A large batch over a slow line takes minutes; a request that nobody answers holds up its
/// own lane alone.
const ATTEMPT: Duration = Duration::from_secs(600);

/// All that executing needs. Clones share it.
#[derive(Clone)]
pub struct Executor {
    /// Where commands are done.
    pub broker: Broker,
    /// The state that they follow from.
    pub shared: Shared,
    /// What waits.
    pub lanes: Lanes,
    /// Until when this coordinator may act.
    pub term: Term,
    /// Told of lanes that do not get on.
    pub health: Health,
}

/// What became of a try.
enum Tried {
    Done,
    /// It may work later.
    Failed(String),
    /// It would fail again.
    Refused(BrokerError),
}

/// Does commands until nobody can give any. Those that the term has run out for are left: another coordinator does
/// them, or this one when its term begins anew, for then everything outstanding is commanded again.
///
/// Consumes: lanes with work. Produces: tasks, blobs, keys, purges, notices, paused runs. Waits for: the queue's and
/// the object store's answers, lane by lane. Unblocked by: the end of the lanes, or of the term. On failure: tries
/// again, until the term is over; what is refused, [`REFUSALS`] times.
pub async fn run(executor: Executor, mut begun: mpsc::UnboundedReceiver<Begun>) {
    let mut working = JoinSet::new();
    let mut generation = 0;
    loop {
        tokio::select! {
            biased;
            lane = begun.recv() => {
                let Some(lane) = lane else { return };
                if lane.generation != generation {
                    generation = lane.generation;
                    // Whoever still waits for an answer does so for nobody.
                    working.abort_all();
                }
                working.spawn(work(executor.clone(), lane));
            }
            Some(_) = working.join_next() => {}
        }
    }
}

/// Does what waits in one lane, until nothing does.
async fn work(executor: Executor, lane: Begun) {
    loop {
        let commands = match executor.lanes.next(&lane, MAX_COMMANDS_IN_FLIGHT) {
            Work::Nothing => return,
            Work::Commands(commands) => commands,
            Work::Outstanding => executor.outstanding(&lane),
        };
        if lane.id == LaneId::Probe {
            executor.prove(&lane).await;
        }
        let mut commands = commands.into_iter();
        loop {
            let some: Commands = commands.by_ref().take(MAX_COMMANDS_IN_FLIGHT).collect();
            if some.is_empty() {
                break;
            }
            if let Err(refused) = executor.obey_all(&lane, some).await {
                executor.give_up(&lane, &refused).await;
                break;
            }
        }
    }
}

impl Executor {
    fn outstanding(&self, lane: &Begun) -> Commands {
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

    /// Does commands in order. What is left of them when the term is over is left.
    async fn obey_all(&self, lane: &Begun, commands: Commands) -> Result<(), BrokerError> {
        let mut tasks = Vec::new();
        for command in commands {
            if let Command::PutTask(task) = command {
                tasks.push(*task);
                continue;
            }
            self.put_tasks(lane, &mut tasks).await?;
            self.until_done(lane, || self.obey(&command)).await?;
        }
        self.put_tasks(lane, &mut tasks).await
    }

    async fn put_tasks(&self, lane: &Begun, tasks: &mut Vec<Task>) -> Result<(), BrokerError> {
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
                    // A refusal says more than a failure of the connection.
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

    /// Tries again while the term lasts. Gives the refusal that it was given up for.
    async fn until_done<F>(&self, lane: &Begun, op: impl Fn() -> F) -> Result<(), BrokerError>
    where
        F: Future<Output = Result<(), BrokerError>>,
    {
        let (mut pause, mut refusals) = (FIRST_PAUSE, 0);
        while self.term.holds() {
            let tried = match timeout(ATTEMPT, op()).await {
                Ok(Ok(())) => Tried::Done,
                Ok(Err(error)) if error.is_transient() => Tried::Failed(error.to_string()),
                Ok(Err(error)) => Tried::Refused(error),
                Err(_) => Tried::Failed("no answer".to_owned()),
            };
            match tried {
                Tried::Done => {
                    self.lanes.progress(lane);
                    self.health.set_trouble(lane.id.name(), None);
                    return Ok(());
                }
                Tried::Failed(reason) => self.tell(lane, pause, reason),
                Tried::Refused(error) => {
                    refusals += 1;
                    if refusals >= REFUSALS {
                        return Err(error);
                    }
                    self.tell(lane, pause, error.to_string());
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
    }

    fn tell(&self, lane: &Begun, pause: Duration, reason: String) {
        let name = lane.id.name();
        metrics::counter!("millrace_command_failures_total").increment(1);
        if pause >= LONGEST_PAUSE {
            tracing::error!(lane = name, reason, "a command failed; trying again");
        } else {
            tracing::warn!(lane = name, reason, "a command failed; trying again");
        }
        self.health.set_trouble(name, Some(reason));
    }

    /// What is refused again and again halts its run, until a person has seen to it. Nothing is lost: what is
    /// outstanding is commanded again when the run is resumed.
    async fn give_up(&self, lane: &Begun, refused: &BrokerError) {
        self.lanes.forget(lane);
        self.lanes.progress(lane);
        let name = lane.id.name();
        tracing::error!(lane = name, error = %refused, "a command is refused; given up");
        self.health.set_trouble(name, Some(format!("given up: {refused}")));
        let LaneId::Run(run) = &lane.id else { return };
        let works = |run: &Run| run.state.works();
        if !self.shared.lock().runs.get(run).is_some_and(works) {
            return;
        }
        let remedy = format!("put right what is refused, then `millrace resume {run}`");
        let paused = Event::Paused { reason: refused.to_string(), remedy };
        let pausing = self.until_done(lane, || async {
            self.broker.append_led(run.as_str(), &paused, self.term.epoch()).await.map(|_| ())
        });
        if let Err(error) = pausing.await {
            tracing::error!(lane = name, %error, "failed to pause the run; it stands still");
        }
    }

    /// Shows that the queue and the object store answer, whatever they answer.
    async fn prove(&self, lane: &Begun) {
        let proven = self.until_done(lane, || async {
            self.broker.queue().log_end().await?;
            match self.broker.objects().get(&millrace_schemas::blob::paths::probe()).await {
                Err(error) if error.is_transient() => Err(error.into()),
                Ok(_) | Err(_) => Ok(()),
            }
        });
        // A refusal is an answer.
        if proven.await.is_err() {
            self.lanes.progress(lane);
        }
    }

    async fn obey(&self, command: &Command) -> Result<(), BrokerError> {
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
                adopt::standing(broker, run, *version, self.term.epoch()).await?;
            }
            Command::SetPolicy { run, policy } => {
                let later = broker.set_policy_led(run, policy, self.term.epoch()).await?;
                // Whoever holds the lease all the same takes a later epoch still, and does this again in it.
                later.into_iter().for_each(|later| self.shared.saw_epoch(later));
            }
            Command::Notice(notice) => tell(broker, notice).await,
        }
        Ok(())
    }
}

pub(crate) async fn tell(broker: &Broker, notice: &Notice) {
    let kind = notice.kind();
    let subject = notice.run().map_or_else(|| subjects::notice_all(kind), |run| subjects::notice(run, kind));
    broker.notice(subject, notice).await;
}
