//! The rooms of the workers: the runtime knows the queue and tasks, and nothing of stages; libtorch has
//! crates of its own.

use crate::tree;

const RUNTIME: &str = "workers/src/runtime/";

#[test]
fn the_runtime_imports_from_no_other_room() {
    let files: Vec<_> =
        tree::files(&[".rs"]).into_iter().filter(|file| file.path.starts_with(RUNTIME)).collect();
    assert!(files.len() >= 10, "only {} files of the runtime were found", files.len());
    let mut faults = Vec::new();
    for file in &files {
        for (number, line) in file.text.lines().enumerate() {
            let elsewhere = line.split("crate::").skip(1).any(|path| !path.starts_with("runtime::"));
            if elsewhere || line.contains("super::super::") {
                faults.push(format!("{}:{}: {}", file.path, number + 1, line.trim()));
            }
        }
    }
    tree::none("stages depend on the runtime, not the other way round", &faults);
}

#[test]
fn only_the_runtime_makes_verdicts() {
    let mut faults = Vec::new();
    for file in tree::files(&[".rs"]) {
        let stage = file.path.starts_with("workers/src/") && !file.path.starts_with(RUNTIME);
        if stage && !file.is_test() {
            let lines = file.code().filter(|(_, line)| line.contains("Verdict::"));
            faults.extend(lines.map(|(number, line)| format!("{}:{number}: {}", file.path, line.trim())));
        }
    }
    tree::none("a stage's error is a Failure, from which the runtime makes the verdict", &faults);
}

/// Where a build with libtorch may differ from one without: the choice between the two files, the
/// tests of a build without, and those of whole runs that train.
const WITH_OR_WITHOUT: &[&str] = &[
    "workers/src/lib.rs",
    "workers/src/train_shard/tests.rs",
    "workers/tests/workers/mcp/run.rs",
    "workers/tests/workers/openai.rs",
    "workers/tests/workers/shipped_examples.rs",
];

#[test]
fn only_one_place_chooses_whether_there_is_libtorch() {
    let condition = concat!("feature = ", "\"torch\"");
    let mut faults = Vec::new();
    for file in tree::files(&[".rs"]).iter().filter(|file| !WITH_OR_WITHOUT.contains(&file.path.as_str())) {
        let lines = file.text.lines().zip(1..).filter(|(line, _)| line.contains(condition));
        faults.extend(lines.map(|(line, number)| format!("{}:{number}: {}", file.path, line.trim())));
    }
    tree::none("what needs libtorch is in workers/torch, which workers/src/torch.rs uses", &faults);
}
