//! `kill -9` of each role in the middle of a run: the books balance, no version twice, none too stale.

use nix::sys::signal::Signal;

use super::support::{Up, send};

/// Steps that take long enough for the kills to meet a run in full swing.
const STEPS: u64 = 300;

/// Kills `role` once at each of `versions`, and lets the run end.
async fn kill_in_full_swing(role: &str, versions: &[u64]) {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Up::start(folder.path(), &["--steps", &STEPS.to_string()]);
    let mut before = None;
    for version in versions {
        up.reached(*version).await;
        let pid = up.pid_of(role, before).await;
        send(pid, Signal::SIGKILL);
        before = Some(pid);
    }
    assert!(up.ended().await.success(), "{}", up.output());
    let report = up.report();
    assert!(report.balanced, "{report:#?}");
    assert!(report.audited, "{report:#?}");
    assert!(report.max_staleness <= 1, "{report:#?}");
    assert_eq!(report.final_version, STEPS);
    assert_eq!(report.ledger.trained, STEPS * 8 * 4);
    assert_eq!(report.restarts, versions.len() as u64, "{}", up.output());
}

// What a worker had in hand waits for its lease to end, six seconds.

#[tokio::test]
async fn generate() {
    kill_in_full_swing("generate-0", &[5]).await;
}

#[tokio::test]
async fn env_step_and_reward() {
    kill_in_full_swing("env-0", &[5]).await;
}

#[tokio::test]
async fn train_shard_and_publish_weights() {
    kill_in_full_swing("train-0", &[5]).await;
}

#[tokio::test]
async fn coordinator() {
    kill_in_full_swing("coordinator-0", &[3, 10, 20]).await;
}

#[tokio::test]
async fn nats_server() {
    kill_in_full_swing("nats-server", &[3, 10, 20]).await;
}
