//! Runs `test_api.py`: what a program in another language sees, by nats-py alone.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::processes::{Processes, root};

/// The virtual environment's Python, or the one on the path where there is none.
fn python() -> PathBuf {
    let ours = root().join(".venv/bin/python");
    if ours.is_file() { ours } else { PathBuf::from("python3") }
}

#[tokio::test]
async fn any_nats_client_can_use_the_api() {
    let processes = Processes::start().await;
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/plain_nats/test_api.py");
    let output = Command::new(python())
        .arg("-B")
        .arg(tests)
        .arg("--verbose")
        .env("NATS_URL", processes.url())
        .stdin(Stdio::null())
        .output()
        .expect("python3 runs; `make setup` makes its environment");
    // unittest writes its report to the error output.
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
    println!("{report}");
}
