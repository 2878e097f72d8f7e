//! All bounds: value, unit, reason, and what happens beyond them. Relations are asserted at compile
//! time.

use crate::stage::Stage;

/// Characters of a run's name. It is a subject token and a folder name; a longer one is refused at
/// submit.
pub const MAX_RUN_NAME_CHARS: usize = 48;
/// Characters of a pool's name. Consumer names hold it; a longer one is refused at submit.
pub const MAX_POOL_NAME_CHARS: usize = 72;
/// Characters of a domain's name, which reports and metrics hold; a longer one is refused at
/// submit.
pub const MAX_DOMAIN_NAME_CHARS: usize = 48;
/// Characters of a worker's name. A longer one is refused at start.
pub const MAX_WORKER_NAME_CHARS: usize = 64;

/// Bytes of a payload that travels inside a message. A larger one goes to the object store and a
/// reference travels (the claim check), so that the streams stay small.
pub const MAX_INLINE_BYTES: usize = 256 * 1024;
/// The same for an event without a brief form. The fold needs all of it, and must not wait for the
/// object store.
pub const MAX_INLINE_EVENT_BYTES: usize = 768 * 1024;
/// Bytes of a message that nats-server takes by default; above it the connection is closed.
pub const MAX_PAYLOAD_BYTES: usize = 1024 * 1024;
/// Bytes of an object that is decoded as one message. Above it the task is a dead letter.
pub const MAX_CLAIM_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// Bytes of a run file or an API request. A longer one is refused.
pub const MAX_REQUEST_BYTES: usize = 256 * 1024;

