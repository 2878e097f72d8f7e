//! Memory is bounded while nobody looks: the owner's thread is stopped, as a machine without time to
//! spare stops it, and programs take what they get.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use millrace_sandbox::groups::memory_bound;
use millrace_sandbox::live::{Bounds, Exec, Host, Settings, Spec};
use millrace_sandbox::{End, File, Job, Limits, Run, Sandbox};

const MIB: u64 = 1024 * 1024;
const PROGRAM: &str = env!("CARGO_BIN_EXE_millrace-sandbox");
const PATIENCE: Duration = Duration::from_secs(60);

/// Forty processes of 50 MiB each, none of which has too much. It writes how many there were.
const HOGS: &str = "import os, signal
held = 0
for _ in range(40):
    ours, its = os.pipe()
    if os.fork() == 0:
        block = bytearray(50 << 20)
        os.write(its, b'held')
        signal.pause()
    os.close(its)
    held += len(os.read(ours, 4)) > 0
    print(held, flush=True)
";

/// The folder of this machine's groups; `None` where there are none.
fn groups() -> Option<PathBuf> {
    let bound = memory_bound();
    let folder = bound.strip_prefix("control groups ").and_then(|rest| rest.split_once(" in "));
    if folder.is_none() {
        let note = format!("SKIPPED tests of control groups: memory is bounded by {bound}\n");
        std::io::Write::write_all(&mut std::io::stderr(), note.as_bytes()).unwrap();
    }
    folder.map(|(_, folder)| PathBuf::from(folder))
}

/// Stops this thread, and with it all looks, until the kernel killed something in one of our groups.
#[expect(clippy::disallowed_methods, reason = "this thread shall stand still")]
fn stop_until_killed(groups: &PathBuf) {
    let began = Instant::now();
    loop {
        let ours = format!("millrace-sandbox-{}-", std::process::id());
        let is_killed = std::fs::read_dir(groups).unwrap().flatten().any(|entry| {
            let is_ours = entry.file_name().to_string_lossy().starts_with(&ours);
            let files = ["memory.events", "memory.oom_control"].map(|file| entry.path().join(file));
            let text = files.iter().find_map(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
            is_ours && text.lines().any(|line| line.starts_with("oom_kill ") && !line.ends_with(" 0"))
        });
        if is_killed {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "nothing was killed");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn one_run_has_no_more_memory_than_its_bound_and_its_files() {
    let Some(groups) = groups() else { return };
    let limits = Limits {
        wall_ms: 30_000,
        cpu_ms: 30_000,
        memory_bytes: 256 * MIB,
        disk_bytes: 16 * MIB,
        processes: 64,
        ..Limits::default()
    };
    let job = Job {
        files: vec![File { name: "main.py".to_owned(), text: HOGS.to_owned() }],
        runs: vec![Run {
            command: ["/usr/bin/python3", "-I", "main.py"].map(str::to_owned).to_vec(),
            stdin: String::new(),
        }],
        limits,
        read: vec![],
        may_lack: vec![],
    };
    let sandbox = Sandbox::at(PROGRAM, 1);
    let mut run = std::pin::pin!(sandbox.run(&job, |_, _| true));
    // The job is in the sandbox's hands after this.
    tokio::select! {
        biased;
        ended = run.as_mut() => panic!("it ended at once: {ended:?}"),
        () = std::future::ready(()) => {}
    }
    stop_until_killed(&groups);
    let results = tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap();
    assert_eq!(results.runs[0].end, End::Memory, "{results:?}");
}

#[tokio::test]
async fn a_long_lived_sandbox_has_no_more_either_and_stays() {
    let Some(groups) = groups() else { return };
    let host = Host::open(Settings { warm: 0, ..Settings::new(PROGRAM) }).await.unwrap();
    let bounds = Bounds { memory_bytes: 256 * MIB, disk_bytes: 16 * MIB, ..Bounds::default() };
    let sandbox = host.create(Spec { bounds, ..Spec::default() }).await.unwrap();
    sandbox.write("/home/user/hogs.py", HOGS.as_bytes()).await.unwrap();
    let mut process = sandbox.spawn(Exec::shell("python3 hogs.py").timeout_ms(30_000)).await.unwrap();
    stop_until_killed(&groups);
    let end = loop {
        if let millrace_sandbox::live::Event::Ended { end, .. } = process.next().await {
            break end;
        }
    };
    assert_eq!(end, End::Memory);
    let after = sandbox.exec(Exec::shell("ls"), b"").await.unwrap();
    assert_eq!(after.stdout, b"hogs.py\n", "its files stay: {after:?}");
}
