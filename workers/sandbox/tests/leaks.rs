//! Nothing is left of long-lived sandboxes when their owner is killed, whatever they were doing.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millrace_sandbox::groups::memory_bound;
use millrace_sandbox::live::{Exec, Forward, Host, Settings, Spec};

/// Owners that are killed. Each has sandboxes in several states.
const KILLS: usize = 12;
const PATIENCE: Duration = Duration::from_secs(60);
/// Tells this test's own program to be an owner, with this word in all that it starts.
const OWNER: &str = "MILLRACE_TEST_OWNER";

/// What is counted: processes with the word, or of the program, network namespaces, mounts that name
/// a layer, control groups, folders of sockets.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    processes: usize,
    networks: usize,
    mounts: usize,
    groups: usize,
    folders: usize,
}

fn processes() -> Vec<u32> {
    let found = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    found.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Control groups below `at` that an owner made.
fn groups(at: &Path, owner: u32) -> usize {
    let found = std::fs::read_dir(at).into_iter().flatten().flatten();
    let folders = found.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let name = format!("millrace-sandbox-{owner}-");
    folders
        .map(|entry| {
            let is_its = entry.file_name().to_string_lossy().starts_with(&name);
            usize::from(is_its) + groups(&entry.path(), owner)
        })
        .sum()
}

/// What there is of owners with this word. A process that ended while we looked is gone.
fn left(word: &str, owner: Option<u32>) -> Left {
    let program = std::fs::metadata(env!("CARGO_BIN_EXE_millrace-sandbox")).unwrap();
    let of_word = |pid: &u32| {
        let is_program = std::fs::metadata(format!("/proc/{pid}/exe"))
            .is_ok_and(|found| (found.dev(), found.ino()) == (program.dev(), program.ino()));
        let line = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        is_program
            || [line, arguments]
                .iter()
                .any(|text| text.windows(word.len()).any(|part| part == word.as_bytes()))
    };
    let ours: Vec<u32> =
        processes().into_iter().filter(|pid| *pid != std::process::id()).filter(of_word).collect();
    let network = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let own = network(&std::process::id());
    let networks: BTreeSet<_> =
        ours.iter().filter_map(network).filter(|found| Some(found) != own.as_ref()).collect();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let sockets = owner.map(|pid| format!("millrace-sockets-{pid}-"));
    let folders = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten().filter(|entry| {
        sockets.as_ref().is_some_and(|name| entry.file_name().to_string_lossy().starts_with(name))
    });
    Left {
        processes: ours.len(),
        networks: networks.len(),
        mounts: mounts.lines().filter(|line| line.contains(" /l/") || line.contains(word)).count(),
        groups: owner.map_or(0, |pid| groups(Path::new("/sys/fs/cgroup"), pid)),
        folders: folders.count(),
    }
}

/// Is an owner, until it is killed: one sandbox with a server and a forwarded port, one in the middle
/// of a command that hears no signal, one with snapshots; and others are being made all the while.
#[tokio::test]
async fn an_owner() {
    let Ok(word) = std::env::var(OWNER) else { return };
    let host = Host::open(Settings { warm: 2, ..Settings::new(env!("CARGO_BIN_EXE_millrace-sandbox")) })
        .await
        .unwrap();
    let forward = vec![Forward { port: 8000, to: "/no/such/socket".into() }];
    let spec = Spec { env: [("WORD".to_owned(), word)].into(), forward, ..Spec::default() };
    let serves = host.create(spec.clone()).await.unwrap();
    serves
        .exec(Exec::shell("setsid sleep 1000 >/dev/null 2>&1 & setsid sleep 1000 >/dev/null 2>&1 &"), b"")
        .await
        .unwrap();
    let busy = host.create(spec.clone()).await.unwrap();
    let deaf = "trap '' TERM INT HUP; echo up; while :; do sleep 0.05; done";
    let mut command = busy.spawn(Exec::shell(deaf)).await.unwrap();
    command.next().await;
    let mut kept = host.create(spec.clone()).await.unwrap();
    kept.exec(Exec::shell("echo kept > file"), b"").await.unwrap();
    let snapshot = kept.snapshot().await.unwrap();
    println!("up");
    loop {
        host.fork(&snapshot, spec.clone()).await.unwrap().exec(Exec::shell("sleep 0.01"), b"").await.unwrap();
    }
}

fn owner(word: &str) -> Child {
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_owner", "--nocapture"])
        .env(OWNER, word)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let is_up = lines.map_while(Result::ok).any(|line| line.ends_with("up"));
    assert!(is_up, "the owner ended: {:?}", owner.wait());
    owner
}

#[tokio::test]
async fn nothing_is_left_of_owners_that_are_killed() {
    let word = format!("owner-{}", std::process::id());
    let mut seen = 0;
    let mut pids = Vec::new();
    for _ in 0..KILLS {
        let mut owner = owner(&word);
        let found = left(&word, Some(owner.id()));
        assert!(found.processes > 4 && found.networks >= 2, "there is something to leave: {found:?}");
        let has_groups = memory_bound().starts_with("control groups");
        assert_eq!(found.groups > 0, has_groups, "{}: {found:?}", memory_bound());
        seen += found.processes;
        owner.kill().unwrap();
        owner.wait().unwrap();
        pids.push(owner.id());
    }
    // What was killed between two steps left a folder at most, and the next owner removes that.
    let next = Settings { warm: 0, ..Settings::new(env!("CARGO_BIN_EXE_millrace-sandbox")) };
    drop(Host::open(next).await.unwrap());
    let none = Left { processes: 0, networks: 0, mounts: 0, groups: 0, folders: 0 };
    let began = Instant::now();
    for pid in pids {
        while left(&word, Some(pid)) != none {
            let found = left(&word, Some(pid));
            assert!(began.elapsed() < PATIENCE, "of {seen} processes there are {found:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