/// Default visibility timeout of a task, in milliseconds: without a heartbeat for so long it is
/// redelivered. Long enough for a short network outage.
pub const ACK_WAIT_MS: u64 = 30_000;
/// The same if all processes are on one machine: the network does not fail there, so a killed
/// worker's tasks can be redelivered soon.
pub const ACK_WAIT_ONE_MACHINE_MS: u64 = 6_000;
/// Heartbeats for a task in flight per visibility timeout: of three, two may be lost.
pub const HEARTBEATS: u32 = 3;
/// Milliseconds until the retry of a task whose precondition comes by itself: a first version, a
/// thread.
pub const RETRY_MOMENT_MS: u64 = 500;
/// Milliseconds that a worker keeps the slot of a task which it passed on. Otherwise it could pull
/// the task again before another worker, which waits for it already, has woken up.
pub const PASS_ON_MS: u64 = 50;
/// Milliseconds until the retry of a task whose execution broke: it panicked, hung, or its program
/// died.
pub const RETRY_RESTART_MS: u64 = 1_000;
/// Milliseconds until the retry of a task for which a machine failed: the object store, an engine, a
/// sandbox.
pub const RETRY_MS: u64 = 2_000;
/// Milliseconds until the retry of a task that this build of a worker cannot do. Long enough for
/// another worker of the pool to pull it first.
pub const RETRY_ELSEWHERE_MS: u64 = 5_000;
/// Milliseconds until the retry of a task whose server does not answer. It may be starting.
pub const RETRY_AWAY_MS: u64 = 15_000;
/// Milliseconds between two heartbeats until a worker knows its pools' visibility timeout.
pub const HEARTBEAT_MS: u64 = 10_000;
/// Milliseconds that one try of a task of this stage may take, without what it waits for a slot of its
/// worker. Beyond it the try is given up, and the task is redelivered: heartbeats alone do not keep it.
#[must_use]
pub const fn attempt_ms(stage: Stage) -> u64 {
    match stage {
        Stage::EnvStep | Stage::Reward => 120_000,
        Stage::Generate | Stage::PublishWeights | Stage::Submit => 1_800_000,
        Stage::TrainShard => 21_600_000,
    }
}
/// Deliveries of one task before it is a dead letter.
pub const MAX_DELIVER: i64 = 5;
/// Further deliveries of a task of a partition before it is a dead letter: a worker that pulls from
/// several partitions at once may get more tasks than it has slots, and a returned task counts as
/// delivered.
pub const HAND_BACKS: i64 = 15;
/// The last pull priority at a partition; the first is 0. The server supports no more.
pub const MAX_PULL_PRIORITY: u8 = 9;
/// Unacknowledged tasks of one consumer, over all its workers. The server holds the rest back.
pub const MAX_ACK_PENDING: i64 = 65_536;
/// Pull requests that may wait at one consumer; above it the server answers 409.
pub const MAX_WAITING_PULLS: i64 = 8_192;
/// Connections of one user of a guarded server; the server refuses further ones with that key. Four
/// for each possible worker.
pub const MAX_USER_CONNECTIONS: u32 = 65_536;
/// The same for a user that only trains or commits: four for each possible member.
pub const MAX_MEMBER_CONNECTIONS: u32 = 4 * MAX_MEMBERS as u32;
/// The same for a user that only submits runs and reads their status: people and scripts.
pub const MAX_SUBMITTER_CONNECTIONS: u32 = 1_024;
/// Connections of all users of a guarded server together; the server refuses further ones. The
/// configuration's template has the number.
pub const MAX_SERVER_CONNECTIONS: u32 = 262_144;
/// Subscriptions of one connection of a worker of a guarded server; the server refuses further
/// ones. A worker has a few, and one for each partition.
pub const MAX_SUBSCRIPTIONS: u32 = 4_096;
/// The same for one that only submits runs and reads their status.
pub const MAX_SUBMITTER_SUBSCRIPTIONS: u32 = 256;
/// Consumers of one stage's stream. The server refuses a further one, and the run that needs it is
/// paused with the reason. The server's default is 1,000.
pub const MAX_POOLS: i32 = 4_096;
/// Train workers that are members at once, each with a pool of its own. A further one becomes a
/// member when another leaves.
pub const MAX_MEMBERS: usize = 2_048;
/// Bytes of the log in the server. A full log refuses writes and work waits: nothing is lost, and
/// the coordinator trims what its snapshots cover. On a server with less storage, only the server's
/// own bound applies.
pub const MAX_LOG_BYTES: i64 = 64 * 1024 * 1024 * 1024;
/// Bytes of all dead letters. If they are full, a poison task stays in flight at its worker.
pub const MAX_DEAD_BYTES: i64 = 2 * 1024 * 1024 * 1024;
/// Bytes of the server's advisories of exhausted tasks; beyond it the oldest are removed.
pub const MAX_ADVISORY_BYTES: i64 = 64 * 1024 * 1024;
/// Names of train workers that the server knows heartbeats of; a further one is refused until
/// another has been silent for long.
pub const MAX_NAMES: i64 = 2 * MAX_MEMBERS as i64;
/// Bytes of a heartbeat with its key and headers; the server refuses a larger one.
pub const MAX_HEARTBEAT_BYTES: i32 = 16 * 1024;
/// Bytes of one bucket's keys. A write to a full one is retried until there is room.
pub const MAX_BUCKET_BYTES: i64 = 256 * 1024 * 1024;
/// Milliseconds without a pull after which the server removes a pool's consumer: those of runs that
/// are over and of members that left while no coordinator was running. A live pool without a worker
/// for so long is recreated with all outstanding tasks.
pub const IDLE_POOL_MS: u64 = 24 * 3_600_000;
/// Milliseconds that a pull request waits at the server before it is sent again.
pub const PULL_EXPIRES_MS: u64 = 30_000;
/// Milliseconds without a message after which the server sends a heartbeat for an open request.
pub const QUIET_MS: u64 = 5_000;
/// Milliseconds without a message or heartbeat after which an open request counts as lost, and is
/// made again.
pub const SILENCE_MS: u64 = 12_000;
/// Milliseconds in which the log refuses an event with the same id. The fold ignores later ones.
pub const DEDUP_WINDOW_MS: u64 = 120_000;
/// Milliseconds for any request to the queue. Beyond it the request fails and is retried.
pub const REQUEST_TIMEOUT_MS: u64 = 10_000;
/// Milliseconds without an answer after which a question to any replica is asked again: a replica
/// that hangs is asked, too, until the other servers notice.
pub const REPLICA_ANSWER_MS: u64 = 1_000;
/// Milliseconds without renewal after which another coordinator may take the lease.
pub const LEASE_MS: u64 = 2_000;
/// Milliseconds between two renewals of the lease, and between two checks by a standby: with
/// [`LEASE_MS`], another leader acts within 3 s.
pub const LEASE_RENEW_MS: u64 = 250;
/// Milliseconds without progress after which a leader offers its lease to the standbys. Doubled
/// with each leader in a row without progress, at most [`MAX_LEADER_DOUBLINGS`] times.
pub const LEADER_STALL_MS: u64 = 10_000;
/// Doublings of [`LEADER_STALL_MS`]: leaders that all have the same problem alternate every 11
/// minutes at most.
pub const MAX_LEADER_DOUBLINGS: u32 = 6;
/// Milliseconds for the turns of a worker with time division to end with what was sampled, when a
/// step needs its device. After that they return to the queue as they began.
pub const SHRINK_MS: u64 = 5_000;
/// Milliseconds for its engine to release the device, once it has no turns. After that the step
/// fails there, and the worker leaves the membership of gangs until the engine answers.
pub const DEVICE_RELEASE_MS: u64 = 15_000;
/// Milliseconds between two heartbeats of a train worker.
pub const MEMBER_BEAT_MS: u64 = 1_000;
/// Milliseconds of silence after which a train worker is no longer a member, and the attempt of the
/// step that it took part in is void.
pub const MEMBER_MS: u64 = 5_000;
/// Ranks of a gang; above it submit refuses.
pub const MAX_RANKS: u32 = 1_024;
/// Milliseconds without progress of a run after which all its outstanding tasks are requeued: the
/// queue may have lost one.
pub const STALL_MS: u64 = 60_000;
/// How often [`STALL_MS`] doubles while there is still no progress, because a task may take half an
/// hour.
pub const MAX_STALL_DOUBLINGS: u32 = 5;
/// Least and most rollouts that fail in a row before the run is paused; in between, as many as its
/// window has. Fewer failures are no evidence; more only add dead letters.
pub const FAILURES_IN_A_ROW: (u64, u64) = (64, 4_096);
/// The same between two steps, as a multiple: some rollouts are finished, but too few for a batch.
pub const FAILURES_BETWEEN_STEPS: u64 = 16;
/// Dead letters of one step that exhausted their deliveries before the run is paused; until then
/// the step restarts. If a worker reports why a step cannot be done, the run is paused at once.
pub const MAX_STEP_LETTERS: u32 = 8;
/// First and longest back-off before a step restarts after such a dead letter, in milliseconds. It
/// doubles each time.
pub const STEP_BACKOFF_MS: (u64, u64) = (2_000, 30_000);
/// Milliseconds between two ticks in the log while a run is live.
pub const TICK_MS: u64 = 1_000;
/// Milliseconds between two reports of a worker's counters.
pub const WORKER_REPORT_MS: u64 = 500;
/// Events folded between two snapshots of the coordinator's state.
pub const SNAPSHOT_EVENTS: u64 = 50_000;
/// Entries of a segment of the log, at most. One segment is in memory while it is written or read.
pub const SEGMENT_ENTRIES: usize = 16_384;
/// Bytes of payload after which a segment is full: 16 MiB, small enough to read a whole object for
/// one entry.
pub const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes of a part of a segment before compression; one that claims more is not read.
pub const MAX_SEGMENT_RAW_BYTES: u64 = 1024 * 1024 * 1024;
/// Milliseconds that an entry stays in the log before it is trimmed, by the server's clock: longer
/// than any server leaves acknowledged writes unsynced, so that a power failure never loses entries
/// next to trimmed ones.
pub const TRIM_AGE_MS: u64 = 600_000;
/// Milliseconds between two attempts to trim the log.
pub const TRIM_EVERY_MS: u64 = 60_000;
/// Milliseconds between two collections of the object store.
pub const COLLECT_EVERY_MS: u64 = 1_800_000;
/// Minimal age of an unreferenced object before it is removed, in milliseconds of the store's
/// clock: a day, in which its writer has either referred to it or failed.
pub const COLLECT_AGE_MS: u64 = 86_400_000;
/// Age in milliseconds from which an existing blob is rewritten when it is stored again: otherwise
/// it could be collected before it is referred to.
pub const REFRESH_BLOB_MS: u64 = 21_600_000;
/// Objects deleted in one collection; the next one continues.
pub const MAX_COLLECTED: usize = 10_000;
/// Commands that the coordinator has in flight to the queue at once; it waits for acks beyond that.
pub const MAX_COMMANDS_IN_FLIGHT: usize = 1_024;
/// Commands that wait in the lane of one run. A lane with more drops them, and later executes all
/// outstanding commands of its run.
pub const MAX_COMMANDS_WAITING: usize = 8_192;
/// Milliseconds for which the fold waits for lanes beyond [`MAX_COMMANDS_WAITING`] before they drop
/// their commands.
pub const LANE_PATIENCE_MS: u64 = 50;
/// Tries of a command that is refused, with pauses of 5 s in total, before the run is paused.
pub const REFUSALS: u32 = 9;

