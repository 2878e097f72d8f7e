//! Decisions are pure: the fold over the log sees no clock, no randomness, no client and no runtime.

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
        "HashMap",
        "HashSet",
    ];
    let mut faults = Vec::new();
    let mut seen = 0;
    for file in tree::files(&[".rs"]) {
        let in_fold = ["pipeline", "window.rs", "state.rs", "books", "domains.rs", "stored.rs", "rollout.rs"]
            .iter()
            .chain(&["outstanding.rs", "gang"])
            .any(|name| file.path.starts_with(&format!("broker/coordinator/src/{name}")));
        if !in_fold || file.is_test() {
            continue;
        }
        seen += 1;
        for (number, line) in file.code() {
            if let Some(word) = impure.iter().find(|word| line.contains(*word)) {
                faults.push(format!("{}:{number}: {word}", file.path));
            }
        }
    }
    assert!(seen >= 6, "only {seen} files of the fold were found");
    // A hash map's order differs from process to process, and with it the order of commands.
    tree::none("the fold sees nothing but the state and the event", &faults);
}
