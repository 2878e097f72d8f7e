//! `kill -9` of each role in the middle of a run: the books balance, no version twice, none too
//! stale.

use std::collections::BTreeMap;
use std::path::Path;

use millrace_queue::{Broker, JetStream, JetStreamOptions, Objects};
use millrace_schemas::{Event, TaskKey};
use millrace_server::{Server, ServerOptions};
use nix::sys::signal::Signal;

use super::support::{Up, changed_run_file, send};

/// Steps that take long enough for the kills to hit a run in progress.
const STEPS: u64 = 80;

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

// Tasks that were in flight wait for the end of their lease, six seconds.

#[tokio::test]
async fn generate() {
    kill_in_full_swing("generate-0", &[5]).await;
}

/// With partitions and two workers, each of which continues the other's rollouts.
#[tokio::test]
async fn generate_beside_another() {
    let folder = tempfile::tempdir().unwrap();
    let partitions = [("alpha = 1.0", "alpha = 1.0\npartitions = 8")];
    let file = changed_run_file("counter.toml", folder.path(), &partitions);
    let mut up = Up::start_file(folder.path(), &file, &["--steps", "100", "--generate", "2"]);
    up.reached(5).await;
    let pid = up.pid_of("generate-0", None).await;
    send(pid, Signal::SIGKILL);
    assert!(up.ended().await.success(), "{}", up.output());
    let report = up.report();
    assert!(report.balanced && report.audited, "{report:#?}");
    assert_eq!((report.final_version, report.restarts), (100, 1), "{}", up.output());
    let (stayed, turns) = stayed(folder.path()).await;
    // By chance it would be half of them.
    assert!(stayed * 10 > turns * 8, "{stayed} of {turns} turns were at the worker of the turn before");
}

/// How many turns of the log that `up` left in `folder` were made by the worker of the rollout's
/// turn before, of how many that have one.
async fn stayed(folder: &Path) -> (u64, u64) {
    let after = folder.join("after");
    std::fs::create_dir(&after).unwrap();
    std::fs::rename(folder.join("nats"), after.join("streams")).unwrap();
    let server = Server::start(&ServerOptions::in_folder(after)).await.unwrap();
    let queue = JetStream::connect(server.url(), "test", JetStreamOptions::default()).await.unwrap();
    let broker = Broker::new(queue, Objects::memory());
    let end = broker.queue().log_end().await.unwrap();
    let mut log = broker.read_log(1).await.unwrap();
    let (mut last, mut stayed, mut turns, mut read) = (BTreeMap::new(), 0, 0, 0);
    while read < end {
        for logged in log.next(1_000).await.unwrap() {
            read += 1;
            let Ok(Event::Outcome(outcome)) = logged.event else { continue };
            let TaskKey::Generate { rollout, .. } = outcome.key else { continue };
            if let Some(before) = last.insert(rollout, outcome.worker.clone()) {
                turns += 1;
                stayed += u64::from(before == outcome.worker);
            }
        }
    }
    (stayed, turns)
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
