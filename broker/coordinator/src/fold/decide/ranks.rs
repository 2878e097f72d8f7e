//! Assigns the ranks of a step.

use crate::fold::command::Commands;
use crate::fold::gang::Members;
use crate::fold::stages::train_shard;
use crate::fold::state::{RankAssignment, Run};

/// Assigns the ranks of a step that waits for members to the present members, and queues their
/// shards.
pub(super) fn assign(run: &mut Run, members: &Members, out: &mut Commands) {
    let waits = run.training.as_ref().is_some_and(|training| training.ranks.is_none());
    if !waits || !run.state.works() {
        return;
    }
    let ranks = if run.gang.is_alone(&run.spec.gang) {
        RankAssignment::anyone()
    } else {
        run.gang.form(&run.spec.gang, members, run.at_ms);
        run.gang.generation.as_ref().map(RankAssignment::of)
    };
    if let Some(training) = run.training.as_mut() {
        training.ranks = ranks;
    }
    train_shard::put(run, out);
}
