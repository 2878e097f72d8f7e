//! What a README cites exists.
//!
//! Three kinds of citation are checked, in prose and tables. Indented and fenced blocks are
//! examples.
//!
//! - A link without a scheme names a file or a folder, from the README's folder. Its `#anchor` is
//!   a heading of that file.
//! - A code span that is a path exists under the root, the README's folder, or `src/` beside it. A
//!   path has a slash, and ends in a slash or in one of [`SOURCES`], or begins with a folder of
//!   those places. A file name of [`CODE`] without a slash exists somewhere below the README's
//!   folder.
//! - A code span in snake case with two words or more names a test, a setting, a metric or a
//!   field. A function has this name, or code that is no test uses it. So the name of a test that
//!   was renamed or removed is found, and nobody has to say which names are tests. Names of other
//!   systems that no code here uses are written without backticks.

use std::collections::BTreeSet;
use std::path::Path;

use crate::tree::{self, File};

/// Endings of the files that people write and cite.
const SOURCES: [&str; 11] =
    [".rs", ".py", ".cc", ".cu", ".h", ".sh", ".tf", ".md", ".toml", ".jsonl", ".svg"];
/// Endings of which a bare name cites a file of this repository and no other.
const CODE: [&str; 7] = [".rs", ".py", ".cc", ".cu", ".h", ".sh", ".tf"];
/// The front page is read in ten minutes.
const MAX_WORDS: usize = 1_200;

/// A piece of a README's text.
struct Cited<'a> {
    /// Line of the README, from 1.
    line: usize,
    /// The content of a code span, or the target of a link.
    text: &'a str,
}

/// The paragraphs of `text` with the line of each, from 1: no empty lines and no blocks of code.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut fenced, mut open) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        // Within a paragraph, indentation is that of a list.
        let block = line.starts_with("    ") && !open;
        if fence || fenced || block || line.trim().is_empty() {
            open = false;
            continue;
        }
        match found.last_mut().filter(|_| open) {
            Some((_, paragraph)) => {
                paragraph.push('\n');
                paragraph.push_str(line);
            }
            None => found.push((number + 1, line.to_owned())),
        }
        open = true;
    }
    found
}

/// The code spans of a paragraph that begins in line `first`.
fn spans(first: usize, paragraph: &str) -> Vec<Cited<'_>> {
    let mut line = first;
    let mut found = Vec::new();
    for (i, text) in paragraph.split('`').enumerate() {
        if i % 2 == 1 {
            found.push(Cited { line, text });
        }
        line += text.matches('\n').count();
    }
    found
}

/// The targets of a paragraph's links to files.
fn links(first: usize, paragraph: &str) -> Vec<Cited<'_>> {
    let mut found = Vec::new();
    for (at, _) in paragraph.match_indices("](") {
        let line = first + paragraph[..at].matches('\n').count();
        let text = paragraph[at + 2..].split(')').next().unwrap_or_default();
        if !text.contains("://") && !text.starts_with("mailto:") {
            found.push(Cited { line, text });
        }
    }
    found
}

/// The anchors of a Markdown file's headings, as GitHub makes them.
fn anchors(markdown: &str) -> Vec<String> {
    let prose = paragraphs(markdown);
    let lines = prose.iter().flat_map(|(_, paragraph)| paragraph.lines());
    let headings = lines.filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// What is wrong with a link from a README in `folder`.
fn fault_of_link(folder: &Path, target: &str) -> Option<String> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() { folder.join("README.md") } else { folder.join(path) };
    if !file.exists() {
        return Some(format!("({target}) leads to no file"));
    }
    if anchor.is_empty() {
        return None;
    }
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let known = anchors(&text).iter().any(|known| known == anchor);
    (!known).then(|| format!("({target}): the file has no heading with this anchor"))
}

