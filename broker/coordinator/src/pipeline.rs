//! `advance`: one event in, the state moved on, commands out. One file per stage says what happens next.

use std::panic::{AssertUnwindSafe, catch_unwind};

use millrace_schemas::limits::MAX_BUSY_US;
use millrace_schemas::outcome::MalformedOutcome;
use millrace_schemas::{Event, Outcome, OutcomeBody, RunId, TaskKey};

use crate::command::{Command, Commands};
use crate::gang::Members;
use crate::outstanding;
use crate::state::{Archived, Run, State};

pub mod submit;
pub mod generate;
pub mod env_step;
pub mod reward;
pub mod train_shard;
mod worn;
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
            Event::Tick { unix_ms } => self.tick(unix_ms, &mut out),
            Event::Archived => self.archive(run),
            Event::Outcome(_)
            | Event::DeadLetter { .. }
            | Event::Requeued { .. }
            | Event::Adopted(_)
            | Event::Paused { .. }
            | Event::Resumed
            | Event::Cancelled { .. } => {
                match run.parse().ok().and_then(|id: RunId| self.runs.get_mut(&id)) {
                    Some(run) => guarded(run, &mut out, |run, out| of_run(run, seq, event, out)),
                    None => self.ignored += 1,
                }
            }
        }
        let Self { runs, members, .. } = self;
        match run.parse().ok().and_then(|id: RunId| runs.get_mut(&id)) {
            Some(run) => settle(run, members, &mut out),
            // Time and members concern every run.
            None => runs.values_mut().for_each(|run| settle(run, members, &mut out)),
        }
        out
    }

    /// Keeps no more than a summary of a run that is over.
    fn archive(&mut self, run: &str) {
        let id = run.parse().ok().filter(|id: &RunId| self.runs.get(id).is_some_and(Run::is_closed));
        match id.and_then(|id| self.runs.remove_entry(&id)) {
            Some((id, run)) => {
                self.archived.insert(id, Archived::of(&run));
            }
            None => self.ignored += 1,
        }
    }

    /// Whether an entry of a leader of this epoch counts. Where a later one wrote before it does not: the entry is
    /// passed over.
    pub fn admits(&mut self, seq: u64, epoch: Option<u64>) -> bool {
        let late = epoch.is_some_and(|epoch| epoch < self.epoch);
        self.epoch = self.epoch.max(epoch.unwrap_or(0));
        if late {
            self.skip(seq);
        }
        !late
    }

    /// Counts an entry of the log that could not be read; it is with the dead letters.
    pub fn skip(&mut self, seq: u64) {
        if seq > self.seq {
            self.seq = seq;
            self.ignored += 1;
        }
    }

    /// What went by since the last tick goes by for every run. A clock that is set back does not turn time back, and
    /// does not stop it either: what follows is counted from there. Of a run for which nothing that it waits for came for long,
    /// the queue may have lost a task: all that is outstanding of it is put again.
    fn tick(&mut self, unix_ms: u64, out: &mut Commands) {
        let went_by = unix_ms.saturating_sub(self.unix_ms);
        self.unix_ms = unix_ms;
        for run in self.runs.values_mut() {
            if run.started_unix_ms == 0 {
                run.started_unix_ms = unix_ms;
            } else {
                run.at_ms = run.at_ms.saturating_add(went_by);
            }
            if run.has_stalled() {
                guarded(run, out, |run, out| outstanding::of_run(run, out));
            }
            guarded(run, out, worn::begin_anew_if_due);
        }
    }
}

/// Moves one run on. A defect of the fold, or a log that another version wrote, closes that run alone.
pub(crate) fn guarded(run: &mut Run, out: &mut Commands, then: impl FnOnce(&mut Run, &mut Commands)) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| then(run, out))) {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
        finish::quarantine(run, words.unwrap_or("a panic without words"), out);
    }
}

