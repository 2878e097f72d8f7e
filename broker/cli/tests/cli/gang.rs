//! Members of a gang are killed and paused in the middle of a run: the remaining members redo the
//! step, and each version is committed once.

use std::path::Path;

use nix::sys::signal::Signal;

use super::support::{GANG, Up, run_file, send};

/// Steps that take long enough for what happens to hit a running run.
const STEPS: u64 = 100;

/// A run of a model of several buckets, of whose weights each member keeps a part.
const SHARDED: &str = r#"
name = "counter"
steps = 24
[model]
kind = "decoder"
vocabulary = 1519
layers = 4
width = 256
heads = 4
feed_forward = 688
context = 96
[environment]
name = "frozen_lake"
size = 5
max_turns = 10
[[rewards]]
rule = "env_return"
[rollout]
groups_per_step = 4
group_size = 4
alpha = 1.0
max_new_tokens = 1
actions_only = true
[algorithm]
recompute = true
shard_gradients = true
shard_weights = true
[evaluate]
prompts = 4
[weights]
checkpoint_every = 5
"#;

/// A run that they make.
fn start(folder: &Path) -> Up {
    let spec = std::fs::read_to_string(run_file("counter.toml")).unwrap();
    let file = folder.join("gang.toml");
    std::fs::write(&file, spec + GANG).unwrap();
    Up::start_file(folder, &file, &["--steps", &STEPS.to_string()])
}

/// It ends after so many steps of so many rollouts.
async fn ends_well(up: &mut Up, (steps, rollouts): (u64, u64)) {
    assert!(up.ended().await.success(), "{}", up.output());
    let report = up.report();
    assert!(report.balanced && report.audited, "{report:#?}");
    assert!(report.max_staleness <= 1, "{report:#?}");
    assert_eq!(report.final_version, steps);
    assert_eq!(report.ledger.trained, steps * rollouts);
}

#[tokio::test]
async fn a_member_is_killed_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = start(folder.path());
    for (role, version) in [("train-1", 5), ("train-0", 40)] {
        up.reached(version).await;
        send(up.pid_of(role, None).await, Signal::SIGKILL);
    }
    ends_well(&mut up, (STEPS, 8 * 4)).await;
}

#[tokio::test]
async fn all_members_are_killed_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = start(folder.path());
    up.reached(10).await;
    for role in ["train-0", "train-1"] {
        send(up.pid_of(role, None).await, Signal::SIGKILL);
    }
    ends_well(&mut up, (STEPS, 8 * 4)).await;
}

#[tokio::test]
async fn a_member_hangs_and_the_other_goes_on_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = start(folder.path());
    up.reached(10).await;
    let paused = up.pid_of("train-1", None).await;
    send(paused, Signal::SIGSTOP);
    let goes_on = up.version().await + 20;
    up.reached(goes_on).await;
    send(paused, Signal::SIGCONT);
    ends_well(&mut up, (STEPS, 8 * 4)).await;
}

#[tokio::test]
async fn members_with_a_part_of_the_weights_each_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sharded.toml");
    std::fs::write(&file, format!("{SHARDED}{GANG}")).unwrap();
    let mut up = Up::start_file(folder.path(), &file, &[]);
    // One is lost before a checkpoint and one after it; the other makes steps alone meanwhile.
    for (role, version) in [("train-1", 2), ("train-0", 12)] {
        up.reached(version).await;
        send(up.pid_of(role, None).await, Signal::SIGKILL);
    }
    ends_well(&mut up, (24, 4 * 4)).await;
}
