//! A harness around the fold: a queue that holds each subject once, workers whose request_fingerprint follow
//! from the task, and a log. No clock, no threads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millrace_coordinator::fold::{Command, State, outstanding};
use millrace_schemas::blob::Sha;
use millrace_schemas::env_step::{EnvAction, EnvStepDone};
use millrace_schemas::generate::{Finish, GenerateDone, Segment};
use millrace_schemas::notice::Notice;
use millrace_schemas::policy::Policy;
use millrace_schemas::reward::RewardDone;
use millrace_schemas::train_shard::{Batch, FileRef, TrainShardDone, TrainWork};
use millrace_schemas::{
    BlobRef, EntryRef, Event, Outcome, OutcomeBody, PolicyVersion, PoolName, RunSpec, Stage, Task, TaskBody,
    TaskKey,
};

/// A worker's outcome of a task.
pub(crate) fn outcome(key: TaskKey, request_fingerprint: Option<u64>, body: OutcomeBody) -> Event {
    let worker = "w".parse().expect("a name");
    Event::Outcome(Outcome { key, worker, busy_us: 10, request_fingerprint, body })
}

/// An engine's turn. `segments` are versions and the number of tokens that each sampled.
pub(crate) fn turn(tokens: &[u32], logprobs: &[f32], segments: &[(u64, u32)]) -> OutcomeBody {
    let segment =
        |(version, tokens): &(u64, u32)| Segment { version: PolicyVersion(*version), tokens: *tokens };
    OutcomeBody::Generate(GenerateDone {
        tokens: tokens.to_vec(),
        logprobs: logprobs.to_vec(),
        segments: segments.iter().map(segment).collect(),
        ..GenerateDone::begun(0)
    })
}

/// The fold with a queue and a log.
#[derive(Default)]
pub(crate) struct Harness {
    /// The coordinator's state; lost and rebuilt at a restart.
    pub(crate) state: State,
    /// Every event, in order.
    pub(crate) log: Vec<Event>,
    /// Queued tasks by name. A key may be queued under one subject at a time here.
    pub(crate) queue: BTreeMap<String, Task>,
    /// Tasks whose outcome is in the log.
    pub(crate) settled: BTreeSet<TaskKey>,
    /// Blobs by hash.
    pub(crate) blobs: BTreeMap<Sha, bytes::Bytes>,
    /// The newest policy set.
    pub(crate) policy: Option<Policy>,
    /// Each policy version set, in order.
    pub(crate) versions: Vec<PolicyVersion>,
    /// Staleness of every rollout in every batch that was trained.
    pub(crate) staleness: Vec<u64>,
    /// Numbers of commands after which the coordinator is killed and restarted; empty for never.
    pub(crate) restart_every: usize,
    /// Pools that have a consumer.
    pub(crate) pools: BTreeSet<(Stage, PoolName)>,
    /// Notices, in order.
    pub(crate) notices: Vec<Notice>,
    /// Numbers that each observation and each state of an environment has besides.
    pub(crate) padding: usize,
    /// What an observation after so many turns follows.
    pub(crate) follows: [Option<u32>; 4],
    commands: usize,
}

pub(crate) const RUN: &str = "fold";

impl Harness {
    pub(crate) fn submit(spec: &RunSpec, restart_every: usize) -> Self {
        let mut harness = Self { restart_every, ..Self::default() };
        harness.append(Event::Tick { unix_ms: 1_000_000 });
        harness.append(Event::Submitted(Box::new(spec.clone())));
        harness.append(Event::Tick { unix_ms: 1_001_000 });
        harness
    }

    pub(crate) fn append(&mut self, event: Event) {
        self.log.push(event.clone());
        let commands = self.state.advance(self.log.len() as u64, RUN, event);
        self.execute(commands);
    }

    fn execute(&mut self, commands: Vec<Command>) {
        for command in commands {
            self.commands += 1;
            if self.restart_every > 0 && self.commands.is_multiple_of(self.restart_every) {
                // Killed before this command: the rest is lost, and is redone from the state alone.
                self.restart();
                return;
            }
            self.obey(command);
        }
    }

