//! Takes queued tasks of a run out of the queue.

use millrace_schemas::subjects::{tasks_of_run, tasks_of_version};
use millrace_schemas::{PolicyVersion, Stage};

use crate::fold::command::{Command, Commands};
use crate::fold::state::Run;

/// All tasks of a run.
pub(crate) fn all(run: &Run, out: &mut Commands) {
    for stage in Stage::QUEUED {
        of_stage(run, stage, out);
    }
}

/// All tasks of a stage.
pub(crate) fn of_stage(run: &Run, stage: Stage, out: &mut Commands) {
    let run = run.spec.name.clone();
    out.push(Command::Purge { stage, filter: tasks_of_run(stage, &run), run });
}

/// The rollouts' tasks that are stamped with `version`.
pub(crate) fn of_version(run: &Run, version: PolicyVersion, out: &mut Commands) {
    for stage in [Stage::Generate, Stage::EnvStep, Stage::Reward] {
        let filter = tasks_of_version(stage, &run.spec.name, version);
        out.push(Command::Purge { run: run.spec.name.clone(), stage, filter });
    }
}
