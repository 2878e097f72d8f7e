//! `millrace plan`, with the real simulator beside it, and from runs that were really played.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use super::support::{Up, run, run_file, stderr, stdout, until};

/// Latencies of which training is most of a step.
const LATENCIES: &str = "slots = 8\nslot_tokens_per_s = 10.0\ntokens = 1.0\ntrain_sample_s = 1.0\n";

async fn plan(args: &[&str]) -> Output {
    let file = run_file("counter.toml");
    run(&[&["plan", file.to_str().unwrap(), "--gpus"][..], args].concat()).await
}

async fn refused(args: &[&str]) -> String {
    let output = plan(args).await;
    assert!(!output.status.success(), "{}", stdout(&output));
    stderr(&output)
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn a_plan_names_a_split_and_an_option_wins_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("latencies.toml");
    std::fs::write(&file, LATENCIES).unwrap();
    let from = ["--latencies", file.to_str().unwrap(), "--alpha", "0,1"];
    let text = stdout(&plan(&[&["4"][..], &from[..]].concat()).await);
    assert!(text.starts_with("counter, 4 GPUs: 1 generate, 3 train, alpha = "), "{text}");
    assert!(text.contains("each of them samples 10 tokens/s (given)"), "{text}");
    // Two slots of a token a second: now generating is most of a step.
    let slow = ["--slot-tokens-per-s", "0.01", "--slots", "2", "--json"];
    let found = json(&plan(&[&["4"][..], &from[..], &slow[..]].concat()).await);
    assert_eq!(found["recommended"]["generate"], 3, "{found}");
    let step_s = |name: &str| found[name]["step_s"].as_f64().unwrap();
    assert!(step_s("recommended") < 0.8 * step_s("half_and_half"), "{found}");
    assert!(step_s("one_more_generates") < 0.9 * step_s("recommended"), "{found}");
}

#[tokio::test]
async fn what_cannot_be_planned_is_refused_with_field_value_and_remedy() {
    let said = refused(&["4"]).await;
    assert!(said.contains("slots = not given: give --slots X"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("latencies.toml");
    std::fs::write(&file, LATENCIES).unwrap();
    let from = ["--latencies", file.to_str().unwrap()];
    for (args, said) in [
        (&["1"][..], "gpus = 1: choose 2 to"),
        (&["4", "--alpha", "17"][..], "alpha = [17.0]: give one or more from 0 to 16"),
        (&["4", "--alpha", "NaN"][..], "alpha = [NaN]"),
        (&["4", "--alpha", "-1"][..], "alpha = [-1.0]"),
        (&["4", "--slot-tokens-per-s", "NaN"][..], "slot_tokens_per_s = NaN"),
        (&["4", "--train-sample-s", "-2"][..], "train_gpu_s = -128: give seconds"),
        (&["4", "--measured", "No Such Run"][..], "measured=\"No Such Run\" is neither a folder"),
        (
            &["4", "--measured", folder.path().to_str().unwrap()][..],
            "is --dir the folder of a `millrace up`?",
        ),
    ] {
        let refusal = refused(&[args, &from[..]].concat()).await;
        assert!(refusal.contains(said), "{said}: {refusal}");
    }
    std::fs::write(&file, "slotz = 8\n").unwrap();
    let said = refused(&[&["4"][..], &from[..]].concat()).await;
    assert!(said.contains("slotz") && said.contains("latencies.toml"), "{said}");
}

#[tokio::test]
async fn without_the_simulator_the_error_says_how_to_get_it() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let alone = folder.path().join("millrace");
    std::fs::hard_link(env!("CARGO_BIN_EXE_millrace"), &alone).unwrap();
    let mut command = tokio::process::Command::new(&alone);
    command.arg("plan").arg(run_file("counter.toml")).args(["--gpus", "4"]).env("PATH", folder.path());
    let output = command.output().await.unwrap();
    assert!(!output.status.success());
    let said = stderr(&output);
    assert!(said.contains("there is no millrace-loadtest beside") && said.contains("`make build`"), "{said}");
}

/// A simulator of another build, which does not know the command.
#[tokio::test]
async fn a_simulator_that_fails_is_named() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let alone = folder.path().join("millrace");
    std::fs::hard_link(env!("CARGO_BIN_EXE_millrace"), &alone).unwrap();
    std::os::unix::fs::symlink("/bin/false", folder.path().join("millrace-loadtest")).unwrap();
    let mut command = tokio::process::Command::new(&alone);
    command.arg("plan").arg(run_file("counter.toml")).args(["--gpus", "4", "--slots", "8", "--tokens", "1"]);
    command.args(["--slot-tokens-per-s", "10", "--train-sample-s", "1"]);
    let said = stderr(&command.output().await.unwrap());
    assert!(said.contains("millrace-loadtest ended with") && said.contains("same build"), "{said}");
}