    /// The coordinator is lost. Another folds the log and executes the outstanding commands.
    pub(crate) fn restart(&mut self) {
        self.state = replay(&self.log);
        for command in outstanding::of(&self.state) {
            self.obey(command);
        }
    }

    /// Coordinator and queue are lost. Another coordinator starts from a snapshot of the first
    /// `cut` events and the rest of the log, with an empty queue.
    pub(crate) fn lose_all(&mut self, cut: usize) {
        self.queue.clear();
        let snapshot = millrace_schemas::envelope::encode(&replay(&self.log[..cut]));
        self.state = millrace_schemas::envelope::decode("state", &snapshot).expect("a snapshot");
        for (event, seq) in self.log.iter().zip(1..) {
            self.state.advance(seq, RUN, event.clone());
        }
        for command in outstanding::of(&self.state) {
            self.obey(command);
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::PutTask(task) => {
                // By its subject: a queued task is not queued twice.
                self.queue.entry(format!("{}.{}", task.key, task.version)).or_insert(*task);
            }
            Command::PutBlob { content, .. } => {
                self.blobs.insert(Sha::of(&content), content);
            }
            Command::Purge { filter, .. } => self.purge(&filter),
            Command::SetPolicy { policy, .. } => {
                let order = |policy: &Policy| (policy.version, policy.attempt);
                assert!(self.policy.as_ref().is_none_or(|old| order(old) <= order(&policy)), "went back");
                if self.versions.last() != Some(&policy.version) {
                    self.versions.push(policy.version);
                }
                self.policy = Some(policy);
            }
            Command::Notice(notice) => self.notices.push(*notice),
            Command::EnsurePools { pools, .. } => self.pools.extend(pools),
            Command::RemovePools(pools) => self.pools.retain(|pool| !pools.contains(pool)),
            Command::Adopt { .. } | Command::EnsurePartitions { .. } => {}
            Command::Report { .. } => panic!("nobody asked for reports"),
        }
    }

    fn purge(&mut self, filter: &str) {
        let mut tokens = filter.split('.').skip(2);
        let stage = tokens.next().expect("a stage").to_owned();
        let version = tokens.nth(2).filter(|token| *token != ">").map(str::to_owned);
        self.queue.retain(|_, task| {
            task.stage().name() != stage || version.as_ref().is_some_and(|v| *v != task.version.to_string())
        });
    }

    /// One worker does the first task in the order of keys; `false` if there is none.
    pub(crate) fn work(&mut self) -> bool {
        let Some((_, task)) = self.queue.pop_first() else { return false };
        let policy = self.policy.clone();
        if policy.as_ref().is_some_and(|policy| policy.is_stale(task.key, task.version, task.evaluate)) {
            return true;
        }
        self.finish(&task);
        true
    }

    /// The outcome of `task` goes to the log.
    pub(crate) fn finish(&mut self, task: &Task) {
        let body = self.answer(task);
        self.settled.insert(task.key);
        self.append(outcome(task.key, Some(task.request_fingerprint()), body));
    }

    /// A worker appends the outcome of a task.
    pub(crate) fn say(&mut self, key: TaskKey, body: OutcomeBody) {
        self.append(outcome(key, None, body));
    }

    /// The log entry that `entry` refers to; `None` if another entry is there.
    fn entry(&self, entry: &EntryRef) -> Option<Arc<OutcomeBody>> {
        let Event::Outcome(outcome) = self.log.get(entry.seq as usize - 1)? else { return None };
        let found = EntryRef::of(entry.seq, &outcome.body)?;
        (found == *entry).then(|| Arc::new(outcome.body.clone()))
    }

    /// The task as a worker does it, with its references resolved.
    pub(crate) fn resolved(&self, task: &Task) -> Task {
        let mut task = task.clone();
        task.resolve(|entry| self.entry(entry)).expect("what a task names is in the log");
        task
    }

