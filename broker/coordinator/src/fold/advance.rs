//! `advance` folds one event into the state and returns the commands that follow.

use millrace_schemas::scale::PoolScale;
use millrace_schemas::{Event, RunId};

use crate::fold::command::{Command, Commands};
use crate::fold::decide::{self, Marks};
use crate::fold::gang::Members;
use crate::fold::intake::{adopt, exhausted, members, outcomes, resume};
use crate::fold::lifecycle::{self, guarded};
use crate::fold::outstanding;
use crate::fold::stages::{submit, train_shard};
use crate::fold::state::{Archived, Run, State};

impl State {
    /// Folds the event at position `seq` of the log into the state. `run` is the run in the entry's
    /// subject. Events at or before the last folded position change nothing.
    pub fn advance(&mut self, seq: u64, run: &str, event: Event) -> Commands {
        self.fold_event(seq, run, event, false)
    }

    /// The same; the commands also report what happened, for traces.
    pub fn advance_and_report(&mut self, seq: u64, run: &str, event: Event) -> Commands {
        self.fold_event(seq, run, event, true)
    }

    fn fold_event(&mut self, seq: u64, run: &str, event: Event, reports: bool) -> Commands {
        let mut out = Commands::new();
        if seq <= self.seq {
            return out;
        }
        self.seq = seq;
        let id: Option<RunId> = run.parse().ok();
        match event {
            Event::Submitted(spec) => {
                let id = submit::submitted(self, *spec, &mut out);
                let Self { runs, members, .. } = self;
                if let Some(run) = id.and_then(|id| runs.get_mut(&id)) {
                    fold(run, members, &mut out, reports, |run, _, out| submit::first_step(run, out));
                }
            }
            Event::Archived => self.archive(id),
            Event::Joined { worker, instance } => {
                members::joined(self, worker, instance, &mut out);
                self.every_run(&mut out, reports, train_shard::restart_if_member_lost);
            }
            Event::Left { worker, instance } => {
                members::left(self, &worker, &instance, &mut out);
                self.every_run(&mut out, reports, train_shard::restart_if_member_lost);
            }
            Event::Tick { unix_ms } => {
                let went_by = unix_ms.saturating_sub(self.unix_ms);
                self.unix_ms = unix_ms;
                self.every_run(&mut out, reports, |run, _, out| tick(run, unix_ms, went_by, out));
            }
            Event::Scaled(scaled) => PoolScale::record(&mut self.scaling, *scaled),
            Event::Outcome(_)
            | Event::DeadLetter { .. }
            | Event::Requeued { .. }
            | Event::Adopted(_)
            | Event::Paused { .. }
            | Event::Resumed
            | Event::Cancelled { .. } => {
                let Self { runs, members, ignored, .. } = self;
                match id.and_then(|id| runs.get_mut(&id)) {
                    Some(run) => {
                        fold(run, members, &mut out, reports, |run, _, out| of_run(run, seq, event, out))
                    }
                    None => *ignored += 1,
                }
            }
        }
        out
    }

    /// Folds an event that concerns every run.
    fn every_run(
        &mut self,
        out: &mut Commands,
        reports: bool,
        take_in: impl Fn(&mut Run, &Members, &mut Commands),
    ) {
        let Self { runs, members, .. } = self;
        runs.values_mut().for_each(|run| fold(run, members, out, reports, &take_in));
    }

    /// Replaces a run that is over by a summary.
    fn archive(&mut self, id: Option<RunId>) {
        let id = id.filter(|id: &RunId| self.runs.get(id).is_some_and(Run::is_closed));
        match id.and_then(|id| self.runs.remove_entry(&id)) {
            Some((id, run)) => {
                self.archived.insert(id, Archived::of(&run));
            }
            None => self.ignored += 1,
        }
    }

    /// Whether to fold an entry that a leader of this epoch wrote. An entry that follows one of a
    /// later epoch is skipped (fencing).
    pub fn admits(&mut self, seq: u64, epoch: Option<u64>) -> bool {
        let late = epoch.is_some_and(|epoch| epoch < self.epoch);
        self.epoch = self.epoch.max(epoch.unwrap_or(0));
        if late {
            self.skip(seq);
        }
        !late
    }

    /// Counts an entry of the log that could not be read. The entry itself is kept as a dead
    /// letter.
    pub fn skip(&mut self, seq: u64) {
        if seq > self.seq {
            self.seq = seq;
            self.ignored += 1;
        }
    }
}

/// Applies an event to one run, then decides what follows.
fn fold(
    run: &mut Run,
    members: &Members,
    out: &mut Commands,
    reports: bool,
    take_in: impl FnOnce(&mut Run, &Members, &mut Commands),
) {
    run.books.milestones.ask(reports);
    let before = Marks::of(run);
    guarded(run, out, |run, out| take_in(run, members, out));
    guarded(run, out, |run, out| decide::follow(run, before, members, out));
    lifecycle::stamp_end(run);
    lifecycle::hold_back(run, out);
    let milestones = run.books.milestones.take();
    if !milestones.is_empty() {
        out.push(Command::Report { run: run.spec.name.clone(), milestones });
    }
}

/// Applies an event that concerns one run.
fn of_run(run: &mut Run, seq: u64, event: Event, out: &mut Commands) {
    match event {
        Event::Outcome(outcome) => outcomes::outcome(run, seq, outcome, out),
        Event::DeadLetter { key, reason, exhausted } => {
            outcomes::dead_letter(run, key, &reason, exhausted, out);
        }
        Event::Requeued { key } => resume::requeued(run, key, out),
        Event::Adopted(adopted) => adopt::adopted(run, &adopted, out),
        Event::Paused { reason, remedy } => lifecycle::pause(run, &reason, &remedy, out),
        Event::Resumed => resume::resume(run, out),
        Event::Cancelled { reason } => lifecycle::cancel(run, &reason, out),
        Event::Submitted(_)
        | Event::Archived
        | Event::Joined { .. }
        | Event::Left { .. }
        | Event::Scaled(_)
        | Event::Tick { .. } => {}
    }
}

/// Advances a run's time by the milliseconds since the last tick, `went_by`. If the clock is set
/// back, the run's time does not go back or stop: the next tick counts from the new reading. A run
/// that waited too long for all of its tasks may have lost one in the queue: all outstanding tasks
/// are requeued.
fn tick(run: &mut Run, unix_ms: u64, went_by: u64, out: &mut Commands) {
    if run.started_unix_ms == 0 {
        run.started_unix_ms = unix_ms;
    } else {
        run.at_ms = run.at_ms.saturating_add(went_by);
    }
    if run.has_stalled() {
        outstanding::of_run(run, out);
    }
    exhausted::restart_if_due(run, out);
}
