//! Short files, each saying at its head what it is. (Clippy counts the lines of functions.)

use crate::tree;

/// Lines of a file, inline tests not counted. The aim is 300.
const MAX_LINES: usize = 500;

#[test]
fn files_are_short() {
    let mut faults = Vec::new();
    for file in tree::files(&[".rs", ".py", ".sh"]) {
        let lines = file.code().last().map_or(0, |(number, _)| number);
        if lines > MAX_LINES {
            faults.push(format!("{} has {lines} lines", file.path));
        }
    }
    tree::none(&format!("a file has at most {MAX_LINES} lines"), &faults);
}

#[test]
fn files_say_what_they_are() {
    let faults: Vec<String> = tree::files(&[".rs"])
        .iter()
        .filter(|file| !file.is_test() && !file.text.starts_with("//! "))
        .map(|file| file.path.clone())
        .collect();
    tree::none("a file begins with `//!` and what it is", &faults);
}

#[test]
fn modules_have_names_that_say_something() {
    let vague = ["mod.rs", "utils.rs", "util.rs", "common.rs", "helpers.rs", "misc.rs"];
    let faults: Vec<String> = tree::files(&[".rs"])
        .into_iter()
        .map(|file| file.path)
        .filter(|path| path.rsplit('/').next().is_some_and(|name| vague.contains(&name)))
        .collect();
    tree::none("`x.rs` beside `x/`, and a name for what is in it", &faults);
}

#[test]
fn a_crates_root_is_a_map() {
    let mut faults = Vec::new();
    for file in tree::files(&["/lib.rs", "lib.rs"]) {
        let logic = file.code().find(|(_, line)| {
            line.contains("fn ") || line.starts_with("struct ") || line.starts_with("pub struct ")
        });
        faults.extend(logic.map(|(number, line)| format!("{}:{number}: {line}", file.path)));
    }
    tree::none("`lib.rs` holds docs, modules and re-exports", &faults);
}
