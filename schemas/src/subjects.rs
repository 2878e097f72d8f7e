//! Names that cross a process on the queue: subjects, streams, consumers, buckets, keys, headers.

use crate::event::Event;
use crate::ids::{IdError, PoolName, RunId, TaskKey, WorkerId};
use crate::outcome::Outcome;
use crate::stage::Stage;
use crate::version::PolicyVersion;

/// The log: every event of every run, in one order.
pub const LOG_STREAM: &str = "MILLRACE_LOG";
/// The dead-letter queue: tasks that failed for good, with their bytes.
pub const DEAD_STREAM: &str = "MILLRACE_DEAD";
/// The server's advisories of tasks that exhausted their deliveries.
pub const ADVISORY_STREAM: &str = "MILLRACE_ADVISORY";
/// Key-value bucket: the current policy of each run.
pub const POLICY_BUCKET: &str = "MILLRACE_POLICY";
/// Key-value bucket: the coordinator's lease and its newest snapshot.
pub const COORDINATOR_BUCKET: &str = "MILLRACE_COORDINATOR";
/// Key-value bucket: heartbeats of train workers, by name.
pub const WORKERS_BUCKET: &str = "MILLRACE_WORKERS";
/// Key-value bucket: rendezvous of gangs, with the members' addresses. Kept for a day.
pub const GANG_BUCKET: &str = "MILLRACE_GANG";
/// Every key-value bucket.
pub const BUCKETS: [&str; 4] = [POLICY_BUCKET, COORDINATOR_BUCKET, WORKERS_BUCKET, GANG_BUCKET];
/// Key in [`COORDINATOR_BUCKET`]: the leader's lease.
pub const LEASE_KEY: &str = "lease";
/// Key in [`COORDINATOR_BUCKET`]: the newest snapshot.
pub const SNAPSHOT_KEY: &str = "snapshot";

/// Pool of `generate` tasks. The pool of an `env_step` task is its environment's name, that of a
/// `reward` task its rule's name.
pub const GENERATE_POOL: &str = "policy";
/// The priority group of a partition's consumer, which orders its pullers.
pub const PRIORITY_GROUP: &str = "rank";
/// Pool of `train_shard` tasks that any worker may do. The ranks of a gang have a pool for each
/// member.
pub const TRAIN_POOL: &str = "gang";
/// Pool of `publish_weights` tasks.
pub const PUBLISH_POOL: &str = "commit";

/// The run token of events that concern all runs.
pub const ALL_RUNS: &str = "all";
/// Tokens in the place of a run's name that have another meaning: `mr.log.all.tick`,
/// `mr.notice.worker.<id>`.
pub const RESERVED_RUNS: [&str; 2] = [ALL_RUNS, "worker"];
/// Every task.
pub const TASK_ALL: &str = "mr.task.>";
/// Every event.
pub const LOG_ALL: &str = "mr.log.>";
/// Every dead letter.
pub const DEAD_ALL: &str = "mr.dead.>";
/// Every notice.
pub const NOTICE_ALL: &str = "mr.notice.>";
/// Every request that a worker leaves.
pub const DRAIN_WORKERS: &str = "mr.ctl.drain.*";
/// Messages between workers that host agents.
pub const AGENT_WORKERS: &str = "mr.ctl.agent.*";
/// Messages to all workers that host agents. No worker's name has capitals.
pub const AGENT_ALL: &str = "mr.ctl.agent.ALL";
/// Every worker's counters.
pub const NOTICE_WORKERS: &str = "mr.notice.worker.*";
/// Advisories that a task exhausted its deliveries.
pub const ADVISORY_MAX_DELIVERIES: &str = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.*.*";
/// First tokens of such an advisory; stream and consumer follow.
pub const ADVISORY_OF_DELIVERIES: &str = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES";