/// The plan of a run that was measured is held against that run.
fn assert_measured(found: &Value, folder: &Path) {
    let check = &found["check"];
    assert_eq!(
        (&check["measured"]["generate"], &check["measured"]["train"]),
        (&1.into(), &1.into()),
        "{found}"
    );
    for side in ["measured", "simulated"] {
        assert!(check[side]["step_s"].as_f64().unwrap() > 0.0, "{}: {found}", folder.display());
    }
    let assumed = found["assumptions"].to_string();
    assert!(
        assumed.contains("distributed as in") && assumed.contains("GPU-seconds a batch: measured"),
        "{assumed}"
    );
}

#[tokio::test]
async fn a_run_that_goes_on_is_measured_and_suggests_a_plan() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let up = Up::start(folder.path(), &["--steps", "1000000"]);
    up.reached(8).await;
    let told = until("the status has shares", async || {
        let said = stdout(&run(&["status", "counter", "--dir", place]).await);
        said.contains("  busy  ").then_some(said)
    })
    .await;
    assert!(
        told.contains("idle") && told.contains("millrace plan RUN.toml --gpus N --measured counter"),
        "{told}"
    );
    let found = json(&plan(&["4", "--measured", place, "--alpha", "1", "--json"]).await);
    assert_measured(&found, folder.path());
    let by_name = plan(&["4", "--measured", "counter", "--dir", place, "--alpha", "1", "--json"]).await;
    assert_measured(&json(&by_name), folder.path());
    let none = plan(&["4", "--measured", "other", "--dir", place]).await;
    assert!(stderr(&none).contains("other"), "{}", stderr(&none));
}

#[tokio::test]
async fn a_run_that_is_over_is_measured_by_its_report() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    // A run counts its time by ticks, of a second each: it has to take some.
    let mut up = Up::start(folder.path(), &["--steps", "60"]);
    assert!(up.ended().await.success(), "{}", up.output());
    assert!(up.output().contains("millrace plan RUN.toml --gpus N --measured"), "{}", up.output());
    let report = up.report();
    assert_eq!((report.generate_workers, report.train_workers), (1, 1));
    assert!(report.step_s > 0.0 && report.busy_us["train_shard"] > 0, "{report:#?}");
    let found = json(&plan(&["4", "--measured", place, "--alpha", "0,1", "--json"]).await);
    assert_measured(&found, folder.path());
    // A report of an older version lacks what a plan needs.
    let path = folder.path().join("report.json");
    let mut older: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for field in ["generate_workers", "train_workers", "busy_us"] {
        older.as_object_mut().unwrap().remove(field);
    }
    std::fs::write(&path, older.to_string()).unwrap();
    let said = refused(&["4", "--measured", place]).await;
    assert!(said.contains("generate workers=0") && said.contains("newer `millrace up`"), "{said}");
    std::fs::write(&path, "{").unwrap();
    assert!(refused(&["4", "--measured", place]).await.contains("report.json"));
}
