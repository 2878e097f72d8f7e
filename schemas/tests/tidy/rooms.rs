//! The rooms of the workers' crate: the runtime knows the queue and tasks, and nothing of stages.

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
