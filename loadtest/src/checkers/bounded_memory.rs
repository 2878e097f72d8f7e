//! What is kept of a run follows from its run file, not from how long it ran or what went wrong.

use millrace_coordinator::pipeline::admit::MAX_FILTERED_BATCHES;
use millrace_coordinator::state::Run;
use millrace_schemas::submit::GroupFilter;

use super::history::History;

/// Points of a learning curve, as the status page promises.
const CURVE_POINTS: usize = 1_000;
/// A rollout's tasks stay queued until they are acked, though the rollout goes on: where acks get lost, those
/// of its whole life do, and those of the rollout that came in its place.
const LIVES: u64 = 2;

/// Looks at the state after every event, and at the queue's peak.
pub(super) fn check(history: &History) -> Vec<String> {
    let mut findings = Vec::new();
    history.replay(|moment| {
        let (Some(run), Some(_)) = (moment.run(), moment.commands) else { return };
        let seq = moment.entry.seq;
        findings
            .extend(wrong(run).into_iter().map(|words| format!("run={} seq={seq}: {words}", run.spec.name)));
    });
    let most: u64 = history.runs().map(|(_, run)| LIVES * most_tasks(run)).sum();
    if let Some(peak) = history.peak_queued.filter(|peak| *peak > most) {
        findings.push(format!("tasks={peak} were queued at once; the runs allow {most}"));
    }
    findings
}

/// Tasks of the whole lives of those that a run may play at once. A group that is left out for want of signal makes
/// room for another, so many of them between two steps.
fn most_tasks(run: &Run) -> u64 {
    let rollout = &run.spec.rollout;
    let left_out = match rollout.filter {
        GroupFilter::EqualRewards => MAX_FILTERED_BATCHES * u64::from(rollout.groups_per_step),
        GroupFilter::None => 0,
    };
    let rollouts = (run.spec.window_groups() + left_out) * u64::from(rollout.group_size);
    let lives = run
        .spec
        .parts()
        .map(|domain| 1 + 2 * u64::from(domain.environment.max_turns()) + domain.rewards.len() as u64);
    let life = lives.max().unwrap_or(0);
    (rollouts + u64::from(run.spec.evaluate.prompts)) * life + 1
}

fn wrong(run: &Run) -> Vec<String> {
    let mut words = Vec::new();
    let mut at_most = |what: &str, have: u64, most: u64| {
        if have > most {
            words.push(format!("{what}={have}, at most {most}"));
        }
    };
    let spec = &run.spec;
    at_most("curve points", run.books.curve.len() as u64, CURVE_POINTS as u64 + 1);
    at_most("versions evaluated", run.evaluated.len() as u64, spec.steps + 1);
    at_most("staleness counts", run.books.staleness.len() as u64, spec.max_staleness() + 1);
    let evaluating = run.evaluation.as_ref().map_or(0, |evaluation| evaluation.groups.len() as u64);
    at_most("prompts under evaluation", evaluating, u64::from(spec.evaluate.prompts));
    for group in run.groups.values() {
        let domain = spec.part(group.domain);
        let (tokens, turns) = (domain.longest_rollout(), u64::from(domain.environment.max_turns()));
        for rollout in &group.rollouts {
            at_most("tokens of a rollout", rollout.tokens.len() as u64, tokens);
            at_most("turns of a rollout", rollout.turns.len() as u64, turns);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::testing::sound;
    use super::*;

    #[tokio::test]
    async fn a_queue_that_grows_is_found() {
        let mut history = sound().await;
        assert_eq!(check(&history), Vec::<String>::new());
        history.peak_queued = Some(100_000);
        assert_eq!(check(&history).len(), 1);
    }

    /// Seed 18410 of `gangs`: acks were lost while 12 groups were left out within a second.
    #[tokio::test]
    async fn groups_that_are_left_out_may_leave_their_tasks() {
        let mut run = sound().await.state.runs.values().next().expect("the run").clone();
        run.spec.rollout.filter = GroupFilter::None;
        let (groups, before) = (u64::from(run.spec.rollout.groups_per_step), most_tasks(&run));
        run.spec.rollout.filter = GroupFilter::EqualRewards;
        assert!(most_tasks(&run) > before);
        assert!(most_tasks(&run) <= (1 + 4 * groups) * before, "it follows from the run file alone");
    }

    #[tokio::test]
    async fn a_state_that_grows_is_found() {
        let history = sound().await;
        let mut run = history.state.runs.values().next().expect("the run").clone();
        assert_eq!(wrong(&run), Vec::<String>::new());
        run.books.staleness.resize(9, 0);
        run.evaluated.extend((0..100).map(millrace_schemas::PolicyVersion));
        assert_eq!(wrong(&run).len(), 2);
    }
}