/// An event that concerns one run.
fn of_run(run: &mut Run, seq: u64, event: Event, out: &mut Commands) {
    match event {
        Event::Outcome(outcome) => on_outcome(run, seq, outcome, out),
        Event::DeadLetter { key, reason, exhausted } => on_dead_letter(run, key, &reason, exhausted, out),
        Event::Requeued { key } => finish::revive(run, key, out),
        Event::Adopted(adopted) => adopt::adopted(run, &adopted, out),
        Event::Paused { reason, remedy } => finish::pause(run, &reason, &remedy, out),
        Event::Resumed => finish::resume(run, out),
        Event::Cancelled { reason } => finish::cancel(run, &reason, out),
        Event::Submitted(_)
        | Event::Archived
        | Event::Joined { .. }
        | Event::Left { .. }
        | Event::Tick { .. } => {}
    }
}

/// What follows from a run's state, whatever the event was.
fn settle(run: &mut Run, members: &Members, out: &mut Commands) {
    guarded(run, out, |run, out| train_shard::seat(run, members, out));
    finish::stamp_end(run);
    finish::hold_back(run, out);
}

/// The first outcome of a task that is waited for moves the run on; any other is counted as late and forgotten.
fn on_outcome(run: &mut Run, seq: u64, outcome: Outcome, out: &mut Commands) {
    let late = run.books.late_outcomes;
    take_in(run, seq, outcome, out);
    if run.books.late_outcomes == late {
        run.moved();
    }
}

fn take_in(run: &mut Run, seq: u64, outcome: Outcome, out: &mut Commands) {
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
        (key, OutcomeBody::Returned(_)) => put_again(run, key, out),
        (TaskKey::TrainShard { .. }, OutcomeBody::TrainShard(done)) => {
            train_shard::done(run, key, answers, done, out);
        }
        (TaskKey::PublishWeights { .. }, OutcomeBody::PublishWeights(done)) => {
            publish_weights::done(run, key, answers, &done, out);
        }
        (TaskKey::TrainShard { .. }, OutcomeBody::Void(void)) => {
            train_shard::void(run, key, &void, out);
        }
        (TaskKey::TrainShard { .. } | TaskKey::PublishWeights { .. }, _) => run.books.late_outcomes += 1,
        (TaskKey::Generate { .. } | TaskKey::EnvStep { .. } | TaskKey::Reward { .. }, body) => {
            play::on_outcome(run, key, (seq, busy_us, answers), body, out);
        }
    }
}

fn is_awaited(run: &Run, key: TaskKey) -> bool {
    match key {
        TaskKey::Generate { .. } | TaskKey::EnvStep { .. } | TaskKey::Reward { .. } => play::awaits(run, key),
        TaskKey::TrainShard { .. } => train_shard::is_awaited(run, key),
        TaskKey::PublishWeights { .. } => publish_weights::is_awaited(run, key),
    }
}

/// A task was given back and taken out of the queue.
fn put_again(run: &mut Run, key: TaskKey, out: &mut Commands) {
    if !is_awaited(run, key) {
        run.books.late_outcomes += 1;
        return;
    }
    run.books.returned += 1;
    let mut all = Commands::new();
    match key.rollout() {
        Some(id) => play::put_rollout(run, id, &mut all),
        None => train_shard::put(run, &mut all),
    }
    all.retain(|command| matches!(command, Command::PutTask(task) if task.key == key));
    out.append(&mut all);
}

/// An outcome that cannot be true is what a task is that nobody can do, if it is waited for.
fn on_malformed(run: &mut Run, key: TaskKey, malformed: &MalformedOutcome, out: &mut Commands) {
    if !is_awaited(run, key) {
        run.books.late_outcomes += 1;
        return;
    }
    run.books.refused_outcomes += 1;
    on_dead_letter(run, key, &format!("its outcome is refused: {malformed}"), false, out);
}

/// A rollout is replaced, or its group dropped. A step that wore out is begun anew later; one of which a worker said that it
/// cannot be done pauses the run.
fn on_dead_letter(run: &mut Run, key: TaskKey, reason: &str, exhausted: bool, out: &mut Commands) {
    if run.is_closed() {
        return;
    }
    match key {
        TaskKey::Generate { .. } | TaskKey::EnvStep { .. } | TaskKey::Reward { .. } => {
            play::on_dead_letter(run, key, reason, out);
        }
        TaskKey::TrainShard { .. } | TaskKey::PublishWeights { .. } => {
            if !is_awaited(run, key) {
                return;
            }
            run.moved();
            if exhausted {
                worn::wear_out(run, key, reason, out);
            } else {
                finish::halt(run, key, reason, out);
            }
        }
    }
}
