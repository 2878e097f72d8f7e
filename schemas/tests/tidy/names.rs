//! Names that cross a process are built in one file.

use crate::tree;

/// The string literals of a file, for the files that own names.
fn literals(path: &str, starting: &str) -> Vec<String> {
    let text = std::fs::read_to_string(tree::root().join(path)).expect("the file that owns the names");
    text.split('"').skip(1).step_by(2).filter(|word| word.starts_with(starting)).map(str::to_owned).collect()
}

/// Places outside `owner` and outside tests where a line holds one of `words`.
fn strays(owner: &str, words: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree::files(&[".rs"]) {
        if file.path == owner || file.is_test() {
            continue;
        }
        for (number, line) in file.code() {
            if words.iter().any(|word| line.contains(word.as_str())) {
                found.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    found
}

#[test]
fn subjects_are_built_in_subjects_rs() {
    let words: Vec<String> =
        ["task", "log", "notice", "api", "dead"].map(|kind| format!("\"mr.{kind}")).to_vec();
    tree::none("build subjects in schemas/src/subjects.rs", &strays("schemas/src/subjects.rs", &words));
}

#[test]
fn streams_and_buckets_are_named_in_subjects_rs() {
    let words = literals("schemas/src/subjects.rs", "MILLRACE_");
    assert!(words.len() >= 5, "{words:?}");
    // `MILLRACE_LOG` is also an environment variable, and is allowed as such.
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{}", word.trim_end_matches("{}"))).collect();
    let mut found = strays("schemas/src/subjects.rs", &quoted);
    found.retain(|line| !line.contains("env = \"MILLRACE_"));
    tree::none("name streams and buckets in schemas/src/subjects.rs", &found);
}

#[test]
fn object_paths_are_built_in_blob_rs() {
    let words = ["\"runs/", "\"snapshots/", "\"weights/"].map(str::to_owned);
    tree::none(
        "build paths of objects in schemas/src/blob/paths.rs",
        &strays("schemas/src/blob/paths.rs", &words),
    );
}

#[test]
fn headers_are_named_in_subjects_rs() {
    let words = literals("schemas/src/subjects.rs", "Millrace-");
    assert!(!words.is_empty());
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    tree::none("name headers in schemas/src/subjects.rs", &strays("schemas/src/subjects.rs", &quoted));
}