/// Header: the trace that a message belongs to (W3C `traceparent`).
pub const TRACEPARENT_HEADER: &str = "traceparent";
/// Header of a claim check: the payload is in the object store, as `<sha256>/<bytes>`.
pub const CLAIM_HEADER: &str = "Millrace-Claim";
/// Header of a dead letter: the reason.
pub const REASON_HEADER: &str = "Millrace-Reason";
/// Header of a dead letter: the task's subject.
pub const SUBJECT_HEADER: &str = "Millrace-Subject";
/// Header of an event that a leader wrote: its epoch. If a later leader wrote before it, the event
/// is skipped (fencing).
pub const EPOCH_HEADER: &str = "Millrace-Epoch";
/// Header that the server adds to each copy of a stored message. A client that may read a key can
/// direct the copy to any subject, so a task, event or request with this header is not trusted.
pub const COPY_HEADER: &str = "Nats-Stream";
/// The headers of a message that are kept with it.
pub const HEADERS: [&str; 6] =
    [TRACEPARENT_HEADER, CLAIM_HEADER, REASON_HEADER, SUBJECT_HEADER, EPOCH_HEADER, COPY_HEADER];

/// The header of this name, if it is one of ours.
#[must_use]
pub fn header(name: &str) -> Option<&'static str> {
    HEADERS.into_iter().find(|known| *known == name)
}

/// The stream that holds a stage's tasks.
#[must_use]
pub fn task_stream(stage: Stage) -> String {
    format!("MILLRACE_TASK_{}", stage.name().to_ascii_uppercase())
}

/// Every stream, those of the buckets included.
pub fn streams() -> impl Iterator<Item = String> {
    let named = [LOG_STREAM, DEAD_STREAM, ADVISORY_STREAM].map(str::to_owned);
    named.into_iter().chain(Stage::QUEUED.map(task_stream)).chain(BUCKETS.map(bucket_stream))
}

/// All subjects of a stage's stream.
#[must_use]
pub fn task_stream_subjects(stage: Stage) -> String {
    format!("mr.task.{}.>", stage.name())
}

/// The durable consumer that a pool's workers share; one per stage and pool.
#[must_use]
pub fn consumer(pool: &PoolName) -> String {
    format!("pool_{pool}")
}

/// Whether a consumer delivers the task on a subject.
#[must_use]
pub fn is_of_consumer(task: &str, consumer: &str) -> bool {
    let pool = task.strip_prefix("mr.task.").and_then(|rest| rest.split('.').nth(1));
    pool.is_some_and(|pool| consumer.strip_prefix("pool_") == Some(pool))
}

/// The pool of the `train_shard` tasks that are meant for one member of a gang.
///
/// # Panics
/// Never: a worker's name with this prefix is within the bounds of a pool's.
#[must_use]
pub fn member_pool(worker: &WorkerId) -> PoolName {
    format!("at-{worker}").parse().expect("a worker's name with a prefix is a pool's name")
}

/// The key in [`GANG_BUCKET`] for a member's key `name`, which may be any text.
#[must_use]
pub fn gang_key(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let tokens = name.split(['/', '.']).filter(|token| !token.is_empty());
    let spell = |c: char| if plain(c) { c.to_string() } else { format!("={:x}=", u32::from(c)) };
    tokens.map(|token| token.chars().map(spell).collect::<String>()).collect::<Vec<_>>().join(".")
}

/// The filter of a pool's consumer on its stage's stream.
#[must_use]
pub fn consumer_filter(stage: Stage, pool: &PoolName) -> String {
    format!("mr.task.{}.{pool}.>", stage.name())
}

/// A task's own subject. The server holds at most one message on it.
#[must_use]
pub fn task(pool: &PoolName, run: &RunId, version: PolicyVersion, key: TaskKey) -> String {
    format!("mr.task.{}.{pool}.{run}.{version}.{key}", key.stage().name())
}

/// A run's tasks of one start version, in one stage, for a purge.
#[must_use]
pub fn tasks_of_version(stage: Stage, run: &RunId, version: PolicyVersion) -> String {
    format!("mr.task.{}.*.{run}.{version}.>", stage.name())
}

