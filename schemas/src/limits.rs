//! All bounds: value, unit, reason, and what passing it does. Relations are asserted at compile time.

use crate::stage::Stage;

/// Characters of a run's name. It is a subject token and a folder name; a longer one is refused at submit.
pub const MAX_RUN_NAME_CHARS: usize = 48;
/// Characters of a pool's name. Consumer names hold it; a longer one is refused at submit.
pub const MAX_POOL_NAME_CHARS: usize = 72;
/// Characters of a domain's name, which reports and metrics hold; a longer one is refused at submit.
pub const MAX_DOMAIN_NAME_CHARS: usize = 48;
/// Characters of a worker's name. A longer one is refused at start.
pub const MAX_WORKER_NAME_CHARS: usize = 64;

/// Bytes of a payload that travels inside a message. A larger one goes to the object store and a
/// reference travels (the claim check), so that the streams stay small.
pub const MAX_INLINE_BYTES: usize = 256 * 1024;
/// The same for an event that has no brief form: folding it needs all of it, and should not wait for the object store.
pub const MAX_INLINE_EVENT_BYTES: usize = 768 * 1024;
/// Bytes of a message that nats-server takes by default; above it the connection is closed.
pub const MAX_PAYLOAD_BYTES: usize = 1024 * 1024;
/// Bytes of an object that is decoded as one message. Above it the task is a dead letter.
pub const MAX_CLAIM_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// Bytes of a run file or an API request. A longer one is refused.
pub const MAX_REQUEST_BYTES: usize = 256 * 1024;

