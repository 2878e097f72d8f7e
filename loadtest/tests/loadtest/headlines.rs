//! A scenario is played on real coordinator code, and its figures are left; a broken one is refused.

use std::path::Path;
use std::process::{Command, Output};

/// Rounds of 20 s against rollouts that do not wait for each other.
const TINY: &str = r#"
name = "tiny"
claim = "a tiny one"
published = "nothing"
goal = 1.1
assumptions = ["Everything."]
[workload]
gpus = 2
steps = 5
warm = 1
cool = 1
groups = 2
group_size = 4
turns = { kind = "constant", value = 4.0 }
tokens = { kind = "constant", value = 100.0 }
step_s = { kind = "normal", mean = 10.0, deviation = 10.0 }
train_gpu_s = 2.0
[device]
decode = { base_ms = 10.0, per_sequence_ms = 0.0 }
reload_s = 0.0
switch_s = 0.0
gpus_per_worker = 1
[[fleets]]
name = "in lockstep"
role = "baseline"
alpha = 0.0
both = 2
slots = 8
lockstep = true
[[fleets]]
name = "each on its own"
role = "ours"
alpha = 0.0
both = 2
slots = 8
"#;

fn headlines(scenario: &Path, out: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millrace-loadtest"))
        .args(["headlines", "--seeds", "1,2,3", "--scenarios"])
        .arg(scenario)
        .arg("--out")
        .arg(out)
        .output()
        .expect("the command starts")
}

#[test]
fn a_scenario_is_reproduced_and_its_figures_are_left() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (scenario, out) = (folder.path().join("tiny.toml"), folder.path().join("bench/headlines.json"));
    std::fs::write(&scenario, TINY).expect("a scenario");
    let run = headlines(&scenario, &out);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let figures = std::fs::read(&out).expect("figures");
    let figures: serde_json::Value = serde_json::from_slice(&figures).expect("figures as JSON");
    let row = &figures["rows"][0];
    let ratios = row["ratios"].as_array().expect("a ratio for each seed");
    assert_eq!(ratios.len(), 3);
    for ratio in ratios {
        // The mean of a sum of maxima over the maximum of a sum.
        assert!(ratio.as_f64().is_some_and(|ratio| ratio > 1.1 && ratio < 3.0), "{row}");
    }
    assert!(figures["origin"].as_str().is_some_and(|origin| origin.contains("cores")), "{figures}");
    let page = std::fs::read_to_string(out.with_extension("md")).expect("tables");
    assert!(page.contains("| a tiny one | nothing |") && page.contains("- Everything."), "{page}");

    let wrong = TINY.replace("slots = 8\nlockstep", "slots = 0\nlockstep");
    std::fs::write(&scenario, wrong).expect("a scenario");
    let refused = headlines(&scenario, &out);
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("slots=0") && why.contains("give 1 or more"), "{why}");
}
