//! Train workers join and leave, and a member's pool with it. A step that one who left had a part in is void.

use millrace_schemas::WorkerId;
use millrace_schemas::limits::MAX_MEMBERS;

use crate::command::{Command, Commands};
use crate::gang::Member;
use crate::pipeline::{guarded, submit, train_shard};
use crate::state::State;

/// Takes a member in, in the place of another process of the same name. There are at most [`MAX_MEMBERS`], for each has
/// a consumer of its own on the server; one that is a member keeps its place.
pub(super) fn joined(state: &mut State, worker: WorkerId, instance: String, out: &mut Commands) {
    if state.members.get(&worker).is_some_and(|member| member.instance == instance) {
        return;
    }
    if state.members.len() >= MAX_MEMBERS && !state.members.contains_key(&worker) {
        return;
    }
    out.push(Command::EnsurePools { run: None, pools: vec![submit::member_pool(&worker)] });
    state.members.insert(worker, Member { instance, joined: state.seq });
    changed(state, out);
}

/// Lets a member go.
pub(super) fn left(state: &mut State, worker: &WorkerId, instance: &str, out: &mut Commands) {
    if state.members.get(worker).is_none_or(|member| member.instance != instance) {
        return;
    }
    state.members.remove(worker);
    out.push(Command::RemovePools(vec![submit::member_pool(worker)]));
    changed(state, out);
}

fn changed(state: &mut State, out: &mut Commands) {
    let State { members, runs, .. } = state;
    for run in runs.values_mut() {
        if train_shard::has_lost_a_member(run, members) {
            guarded(run, out, train_shard::lost_a_member);
        }
    }
}