/// Rollouts in a group. GRPO compares them, so one alone has no signal; above it submit refuses.
pub const MAX_GROUP_SIZE: u32 = 1_024;
/// Groups in a batch; above it submit refuses.
pub const MAX_GROUPS_PER_STEP: u32 = 65_536;
/// Rollouts in flight or waiting to be trained of one run; above it submit refuses. The coordinator
/// has each, some hundreds of bytes, in memory and in its snapshots.
pub const MAX_ROLLOUTS_IN_FLIGHT: u64 = 262_144;
/// The same for all live runs together; above it submit refuses.
pub const MAX_ROLLOUTS_OF_ALL_RUNS: u64 = 1_048_576;
/// Tokens that these may have in total; above it submit refuses. In the log and the object store
/// they are 64 GiB.
pub const MAX_TOKENS_IN_FLIGHT: u64 = 1 << 34;
/// Parameters of a model made from scratch; above it submit refuses. In f32 with its optimiser
/// state, 2 TiB.
pub const MAX_MODEL_PARAMETERS: u64 = 1 << 37;
/// Partitions of a run's generate pool; above it submit refuses. Each generate worker pulls from
/// each of them.
pub const MAX_PARTITIONS: u32 = 64;
/// Train steps of a run; above it submit refuses.
pub const MAX_STEPS: u64 = 10_000_000;
/// The async ratio; above it submit refuses.
pub const MAX_ALPHA: f64 = 64.0;
/// Turns of a rollout; above it submit refuses.
pub const MAX_TURNS: u32 = 1_000;
/// Tokens sampled in one turn; above it submit refuses.
pub const MAX_NEW_TOKENS: u32 = 1_048_576;
/// Bytes of a path in a run file; a longer one, which no operating system opens, is refused at
/// submit.
pub const MAX_PATH_BYTES: usize = 4_096;
/// Bytes of a small file of a model, its tokenizer for example; a directory with a larger one is
/// refused.
pub const MAX_COMPANION_BYTES: u64 = 256 * 1024 * 1024;
/// Parameters of a model, more than any open model has; a configuration with more is refused before
/// memory is allocated.
pub const MAX_PARAMETERS: u64 = 10_000_000_000_000;
/// Texts that end a turn; above it submit refuses.
pub const MAX_STOP_STRINGS: usize = 16;
/// Bytes of such a text: an engine looks for it at each token. Above it submit refuses.
pub const MAX_STOP_STRING_BYTES: usize = 256;
/// Arguments of an agent's program, and of the one that scores it; above it submit refuses.
pub const MAX_AGENT_ARGUMENTS: usize = 256;
/// Bytes of the files in an agent's settings, which travel with each of its tasks; above it submit
/// refuses.
pub const MAX_AGENT_FILES_BYTES: usize = 32 * 1024;
/// Hosts that an agent may reach; above it submit refuses.
pub const MAX_AGENT_HOSTS: usize = 64;
/// Milliseconds of an agent's own time between two calls at most; above it submit refuses. Its task
/// waits for it, and is delivered again each time that an attempt is over.
pub const MAX_AGENT_CALL_MS: u64 = 300_000;
/// Milliseconds of an agent's own time in all at most; above it submit refuses.
pub const MAX_AGENT_TIME_MS: u64 = 86_400_000;
/// Milliseconds that an agent's call may wait for its turn at most; above it submit refuses.
pub const MAX_AGENT_IDLE_MS: u64 = 86_400_000;
/// Milliseconds of the program that scores an agent at most; above it submit refuses.
pub const MAX_REWARD_PROGRAM_MS: u64 = 100_000;
/// Milliseconds of all tests of a program, and of a judge's reply, at most; above it submit refuses. The rest of
/// the attempt is for a turn at the sandbox or the judge.
pub const MAX_SCORING_MS: u64 = 90_000;
/// Milliseconds that one attempt at an agent's step waits for its next call. Then the task returns to
/// the queue, and the next attempt waits on.
pub const AGENT_WAIT_MS: u64 = 110_000;
/// Milliseconds without a word of the worker that hosts an agent, after which its session counts as
/// lost.
pub const AGENT_SILENCE_MS: u64 = 10_000;
/// Milliseconds between two questions to that worker.
pub const AGENT_ASK_MS: u64 = 1_000;
/// Agents that one worker hosts at once by default. A further reset returns to the queue.
pub const AGENTS_PER_WORKER: usize = 64;
/// Calls of one agent that are sampled at once at most; above it submit refuses.
pub const MAX_PARALLEL_CALLS: u32 = 64;
/// Bytes of one call to the gateway; a longer one gets 413.
pub const MAX_AGENT_CALL_BYTES: usize = 16 * 1024 * 1024;
/// Entries of a dataset's `tools`; above it submit refuses.
pub const MAX_TOOL_REFS: usize = 64;
/// Milliseconds of one call of a tool at most; above it submit refuses. The calls of a turn run side
/// by side within one attempt at a task.
pub const MAX_TOOL_MS: u64 = 100_000;
/// Calls of tools that are made for one turn. The policy is told that those beyond were not made.
pub const MAX_TOOL_CALLS: usize = 16;
/// Tokens of a rollout; above it the task is refused as poison.
pub const MAX_CONTEXT_TOKENS: usize = 4_194_304;
/// Tokens of the newest entry of a trajectory that the next task includes. A longer entry is
/// fetched from the log, so that no task needs an object of its own.
pub const MAX_CARRIED_TOKENS: usize = 32_768;
/// Bytes of the most recently used turns and observations that a process caches; others are fetched
/// again.
pub const MAX_CACHED_TRAJECTORY_BYTES: usize = 256 * 1024 * 1024;
/// Bytes of the contexts of turns that a process caches; others are put together from their turns again.
pub const MAX_CACHED_CONTEXT_BYTES: usize = 64 * 1024 * 1024;
/// Entries of the log that one reader fetches at once, and rollouts of a batch that are resolved at
/// once.
pub const FETCHES_IN_FLIGHT: usize = 64;
/// Payloads above [`MAX_INLINE_BYTES`] that are stored or fetched at once: at worst each has
/// [`MAX_CLAIM_BYTES`] in memory, usually a few MiB.
pub const CLAIMS_IN_FLIGHT: usize = 16;
/// Absolute value of a reward or score; an outcome with a larger one is refused. Sums of any number
/// of them are finite.
pub const MAX_REWARD: f64 = 1e12;
/// Step metrics, and bytes of the name of one; an outcome with more is refused. A status contains
/// them.
pub const MAX_METRICS: usize = 256;
/// See [`MAX_METRICS`].
pub const MAX_METRIC_NAME_BYTES: usize = 128;
/// Bytes of a field or value that a refusal shows; a longer one is cut.
pub const MAX_SHOWN_BYTES: usize = 200;
/// Runs on one page of a list: a page fits a message with every reason at its longest.
pub const MAX_LISTED_RUNS: usize = 256;
/// Refusals of a run file that are reported at once.
pub const MAX_REFUSALS: usize = 100;
/// Bytes of a reason in the state, and of the remark on a score; an outcome with more is refused.
pub const MAX_REASON_BYTES: usize = 1_024;
/// Bytes of an environment's state; an outcome with more is refused.
pub const MAX_ENV_STATE_BYTES: usize = 16 * 1024 * 1024;
/// Bytes of the text of one step of an environment; an outcome with more is refused.
pub const MAX_SAID_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of a row of a dataset, which travels with each rollout of it; a file with a longer one is
/// refused before the run starts.
pub const MAX_ROW_BYTES: usize = 1024 * 1024;
/// Files that one rank writes for a version; an outcome with more is refused.
pub const MAX_SHARD_FILES: usize = 1_024;
/// Characters of such a file's name; an outcome with a longer one is refused.
pub const MAX_FILE_NAME_CHARS: usize = 128;
/// Microseconds that one task may have cost, a week; a larger report counts as this.
pub const MAX_BUSY_US: u64 = 7 * 24 * 3600 * 1_000_000;
/// Rollouts of a run whose turns are kept for others to start from; above it submit refuses.
pub const MAX_STORED_ROLLOUTS: u32 = 1_024;
/// Domains of a run; above it submit refuses.
pub const MAX_DOMAINS: usize = 64;
/// Rewards of a run, or of one of its domains; above it submit refuses.
pub const MAX_REWARDS: usize = 16;
/// Evaluation prompts; above it submit refuses.
pub const MAX_EVALUATE_PROMPTS: u32 = 65_536;
/// Temperatures of an evaluation, each played in turn while no step starts; above it submit
/// refuses.
pub const MAX_EVALUATE_TEMPERATURES: usize = 4;
/// Rollouts of one evaluation prompt; above it submit refuses. Prompts times samples stay below the
/// most prompts.
pub const MAX_EVALUATE_SAMPLES: u32 = 256;
/// Width, layers and vocabulary of a model made from scratch; above it submit refuses.
pub const MAX_MODEL_DIMENSION: u32 = 1_048_576;