/// Milliseconds until a task whose worker is silent is given to another, unless the coordinator that makes the
/// pool says otherwise. Long enough for a network that is away for a moment.
pub const ACK_WAIT_MS: u64 = 30_000;
/// The same where all processes are on one machine: no network is ever away, so a killed worker's tasks can be
/// given to another soon.
pub const ACK_WAIT_ONE_MACHINE_MS: u64 = 6_000;
/// Signs of life for a task in hand within the time after which it is given to another: of three, two may be lost.
pub const HEARTBEATS: u32 = 3;
/// Milliseconds between two signs of life until a worker knows its pools better.
pub const HEARTBEAT_MS: u64 = 10_000;
/// Milliseconds that one attempt at a task of this stage may take. Above it the attempt is given up, whatever
/// it waits for, and the task is done elsewhere: signs of life alone do not keep it.
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
/// Further deliveries of a task of a partition before it is a dead letter: who pulls from several partitions at once
/// may get more than it has slots for, and what it hands back was delivered all the same.
pub const HAND_BACKS: i64 = 15;
/// The last place among those who pull from a partition; the first is 0. The server knows no more.
pub const MAX_RANK: u8 = 9;
/// Unacknowledged tasks of one consumer, over all its workers. The server holds the rest back.
pub const MAX_ACK_PENDING: i64 = 65_536;
/// Pull requests that may wait at one consumer; above it the server answers 409.
pub const MAX_WAITING_PULLS: i64 = 8_192;
/// Connections of one user of a guarded server; above it the server lets nobody else in by that key. Four for each
/// worker that may be there.
pub const MAX_USER_CONNECTIONS: u32 = 65_536;
/// Consumers of one stage's stream. The server refuses a further one, and the run that needs it is told; its own
/// default is 1,000.
pub const MAX_POOLS: i32 = 4_096;
/// Train workers that are members at once, each with a pool of its own; one more is no member until another leaves.
pub const MAX_MEMBERS: usize = 2_048;
/// Bytes of the log in the server. A full one takes no more and work waits: nothing is lost, and the coordinator trims
/// what its snapshots hold. A server with less room for it gets no bound but its own.
pub const MAX_LOG_BYTES: i64 = 64 * 1024 * 1024 * 1024;
/// Bytes of all dead letters. Where they are full, a task that nobody can do stays in the hands of its worker.
pub const MAX_DEAD_BYTES: i64 = 2 * 1024 * 1024 * 1024;
/// Bytes of the server's notices of tasks delivered too often; beyond it the oldest go.
pub const MAX_ADVISORY_BYTES: i64 = 64 * 1024 * 1024;
/// Names of train workers that the server knows heartbeats of; a further one is refused until another was silent for long.
pub const MAX_NAMES: i64 = 2 * MAX_MEMBERS as i64;
/// Bytes of a heartbeat with its key and headers; the server refuses a larger one.
pub const MAX_HEARTBEAT_BYTES: i32 = 16 * 1024;
/// Bytes of one bucket's keys. A write to a full one is tried again until there is room.
pub const MAX_BUCKET_BYTES: i64 = 256 * 1024 * 1024;
/// Milliseconds without a pull after which the server removes a pool's consumer: those of runs that are over and of
/// members that left while no coordinator was there. A live pool that had no worker for so long is made again with
/// all that is outstanding.
pub const IDLE_POOL_MS: u64 = 24 * 3_600_000;
/// Milliseconds that a pull request waits at the server before it is sent anew.
pub const PULL_EXPIRES_MS: u64 = 30_000;
/// Milliseconds in which the log refuses an event with the same id. The fold ignores later ones.
pub const DEDUP_WINDOW_MS: u64 = 120_000;
/// Milliseconds for any request to the queue. Above it the request fails and is tried again.
pub const REQUEST_TIMEOUT_MS: u64 = 10_000;
/// Milliseconds after which the coordinator's lease may be taken by another.
pub const LEASE_MS: u64 = 2_000;
/// Milliseconds between two renewals of the lease, and between two looks of those that wait for it: with
/// [`LEASE_MS`], another acts within 3 s.
pub const LEASE_RENEW_MS: u64 = 250;
/// Milliseconds without progress after which a leader offers its lease to the standbys. Doubled with each hand-over
/// that brought no progress either, [`MAX_LEADER_DOUBLINGS`] times at most.
pub const LEADER_STALL_MS: u64 = 10_000;
/// Doublings of [`LEADER_STALL_MS`]: leaders that all have the same trouble take turns every 11 minutes at last.
pub const MAX_LEADER_DOUBLINGS: u32 = 6;
/// Milliseconds between two signs of life of a worker that trains.
pub const MEMBER_BEAT_MS: u64 = 1_000;
/// Milliseconds of silence after which a worker that trains is a member no more, and the step that it had a part
/// in is void.
pub const MEMBER_MS: u64 = 5_000;
/// Ranks of a gang; above it submit refuses.
pub const MAX_RANKS: u32 = 1_024;
/// Milliseconds in which nothing comes that a run waits for, after which all that is outstanding of it is put again: the
/// queue may have lost a task.
pub const STALL_MS: u64 = 60_000;
/// How often [`STALL_MS`] doubles while nothing comes all the same, for a task may take half an hour.
pub const MAX_STALL_DOUBLINGS: u32 = 5;
/// Rollouts that fail with none finished in between, after which the run is paused: as many as its window has, but within
/// these. A few failures say nothing; more than these are dead letters in vain.
pub const FAILURES_IN_A_ROW: (u64, u64) = (64, 4_096);
/// The same between two steps, in multiples: some are finished, and too few for a batch.
pub const FAILURES_BETWEEN_STEPS: u64 = 16;
/// Dead letters of one step that were only delivered too often, after which the run is paused: until then the step is begun
/// anew. A worker that said why it cannot be done pauses the run at once.
pub const MAX_STEP_LETTERS: u32 = 8;
/// Milliseconds until a step is begun anew after such a letter: the first time, and at most. Each wait is twice the last.
pub const STEP_BACKOFF_MS: (u64, u64) = (2_000, 30_000);
/// Milliseconds between two ticks in the log while a run is live.
pub const TICK_MS: u64 = 1_000;
/// Milliseconds between two reports of a worker's counters.
pub const WORKER_REPORT_MS: u64 = 500;
/// Events folded between two snapshots of the coordinator's state.
pub const SNAPSHOT_EVENTS: u64 = 50_000;
/// Entries of a segment of the log, at most. One is held in memory while it is written or read.
pub const SEGMENT_ENTRIES: usize = 16_384;
/// Bytes of payload after which a segment is full: 16 MiB, of which one object is quickly read for one entry.
pub const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes of a part of a segment before compression; one that says more is not read.
pub const MAX_SEGMENT_RAW_BYTES: u64 = 1024 * 1024 * 1024;
/// Milliseconds that an entry stays in the log before it is trimmed, by the server's clock: longer than any server
/// leaves what it acknowledged unsynced, so that a machine that loses its power never loses what was trimmed behind.
pub const TRIM_AGE_MS: u64 = 600_000;
/// Milliseconds between two looks at whether the log can be trimmed.
pub const TRIM_EVERY_MS: u64 = 60_000;
/// Milliseconds between two collections of the object store.
pub const COLLECT_EVERY_MS: u64 = 1_800_000;
/// Milliseconds that an object stays which nothing leads to, by the store's clock: a day, in which whoever wrote it has
/// long referred to it, or has lost the attempt that it was for.
pub const COLLECT_AGE_MS: u64 = 86_400_000;
/// Milliseconds after which a blob that is written again is not taken for there: it may be collected before it is
/// referred to.
pub const REFRESH_BLOB_MS: u64 = 21_600_000;
/// Objects deleted in one collection; the next goes on.
pub const MAX_COLLECTED: usize = 10_000;
/// Commands that the coordinator has in flight to the queue at once; a lack of acks holds it back.
pub const MAX_COMMANDS_IN_FLIGHT: usize = 1_024;
/// Commands of one run that wait for its lane. A lane that has more forgets them, and does all that is outstanding of
/// its run when it gets on.
pub const MAX_COMMANDS_WAITING: usize = 8_192;
/// Milliseconds for which folding waits for lanes with [`MAX_COMMANDS_WAITING`] before they forget theirs.
pub const LANE_PATIENCE_MS: u64 = 50;
/// Times that the leader tries a command that is refused, with pauses of 5 s in all, before the run is paused.
pub const REFUSALS: u32 = 9;

