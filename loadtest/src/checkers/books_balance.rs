//! The books balance after every event, and say what the committed batches say.

use millrace_coordinator::fold::status;
use millrace_coordinator::shell::audit::{Claim, Recount};
use millrace_schemas::PolicyVersion;

use super::history::History;

/// Recounts from manifests and batches, and compares.
pub(super) fn check(history: &History) -> Vec<String> {
    let mut findings = Vec::new();
    history.replay(|moment| {
        let (Some(run), Some(_)) = (moment.run(), moment.commands) else { return };
        let ledger = status::ledger(run);
        if !ledger.balanced() {
            findings.push(format!("run={} seq={}: {ledger:?}", moment.entry.run, moment.entry.seq));
        }
    });
    for (id, run) in history.runs() {
        if run.policy.is_none() {
            continue;
        }
        let status = status::status(run);
        let mut recount = Recount::new(Claim::of(&status));
        for v in 0..=status.version.0 {
            let stored = history.committed[id].get(v as usize).cloned();
            recount.count(PolicyVersion(v), stored.unwrap_or_else(|| Err("it has no manifest".into())));
        }
        let found = recount.finish().findings;
        findings.extend(found.into_iter().map(|words| format!("run={id} {words}")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::testing::{break_batch, run, sound};
    use super::*;

    #[tokio::test]
    async fn a_rollout_less_in_a_batch_is_found() {
        let mut history = sound().await;
        assert_eq!(check(&history), Vec::<String>::new());
        break_batch(&mut history, 3, |batch| {
            batch.groups[0].rollouts.pop();
        });
        assert!(check(&history).iter().any(|words| words.contains("the ledger says")));
    }

    #[tokio::test]
    async fn a_count_too_many_is_found() {
        let mut history = sound().await;
        history.state.runs.get_mut(&run()).expect("the run").books.trained += 1;
        assert!(check(&history).iter().any(|words| words.contains("the ledger says")));
    }
}