/// What is wrong with the code span `text` of a README in `folder`, if it is a path or a file name.
fn fault_of_path(folder: &Path, sources: &[File], text: &str) -> Option<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    // Builds put things under `target/`; a path from `/` is one of a machine.
    if !text.chars().all(fits) || text.starts_with('/') || text.starts_with("target/") {
        return None;
    }
    let Some((first, _)) = text.split_once('/') else {
        let names_code = CODE.iter().any(|ending| text.len() > ending.len() && text.ends_with(ending));
        let mut below = sources.iter().filter(|file| tree::root().join(&file.path).starts_with(folder));
        let missing = names_code && !below.any(|file| file.path.rsplit('/').next() == Some(text));
        return missing.then(|| format!("`{text}`: no file below this README has this name"));
    };
    let bases = [tree::root(), folder.to_owned(), folder.join("src")];
    let is_path = text.ends_with('/')
        || SOURCES.iter().any(|ending| text.ends_with(ending))
        || bases.iter().any(|base| base.join(first).is_dir());
    let missing = is_path && !bases.iter().any(|base| base.join(text).exists());
    missing.then(|| format!("`{text}` is no path from the root, from this README or from its `src/`"))
}

/// Whether `text` is a name in snake case with two words or more.
fn is_name(text: &str) -> bool {
    let word =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    text.split('_').count() >= 2 && text.split('_').all(word)
}

/// The names of all functions, and all words of code that is no test.
fn names(sources: &[File]) -> BTreeSet<&str> {
    let outside = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let mut found = BTreeSet::new();
    for file in sources {
        for keyword in ["fn ", "def "] {
            let after = file.text.split(keyword).skip(1);
            found.extend(after.filter_map(|rest| rest.split(outside).next()));
        }
        if !file.is_test() {
            found.extend(file.code().flat_map(|(_, line)| line.split(outside)));
        }
    }
    found
}

/// The variant that serde writes as `name`: in camel case.
fn variant(name: &str) -> String {
    let words = name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]);
    words.collect()
}

/// What is wrong with the citations of one README.
fn faults(readme: &File, sources: &[File], names: &BTreeSet<&str>) -> Vec<String> {
    let folder = tree::root().join(&readme.path).parent().expect("a file lies in a folder").to_owned();
    let mut found = Vec::new();
    for (first, paragraph) in paragraphs(&readme.text) {
        let mut say = |line: usize, fault: &str| found.push(format!("{}:{line}: {fault}", readme.path));
        if paragraph.matches('`').count() % 2 == 1 {
            say(first, "a code span of this paragraph does not end");
            continue;
        }
        for Cited { line, text } in links(first, &paragraph) {
            if let Some(fault) = fault_of_link(&folder, text) {
                say(line, &fault);
            }
        }
        for Cited { line, text } in spans(first, &paragraph) {
            if let Some(fault) = fault_of_path(&folder, sources, text) {
                say(line, &fault);
            }
            if is_name(text) && !names.contains(text) && !names.contains(variant(text).as_str()) {
                say(line, &format!("`{text}` is no test, and no code names it"));
            }
        }
    }
    found
}

#[test]
fn readmes_cite_files_tests_and_names_that_exist() {
    let sources = tree::files(&CODE);
    let names = names(&sources);
    let readmes = tree::files(&["README.md"]);
    let faults: Vec<String> = readmes.iter().flat_map(|readme| faults(readme, &sources, &names)).collect();
    tree::none("a README cites what does not exist", &faults);
}

#[test]
fn the_front_page_is_short() {
    let text = std::fs::read_to_string(tree::root().join("README.md")).expect("the front page");
    let words = text.split_whitespace().count();
    assert!(words <= MAX_WORDS, "README.md has {words} words, and {MAX_WORDS} at most");
}

#[test]
fn wrong_citations_are_found_with_their_line() {
    let sources = tree::files(&CODE);
    let text = "# A title\n\nSee `schemas/src/lib.rs`, `is_name`, [this](README.md#a-title)\n    and `tree.rs`.\n\n    \
                `schemas/none.rs`\n\n- [gone](none.md), [no heading](README.md#none)\n- `schemas/src/none.rs` `none.rs`,\n  \
                `a_test_of_nothing`, `target/none/`, `a / b`\n";
    let readme = File { path: "schemas/README.md".to_owned(), text: text.to_owned() };
    let found = faults(&readme, &sources, &names(&sources));
    let lines: Vec<&str> = found.iter().map(|fault| fault.split(": ").next().unwrap_or_default()).collect();
    let line = |number: usize| format!("schemas/README.md:{number}");
    // The real README has no such title.
    assert_eq!(lines, [line(3), line(8), line(8), line(9), line(9), line(10)], "{found:#?}");
}