/// Rollouts in a group. GRPO compares them, so one alone has no signal; above it submit refuses.
pub const MAX_GROUP_SIZE: u32 = 1_024;
/// Groups in a batch; above it submit refuses.
pub const MAX_GROUPS_PER_STEP: u32 = 65_536;
/// Rollouts in flight or waiting to be trained of one run; above it submit refuses. The coordinator holds each, some
/// hundreds of bytes, in memory and in its snapshots.
pub const MAX_ROLLOUTS_IN_FLIGHT: u64 = 262_144;
/// The same of all runs together that are not over; above it submit refuses.
pub const MAX_ROLLOUTS_OF_ALL_RUNS: u64 = 1_048_576;
/// Tokens that these may have in all; above it submit refuses. The log and the object store hold them: 64 GiB.
pub const MAX_TOKENS_IN_FLIGHT: u64 = 1 << 34;
/// Parameters of a model made from scratch; above it submit refuses. In f32 with its optimiser state, 2 TiB.
pub const MAX_MODEL_PARAMETERS: u64 = 1 << 37;
/// Partitions of a run's generate pool; above it submit refuses. Each generate worker asks at each of them.
pub const MAX_PARTITIONS: u32 = 64;
/// Train steps of a run; above it submit refuses.
pub const MAX_STEPS: u64 = 10_000_000;
/// The async ratio; above it submit refuses.
pub const MAX_ALPHA: f64 = 64.0;
/// Turns of a rollout; above it submit refuses.
pub const MAX_TURNS: u32 = 1_000;
/// Tokens sampled in one turn; above it submit refuses.
pub const MAX_NEW_TOKENS: u32 = 1_048_576;
/// Bytes of a path in a run file; a longer one, which no system opens, is refused at submit.
pub const MAX_PATH_BYTES: usize = 4_096;
/// Bytes of a small file of a model, its tokenizer for example; a directory with a larger one is refused.
pub const MAX_COMPANION_BYTES: u64 = 256 * 1024 * 1024;
/// Parameters of a model, more than any that is open; a configuration whose sizes make more is refused before memory is
/// asked for.
pub const MAX_PARAMETERS: u64 = 10_000_000_000_000;
/// Texts that end a turn; above it submit refuses.
pub const MAX_STOP_STRINGS: usize = 16;
/// Bytes of such a text: an engine looks for it at each token. Above it submit refuses.
pub const MAX_STOP_STRING_BYTES: usize = 256;
/// Tokens of a rollout; above it the task is refused as poison.
pub const MAX_CONTEXT_TOKENS: usize = 4_194_304;
/// Tokens of the newest entry of a trajectory that its next task carries along. More are fetched from the log, so that
/// no task needs an object of its own.
pub const MAX_CARRIED_TOKENS: usize = 32_768;
/// Bytes of turns and observations that a process keeps in memory, those last used; others are fetched again.
pub const MAX_CACHED_TRAJECTORY_BYTES: usize = 256 * 1024 * 1024;
/// Entries of the log that one reader fetches at once, and rollouts of a batch that are resolved at once.
pub const FETCHES_IN_FLIGHT: usize = 64;
/// Payloads above [`MAX_INLINE_BYTES`] that are stored or fetched at once: that many times [`MAX_CLAIM_BYTES`] may be in
/// memory at worst, a few MiB each as a rule.
pub const CLAIMS_IN_FLIGHT: usize = 16;
/// A reward's or score's size; an outcome with a larger one is refused. Sums of any number of them are finite.
pub const MAX_REWARD: f64 = 1e12;
/// Measurements of a step, and bytes of the name of one; an outcome with more is refused. A status holds them.
pub const MAX_METRICS: usize = 256;
/// See [`MAX_METRICS`].
pub const MAX_METRIC_NAME_BYTES: usize = 128;
/// Bytes of a field or value that a refusal returns; of a longer one only the beginning.
pub const MAX_SHOWN_BYTES: usize = 200;
/// Runs on one page of a list: a page fits a message with every reason at its longest.
pub const MAX_LISTED_RUNS: usize = 256;
/// Refusals of a run file that are told at once.
pub const MAX_REFUSALS: usize = 100;
/// Bytes of a reason that the state keeps; a worker says no more of a score, and an outcome with more is refused.
pub const MAX_REASON_BYTES: usize = 1_024;
/// Bytes of an environment's state; an outcome with more is refused.
pub const MAX_ENV_STATE_BYTES: usize = 16 * 1024 * 1024;
/// Bytes that are said in one step of an environment; an outcome with more is refused.
pub const MAX_SAID_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of a row of a dataset, which travels with each rollout of it; a file with a longer one is refused before the run
/// begins.
pub const MAX_ROW_BYTES: usize = 1024 * 1024;
/// Files that one rank writes for a version; an outcome with more is refused.
pub const MAX_SHARD_FILES: usize = 1_024;
/// Characters of such a file's name; an outcome with a longer one is refused.
pub const MAX_FILE_NAME_CHARS: usize = 128;
/// Microseconds that one task may have cost, a week; what is said above it counts as this.
pub const MAX_BUSY_US: u64 = 7 * 24 * 3600 * 1_000_000;
/// Rollouts of a run whose turns are kept for others to start from; above it submit refuses.
pub const MAX_STORED_ROLLOUTS: u32 = 1_024;
/// Domains of a run; above it submit refuses.
pub const MAX_DOMAINS: usize = 64;
/// Rewards of a run, or of one of its domains; above it submit refuses.
pub const MAX_REWARDS: usize = 16;
/// Evaluation prompts; above it submit refuses.
pub const MAX_EVALUATE_PROMPTS: u32 = 65_536;
/// Temperatures of an evaluation, each played in turn while no step begins; above it submit refuses.
pub const MAX_EVALUATE_TEMPERATURES: usize = 4;
/// Rollouts of one evaluation prompt; above it submit refuses. Prompts times samples stay below the most prompts.
pub const MAX_EVALUATE_SAMPLES: u32 = 256;
/// Width, layers and vocabulary of a model made from scratch; above it submit refuses.
pub const MAX_MODEL_DIMENSION: u32 = 1_048_576;