/// All tasks of a run in one stage, for a purge.
#[must_use]
pub fn tasks_of_run(stage: Stage, run: &RunId) -> String {
    format!("mr.task.{}.*.{run}.>", stage.name())
}

/// An event's subject: `mr.log.<run>.<kind>`, followed by the stage if a worker reports on a task,
/// so that its rights can be limited to its own stage.
#[must_use]
pub fn log(run: &str, event: &Event) -> String {
    let subject = log_without_stage(run, event);
    match event {
        Event::Outcome(Outcome { key, .. }) | Event::DeadLetter { key, .. } => {
            format!("{subject}.{}", key.stage().name())
        }
        Event::Submitted(_)
        | Event::Requeued { .. }
        | Event::Cancelled { .. }
        | Event::Paused { .. }
        | Event::Resumed
        | Event::Archived
        | Event::Adopted(_)
        | Event::Scaled(_)
        | Event::Joined { .. }
        | Event::Left { .. }
        | Event::Tick { .. } => subject,
    }
}

/// An event's subject as older versions wrote it, without the stage.
fn log_without_stage(run: &str, event: &Event) -> String {
    format!("mr.log.{run}.{}", event.kind())
}

/// Whether an event may be on a subject of the log: on its own, or on that of old logs. Rights are
/// granted by subject, so an event on another subject was written without the right to it.
#[must_use]
pub fn is_subject_of(subject: &str, run: &str, event: &Event) -> bool {
    subject == log(run, event) || subject == log_without_stage(run, event)
}

/// Whether workers may write on this subject of the log.
#[must_use]
pub fn is_workers(subject: &str) -> bool {
    let kind = subject.strip_prefix("mr.log.").and_then(|rest| rest.split('.').nth(1));
    matches!(kind, Some("outcome" | "dead_letter"))
}

/// Whether runs are submitted on this subject of the log.
#[must_use]
pub fn is_submit(subject: &str) -> bool {
    subject.starts_with("mr.log.") && subject.ends_with(".submitted")
}

/// The stream behind a bucket.
#[must_use]
pub fn bucket_stream(bucket: &str) -> String {
    format!("KV_{bucket}")
}

/// All keys of a bucket.
#[must_use]
pub fn keys(bucket: &str) -> String {
    format!("$KV.{bucket}.>")
}

/// The subjects on which the server republishes writes to a bucket, for watchers.
#[must_use]
pub fn watched_keys(bucket: &str) -> String {
    format!("mr.key.{bucket}.>")
}

/// Rights of a worker: to append outcomes of a stage's tasks, of any run.
#[must_use]
pub fn outcomes_of_stage(stage: Stage) -> String {
    format!("mr.log.*.outcome.{}", stage.name())
}

/// Rights of a worker: to append that a stage's tasks are dead letters, of any run.
#[must_use]
pub fn deaths_of_stage(stage: Stage) -> String {
    format!("mr.log.*.dead_letter.{}", stage.name())
}

/// The dead letters of a stage.
#[must_use]
pub fn dead_of_stage(stage: Stage) -> String {
    format!("mr.dead.{}.>", stage.name())
}

/// A dead letter's subject.
#[must_use]
pub fn dead(stage: Stage, pool: &str, run: &str, key: &str) -> String {
    format!("mr.dead.{}.{pool}.{run}.{key}", stage.name())
}

/// A dead letter's subject for a task whose own subject cannot be parsed. Its tokens are valid in a
/// subject all the same.
#[must_use]
pub fn dead_stray(subject: &str) -> String {
    format!("mr.dead.{}", subject.strip_prefix("mr.task.").unwrap_or("unknown"))
}

/// A notice of a run.
#[must_use]
pub fn notice(run: &RunId, kind: &str) -> String {
    format!("mr.notice.{run}.{kind}")
}

