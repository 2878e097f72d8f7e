//! No run halts, failed or paused, but one on which a fault was planted that needs a repair.

use std::collections::BTreeSet;

use millrace_coordinator::fold::state::Run;
use millrace_schemas::RunId;
use millrace_schemas::api::RunState;

use super::history::History;

/// Looks at each run after each of its events. Where nobody knows what was planted there is nothing to compare.
pub(super) fn check(history: &History) -> Vec<String> {
    let Some(planted) = &history.planted else { return Vec::new() };
    let mut findings = Vec::new();
    let mut halted = BTreeSet::<RunId>::new();
    history.replay(|moment| {
        for (id, run) in &moment.state.runs {
            if !is_halted(run) {
                halted.remove(id);
            } else if halted.insert(id.clone()) && !planted.contains(id) {
                let (seq, state) = (moment.entry.seq, run.state.name());
                let reason = run.reason.as_deref().unwrap_or("none");
                findings.push(format!("run={id} seq={seq}: state={state} reason={reason}"));
            }
        }
    });
    findings
}

/// Whether a run waits for a person.
#[must_use]
pub(crate) fn is_halted(run: &Run) -> bool {
    matches!(run.state, RunState::Failed | RunState::Paused)
}

#[cfg(test)]
mod tests {
    use millrace_schemas::{Event, TaskKey};

    use super::super::testing::{midway, run};
    use super::*;

    #[tokio::test]
    async fn a_run_that_halts_without_a_cause_is_found() {
        let mut history = midway().await;
        history.planted = Some(BTreeSet::new());
        assert_eq!(check(&history), Vec::<String>::new());
        let training = |entry: &super::super::Entry| match &entry.event {
            Some(Event::Outcome(outcome)) => {
                matches!(outcome.key, TaskKey::TrainShard { .. }).then_some(outcome.key)
            }
            _ => None,
        };
        let (at, key) =
            history.log.iter().enumerate().find_map(|(at, e)| Some((at, training(e)?))).expect("a step");
        let reason = "delivered 5 times without an outcome".to_owned();
        history.log[at].event = Some(Event::DeadLetter { key, reason, exhausted: false });
        assert!(check(&history)[0].contains("delivered 5 times"), "{:?}", check(&history));
        history.planted = Some(BTreeSet::from([run()]));
        assert_eq!(check(&history), Vec::<String>::new(), "it waits for its repair");
    }
}
