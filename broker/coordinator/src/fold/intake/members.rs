//! Train workers join and leave. A member's pool is created and removed with it. When a member
//! leaves, the attempt of the step that it took part in is void.

use millrace_schemas::WorkerId;
use millrace_schemas::limits::MAX_MEMBERS;

use crate::fold::command::{Command, Commands};
use crate::fold::gang::Member;
use crate::fold::pools;
use crate::fold::state::State;

/// Adds a member, or replaces another process of the same name. There are at most [`MAX_MEMBERS`],
/// because each has a consumer of its own on the server. Existing members are never displaced by
/// new names.
pub(crate) fn joined(state: &mut State, worker: WorkerId, instance: String, out: &mut Commands) {
    if state.members.get(&worker).is_some_and(|member| member.instance == instance) {
        return;
    }
    if state.members.len() >= MAX_MEMBERS && !state.members.contains_key(&worker) {
        return;
    }
    out.push(Command::EnsurePools { run: None, pools: vec![pools::member_pool(&worker)] });
    state.members.insert(worker, Member { instance, joined: state.seq });
}

/// Removes a member and its pool.
pub(crate) fn left(state: &mut State, worker: &WorkerId, instance: &str, out: &mut Commands) {
    if state.members.get(worker).is_none_or(|member| member.instance != instance) {
        return;
    }
    state.members.remove(worker);
    out.push(Command::RemovePools(vec![pools::member_pool(worker)]));
}
