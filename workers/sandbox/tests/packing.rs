//! Files of a long-lived sandbox that are packed while it lives, on the real program.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::{Duration, Instant};

use millrace_sandbox::End;
use millrace_sandbox::live::{Exec, Host, LAYER_BYTES, LiveSandbox, Settings, Spec};

const PATIENCE: Duration = Duration::from_secs(120);

async fn sandbox() -> LiveSandbox {
    let settings = Settings { warm: 0, ..Settings::new(env!("CARGO_BIN_EXE_millrace-sandbox")) };
    Host::open(settings).await.unwrap().create(Spec::default()).await.unwrap()
}

/// What waits while files stand still.
async fn run(sandbox: &LiveSandbox, line: &str) {
    let ran = sandbox.exec(Exec::shell(line).timeout_ms(60_000), b"");
    let output = tokio::time::timeout(PATIENCE, ran).await.expect("it goes on").unwrap();
    assert_eq!(output.end, End::Exit(0), "{line}: {output:?}");
}

fn names(folder: &Path) -> Vec<String> {
    let found = std::fs::read_dir(folder).unwrap();
    found.map(|one| one.unwrap().file_name().into_string().unwrap()).collect()
}

/// Whether a process with these arguments runs. One that ended while we looked has none.
fn runs(arguments: &str) -> bool {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = all.filter_map(|one| std::fs::read(one.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).any(|line| line.contains(arguments))
}

#[tokio::test]
async fn files_with_more_holes_than_a_layer_may_have_are_refused_before_they_are_packed() {
    let (sandbox, folder) = (sandbox().await, tempfile::tempdir().unwrap());
    // 300 GiB of zeros.
    run(&sandbox, "mkdir holes; for i in $(seq 300); do truncate -s 1G holes/$i; done").await;
    run(&sandbox, "cd holes; for i in $(seq 1000); do ln 1 link$i; done").await;
    let refused = sandbox.pack(folder.path()).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("more than {LAYER_BYTES} bytes")), "{refused}");
    assert_eq!(names(folder.path()), [""; 0]);
    // One file of many names is one, and what is within the bound is packed.
    run(&sandbox, "cd holes; truncate -s 64M 1; for i in $(seq 2 300); do rm $i; done").await;
    let digest = sandbox.pack(folder.path()).await.unwrap();
    assert_eq!(names(folder.path()), [format!("{}.tar.zst", digest.as_str())]);
}

#[tokio::test]
async fn a_pack_that_is_dropped_ends_its_process_and_the_sandbox_goes_on() {
    let (sandbox, folder) = (sandbox().await, tempfile::tempdir().unwrap());
    run(&sandbox, "for i in $(seq 15); do truncate -s 1G hole$i; done").await;
    let began = Instant::now();
    let helper = {
        let mut packs = std::pin::pin!(sandbox.pack(folder.path()));
        loop {
            // `.OWNER-KEEPER-LAYER.part`
            let part = names(folder.path()).pop();
            let helper = part.as_deref().and_then(|name| name.strip_suffix(".part")?.split_once('-'));
            let helper = helper.map(|(_, helper)| format!("pack {}", helper.replace('-', " ")));
            if let Some(helper) = helper.filter(|helper| runs(helper)) {
                break helper;
            }
            assert!(began.elapsed() < PATIENCE, "it does not begin: {part:?}");
            tokio::select! {
                packed = &mut packs => panic!("it is over already: {packed:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
    };
    run(&sandbox, "echo goes on").await;
    let dropped = Instant::now();
    while runs(&helper) {
        assert!(dropped.elapsed() < PATIENCE, "it packs on");
        tokio::task::yield_now().await;
    }
}
