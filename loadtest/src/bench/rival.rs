//! The rival: a Python process that takes requests and answers in lines of JSON.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a rival imports that Python itself does not bring. `llama_cpp.py` converts with the same two.
const PACKAGES: [&str; 2] = ["torch", "transformers"];

/// The project's own Python, which `make setup` fills: that of a `.venv` in this folder or one above it; else `python3`.
pub(super) fn python() -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    let own = here.ancestors().map(|folder| folder.join(".venv/bin/python3")).find(|python| python.is_file());
    own.unwrap_or_else(|| PathBuf::from("python3"))
}

/// Checks that a Python has what a rival imports, so that what is missing is named before anything is measured.
///
/// # Errors
/// It cannot be started, or lacks a package.
fn check(python: &Path) -> anyhow::Result<()> {
    let script = "import importlib.util, sys\n\
                  print(' '.join(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))";
    let asked = Command::new(python).args(["-c", script]).args(PACKAGES).output();
    let at = python.display();
    let asked = asked.with_context(|| format!("failed to start {at}; name another by --python"))?;
    let missing = String::from_utf8_lossy(&asked.stdout);
    let missing = missing.trim();
    ensure!(
        asked.status.success() && missing.is_empty(),
        "python={at} lacks {missing}; run `make setup`, name a Python that has them by --python, or leave the rivals out \
         by --alone"
    );
    Ok(())
}

/// The process. It ends when its input does.
pub(super) struct Rival {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Rival {
    pub(super) fn start(python: &Path, script: &str) -> anyhow::Result<Self> {
        check(python)?;
        let mut child = Command::new(python)
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("failed to start {}; name another by --python", python.display()))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("its output is piped")?);
        Ok(Self { child, input, output })
    }

    /// Sends a line and waits for the one that answers it.
    pub(super) fn ask<T: DeserializeOwned>(&mut self, question: &impl Serialize) -> anyhow::Result<T> {
        let input = self.input.as_mut().context("its input is open until it is dropped")?;
        writeln!(input, "{}", serde_json::to_string(question)?)?;
        input.flush()?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        anyhow::ensure!(!line.is_empty(), "the rival ended; what it said is above");
        serde_json::from_str(&line).with_context(|| format!("the rival answered {line:?}"))
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        drop(self.input.take());
        // A drop cannot report a process that fails to end.
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Python that starts and has nothing installed.
    #[test]
    fn a_python_without_transformers_is_refused_by_what_it_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let (draft, bare) = (folder.path().join("draft"), folder.path().join("python3"));
        std::fs::write(&draft, "#!/bin/sh\nexec python3 -I -S \"$@\"\n").unwrap();
        // By another process: a file that this one wrote is busy while a fork of another thread has it open, too.
        assert!(Command::new("install").arg("-m755").args([&draft, &bare]).status().unwrap().success());
        let refused = Rival::start(&bare, "import transformers").err().unwrap().to_string();
        assert!(refused.contains("lacks torch transformers") && refused.contains("--python"), "{refused}");
        let none = Rival::start(Path::new("/nowhere/python3"), "").err().unwrap().to_string();
        assert!(none.contains("/nowhere/python3") && none.contains("--python"), "{none}");
    }
}
