//! Versions go up one by one, in the log, in the object store and in the policy key.

use std::collections::BTreeMap;

use millrace_coordinator::fold::state::Run;
use millrace_coordinator::shell::audit::StoredVersion;
use millrace_schemas::{PolicyVersion, RunId};

use super::history::History;

/// Looks at the fold, the chain of manifests and the values of the keys.
pub(super) fn check(history: &History) -> Vec<String> {
    let mut findings = in_the_log(history);
    findings.extend(in_the_keys(history));
    for (id, run) in history.runs() {
        in_the_store(history, id, run, &mut findings);
    }
    findings.extend(history.strays.iter().map(|path| format!("{path} stands beyond a gap")));
    findings
}

fn in_the_log(history: &History) -> Vec<String> {
    let mut findings = Vec::new();
    let mut before = None;
    let version = |run: &Run| run.policy.as_ref().map(|policy| policy.version);
    history.replay(|moment| {
        let now = moment.run().and_then(version);
        if moment.commands.is_none() {
            before = now;
            return;
        }
        let fits = match (before, now) {
            (None, None) => true,
            (None, Some(first)) => first == PolicyVersion(0),
            (Some(old), Some(new)) => new == old || new == old.next(),
            (Some(_), None) => false,
        };
        if !fits {
            let seq = moment.entry.seq;
            findings.push(format!("run={} seq={seq}: from {before:?} to {now:?}", moment.entry.run));
        }
    });
    findings
}

fn in_the_keys(history: &History) -> Vec<String> {
    let mut findings = Vec::new();
    let mut newest = BTreeMap::new();
    for seen in &history.policies {
        let now = (seen.epoch, seen.policy.version, seen.policy.floor);
        let before = newest.insert(seen.run.clone(), now);
        let Some((epoch, version, floor)) = before else { continue };
        if epoch == now.0 && (now.1 < version || now.2 < floor) {
            let run = &seen.run;
            findings.push(format!("run={run}: its key went from {version} {floor} to {} {}", now.1, now.2));
        }
    }
    findings
}

fn in_the_store(history: &History, id: &RunId, run: &Run, findings: &mut Vec<String>) {
    let committed = &history.committed[id];
    let mut parent = None;
    for (stored, v) in committed.iter().zip(0..) {
        match stored {
            Ok(StoredVersion { sha256, manifest, .. }) => {
                if manifest.version != PolicyVersion(v) || manifest.parent != parent {
                    findings.push(format!("run={id} v{v}: it does not follow the version before"));
                }
                parent = Some(*sha256);
            }
            Err(reason) => findings.push(format!("run={id} v{v}: {reason}")),
        }
    }
    let Some(policy) = &run.policy else { return };
    match committed.get(policy.version.0 as usize) {
        Some(Ok(stored)) if stored.sha256 == policy.manifest => {}
        _ => findings.push(format!("run={id}: the log's {} is not what is committed", policy.version)),
    }
    if run.is_closed() && committed.len() as u64 != policy.version.0 + 1 {
        findings.push(format!(
            "run={id}: it ended at {}, and versions={} are committed",
            policy.version,
            committed.len()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::PolicySeen;
    use super::super::testing::{run, sound};
    use super::*;

    #[tokio::test]
    async fn a_key_that_goes_back_is_found() {
        let mut history = sound().await;
        assert_eq!(check(&history), Vec::<String>::new());
        let (first, last) = (history.policies[1].clone(), history.policies.len());
        history.policies.push(PolicySeen { epoch: 1, ..first.clone() });
        assert_eq!(check(&history).len(), 0, "the queue lost its newest part");
        history.policies[last] = first;
        assert_eq!(check(&history).len(), 1);
    }

    #[tokio::test]
    async fn a_version_that_is_gone_or_another_is_found() {
        let sound = sound().await;
        let mut history = sound.clone();
        let _ = history.committed.get_mut(&run()).expect("versions").remove(4);
        assert!(!check(&history).is_empty());
        let mut history = sound.clone();
        history.committed.get_mut(&run()).expect("versions").pop();
        assert!(!check(&history).is_empty());
        let mut history = sound;
        history.strays.push("v9".into());
        assert!(!check(&history).is_empty());
    }
}
