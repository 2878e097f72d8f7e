//! `advance`: one event in, the state moved on, commands out. One file per stage says what happens next.

use millrace_schemas::limits::MAX_BUSY_US;
use millrace_schemas::outcome::MalformedOutcome;
use millrace_schemas::{Event, Outcome, OutcomeBody, RunId, TaskKey};

use crate::command::Commands;
use crate::gang::Members;
use crate::state::{Run, State};

pub mod submit;
pub mod generate;
pub mod env_step;
pub mod reward;
pub mod train_shard;
pub mod publish_weights;

pub mod adopt;
pub mod admit;
pub mod members;
pub mod evaluate;
pub mod finish;
pub mod play;
pub mod rows;
pub mod seeds;

impl State {
    /// Folds the event at position `seq` of the log, which its subject says is about `run`, into the state.
    /// Events at or before the last folded position change nothing.
    pub fn advance(&mut self, seq: u64, run: &str, event: Event) -> Commands {
        let mut out = Commands::new();
        if seq <= self.seq {
            return out;
        }
        self.seq = seq;
        match event {
            Event::Submitted(spec) => submit::submitted(self, *spec, &mut out),
            Event::Joined { worker, instance } => members::joined(self, worker, instance, &mut out),
            Event::Left { worker, instance } => members::left(self, &worker, &instance, &mut out),
            Event::Tick { unix_ms } => self.tick(unix_ms),
            Event::Outcome(outcome) => self.with_run(run, |run| on_outcome(run, outcome, &mut out)),
            Event::DeadLetter { key, reason } => {
                self.with_run(run, |run| on_dead_letter(run, key, &reason, &mut out));
            }
            Event::Requeued { key } => self.with_run(run, |run| finish::revive(run, key, &mut out)),
            Event::Adopted(adopted) => self.with_run(run, |run| adopt::adopted(run, &adopted, &mut out)),
            Event::Paused { reason, remedy } => {
                self.with_run(run, |run| finish::pause(run, reason, remedy, &mut out));
            }
            Event::Resumed => self.with_run(run, |run| finish::resume(run, &mut out)),
            Event::Cancelled { reason } => self.with_run(run, |run| finish::cancel(run, &reason, &mut out)),
        }
        let Self { runs, members, .. } = self;
        match run.parse().ok().and_then(|id: RunId| runs.get_mut(&id)) {
            Some(run) => settle(run, members, &mut out),
            // Time and members concern every run.
            None => runs.values_mut().for_each(|run| settle(run, members, &mut out)),
        }
        out
    }

    /// Counts an entry of the log that could not be read; it is with the dead letters.
    pub fn skip(&mut self, seq: u64) {
        if seq > self.seq {
            self.seq = seq;
            self.ignored += 1;
        }
    }

    fn with_run(&mut self, run: &str, then: impl FnOnce(&mut Run)) {
        match run.parse().ok().and_then(|id: RunId| self.runs.get_mut(&id)) {
            Some(run) => then(run),
            None => self.ignored += 1,
        }
    }

    /// What went by since the last tick goes by for every run. A clock that is set back does not turn time back, and
    /// does not stop it either: what follows is counted from there.
    fn tick(&mut self, unix_ms: u64) {
        let went_by = unix_ms.saturating_sub(self.unix_ms);
        self.unix_ms = unix_ms;
        for run in self.runs.values_mut() {
            if run.started_unix_ms == 0 {
                run.started_unix_ms = unix_ms;
            } else {
                run.at_ms = run.at_ms.saturating_add(went_by);
            }
        }
    }
}

/// What follows from a run's state, whatever the event was.
fn settle(run: &mut Run, members: &Members, out: &mut Commands) {
    train_shard::seat(run, members, out);
    finish::stamp_end(run);
    finish::hold_back(run, out);
}

/// The first outcome of a task that is waited for moves the run on; any other is counted and forgotten.
fn on_outcome(run: &mut Run, outcome: Outcome, out: &mut Commands) {
    let malformed = outcome.check().err();
    let Outcome { key, busy_us, answers, body, .. } = outcome;
    // Whatever a worker says, a sum stays a number.
    let busy_us = busy_us.min(MAX_BUSY_US);
    let busy = run.books.busy_us.entry(key.stage()).or_default();
    *busy = busy.saturating_add(busy_us);
    if run.is_closed() {
        run.books.late_outcomes += 1;
        return;
    }
    if let Some(malformed) = malformed {
        return on_malformed(run, key, &malformed, out);
    }
    match (key, body) {
        (TaskKey::TrainShard { .. }, OutcomeBody::TrainShard(done)) => {
            train_shard::done(run, key, answers, done, out);
        }
        (TaskKey::PublishWeights { .. }, OutcomeBody::PublishWeights(done)) => {
            publish_weights::done(run, key, &done, out);
        }
        (TaskKey::TrainShard { .. }, OutcomeBody::Void(void)) => {
            train_shard::void(run, key, &void, out);
        }
        (TaskKey::TrainShard { .. } | TaskKey::PublishWeights { .. }, _) => run.books.late_outcomes += 1,
        (TaskKey::Generate { .. } | TaskKey::EnvStep { .. } | TaskKey::Reward { .. }, body) => {
            play::on_outcome(run, key, (busy_us, answers), body, out);
        }
    }
}

/// An outcome that cannot be true is what a task is that nobody can do, if it is waited for.
fn on_malformed(run: &mut Run, key: TaskKey, malformed: &MalformedOutcome, out: &mut Commands) {
    let awaited = match key {
        TaskKey::Generate { .. } | TaskKey::EnvStep { .. } | TaskKey::Reward { .. } => play::awaits(run, key),
        TaskKey::TrainShard { .. } => train_shard::is_awaited(run, key),
        TaskKey::PublishWeights { .. } => publish_weights::is_awaited(run, key),
    };
    if !awaited {
        run.books.late_outcomes += 1;
        return;
    }
    run.books.refused_outcomes += 1;
    on_dead_letter(run, key, &format!("its outcome is refused: {malformed}"), out);
}

/// A rollout is replaced, or its group dropped; a step that nobody can do pauses the run.
fn on_dead_letter(run: &mut Run, key: TaskKey, reason: &str, out: &mut Commands) {
    if run.is_closed() {
        return;
    }
    match key {
        TaskKey::Generate { .. } | TaskKey::EnvStep { .. } | TaskKey::Reward { .. } => {
            play::on_failure(run, key, reason, out);
        }
        TaskKey::TrainShard { .. } | TaskKey::PublishWeights { .. } => {
            if train_shard::is_awaited(run, key) || publish_weights::is_awaited(run, key) {
                finish::halt(run, key, reason, out);
            }
        }
    }
}
