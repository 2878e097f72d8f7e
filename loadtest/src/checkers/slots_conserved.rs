//! The window is never overdrawn, and no place in it is lost. No call of an agent waits for another one's turn: a step
//! always waits for the next call.

use std::collections::BTreeSet;

use millrace_coordinator::fold::rollout::Phase;
use millrace_coordinator::fold::state::Run;
use millrace_coordinator::fold::window;
use millrace_schemas::RunId;

use super::history::History;

/// Counts groups one by one after every event.
pub(super) fn check(history: &History) -> Vec<String> {
    let mut findings = Vec::new();
    history.replay(|moment| {
        let (Some(run), Some(_)) = (moment.run(), moment.commands) else { return };
        let id = &run.spec.name;
        findings.extend(wrong(run).into_iter().map(|words| at(id, moment.entry.seq, &words)));
    });
    for (id, run) in history.runs() {
        findings.extend(wrong(run).into_iter().map(|words| at(id, history.state.seq, &words)));
    }
    findings.dedup();
    findings
}

fn at(run: &RunId, seq: u64, words: &str) -> String {
    format!("run={run} seq={seq}: {words}")
}

fn wrong(run: &Run) -> Vec<String> {
    let mut words = Vec::new();
    let (load, window) = (run.load().groups, run.spec.window_groups());
    if load > window {
        words.push(format!("groups={load} in a window of {window}"));
    }
    let open = window::admissible(&run.spec, run.load());
    if run.policy.is_some() && run.state.works() && run.version().0 < run.spec.steps && open > 0 {
        words.push(format!("places={open} of the window are not used"));
    }
    let ready: BTreeSet<u64> = run.ready.iter().copied().collect();
    if ready.len() != run.ready.len() {
        words.push("a group is ready twice".into());
    }
    for (id, group) in &run.groups {
        let playing = group.rollouts.iter().filter(|rollout| rollout.phase != Phase::Finished).count();
        let calls = group.rollouts.iter().filter_map(|rollout| rollout.calls.as_deref());
        let deaf = calls.filter(|calls| calls.steps.is_empty()).count();
        if deaf > 0 {
            words.push(format!("group {id} has agents={deaf} whose next call no step waits for"));
        }
        if playing != group.playing as usize {
            words.push(format!("group {id} has playing={playing}, booked={}", group.playing));
        }
        if (playing == 0) != ready.contains(id) {
            words.push(format!("group {id} has playing={playing}, ready={}", ready.contains(id)));
        }
    }
    if let Some(lost) = ready.iter().find(|id| !run.groups.contains_key(id)) {
        words.push(format!("group {lost} is ready and not there"));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::testing::{midway, run};
    use super::*;

    #[tokio::test]
    async fn a_place_that_is_lost_or_taken_twice_is_found() {
        let sound = midway().await;
        assert_eq!(check(&sound), Vec::<String>::new());
        let mut history = sound.clone();
        let state = history.state.runs.get_mut(&run()).expect("the run");
        let (id, group) = state.groups.pop_first().expect("a group");
        assert!(check(&history).iter().any(|words| words.contains("not used")));
        let state = history.state.runs.get_mut(&run()).expect("the run");
        state.groups.insert(id, group.clone());
        state.groups.insert(1_000, group);
        assert!(check(&history).iter().any(|words| words.contains("in a window of")));
    }

    #[tokio::test]
    async fn a_finished_group_that_nobody_trains_is_found() {
        let mut history = midway().await;
        let state = history.state.runs.get_mut(&run()).expect("the run");
        let group = state.groups.values_mut().next().expect("a group");
        group.playing = 0;
        group.rollouts.iter_mut().for_each(|rollout| rollout.phase = Phase::Finished);
        state.ready.clear();
        assert!(check(&history).iter().any(|words| words.contains("ready=false")));
    }
}
