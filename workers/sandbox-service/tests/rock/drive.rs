//! The service driven by the clients of others.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::service::Service;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Service {
    /// Runs a program of Python's with the clients of others. It ends well and says `done` at last.
    pub(crate) fn drive(&self, program: &Path, args: &[&str], env: &[(&str, &str)]) {
        let python = root().join("target/sandbox-sdks/bin/python");
        assert!(python.exists(), "the clients are missing: run workers/sandbox-service/tests/setup.sh");
        let output = Command::new(python).arg(program).args(args).envs(env.iter().copied()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.trim_end().ends_with("done"),
            "{}\n{said}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