const _: () = assert!(MAX_INLINE_EVENT_BYTES + MAX_INLINE_BYTES / 2 < MAX_PAYLOAD_BYTES, "so must an event");
const _: () = assert!(MAX_INLINE_BYTES * 2 < MAX_PAYLOAD_BYTES, "a message and its headers must fit");
const _: () =
    assert!(MAX_CARRIED_TOKENS * 5 < MAX_INLINE_BYTES, "a task with a prefix of many turns stays inline");
const _: () = assert!(MAX_ROW_BYTES <= MAX_SAID_BYTES, "a prompt can be said");
const _: () = assert!(HEARTBEAT_MS * 2 < ACK_WAIT_MS, "one lost sign of life must not cost the lease");
const _: () = assert!(HEARTBEATS >= 3, "a lost sign of life and a late one must not cost the lease");
const _: () = assert!(ACK_WAIT_ONE_MACHINE_MS >= 1_000, "a busy machine is not a dead one");
const _: () = assert!(MEMBER_BEAT_MS * 3 < MEMBER_MS, "two lost signs of life must not cost the membership");
const _: () = assert!(MAX_WORKER_NAME_CHARS + 3 <= MAX_POOL_NAME_CHARS, "each member of a gang has a pool");
const _: () = assert!(MAX_MEMBERS >= MAX_RANKS as usize, "a gang's members are members at once");
const _: () = assert!(
    MAX_NAMES * (MAX_HEARTBEAT_BYTES as i64 + 1_024) < MAX_BUCKET_BYTES,
    "names are the bound of heartbeats, not bytes"
);
const _: () = assert!(MAX_POOLS as usize >= 2 * MAX_MEMBERS, "members leave room for the pools of runs");
const _: () = assert!(IDLE_POOL_MS > 2 * attempt_ms(Stage::TrainShard), "one busy step is no absence");
const _: () = assert!(LEADER_STALL_MS > 2 * LEASE_MS, "a leader has time to make progress");
const _: () = assert!(LEASE_RENEW_MS * 3 < LEASE_MS, "two lost renewals must not cost the lease");
const _: () = assert!(LEASE_MS + 2 * LEASE_RENEW_MS < 3_000, "another coordinator acts within 3 s");
const _: () = assert!(TRIM_AGE_MS > DEDUP_WINDOW_MS, "what the log may be asked of by id is still in it");
const _: () = assert!(
    REFRESH_BLOB_MS + 2 * attempt_ms(Stage::TrainShard) < COLLECT_AGE_MS,
    "what an attempt writes first is young when it ends"
);
