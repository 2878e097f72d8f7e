//! A user's reward in Python, whose process is killed repeatedly: nothing is lost, and nothing is
//! scored twice.

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use super::support::{Up, run_file, send};

/// Scores as `env_return` does, and prints its requests.
const PROGRAM: &str = r#"
import millrace

@millrace.reward("own_return")
def own_return(rollout, factor):
    print("scored")
    return factor * sum(turn.reward for turn in rollout.turns)

millrace.serve()
"#;

/// The processes that run `script`.
fn running(script: &Path) -> Vec<u32> {
    let script = script.to_string_lossy().into_owned();
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    let runs = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words.next().is_some_and(|word| word.ends_with(b"python3")) && words.next() == Some(script.as_bytes())
    };
    numbers.filter(runs).collect()
}

/// Writes a reward's program and a run that is scored by it; gives both files, and what a worker is
/// to execute.
fn scored_by(folder: &Path, program: &str, settings: &str) -> (PathBuf, PathBuf, String) {
    let (script, file) = (folder.join("own.py"), folder.join("run.toml"));
    std::fs::write(&script, program).unwrap();
    let rewards = format!("[[rewards]]\nrule = \"custom\"\npool = \"own_return\"\n{settings}\n");
    let counter = std::fs::read_to_string(run_file("counter.toml")).unwrap();
    std::fs::write(&file, format!("{counter}\n{rewards}")).unwrap();
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workers/python");
    let exec = format!("env PYTHONPATH={} python3 {}", package.display(), script.display());
    (script, file, exec)
}

#[tokio::test]
async fn a_reward_in_python_survives_the_death_of_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let (script, file, exec) = scored_by(folder.path(), PROGRAM, "settings = { factor = 0.5 }");
    let mut up = Up::start_file(folder.path(), &file, &["--steps", "30", "--exec", &exec]);
    for version in [2, 6, 10] {
        up.reached(version).await;
        let processes = running(&script);
        assert!(!processes.is_empty(), "{}", up.output());
        processes.iter().for_each(|pid| send(*pid, Signal::SIGKILL));
    }
    assert!(up.ended().await.success(), "{}", up.output());
    let report = up.report();
    assert!(report.balanced && report.audited, "{report:#?}");
    assert_eq!((report.final_version, report.restarts), (30, 0), "its process is not the worker's");
    assert_eq!(report.ledger.trained, 30 * 8 * 4);
    assert!(running(&script).is_empty(), "it stays when its worker has left");
}

/// Scores until there is a file `broken` in its folder, then fails for good.
const BREAKS: &str = r#"
import pathlib
import millrace

@millrace.reward("own_return")
def own_return(rollout):
    if (pathlib.Path(__file__).parent / "broken").exists():
        raise RuntimeError("no such judge")
    return 1.0

millrace.serve()
"#;

/// In a pipe or in CI no person reads the remedy while the command waits: it ends, and the same
/// command resumes the run.
#[tokio::test]
async fn a_run_that_pauses_itself_ends_its_command_and_goes_on_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let (_, file, exec) = scored_by(folder.path(), BREAKS, "");
    let arguments = ["--steps", "12", "--exec", &exec];
    let broken = folder.path().join("broken");
    std::fs::write(&broken, "").unwrap();
    let mut up = Up::start_file(folder.path(), &file, &arguments);
    assert_eq!(up.ended().await.code(), Some(1), "{}", up.output());
    for words in ["paused: ", "no such judge", "the same command resumes it"] {
        assert!(up.output().contains(words), "{words}: {}", up.output());
    }
    std::fs::remove_file(&broken).unwrap();
    let mut again = Up::start_file(folder.path(), &file, &arguments);
    assert!(again.ended().await.success(), "{}", again.output());
    let report = again.report();
    assert!(report.balanced && report.audited && report.final_version == 12, "{report:#?}");
}

#[tokio::test]
async fn a_reward_of_ones_own_has_a_name_that_no_other_has() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    let counter = std::fs::read_to_string(run_file("counter.toml")).unwrap();
    for (reward, said) in [
        ("rule = \"custom\"", "rewards[0].pool"),
        ("rule = \"custom\"\npool = \"success\"", "give yours another"),
        ("rule = \"success\"\npool = \"mine\"", "other rules have none"),
        ("rule = \"success\"\nsettings = { words = 4 }", "rewards[0].settings"),
    ] {
        std::fs::write(&file, format!("{counter}\n[[rewards]]\n{reward}\n")).unwrap();
        let mut up = Up::start_file(folder.path(), &file, &[]);
        assert!(!up.ended().await.success());
        assert!(up.output().contains(said), "{reward}: {}", up.output());
    }
}