    /// A batch as a trainer sees it; `None` if it is not a batch.
    pub(crate) fn batch(&self, content: &[u8]) -> Option<Batch> {
        let mut batch: Batch = millrace_schemas::envelope::decode("batch", content).ok()?;
        for rollout in batch.groups.iter_mut().flat_map(|group| &mut group.rollouts) {
            rollout.resolve(|entry| self.entry(entry)).expect("what a batch names is in the log");
        }
        Some(batch)
    }

    /// All batches, as trainers see them.
    pub(crate) fn batches(&self) -> impl Iterator<Item = Batch> {
        self.blobs.values().filter_map(|content| self.batch(content))
    }

    /// The outcome of `task`.
    pub(crate) fn answer(&mut self, task: &Task) -> OutcomeBody {
        let task = &self.resolved(task);
        let version = self.policy.as_ref().map(|policy| policy.version).unwrap_or_default();
        match &task.body {
            TaskBody::Generate(generate) => {
                let token = (generate.seed % 97) as u32;
                let mut done = generate.clone().turn_so_far();
                done.push(token, -0.5, version);
                if generate.sampling.cuts() {
                    done.uncut_logprobs.push(-0.25);
                }
                done.finish = Finish::Length;
                OutcomeBody::Generate(done)
            }
            TaskBody::EnvStep(step) => {
                let (turn, token) = match &step.action {
                    EnvAction::Reset => (0, 0),
                    EnvAction::Step { state, tokens } => (state[0] + 1, tokens[0]),
                };
                let done = turn > 0 && (turn >= 3 || token.is_multiple_of(4));
                let success = done && token.is_multiple_of(2);
                let padding = self.padding;
                OutcomeBody::EnvStep(EnvStepDone {
                    state: [vec![turn], vec![0; padding]].concat(),
                    observation: [vec![u32::from(turn), 7], vec![7; padding]].concat(),
                    reward: f64::from(u8::from(success)),
                    done,
                    success,
                    valid: true,
                    said: Vec::new(),
                    row: match (&step.action, step.row) {
                        (EnvAction::Reset, Some(row)) => {
                            [("answer".to_owned(), row.to_string().into())].into()
                        }
                        _ => [].into(),
                    },
                    follows: self.follows[usize::from(turn)],
                    ..EnvStepDone::default()
                })
            }
            TaskBody::Reward(reward) => {
                let score = reward.turns.iter().map(|turn| turn.reward).sum();
                OutcomeBody::Reward(RewardDone { score, ..RewardDone::default() })
            }
            TaskBody::TrainShard(shard) => self.train(task.key, &shard.work),
            TaskBody::PublishWeights(publish) => OutcomeBody::PublishWeights(publish.committed(1)),
        }
    }

    fn train(&mut self, key: TaskKey, work: &TrainWork) -> OutcomeBody {
        if let TrainWork::Step { base, batch, .. } = work {
            let content = self.blobs.get(&batch.sha256).expect("the batch is stored before its task is put");
            let batch = self.batch(content).expect("a batch");
            assert_eq!(batch.base, *base);
            let rollouts = batch.groups.iter().flat_map(|group| &group.rollouts);
            self.staleness.extend(rollouts.map(|rollout| base.staleness(rollout.start_version)));
        }
        let blob = BlobRef::of(key.to_string().as_bytes());
        let files = vec![FileRef::whole("model", blob)];
        OutcomeBody::TrainShard(TrainShardDone { files, metrics: BTreeMap::new() })
    }

    pub(crate) fn run(&self) -> &millrace_coordinator::fold::state::Run {
        self.state.runs.values().next().expect("the run was submitted")
    }
}

/// The state that a log folds into.
pub(crate) fn replay(log: &[Event]) -> State {
    let mut state = State::default();
    for (event, seq) in log.iter().zip(1..) {
        state.advance(seq, RUN, event.clone());
    }
    state
}
