//! Workers that come and go by the autoscaler's decisions, and workers that are asked to leave.

use millrace_schemas::scale::{ScaleCause, ScaleStatus};
use nix::sys::signal::Signal;

use super::support::{
    ALL_STAGES, Coordinated, PATIENCE, Up, changed_run_file, lives, millrace, millrace_worker, run, send,
    stderr, stdout, until,
};

async fn decisions(up: &Up) -> ScaleStatus {
    let folder = up.folder.to_string_lossy().into_owned();
    let answer = run(&["scale", "status", "--json", "--dir", &folder]).await;
    serde_json::from_slice(&answer.stdout).unwrap_or_default()
}

#[tokio::test]
async fn a_scaled_run_starts_with_no_workers_and_ends_balanced() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--steps", "30", "--autoscale", "--generate", "2", "--env", "2"];
    let mut up = Up::start(folder.path(), &args);
    up.pid_of("train-0", None).await;
    assert!(!up.pids().keys().any(|name| name.starts_with("generate")), "nothing is to be sampled yet");
    up.pid_of("generate-0", None).await;
    up.pid_of("env-0", None).await;
    let decided = until("both pools are decided", async || {
        let decided = decisions(&up).await;
        (decided.len() == 2).then_some(decided)
    })
    .await;
    assert!(decided["generate"].last.desired <= 2, "{decided:?}");
    let status = up.ended().await;
    assert!(status.success(), "{}", up.output());
    let report = up.report();
    assert!(report.balanced && report.audited, "{report:#?}");
    assert_eq!(report.ledger.trained, 30 * 8 * 4);
}

#[tokio::test]
async fn decisions_outlive_the_coordinator_and_killed_workers_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--steps", "200", "--autoscale", "--generate", "1", "--env", "1"];
    let mut up = Up::start(folder.path(), &args);
    up.reached(3).await;
    let (worker, coordinator) = (up.pid_of("generate-0", None).await, up.pid_of("coordinator-0", None).await);
    send(coordinator, Signal::SIGKILL);
    send(worker, Signal::SIGKILL);
    up.pid_of("coordinator-0", Some(coordinator)).await;
    up.pid_of("generate-0", Some(worker)).await;
    let decided = until("the decisions are known", async || {
        let decided = decisions(&up).await;
        (!decided.is_empty()).then_some(decided)
    })
    .await;
    assert!(decided["generate"].last.desired >= 1, "{decided:?}");
    let before = up.version().await;
    up.reached(before + 3).await;
    send(up.pid(), Signal::SIGINT);
    up.ended().await;
}

#[tokio::test]
async fn without_a_run_every_pool_is_wanted_empty_and_the_reason_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let ready = Coordinated::start().await;
    let file = folder.path().join("scale.toml");
    let text = "interval_s = 0.2\n[[pool]]\nname = \"all\"\nstages = [\"generate\"]\nmin = 1\nmax = 3\n";
    std::fs::write(&file, text).unwrap();
    // A second coordinator, which decides once the first is gone, has the file; the first has none.
    let place = ["--nats", &ready.url, "--objects", &ready.objects];
    let log = std::fs::File::create(folder.path().join("second.log")).unwrap();
    let _second = millrace()
        .args(["coordinator", "--id", "second", "--scale", file.to_str().unwrap()])
        .args(place)
        .stderr(log)
        .spawn()
        .unwrap();
    let before = ready.run(&["scale", "status"]).await;
    assert!(stdout(&before).contains("nothing is scaled"), "a standby decides nothing: {}", stdout(&before));
    ready.kill_coordinator();
    let decided = until("the pool is decided", async || {
        let answer = ready.run(&["scale", "status", "--json"]).await;
        let decided: ScaleStatus = serde_json::from_slice(&answer.stdout).ok()?;
        decided.get("all").map(|pool| pool.last.clone())
    })
    .await;
    assert_eq!((decided.desired, decided.reason.cause), (1, ScaleCause::NoRun), "{decided:?}");
    let told = stdout(&ready.run(&["scale", "status"]).await);
    assert!(told.contains("no run works; min holds it up"), "{told}");
    let unknown = ready.run(&["scale", "status", "../x"]).await;
    assert!(!unknown.status.success() && stderr(&unknown).contains("known: all"), "{}", stderr(&unknown));
}

