//! `generate`: the policy samples one turn. One engine batches the tasks of many rollouts. It takes
//! no task of a run before it has proved that it has the weights that the run's policy names.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millrace_policy::PolicyError;
use millrace_schemas::generate::Finish;
use millrace_schemas::{OutcomeBody, PolicyVersion, RunId, Stage, Task, TaskBody, TaskKey, limits};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::model::versions::VersionStore;
use crate::policy::openai::ServerSettings;
use crate::policy::read_weights;
use crate::runtime::{Cost, Executor, Failure, PolicyTable, Retry, TimeDivision, Verdict};
use driver::{Answer, Driver, Request};
use follow::{Follower, Serving};
use remote::{Admission, Remote};

mod driver;
mod follow;
mod remote;

/// How long a task waits for weights that are new enough before it returns to the queue.
const WEIGHTS_WAIT: Duration = Duration::from_secs(60);
/// How long one attempt samples at a turn. What it has by then is handed back, and the next attempt continues it: the end
/// of the attempt's time, which would lose all of it, is after the longest step.
const TURN_TIME: Duration = Duration::from_millis(limits::attempt_ms(Stage::Generate) * 2 / 3);

/// What samples.
#[derive(Debug, Clone)]
enum Sampler {
    /// An engine of this process, on its own thread.
    Thread(Driver),
    /// A server elsewhere.
    Server(Remote),
}

impl Sampler {
    fn request(&self, run: RunId, request: Request) {
        match self {
            Self::Thread(driver) => driver.request(run, request),
            Self::Server(remote) => remote.request(&run, request),
        }
    }

    /// Lets a task use what samples; an engine of this process has room for every run.
    ///
    /// # Errors
    /// The server works for another run; the reason.
    fn admit(&self, run: &RunId) -> Result<Option<Admission>, String> {
        match self {
            Self::Thread(_) => Ok(None),
            Self::Server(remote) => remote.admit(run).map(Some),
        }
    }

    fn forget(&self, run: RunId) {
        match self {
            Self::Thread(driver) => driver.forget(run),
            Self::Server(remote) => remote.forget(&run),
        }
    }
}

/// Executes `generate` tasks.
#[derive(Debug)]
pub struct Generate {
    policies: PolicyTable,
    versions: VersionStore,
    sampler: Sampler,
    /// What the engine serves, by run, from a run's first task here until its end.
    runs: Arc<Mutex<HashMap<RunId, watch::Receiver<Serving>>>>,
    /// The device, which a trainer of this worker may share: it counts the turns in flight, and
    /// ends them with what was sampled when the worker leaves or a step needs it.
    device: TimeDivision,
    /// Whether a trainer shares the device.
    is_shared: bool,
    turn_time: Duration,
}

impl Generate {
    /// Starts the engine's thread. It ends with this value.
    #[must_use]
    pub fn new(policies: PolicyTable, versions: VersionStore) -> Self {
        Self::by(Sampler::Thread(Driver::start(Arc::new(read_weights))), policies, versions)
    }

    /// The same with an inference server, which gets no request before the first task.
    #[must_use]
    pub fn by_server(policies: PolicyTable, versions: VersionStore, server: ServerSettings) -> Self {
        Self::by(Sampler::Server(Remote::new(server)), policies, versions)
    }

    fn by(sampler: Sampler, policies: PolicyTable, versions: VersionStore) -> Self {
        Self {
            policies,
            versions,
            sampler,
            runs: Arc::default(),
            device: TimeDivision::default(),
            is_shared: false,
            turn_time: TURN_TIME,
        }
    }

    /// The same on a device that a trainer uses in turn.
    #[must_use]
    pub fn sharing(self, device: TimeDivision) -> Self {
        if let Sampler::Thread(driver) = &self.sampler {
            device.set_engine(Arc::new(driver.clone()));
        }
        Self { device, is_shared: true, ..self }
    }

