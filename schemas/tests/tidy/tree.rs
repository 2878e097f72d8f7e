//! The files of the repository, as the rules see them.

use std::fs;
use std::path::{Path, PathBuf};

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository").to_owned()
}

/// Names of what a folder holds, sorted; without build outputs, the virtual environment and
/// dot-files.
pub(crate) fn entries(folder: &Path) -> Vec<String> {
    let made = ["target", "__pycache__", "millrace-runs"];
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.expect("the folder can be read").file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.') && !made.contains(&name.as_str()))
        .collect();
    names.sort();
    names
}

/// A text file.
pub(crate) struct File {
    /// From the root, with `/`.
    pub(crate) path: String,
    /// What it holds.
    pub(crate) text: String,
}

impl File {
    /// Whether only tests use it.
    pub(crate) fn is_test(&self) -> bool {
        let for_tests = ["/tests/", "/tests.rs", "/testing.rs", "/conformance/", "/conformance.rs"];
        for_tests.iter().any(|part| self.path.contains(part))
    }

    /// Number (from 1) and text of the lines that are neither tests at the file's end nor comments.
    pub(crate) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines: Vec<&str> = self.text.lines().collect();
        let inline_tests = lines.windows(2).position(|two| two[0] == "#[cfg(test)]" && two[1].ends_with('{'));
        let end = inline_tests.unwrap_or(lines.len());
        lines
            .into_iter()
            .take(end)
            .enumerate()
            .map(|(i, line)| (i + 1, line))
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

/// All files whose names end in one of `endings`, by path.
pub(crate) fn files(endings: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    walk(&root(), "", endings, &mut found);
    assert!(!found.is_empty(), "no file ends in {endings:?}");
    found
}

fn walk(folder: &Path, prefix: &str, endings: &[&str], found: &mut Vec<File>) {
    for name in entries(folder) {
        let (path, inside) = (format!("{prefix}{name}"), folder.join(&name));
        if inside.is_dir() {
            walk(&inside, &format!("{path}/"), endings, found);
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            let text = fs::read_to_string(&inside).unwrap_or_else(|e| panic!("{path}: {e}"));
            found.push(File { path, text });
        }
    }
}

/// Fails with all `faults` at once.
pub(crate) fn none(rule: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{rule}:\n  {}", faults.join("\n  "));
}
