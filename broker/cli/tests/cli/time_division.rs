//! Processes that sample and train in turn on one device, with and without others that only sample: killed, paused, and
//! without the memory for it.

use std::path::Path;

use nix::sys::signal::Signal;

use super::support::{GANG, Up, changed_run_file, run, run_file, send, stdout, until};

/// Steps that take long enough for what happens to hit a running run.
const STEPS: u64 = 120;

/// A run whose steps two flexible workers make together, beside so many that only sample.
fn start(folder: &Path, alpha: &str, generate: &str) -> Up {
    let spec = std::fs::read_to_string(run_file("counter.toml")).unwrap();
    let spec = spec.replace("alpha = 1.0", alpha);
    let file = folder.join("flexible.toml");
    std::fs::write(&file, spec + GANG).unwrap();
    let steps = STEPS.to_string();
    Up::start_file(folder, &file, &["--steps", &steps, "--time-division", "2", "--generate", generate])
}

async fn ends_well(up: &mut Up, staleness: u64) {
    assert!(up.ended().await.success(), "{}", up.output());
    let report = up.report();
    assert!(report.balanced && report.audited, "{report:#?}");
    assert!(report.max_staleness <= staleness, "{report:#?}");
    assert_eq!(report.final_version, STEPS);
    assert_eq!(report.ledger.trained, STEPS * 8 * 4);
}

/// What `millrace status --workers` shows of a worker.
async fn doing(up: &Up, worker: &str) -> Option<String> {
    let folder = up.folder.to_string_lossy().into_owned();
    let status = stdout(&run(&["status", "counter", "--workers", "--dir", &folder]).await);
    status.lines().find(|line| line.contains(worker)).map(str::to_owned)
}

#[tokio::test]
async fn flexible_workers_alone_generate_and_train_in_turn() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = start(folder.path(), "alpha = 0.0", "0");
    let line = until("a flexible worker is shown", async || doing(&up, "flexible-0").await).await;
    assert!(["generates", "shrinks", "trains"].iter().any(|word| line.contains(word)), "{line}");
    up.reached(10).await;
    send(up.pid_of("flexible-1", None).await, Signal::SIGKILL);
    ends_well(&mut up, 0).await;
}

#[tokio::test]
async fn a_flexible_worker_hangs_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = start(folder.path(), "alpha = 1.0", "1");
    up.reached(10).await;
    let paused = up.pid_of("flexible-1", None).await;
    send(paused, Signal::SIGSTOP);
    let goes_on = up.version().await + 20;
    up.reached(goes_on).await;
    send(paused, Signal::SIGCONT);
    ends_well(&mut up, 1).await;
}

#[tokio::test]
async fn a_step_that_does_not_fit_is_refused_with_the_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let small = [
        ("steps = 360", "steps = 2"),
        ("groups_per_step = 32", "groups_per_step = 2"),
        ("prompts = 256", "prompts = 0"),
        ("name = \"frozen-lake\" ", "name = \"counter\" "),
    ];
    let file = changed_run_file("frozen-lake.toml", folder.path(), &small);
    let up = Up::start_with(
        folder.path(),
        &file,
        &["--time-division", "1", "--generate", "0"],
        &[("MILLRACE_TIME_DIVISION_MEMORY", "1")],
    );
    let refused = until("the step is refused", async || {
        up.output().lines().find(|line| line.contains("needs host memory")).map(str::to_owned)
    })
    .await;
    assert!(refused.contains("free=1048576"), "{refused}");
    assert_eq!(up.version().await, 0);
}
