//! What is kept of a run follows from its run file, not from how long it ran or what went wrong.

use millrace_coordinator::fold::intake::rollouts::MAX_FILTERED_BATCHES;
use millrace_coordinator::fold::state::Run;
use millrace_schemas::envelope::encode;
use millrace_schemas::submit::GroupFilter;

use super::history::History;
use shape::collections;

mod shape;

/// Points of a learning curve, as the status page promises.
const CURVE_POINTS: usize = 1_000;
/// A rollout's tasks stay queued until they are acked, although the rollout continues. Where acks
/// get lost, the tasks of its whole life stay queued, and those of its replacement.
const LIVES: u64 = 2;
/// Of a list or map without a bound of its own, the most.
const UNNAMED: u64 = 64;
/// Events between two looks.
const EVERY: u64 = 8;

/// Looks at the state after every event, and at the queue's peak.
pub(super) fn check(history: &History) -> Vec<String> {
    let mut findings = Vec::new();
    let last = history.log.last().map_or(0, |entry| entry.seq);
    history.replay(|moment| {
        let seq = moment.entry.seq;
        if moment.commands.is_none() || (seq % EVERY != 0 && seq != last) {
            return;
        }
        if let Some(run) = moment.run() {
            let wrong = wrong(run).into_iter();
            findings.extend(wrong.map(|words| format!("run={} seq={seq}: {words}", run.spec.name)));
        }
        if seq % (EVERY * EVERY) == 0 || seq == last {
            let wrong = beyond(&encode(moment.state), UNNAMED, &|_| None).into_iter();
            findings.extend(wrong.map(|words| format!("seq={seq}: {words}")));
        }
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

/// What is kept of one run.
fn wrong(run: &Run) -> Vec<String> {
    let spec = &run.spec;
    let longest =
        spec.parts().map(|part| part.longest_rollout().max(u64::from(part.environment.max_turns())));
    let unnamed = longest.max().unwrap_or(0).max(UNNAMED);
    beyond(&encode(run), unnamed, &|path| bound(run, path))
}

/// The lists and maps of what is encoded that are longer than they may be.
fn beyond(encoded: &[u8], unnamed: u64, bound: &dyn Fn(&str) -> Option<u64>) -> Vec<String> {
    let mut words = Vec::new();
    let read = collections(encoded, &mut |path, length| {
        // The size of a spec is bounded when it is submitted; runs are checked one by one.
        if path.first().is_some_and(|first| first == "spec" || first == "runs") {
            return;
        }
        let path = path.join(".");
        let most = bound(&path).unwrap_or(unnamed);
        if length as u64 > most {
            words.push(format!("{path} has length={length}, at most {most}"));
        }
    });
    if read.is_none() {
        words.push("what is encoded ends too early".to_owned());
    }
    words
}

/// The bound of a collection of a run that may be large; `None` for all others, which hold a few
/// entries under any run file.
fn bound(run: &Run, path: &str) -> Option<u64> {
    let (spec, rollout) = (&run.spec, &run.spec.rollout);
    let evaluations = spec.steps + 1;
    match path {
        "groups" | "ready" => Some(spec.window_groups()),
        "training.groups" => Some(rollout.groups_per_step.into()),
        "groups.*.rollouts" | "training.groups.*.*.rollouts" => Some(rollout.group_size.into()),
        "evaluation.groups" | "evaluation.shown" | "evaluation.spread.prompts" => {
            Some(spec.evaluate.prompts.into())
        }
        "evaluated" | "books.evaluations" | "books.domains.*.evaluations" => Some(evaluations),
        "books.staleness" | "books.domains.*.staleness" => Some(spec.max_staleness() + 1),
        "books.curve" => Some(CURVE_POINTS as u64 + 1),
        "books.dropped_lately" => Some(most_dropped(run)),
        "stored.paths" => Some(rollout.stored_turns.keep.into()),
        _ => None,
    }
}

/// Rollouts that may be dropped from one commit to the next: all that may be played until then, with all that come in
/// their place.
fn most_dropped(run: &Run) -> u64 {
    let rollout = &run.spec.rollout;
    let groups = run.spec.window_groups() + MAX_FILTERED_BATCHES * u64::from(rollout.groups_per_step);
    LIVES * groups * u64::from(rollout.group_size) * (2 + u64::from(rollout.max_replacements))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use millrace_coordinator::fold::books::DropReason;
    use millrace_coordinator::fold::state::{Evaluating, EvaluationCounts};
    use millrace_schemas::{Event, RolloutId};

    use super::super::history::Entry;
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
        let metric = |number: u64| (format!("metric-{number}"), 0.0);
        run.books.metrics.extend((0..65).map(metric));
        for group in 0..1_000 {
            let id = RolloutId { group, index: 0, attempt: 0 };
            run.books.drop_rollout(id, 0, DropReason::Failed, 0);
        }
        let wrong = wrong(&run).join("; ");
        for path in ["books.staleness", "evaluated", "books.metrics", "books.dropped_lately"] {
            assert!(wrong.contains(path), "{path} in {wrong}");
        }
    }

    /// Ten minutes of chaos at 15470e6: a shipped run has 256 prompts, those of the simulator few.
    #[tokio::test]
    async fn an_evaluation_may_have_as_many_prompts_as_the_run_file_says() {
        let history = sound().await;
        let mut run = history.state.runs.values().next().expect("the run").clone();
        run.spec.evaluate.prompts = 256;
        let (shown, whole) = ((0..256).map(|prompt| (prompt, prompt)).collect(), EvaluationCounts::default());
        let version = millrace_schemas::PolicyVersion(1);
        let (groups, domains) = (BTreeMap::new(), Vec::new());
        let mut evaluation = Evaluating { version, pass: 0, groups, shown, whole, domains, reason: None };
        evaluation.whole.spread.prompts = (0..256).map(|prompt| (prompt, (1, 0))).collect();
        run.evaluation = Some(evaluation);
        assert_eq!(wrong(&run), Vec::<String>::new());
        let evaluation = run.evaluation.as_mut().expect("it is there");
        evaluation.shown.insert(256, 256);
        evaluation.whole.spread.prompts.insert(256, (1, 0));
        assert_eq!(wrong(&run).len(), 2, "{:?}", wrong(&run));
    }

    #[tokio::test]
    async fn members_that_never_leave_are_found() {
        let mut history = sound().await;
        let folded = history.log.len() as u64;
        for (number, seq) in (0..100).zip(folded + 1..) {
            let (worker, instance) = (format!("train-{number}").parse().expect("a name"), number.to_string());
            let event = Some(Event::Joined { worker, instance });
            history.log.push(Entry { seq, run: "all".to_owned(), epoch: None, event });
        }
        assert!(
            check(&history).iter().any(|words| words.contains("members has length=")),
            "{:?}",
            check(&history)
        );
    }
}
