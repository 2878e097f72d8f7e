//! Groups come in, finish, and are left out: the window is kept full.

use millrace_schemas::submit::GroupFilter;
use millrace_schemas::{PolicyVersion, RolloutId};

use crate::books::DropReason;
use crate::command::{Command, Commands};
use crate::domains::Dealer;
use crate::pipeline::{play, train_shard};
use crate::rollout::Group;
use crate::state::Run;
use crate::stored;
use crate::window;

/// Batches' worth of groups that may be left out between two steps for want of signal.
pub const MAX_FILTERED_BATCHES: u64 = 4;

/// Admits as many groups as the window has room for.
pub(super) fn refill(run: &mut Run, out: &mut Commands) {
    if run.policy.is_none() || !run.state.works() {
        return;
    }
    let version = run.version();
    let admissible = window::admissible(&run.spec, run.load());
    if admissible == 0 {
        return;
    }
    let mut dealer = Dealer::of(run);
    for _ in 0..admissible {
        let id = run.next_group;
        run.next_group += 1;
        let size = run.spec.rollout.group_size;
        let group = match run.stored.draw(&run.spec, id) {
            Some((prompt, start)) => Group::new(&run.spec.part(0), prompt, Some(start), size, version),
            None => {
                let (domain, prompt) = dealer.next(run);
                Group::new(&run.spec.part(domain), prompt, None, size, version)
            }
        };
        run.books.admit(group.domain, u64::from(size));
        put_group(run, id, &group, false, out);
        run.groups.insert(id, group);
    }
}

/// Puts the tasks that a group waits for.
pub fn put_group(run: &Run, id: u64, group: &Group, evaluate: bool, out: &mut Commands) {
    for (rollout, index) in group.rollouts.iter().zip(0..) {
        let scene = play::Scene {
            spec: &run.spec,
            version: run.version(),
            evaluate,
            evaluate_temperature: run.evaluate_pass().0,
            id: RolloutId { group: id, index, attempt: rollout.attempt },
            domain: run.spec.part(group.domain),
            prompt: group.prompt,
        };
        play::tasks(&scene, rollout, &mut |task| out.push(Command::PutTask(Box::new(task))));
    }
}

/// All rollouts of a group are scored: it is ready, or left out.
pub(super) fn group_finished(run: &mut Run, id: u64, out: &mut Commands) {
    stored::group_finished(run, id);
    let most = MAX_FILTERED_BATCHES * u64::from(run.spec.rollout.groups_per_step);
    let leave_out = run.spec.rollout.filter == GroupFilter::EqualRewards
        && run.filtered_since_step < most
        && run.groups.get(&id).is_some_and(|group| group.is_without_signal(&run.spec));
    if leave_out {
        run.filtered_since_step += 1;
        remove(run, id, |_| DropReason::Filtered);
        refill(run, out);
    } else {
        run.ready.push(id);
        train_shard::cut(run, out);
    }
}

/// A rollout could not be replaced any more: its group goes, and another comes.
pub(super) fn drop_group(run: &mut Run, failed: RolloutId, out: &mut Commands) {
    remove(run, failed.group, |index| {
        if index == failed.index { DropReason::Failed } else { DropReason::GroupFailed }
    });
    refill(run, out);
}

/// Drops all groups that are not in training.
pub(super) fn drop_all(run: &mut Run, reason: DropReason) {
    let ids: Vec<u64> = run.groups.keys().copied().collect();
    for id in ids {
        remove(run, id, |_| reason);
    }
}

/// Drops a group, each rollout with its reason.
pub(super) fn remove(run: &mut Run, id: u64, reason: impl Fn(u32) -> DropReason) {
    let Some(group) = run.groups.remove(&id) else { return };
    run.ready.retain(|ready| *ready != id);
    for (rollout, index) in group.rollouts.iter().zip(0..) {
        let id = RolloutId { group: id, index, attempt: rollout.attempt };
        let reason = reason(index);
        run.books.drop_rollout(id, group.domain, reason, rollout.busy_us);
        if reason == DropReason::Surplus {
            run.books.surplus_turns += rollout.turns.len() as u64;
        }
    }
}

/// After the floor rose: what is below it is renewed, and what is at it beyond the share of a batch that may be as old.
pub(super) fn refresh(run: &mut Run, out: &mut Commands) {
    let floor = window::floor(&run.spec, run.version());
    renew(run, &|_, version| version < floor, out);
    let beyond = window::beyond_oldest_share(&run.spec, oldest(run));
    renew(run, &|group, version| version <= floor && beyond.contains(&group), out);
}

/// The groups at the bound of staleness, and whether each is still playing.
fn oldest(run: &Run) -> Vec<(bool, u64)> {
    let (bound, version) = (run.spec.max_staleness(), run.version());
    let oldest = run.groups.iter().filter(|(_, group)| bound > 0 && group.staleness(version) == bound);
    oldest.map(|(id, group)| (group.playing > 0, *id)).collect()
}

/// Whether a batch has no place for this group any more, should it become as old as the bound allows.
pub(super) fn may_not_be_oldest(run: &Run, id: u64) -> bool {
    let mut oldest = oldest(run);
    if oldest.iter().any(|(_, group)| *group == id) {
        return false;
    }
    oldest.push((true, u64::MAX));
    !window::beyond_oldest_share(&run.spec, oldest).is_empty()
}

/// Rollouts of which `is_old` says so, by group and version, restart at the current version; those without a token yet are
/// only stamped with it, since nothing of them is old.
fn renew(run: &mut Run, is_old: &dyn Fn(u64, PolicyVersion) -> bool, out: &mut Commands) {
    let version = run.version();
    let mut stale = Vec::new();
    let mut unstarted = Vec::new();
    for (id, group) in &mut run.groups {
        for (rollout, index) in group.rollouts.iter_mut().zip(0..) {
            if !is_old(*id, rollout.version()) {
                continue;
            }
            let rollout_id = RolloutId { group: *id, index, attempt: rollout.attempt };
            if rollout.start.is_some() {
                stale.push(rollout_id);
            } else {
                rollout.stamp = version;
                unstarted.push((rollout_id, group.domain, group.prompt));
            }
        }
    }
    for id in stale {
        play::replace(run, id, DropReason::Stale, out);
    }
    let (evaluate_temperature, _) = run.evaluate_pass();
    for (id, domain, prompt) in unstarted {
        let (spec, domain) = (&run.spec, run.spec.part(domain));
        let scene = play::Scene { spec, version, evaluate: false, evaluate_temperature, id, domain, prompt };
        let rollout = &run.groups[&id.group].rollouts[id.index as usize];
        play::tasks(&scene, rollout, &mut |task| out.push(Command::PutTask(Box::new(task))));
    }
}
