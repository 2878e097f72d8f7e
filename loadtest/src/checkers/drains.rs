//! Without further faults every run ends: finished, or cancelled on request.

use millrace_coordinator::fold::status::status;
use millrace_schemas::Event;
use millrace_schemas::api::RunState;

use super::history::History;

/// Looks at where each run ended.
pub(super) fn check(history: &History) -> Vec<String> {
    let mut findings = Vec::new();
    if history.state.runs.is_empty() {
        findings.push("no run is known".to_owned());
    }
    for (id, run) in history.runs() {
        let asked = history
            .log
            .iter()
            .any(|entry| entry.run == id.as_str() && matches!(entry.event, Some(Event::Cancelled { .. })));
        let ended = run.state == RunState::Finished || (asked && run.state == RunState::Cancelled);
        if !ended {
            let (state, version, steps) = (run.state.name(), run.version(), run.spec.steps);
            let reason = run.reason.as_deref().unwrap_or("none");
            let tasks = status(run).tasks;
            findings.push(format!(
                "run={id}: state={state} {version} of {steps} reason={reason} tasks={tasks:?}"
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::testing::{midway, sound};
    use super::*;

    #[tokio::test]
    async fn a_run_that_stands_still_is_found() {
        assert_eq!(check(&sound().await), Vec::<String>::new());
        assert_eq!(check(&midway().await).len(), 1);
        assert_eq!(check(&History::default()).len(), 1);
    }
}