/// A notice that concerns all runs.
#[must_use]
pub fn notice_all(kind: &str) -> String {
    format!("mr.notice.{ALL_RUNS}.{kind}")
}

/// Requests that a worker leaves.
#[must_use]
pub fn drain(worker: &WorkerId) -> String {
    format!("mr.ctl.drain.{worker}")
}

/// Messages to a worker that hosts agents.
#[must_use]
pub fn agents(worker: &WorkerId) -> String {
    format!("mr.ctl.agent.{worker}")
}

/// A worker's counters.
#[must_use]
pub fn worker_notice(worker: &str) -> String {
    format!("mr.notice.worker.{worker}")
}

/// An endpoint of the API.
#[must_use]
pub fn api(endpoint: &str) -> String {
    format!("mr.api.{endpoint}")
}

/// First tokens of a request to JetStream in an account that imports it.
pub const IMPORTED_API: &str = "mr.js";

/// The subject by which a request to JetStream leaves an account that has no streams of its own;
/// `None` if the account can use the request's own subject. The server replies for the account
/// itself on all of `$JS.API` except pulls and direct reads, which belong to a stream.
#[must_use]
pub fn imported_request(subject: &str) -> Option<String> {
    let verb = subject.strip_prefix("$JS.API.")?;
    let of_a_stream = ["CONSUMER.MSG.NEXT.", "DIRECT.GET."].iter().any(|start| verb.starts_with(start));
    (!of_a_stream).then(|| format!("{IMPORTED_API}.{verb}"))
}

/// Whether a reply subject is allowed: not one of the server's, nor one of ours.
#[must_use]
pub fn may_be_answered(reply: &str) -> bool {
    !reply.starts_with('$') && !reply.starts_with("mr.")
}

/// A task's subject, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSubject {
    /// The stage.
    pub stage: Stage,
    /// The pool.
    pub pool: PoolName,
    /// The run.
    pub run: RunId,
    /// The start version.
    pub version: PolicyVersion,
    /// The task.
    pub key: TaskKey,
}

/// Why a subject is not a task's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// Another number of tokens, another root, or an unknown stage.
    #[error("subject value={0:?} is not mr.task.<stage>.<pool>.<run>.v<version>.<task>")]
    Shape(String),
    /// A token is not an identifier.
    #[error(transparent)]
    Id(#[from] IdError),
}

/// Parses a task's subject.
///
/// # Errors
/// The subject is not a task's.
pub fn parse_task(subject: &str) -> Result<TaskSubject, SubjectError> {
    let shape = || SubjectError::Shape(subject.chars().take(200).collect());
    let mut tokens = subject.strip_prefix("mr.task.").ok_or_else(shape)?.split('.');
    let mut next = || tokens.next().ok_or_else(shape);
    let (stage, pool, run, version, key) = (next()?, next()?, next()?, next()?, next()?);
    if tokens.next().is_some() {
        return Err(shape());
    }
    let (stage, key): (Stage, TaskKey) = (stage.parse().map_err(|_| shape())?, key.parse()?);
    let spelt = version;
    let version = version.strip_prefix('v').and_then(|digits| digits.parse().ok()).map(PolicyVersion);
    // Only one spelling is valid: `v07` and `v+7` would be other subjects for the same task.
    let version = version.filter(|version| version.to_string() == spelt).ok_or_else(shape)?;
    if key.stage() != stage {
        return Err(shape());
    }
    Ok(TaskSubject { stage, pool: pool.parse()?, run: run.parse()?, version, key })
}

/// The stage of a task's subject, even if the rest is invalid; `None` if it is not a task's.
#[must_use]
pub fn stage_of_task(subject: &str) -> Option<Stage> {
    subject.strip_prefix("mr.task.")?.split('.').next()?.parse().ok()
}

/// The run token of a log subject, or `None` if it is not a log subject.
#[must_use]
pub fn run_of_log(subject: &str) -> Option<&str> {
    subject.strip_prefix("mr.log.")?.split('.').next()
}
