//! Decisions are pure: the fold over the log sees no clock, no randomness, no client and no
//! runtime.

use crate::tree;

#[test]
fn the_fold_is_pure() {
    let impure = [
        "tokio::",
        "async fn",
        ".await",
        "Instant::",
        "SystemTime",
        "rand::",
        "std::env",
        "std::fs",
        "tracing::",
        "metrics::",
        "millrace_queue",
        "crate::shell",
        "HashMap",
        "HashSet",
    ];
    let mut faults = Vec::new();
    let mut seen = 0;
    for file in tree::files(&[".rs"]) {
        if !file.path.starts_with("broker/coordinator/src/fold") || file.is_test() {
            continue;
        }
        seen += 1;
        for (number, line) in file.code() {
            if let Some(word) = impure.iter().find(|word| line.contains(*word)) {
                faults.push(format!("{}:{number}: {word}", file.path));
            }
        }
    }
    assert!(seen >= 20, "only {seen} files of the fold were found");
    // A hash map's order differs from process to process, and with it the order of commands.
    tree::none("the fold sees nothing but the state and the event", &faults);
}
