//! A run is submitted: its pools are created, and the task that makes version 0 is queued.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use millrace_schemas::api::RunState;
use millrace_schemas::limits::MAX_REASON_BYTES;
use millrace_schemas::notice::Notice;
use millrace_schemas::text::cut;
use millrace_schemas::{PolicyVersion, RunId, RunSpec};

use crate::fold::books::{Books, DomainBooks};
use crate::fold::command::{Command, Commands};
use crate::fold::gang::Gang;
use crate::fold::milestone::Milestone;
use crate::fold::pools::ensure_pools;
use crate::fold::stages::train_shard;
use crate::fold::state::{Archived, ExhaustedStep, Failures, Progress, RankAssignment, Run, State, Training};
use crate::fold::stored::StoredTurns;

/// The step that makes version 0 of a run that was submitted.
pub(crate) fn first_step(run: &mut Run, out: &mut Commands) {
    run.books.milestones.add(|| Milestone::Cut { makes: PolicyVersion(0), rollouts: Vec::new() });
    train_shard::put(run, out);
}

/// Why a run is refused. So is one whose check panics: each coordinator in turn would end of it.
fn refusal(state: &State, spec: &RunSpec) -> Option<String> {
    let refusals = catch_unwind(AssertUnwindSafe(|| state.refusals(spec)));
    match refusals {
        Ok(refusals) => refusals.first().map(ToString::to_string),
        Err(_) => Some("the check of the run file panicked".to_owned()),
    }
}

/// Adds a submitted run and returns its name. A second run of the same name changes nothing. A run
/// that the API would refuse is archived as failed: an older version's API may have accepted it.
pub(crate) fn submitted(state: &mut State, spec: RunSpec, out: &mut Commands) -> Option<RunId> {
    if state.knows(&spec.name) {
        state.ignored += 1;
        return None;
    }
    if let Some(refusal) = refusal(state, &spec) {
        state.ignored += 1;
        let reason = Some(cut(&refusal, MAX_REASON_BYTES).to_owned());
        let (version, steps) = (PolicyVersion(0), spec.steps);
        // An older version may have made versions of it.
        let refused = Archived { state: RunState::Failed, reason, version, steps, retention: None };
        state.archived.insert(spec.name, refused);
        return None;
    }
    // The log has no ticks while no run is live, so the last tick may be long ago: the run then
    // starts with the next one.
    let ticks = state.runs.values().any(|run| !run.state.is_over());
    ensure_pools(&spec, out);
    out.push(Command::Notice(Box::new(Notice::Submitted { run: spec.name.clone() })));
    let name = spec.name.clone();
    let run = Run {
        config: spec.hash(),
        state: RunState::Starting,
        reason: None,
        remedy: None,
        broken: None,
        policy: None,
        reference: None,
        next_group: 0,
        next_prompt: 0,
        stored: StoredTurns::default(),
        groups: BTreeMap::new(),
        ready: Vec::new(),
        held_since_ms: None,
        filtered_since_step: 0,
        training: Some(Training {
            makes: PolicyVersion(0),
            attempt: 0,
            // One worker alone makes version 0.
            ranks: RankAssignment::anyone(),
            groups: Vec::new(),
            batch: None,
            manifest: None,
            shards: BTreeMap::new(),
        }),
        gang: Gang::default(),
        evaluation: None,
        evaluated: BTreeSet::new(),
        progress: Progress::default(),
        failures: Failures::default(),
        exhausted: ExhaustedStep::default(),
        books: Books { domains: vec![DomainBooks::default(); spec.domains.len()], ..Books::default() },
        started_unix_ms: if ticks { state.unix_ms } else { 0 },
        at_ms: 0,
        ended_unix_ms: 0,
        spec,
    };
    // The run may have committed version 0 before the log lost its newest part.
    out.push(Command::Adopt { run: name.clone(), version: PolicyVersion(0) });
    state.runs.insert(name.clone(), run);
    Some(name)
}
