//! Integration tests lie alike in every crate, so that Cargo finds each program by itself.

use crate::tree;

/// A file's path below the folder `tests/` of its crate.
fn below_tests(path: &str) -> Option<&str> {
    let (before, below) = path.split_once("/tests/")?;
    tree::root().join(before).join("Cargo.toml").is_file().then_some(below)
}

#[test]
fn a_test_program_is_a_folder_with_main_rs_or_one_file() {
    let files = tree::files(&[".rs"]);
    let mut faults = Vec::new();
    let mut programs = 0;
    for file in &files {
        let Some(below) = below_tests(&file.path) else { continue };
        programs += usize::from(!below.contains('/') || below.ends_with("/main.rs"));
        if below.split('/').count() != 2 && below.ends_with("/main.rs") {
            faults.push(format!("{}: a program's main.rs lies in tests/<program>/", file.path));
        }
        for (number, line) in file.text.lines().enumerate() {
            let line = line.trim();
            let fault = if !below.contains('/') && line.starts_with("mod ") && line.ends_with(';') {
                "a program with modules is a folder: tests/<program>/main.rs"
            } else if line.starts_with("#[path") && !line.contains("\"../") {
                "modules lie where Rust looks for them; only what programs share is named by a path"
            } else {
                continue;
            };
            faults.push(format!("{}:{}: {line}: {fault}", file.path, number + 1));
        }
    }
    assert!(programs >= 10, "only {programs} test programs were found");
    for file in tree::files(&["Cargo.toml"]) {
        let by_hand = ["[[test]]", "autotests"].into_iter().filter(|word| file.text.contains(word));
        faults.extend(by_hand.map(|word| format!("{}: {word}: Cargo finds the programs", file.path)));
    }
    tree::none("one layout of integration tests", &faults);
}
