//! The run files that ship learn what they promise, through real processes and a real nats-server,
//! with torch, and while every role is killed. `make test` builds the programs that these tests
//! start.
#![cfg(feature = "torch")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millrace_schemas::api::Evaluation;
use millrace_schemas::report::Report;
use tempfile::TempDir;

/// Longest run. What hangs shows as this. The language model takes ten minutes on two cores, and twice as long on slow ones
/// beside other tests.
const PATIENCE: Duration = Duration::from_secs(1_800);

/// A `millrace up` under way.
struct Up {
    child: Child,
    folder: TempDir,
}

impl Up {
    fn start(run_file: &str, args: &[&str]) -> Self {
        Self::start_with(run_file, "", args)
    }

    /// Starts a run file with `more` at its end.
    fn start_with(run_file: &str, more: &str, args: &[&str]) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let millrace = Path::new(env!("CARGO_BIN_EXE_millrace-worker")).with_file_name("millrace");
        assert!(millrace.is_file(), "{} is not built; run `make build`", millrace.display());
        let folder = tempfile::tempdir().expect("a temporary folder");
        let out = std::fs::File::create(folder.path().join("up.out")).expect("a file");
        let spec = std::fs::read_to_string(root.join("broker/coordinator/runs").join(run_file));
        let file = folder.path().join(run_file);
        std::fs::write(&file, spec.expect("a run file") + more).expect("a file");
        let child = Command::new(millrace)
            // Run files name models from the repository's root.
            .current_dir(root)
            .arg("up")
            .arg(file)
            .args(["--dir".as_ref(), folder.path().as_os_str()])
            .args(args)
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a file"))
            .stderr(out)
            .spawn()
            .expect("millrace starts");
        Self { child, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn output(&self) -> String {
        std::fs::read_to_string(self.path("up.out")).unwrap_or_default()
    }

    /// Waits until `condition` returns something, while the run continues.
    #[expect(
        clippy::disallowed_methods,
        reason = "a look at another process now and then; there is no runtime here"
    )]
    fn until<T>(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> Option<T>) -> T {
        let since = Instant::now();
        loop {
            if let Some(found) = condition(self) {
                return found;
            }
            assert!(since.elapsed() < PATIENCE, "waited in vain until {what}:\n{}", self.output());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until step `step` is shown.
    fn reached(&mut self, step: u64) {
        self.until(&format!("step {step} is done"), |up| {
            let text = up.output();
            let last = text
                .lines()
                .rev()
                .find_map(|line| line.strip_prefix("step ")?.split('/').next()?.parse::<u64>().ok());
            last.filter(|last| *last >= step)
        });
    }

    fn kill(&mut self, role: &str) {
        let pids = std::fs::read(self.path("pids.json")).expect("pids.json");
        let pids: serde_json::Value = serde_json::from_slice(&pids).expect("pids.json is JSON");
        let pid = pids[role].as_u64().unwrap_or_else(|| panic!("no {role} in {pids}"));
        let killed = Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill starts");
        assert!(killed.success(), "{role} was not there");
    }

    /// The report of the run, once it has ended. What it said is kept for a test that fails on the report: the curve shows
    /// whether it learned slowly, or learned and lost it.
    fn report(mut self) -> Report {
        let status = self.until("the run ends", |up| up.child.try_wait().expect("a child"));
        println!("{}", self.output());
        assert!(status.success(), "{status}");
        let report = std::fs::read(self.path("report.json")).expect("a report");
        serde_json::from_slice(&report).expect("the report is one")
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // Its children go with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn held_what_is_promised(report: &Report) {
    held_what_is_promised_of(report, 256);
}

fn held_what_is_promised_of(report: &Report, rollouts_per_step: u64) {
    assert!(report.balanced && report.audited, "{report:#?}");
    assert!(report.max_staleness as f64 <= report.alpha.ceil(), "{report:#?}");
    assert_eq!(report.final_version, report.steps);
    assert_eq!(report.ledger.trained, report.steps * rollouts_per_step);
    assert_eq!(report.ledger.in_flight, 0);
}

fn gain(report: &Report) -> (f64, f64) {
    (report.success_before.expect("v0 is evaluated"), report.success_after.expect("the last version is"))
}

/// The result of a rule on the same held-out prompts, and its standard error.
fn rule(report: &Report, name: &str) -> (f64, f64) {
    let rule = report.baselines.iter().find(|baseline| baseline.name == name);
    rule.map(|rule| (rule.success, rule.standard_error)).expect("the report has the baseline")
}

/// Two standard errors of the evaluation above the best rule that looks one step ahead.
fn above_reflexes(report: &Report) -> f64 {
    let best = rule(report, "reflex").0.max(rule(report, "memoryless_reflex").0);
    let greedy = |e: &&Evaluation| e.version == report.final_version && e.temperature == 0.0;
    let evaluation = report.evaluations.iter().find(greedy).expect("the last version is evaluated");
    best + 2.0 * evaluation.standard_error.expect("an evaluation of many prompts")
}

/// Two standard errors above uniformly random play on the same held-out prompts, which the report
/// must have.
fn above_chance(report: &Report) -> f64 {
    let told = report.evaluations.iter().map(|e| (e.version, e.temperature)).collect::<Vec<_>>();
    assert_eq!(told, [0, report.final_version].map(|v| [(v, 0.0), (v, 1.0)]).concat());
    assert!(report.evaluations.iter().all(|e| e.standard_error.is_some() && e.distinct > 0), "{report:#?}");
    assert_eq!(report.baselines.len(), 4, "{report:#?}");
    let (random, error) = rule(report, "random");
    random + 2.0 * error
}

#[test]
fn frozen_lake_is_learnt_while_every_role_is_killed() {
    let mut up = Up::start("frozen-lake-surroundings.toml", &[]);
    let roles = ["generate-0", "coordinator-0", "env-0", "train-0", "nats-server"];
    for (role, step) in roles.into_iter().zip((5..).step_by(8)) {
        up.reached(step);
        up.kill(role);
    }
    let report = up.report();
    held_what_is_promised(&report);
    assert_eq!(report.restarts, roles.len() as u64, "{report:#?}");
    let (before, after) = gain(&report);
    assert!(before < 0.1 && after >= 0.8, "{before} to {after}");
}

/// Two make each step together. One is killed, then both at once: the steps since the last
/// checkpoint are redone from the stored batches.
#[test]
fn a_gang_learns_while_its_members_are_killed() {
    let gang = "\n[gang]\nranks = 2\npatience_ms = 5000\n";
    let mut up = Up::start_with("frozen-lake-surroundings.toml", gang, &[]);
    up.reached(6);
    up.kill("train-1");
    up.reached(20);
    up.kill("train-0");
    up.kill("train-1");
    let report = up.report();
    held_what_is_promised(&report);
    assert_eq!(report.restarts, 3, "{report:#?}");
    let (before, after) = gain(&report);
    assert!(before < 0.1 && after >= 0.8, "{before} to {after}");
}

#[test]
fn shipped_examples_learn() {
    let report = Up::start("frozen-lake.toml", &[]).report();
    held_what_is_promised(&report);
    let (before, after) = gain(&report);
    let bar = above_reflexes(&report);
    assert!(before < 0.1 && after > bar, "frozen lake: {before} to {after}, to pass {bar}");
    assert!(after > above_chance(&report));
    // Two thirds of its steps: it learns by then, and the test stays short.
    let report = Up::start("sokoban.toml", &["--steps", "160"]).report();
    held_what_is_promised(&report);
    let (before, after) = gain(&report);
    assert!(after >= above_chance(&report) && after >= before + 0.1, "sokoban: {before} to {after}");
}

/// 16 of its 40 steps: a gain beyond two standard errors shows by then. It has no fixed rule beside it, so what it has to
/// pass is the model that it starts from.
#[test]
fn a_language_model_learns_sums() {
    let report = Up::start("smollm2-arithmetic.toml", &["--steps", "16"]).report();
    held_what_is_promised_of(&report, 64);
    let of = |version: u64| {
        let evaluation = report.evaluations.iter().find(|e| e.version == version).expect("an evaluation");
        (evaluation.success.expect("it was played"), evaluation.standard_error.expect("of many prompts"))
    };
    let ((before, error_before), (after, error_after)) = (of(0), of(16));
    let gain = 2.0 * error_before.hypot(error_after);
    assert!(after > before + gain, "sums: {before} to {after}, and {gain} is to be gained");
}
