//! Every snapshot that the key names can be loaded, and is what the log folds into up to its position.

use std::collections::BTreeMap;

use millrace_schemas::blob::Sha;

use super::history::History;
use super::snapshots::digest;

/// Compares what was loaded when it was named with the log. Where the queue lost its newest part, its key may name an older
/// snapshot again, which was removed for a newer one: that costs time alone.
pub(super) fn check(history: &History) -> Vec<String> {
    let mut findings = Vec::new();
    let mut folded = BTreeMap::<u64, Option<Sha>>::new();
    for seen in &history.snapshots {
        if seen.digest.is_none() && history.losses == 0 {
            findings.push(format!("seq={}: the key names a snapshot that cannot be loaded", seen.seq));
        } else if seen.epoch == history.losses {
            folded.insert(seen.seq, None);
        }
    }
    history.replay(|moment| {
        if moment.commands.is_some()
            && let Some(folded) = folded.get_mut(&moment.entry.seq)
        {
            *folded = Some(digest(moment.state));
        }
    });
    for seen in history.snapshots.iter().filter(|seen| seen.epoch == history.losses) {
        let expected = folded.get(&seen.seq).copied().flatten();
        if seen.digest.is_some() && seen.digest != expected {
            findings.push(format!("seq={}: the snapshot is not what the log folds into", seen.seq));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::snapshots::SnapshotSeen;
    use super::super::testing::{midway, sound};
    use super::*;

    #[tokio::test]
    async fn a_snapshot_that_is_gone_or_another_is_found() {
        let mut history = sound().await;
        let snapshot = Some(digest(&midway().await.state));
        history.snapshots.push(SnapshotSeen { seq: 300, digest: snapshot, epoch: 0 });
        assert_eq!(check(&history), Vec::<String>::new());
        history.snapshots.push(SnapshotSeen { seq: 299, digest: snapshot, epoch: 0 });
        assert!(check(&history)[0].contains("seq=299"), "another position's");
        history.snapshots.push(SnapshotSeen { seq: 310, digest: None, epoch: 0 });
        assert_eq!(check(&history).len(), 2, "deleted while it was named");
    }
}
