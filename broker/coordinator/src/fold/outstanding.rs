//! The commands that are outstanding, from the state alone. A coordinator that starts or takes over
//! executes all of them. Repeating a command is harmless.

use millrace_schemas::PolicyVersion;

use crate::fold::command::{Command, Commands};
use crate::fold::stages::train_shard;
use crate::fold::state::{Run, State};
use crate::fold::{pools, purge, tasks};

/// Everything outstanding.
#[must_use]
pub fn of(state: &State) -> Commands {
    let mut out = of_all(state);
    for run in state.runs.values() {
        of_run(run, &mut out);
    }
    out
}

/// Everything outstanding that belongs to no run.
#[must_use]
pub fn of_all(state: &State) -> Commands {
    let mut out = Commands::new();
    if !state.members.is_empty() {
        let pools = state.members.keys().map(pools::member_pool).collect();
        out.push(Command::EnsurePools { run: None, pools });
    }
    out
}

/// Everything outstanding of one run.
pub fn of_run(run: &Run, out: &mut Commands) {
    if let Some(policy) = &run.policy {
        out.push(Command::SetPolicy { run: run.spec.name.clone(), policy: policy.clone() });
    }
    if !run.state.works() {
        purge::all(run, out);
        return;
    }
    pools::ensure_pools(&run.spec, out);
    let ranks = run.training.iter().filter_map(|training| training.ranks.as_ref());
    let pools: Vec<_> = ranks.flat_map(|ranks| &ranks.workers).map(pools::member_pool).collect();
    if !pools.is_empty() {
        out.push(Command::EnsurePools { run: Some(run.spec.name.clone()), pools });
    }
    let next = run.policy.as_ref().map_or(PolicyVersion(0), |policy| policy.version.next());
    out.push(Command::Adopt { run: run.spec.name.clone(), version: next });
    train_shard::put(run, out);
    for (id, group) in &run.groups {
        tasks::put_group(run, *id, group, out);
    }
    for (id, group) in run.evaluation.iter().flat_map(|evaluation| &evaluation.groups) {
        tasks::put_group(run, *id, group, out);
    }
}
