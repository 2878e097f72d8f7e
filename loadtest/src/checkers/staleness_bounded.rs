//! No rollout is trained on that began more versions ago than α allows; with a fractional α, no more of the
//! oldest than its share.

use millrace_coordinator::fold::state::Run;
use millrace_coordinator::shell::audit::StoredVersion;
use millrace_schemas::train_shard::{Batch, BatchGroup};
use millrace_schemas::{PolicyVersion, RunId};

use super::history::History;
use super::witness;

/// Counts staleness from the tokens themselves: the version made, and the version of the first token.
pub(super) fn check(history: &History) -> Vec<String> {
    let mut findings = Vec::new();
    for (id, run) in history.runs() {
        for stored in history.committed[id].iter().flatten() {
            if let Some(batch) = &stored.batch {
                check_batch(id, run, stored, batch, &mut findings);
            }
        }
    }
    findings
}

fn check_batch(id: &RunId, run: &Run, stored: &StoredVersion, batch: &Batch, findings: &mut Vec<String>) {
    let made = stored.manifest.version;
    let base = PolicyVersion(made.0.saturating_sub(1));
    let (bound, share) = witness::oldest(&run.spec);
    let mut oldest_groups = 0;
    for group in &batch.groups {
        let mut oldest = 0;
        for (rollout, start) in starts(group) {
            let Some(start) = start else {
                findings.push(format!("run={id} {made}: rollout {rollout} has no token"));
                continue;
            };
            let staleness = base.staleness(start);
            oldest = oldest.max(staleness);
            if start > base || staleness > bound {
                findings.push(format!(
                    "run={id} {made}: rollout {rollout} began at {start}, staleness={staleness}, bound={bound}"
                ));
            }
        }
        oldest_groups += u64::from(oldest == bound);
    }
    if let Some(share) = share.filter(|share| oldest_groups > *share) {
        findings.push(format!("run={id} {made}: groups={oldest_groups} of the oldest, share={share}"));
    }
}

/// Each rollout with the version of its oldest token.
fn starts(
    group: &BatchGroup,
) -> impl Iterator<Item = (millrace_schemas::RolloutId, Option<PolicyVersion>)> + '_ {
    group.rollouts.iter().map(|rollout| {
        let firsts = rollout.turns.iter().filter_map(|turn| turn.segments.first());
        (rollout.id, firsts.map(|segment| segment.version).min())
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{break_batch, sound};
    use super::*;

    #[tokio::test]
    async fn a_stale_rollout_is_found() {
        let mut history = sound().await;
        assert_eq!(check(&history), Vec::<String>::new());
        break_batch(&mut history, 6, |batch| {
            batch.groups[0].rollouts[1].turns[0].segments[0].version = PolicyVersion(2);
        });
        assert!(check(&history).iter().any(|words| words.contains("staleness=3")), "{:?}", check(&history));
    }

    #[tokio::test]
    async fn more_than_the_share_of_the_oldest_is_found() {
        let mut history = sound().await;
        break_batch(&mut history, 6, |batch| {
            for group in &mut batch.groups {
                group.rollouts[0].turns[0].segments[0].version = PolicyVersion(3);
            }
        });
        assert!(check(&history).iter().any(|words| words.contains("share=")), "{:?}", check(&history));
    }
}