#[tokio::test]
async fn a_scaling_file_that_cannot_be_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scale.toml");
    std::fs::write(&file, "[[pool]]\nname = \"../a\"\nstages = []\nmin = 4\nmax = 2\n").unwrap();
    let file = file.to_str().unwrap();
    let objects = folder.path().to_str().unwrap();
    for args in [&["scale", "check", file][..], &["coordinator", "--scale", file, "--objects", objects][..]] {
        let refused = run(args).await;
        assert!(!refused.status.success());
        for part in ["../a", "stages = []", "min = 4 is above max = 2"] {
            assert!(stderr(&refused).contains(part), "{part}: {}", stderr(&refused));
        }
    }
}

#[tokio::test]
async fn a_worker_that_is_asked_to_leave_returns_its_tasks_and_ends_well() {
    let folder = tempfile::tempdir().unwrap();
    let ready = Coordinated::start().await;
    let start = |id: &str| {
        let log = std::fs::File::create(folder.path().join(id)).unwrap();
        let place = ["--nats", &ready.url, "--objects", &ready.objects, "--id", id];
        millrace_worker().args(["--stages", ALL_STAGES]).args(place).stderr(log).spawn().unwrap()
    };
    let mut first = start("first");
    let run_file = changed_run_file("counter.toml", folder.path(), &[("steps = 50", "steps = 40")]);
    let submitted = ready.run(&["submit", run_file.to_str().unwrap()]).await;
    assert!(submitted.status.success(), "{}", stderr(&submitted));
    let drained = until("the worker reports that it leaves", async || {
        let drained = ready.run(&["drain", "first", "--within", "10"]).await;
        drained.status.success().then_some(drained)
    })
    .await;
    assert!(stdout(&drained).contains("first leaves"), "{}", stdout(&drained));
    let status = tokio::time::timeout(PATIENCE, first.wait()).await.expect("it ends").unwrap();
    assert!(status.success(), "{status}");
    // Another one ends the run: nothing was lost with the first.
    let second = start("second");
    let pid = second.id().unwrap();
    until("the run is finished", async || {
        let status = ready.run(&["status", "counter", "--json"]).await;
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).ok()?;
        (status["state"] == "finished").then_some(())
    })
    .await;
    assert!(lives(pid));
    let gone = ready.run(&["drain", "first"]).await;
    assert!(!gone.status.success() && stderr(&gone).contains("no worker has this name"), "{}", stderr(&gone));
}

/// KEDA leaves out coordinators that it cannot connect to: the leader alone listens, and after it the
/// next one.
#[tokio::test]
async fn the_leader_alone_listens_for_keda() {
    let folder = tempfile::tempdir().unwrap();
    let ready = Coordinated::start().await;
    let file = folder.path().join("scale.toml");
    let text = "interval_s = 0.2\n[[pool]]\nname = \"all\"\nstages = [\"generate\"]\nmax = 3\ntarget = { kind = \"keda\" }\n";
    std::fs::write(&file, text).unwrap();
    let refused = ready.run(&["coordinator", "--keda-addr", "127.0.0.1:0"]).await;
    assert!(!refused.status.success() && stderr(&refused).contains("--scale"), "{}", stderr(&refused));
    let mut coordinators = Vec::new();
    for id in ["first", "second"] {
        let free = std::net::SocketAddr::from(([127, 0, 0, 1], millrace_server::free_port().unwrap()));
        let log = std::fs::File::create(folder.path().join(format!("{id}.log"))).unwrap();
        let process = millrace()
            .args([
                "coordinator",
                "--id",
                id,
                "--scale",
                file.to_str().unwrap(),
                "--keda-addr",
                &free.to_string(),
            ])
            .args(["--nats", &ready.url, "--objects", &ready.objects])
            .stderr(log)
            .spawn()
            .unwrap();
        coordinators.push((process, free));
    }
    // The one that leads has no scaling file, so nobody decides.
    ready.kill_coordinator();
    let listening = async |coordinators: &[(tokio::process::Child, std::net::SocketAddr)]| {
        let mut listening = Vec::new();
        for (index, (_, addr)) in coordinators.iter().enumerate() {
            if tokio::net::TcpStream::connect(addr).await.is_ok() {
                listening.push(index);
            }
        }
        listening
    };
    let leader = until("a leader listens", async || listening(&coordinators).await.first().copied()).await;
    assert_eq!(listening(&coordinators).await, [leader], "a standby listens");
    coordinators.remove(leader).0.kill().await.unwrap();
    until("the other one leads and listens", async || listening(&coordinators).await.first().copied()).await;
}