    /// What the engine serves of a run. The first task of a run makes the engine follow its policy.
    fn serving(&self, run: &RunId) -> watch::Receiver<Serving> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(serving) = runs.get(run) {
            return serving.clone();
        }
        let (sender, serving) = watch::channel(Serving::default());
        runs.insert(run.clone(), serving.clone());
        let follower = Follower {
            run: run.clone(),
            policies: self.policies.clone(),
            versions: self.versions.clone(),
            sampler: self.sampler.clone(),
            serving: sender,
        };
        let (runs, run) = (self.runs.clone(), run.clone());
        tokio::spawn(async move {
            follower.follow().await;
            runs.lock().unwrap_or_else(PoisonError::into_inner).remove(&run);
        });
        serving
    }

    /// Waits until the engine serves `version` or a newer one. Returns why it does not: nothing was begun then. Where the
    /// weights cannot be loaded here, the slot is kept for a while all the same, so that this worker does not take from
    /// the queue at once what others could sample.
    async fn wait_for_weights(&self, run: &RunId, version: PolicyVersion) -> Result<(), String> {
        let mut serving = self.serving(run);
        let settled = |serving: &Serving| serving.failure.is_some() || serving.covers(version);
        let failure = match tokio::time::timeout(WEIGHTS_WAIT, serving.wait_for(settled)).await {
            Ok(Ok(serving)) if serving.covers(version) => return Ok(()),
            Ok(Ok(serving)) => serving.failure.clone().unwrap_or_default(),
            // The follower ended with the run.
            Ok(Err(_)) => return Err(format!("the engine has left run={run}")),
            Err(_) => return Err(format!("weights of {version} did not come in time")),
        };
        let elsewhere = Duration::from_millis(limits::RETRY_ELSEWHERE_MS);
        match tokio::time::timeout(elsewhere, serving.wait_for(|serving| serving.covers(version))).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(failure),
        }
    }

    /// Whether this worker cannot serve the task now: its engine failed to load the weights, or its server is away.
    fn is_out_of_order(&self, task: &Task) -> bool {
        let TaskBody::Generate(generate) = &task.body else { return false };
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.get(&task.run).is_some_and(|serving| {
            let serving = serving.borrow();
            serving.is_out_of_order() && !serving.covers(generate.min_version)
        })
    }

    async fn sample(&self, task: Task, cancel: CancellationToken) -> Result<(OutcomeBody, Cost), Failure> {
        let (TaskBody::Generate(generate), TaskKey::Generate { rollout, .. }) = (&task.body, task.key) else {
            return Err(Failure::misrouted(&task));
        };
        let tokens = generate.context.len();
        if tokens == 0 || tokens > limits::MAX_CONTEXT_TOKENS || generate.max_new_tokens == 0 {
            let asked = generate.max_new_tokens;
            let reason = format!("its context has tokens={tokens}, it asks for {asked} more");
            return Err(Failure::Impossible(reason));
        }
        let _admission = match self.sampler.admit(&task.run) {
            Ok(admission) => admission,
            Err(reason) => return Err(wait_elsewhere(&cancel, Retry::Elsewhere, reason)),
        };
        let begun = generate.sampled.as_ref().map_or(0, |sampled| sampled.tokens.len());
        let until = Instant::now() + self.turn_time;
        let turn = self.device.begin_turn();
        let hand_back = turn.hand_back().clone();
        let ready = self.wait_for_weights(&task.run, generate.min_version);
        let Some(ready) = hand_back.run_until_cancelled(ready).await else {
            drop(turn);
            return Err(give_up(&cancel).await);
        };
        ready.map_err(|reason| wait_elsewhere(&cancel, Retry::Moment, reason))?;
        let (reply, answer) = oneshot::channel();
        let Task { run, body: TaskBody::Generate(task), .. } = task else { unreachable!("matched above") };
        let leaving = hand_back.child_token();
        let request = Request { rollout, task, cancel: cancel.clone(), leaving: leaving.clone(), reply };
        self.sampler.request(run, request);
        let answer = turn.abandon().run_until_cancelled(in_time(answer, until, &leaving)).await;
        drop(turn);
        let Some(answer) = answer else { return Err(give_up(&cancel).await) };
        match answer {
            // The log has as much of the turn already.
            Ok(Ok(Answer { done, .. })) if done.finish == Finish::Partial && done.tokens.len() == begun => {
                Err(self.nothing_sampled(&hand_back, &cancel).await)
            }
            Ok(Err(_)) | Err(_) if leaving.is_cancelled() => {
                Err(self.nothing_sampled(&hand_back, &cancel).await)
            }
            Ok(Ok(Answer { done, busy })) => {
                let cost = Cost { busy: Some(busy), tokens: done.tokens.len() as u64 };
                Ok((OutcomeBody::Generate(done), cost))
            }
            Ok(Err(PolicyError::Impossible(reason))) => Err(Failure::Impossible(reason)),
            // Whatever else happened, another worker may sample the turn as soon.
            Ok(Err(error)) => Err(Failure::soon(error)),
            Err(_) => Err(Failure::soon("the engine dropped the request")),
        }
    }

    /// Why a turn ended without a further token: its worker leaves, or its time is over.
    async fn nothing_sampled(&self, hand_back: &CancellationToken, cancel: &CancellationToken) -> Failure {
        if hand_back.is_cancelled() {
            return give_up(cancel).await;
        }
        Failure::Retry(Retry::Restart, format!("no token was sampled within {:?}", self.turn_time))
    }
}

/// Waits for the answer, which is asked for at a time: for what was sampled by then.
async fn in_time<T>(answer: impl Future<Output = T>, until: Instant, leaving: &CancellationToken) -> T {
    tokio::pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        () = tokio::time::sleep_until(until) => {
            leaving.cancel();
            answer.await
        }
    }
}

/// Cancels the task of a turn of which nothing was sampled before it had to end: it returns to the
/// queue. Never ends, because the caller is dropped.
async fn give_up(cancel: &CancellationToken) -> Failure {
    cancel.cancel();
    std::future::pending().await
}

/// Returns a task that waits for a server or for weights. Waiting is no failure: where a retry would be the last, a cancelled
/// task is queued again, as when its worker leaves. A worker that cannot load weights would otherwise bury what others could
/// sample.
fn wait_elsewhere(cancel: &CancellationToken, when: Retry, reason: String) -> Failure {
    cancel.cancel();
    Failure::Retry(when, reason)
}

#[async_trait]
impl Executor for Generate {
    fn passes_on(&self, task: &Task) -> bool {
        matches!(&self.sampler, Sampler::Server(remote) if remote.is_taken_from(&task.run))
            || self.is_out_of_order(task)
    }

    fn hand_back(&self) -> bool {
        self.device.leave();
        true
    }

    fn gate(&self) -> Option<watch::Receiver<bool>> {
        self.is_shared.then(|| self.device.may_generate())
    }

    fn waits_for(&self) -> Option<String> {
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.values().find_map(|serving| serving.borrow().waits_for.clone())
    }

    async fn execute(&self, task: Task, cancel: CancellationToken) -> Verdict {
        self.sample(task, cancel).await.into()
    }
}

#[cfg(test)]
mod tests;
