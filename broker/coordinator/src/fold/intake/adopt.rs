//! Adopts a version that is committed in the object store and unknown to the log, because the log
//! lost its newest part with a machine. The rollouts that it was trained on count as trained, so
//! that none is trained on twice.

use millrace_schemas::event::{Adopted, AdoptedGroup};
use millrace_schemas::notice::Notice;
use millrace_schemas::{PolicyVersion, RolloutId};

use crate::fold::books::DropReason;
use crate::fold::command::{Command, Commands};
use crate::fold::stages::{publish_weights, train_shard};
use crate::fold::state::Run;
use crate::fold::{domains, groups};

/// Adopts the version after the newest. Any other is known already.
pub(crate) fn adopted(run: &mut Run, adopted: &Adopted, out: &mut Commands) {
    let awaited = run.policy.as_ref().map_or(PolicyVersion(0), |policy| policy.version.next());
    if adopted.version != awaited || run.is_closed() {
        return;
    }
    let base = run.version();
    let training = run.training.take();
    match training {
        Some(training)
            if training.makes == adopted.version
                && train_shard::stored_batch(run, &training) == adopted.batch =>
        {
            publish_weights::book_step(run, base, adopted.version, &training.groups, out);
        }
        Some(training) => {
            // Its groups are finished and wait for the next batch, except those that this version
            // was trained on.
            for (id, group) in training.groups {
                run.ready.push(id);
                run.groups.insert(id, group);
            }
            take_out(run, base, &adopted.groups);
        }
        None => take_out(run, base, &adopted.groups),
    }
    // The version under evaluation is no longer the newest, and workers follow the newest.
    run.evaluation = None;
    out.push(Command::Notice(Box::new(Notice::Adopted {
        run: run.spec.name.clone(),
        version: adopted.version,
        rollouts: adopted.groups.iter().map(|group| group.rollouts.len() as u64).sum(),
    })));
    publish_weights::committed(run, adopted.version, adopted.manifest, out);
    out.push(Command::Adopt { run: run.spec.name.clone(), version: adopted.version.next() });
}

/// Counts the version's rollouts as trained, and removes their groups from play.
fn take_out(run: &mut Run, base: PolicyVersion, adopted: &[AdoptedGroup]) {
    for adopted in adopted {
        let known = run.groups.remove(&adopted.group);
        run.ready.retain(|ready| *ready != adopted.group);
        let is_new = known.is_none() && adopted.group >= run.next_group;
        if is_new {
            run.next_group = adopted.group + 1;
            run.next_prompt += 1;
        }
        let standing = known.map(|group| group.rollouts).unwrap_or_default();
        for (rollout, index) in adopted.rollouts.iter().zip(0..) {
            let id = RolloutId { group: adopted.group, index, attempt: rollout.attempt };
            let known = standing.get(index as usize);
            if let Some(other) = known.filter(|known| known.attempt != rollout.attempt) {
                // The lost part of the log had another replacement of this rollout.
                let id = RolloutId { attempt: other.attempt, ..id };
                run.books.drop_rollout(id, adopted.domain, DropReason::Superseded, other.busy_us);
            }
            // The rest of the log may have started and dropped it. Then it is already counted as
            // admitted.
            let is_known = known.is_some_and(|known| known.attempt == rollout.attempt);
            if !is_known && !run.books.take_back(id, adopted.domain) {
                run.books.admit(id, adopted.domain, rollout.start_version);
            }
            run.books.train_rollout(id, adopted.domain, base, rollout.start_version);
        }
        if let Some(domain) = run.books.domain(adopted.domain) {
            domain.adopt_group(adopted, is_new);
        }
        // In the lost part it may have held the place of a group that is still in play here.
        if let Some(id) = domains::beyond_its_places(run, adopted.domain) {
            groups::remove(run, id, |_| DropReason::Superseded);
        }
    }
}