const _: () = assert!(MAX_INLINE_EVENT_BYTES + MAX_INLINE_BYTES / 2 < MAX_PAYLOAD_BYTES, "so must an event");
const _: () = assert!(MAX_INLINE_BYTES * 2 < MAX_PAYLOAD_BYTES, "a message and its headers must fit");
const _: () =
    assert!(MAX_CARRIED_TOKENS * 5 < MAX_INLINE_BYTES, "a task with a prefix of many turns stays inline");
const _: () = assert!(MAX_ROW_BYTES <= MAX_SAID_BYTES, "a prompt fits a step's text");
const _: () = assert!(
    RETRY_MOMENT_MS < RETRY_RESTART_MS && RETRY_RESTART_MS < RETRY_MS && RETRY_MS < RETRY_ELSEWHERE_MS,
    "what comes sooner is tried sooner"
);
const _: () = assert!(HEARTBEAT_MS * 2 < ACK_WAIT_MS, "one lost heartbeat must not cost the lease");
const _: () = assert!(QUIET_MS * 2 < SILENCE_MS, "one lost heartbeat must not cost the request");
const _: () = assert!(HEARTBEATS >= 3, "a lost heartbeat and a late one must not cost the lease");
const _: () = assert!(ACK_WAIT_ONE_MACHINE_MS >= 1_000, "a busy machine is not a dead one");
const _: () = assert!(MEMBER_BEAT_MS * 3 < MEMBER_MS, "two lost heartbeats must not cost the membership");
const _: () = assert!(MAX_WORKER_NAME_CHARS + 3 <= MAX_POOL_NAME_CHARS, "each member of a gang has a pool");
const _: () = assert!(MAX_MEMBERS >= MAX_RANKS as usize, "a gang's members are members at once");
const _: () = assert!(
    MAX_NAMES * (MAX_HEARTBEAT_BYTES as i64 + 1_024) < MAX_BUCKET_BYTES,
    "names are the bound of heartbeats, not bytes"
);
const _: () = assert!(
    3 * MAX_USER_CONNECTIONS + 2 * MAX_MEMBER_CONNECTIONS + MAX_SUBMITTER_CONNECTIONS
        < MAX_SERVER_CONNECTIONS,
    "a flood of connections leaves room for the coordinator's"
);
const _: () = assert!(MAX_SUBSCRIPTIONS > 8 * MAX_PARTITIONS, "a worker pulls from each partition");
const _: () = assert!(MAX_POOLS as usize >= 2 * MAX_MEMBERS, "members leave room for the pools of runs");
const _: () = assert!(IDLE_POOL_MS > 2 * attempt_ms(Stage::TrainShard), "one busy step is no absence");
const _: () = assert!(LEADER_STALL_MS > 2 * LEASE_MS, "a leader has time to make progress");
const _: () = assert!(LEASE_RENEW_MS * 3 < LEASE_MS, "two lost renewals must not cost the lease");
const _: () = assert!(LEASE_MS + 2 * LEASE_RENEW_MS < 3_000, "another coordinator acts within 3 s");
const _: () = assert!(TRIM_AGE_MS > DEDUP_WINDOW_MS, "what the log may be asked of by id is still in it");
const _: () = assert!(AGENT_WAIT_MS < attempt_ms(Stage::EnvStep), "a wait ends before its attempt");
const _: () = assert!(MAX_SCORING_MS + 20_000 < attempt_ms(Stage::Reward), "an answer that hangs is scored");
const _: () = assert!(MAX_TOOL_MS < attempt_ms(Stage::EnvStep), "a call ends before its attempt");
const _: () = assert!(
    MAX_AGENT_CALL_MS + MAX_REWARD_PROGRAM_MS < AGENT_WAIT_MS * (MAX_DELIVER.unsigned_abs() - 1),
    "an agent's slowest step is over before its deliveries are"
);
const _: () = assert!(AGENT_ASK_MS * 5 < AGENT_SILENCE_MS, "some lost questions are no silence");
const _: () = assert!(
    REFRESH_BLOB_MS + 2 * attempt_ms(Stage::TrainShard) < COLLECT_AGE_MS,
    "what an attempt writes first is young when it ends"
);
