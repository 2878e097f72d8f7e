//! Words that the glossary of `schemas/README.md` has replaced do not come back.

use crate::tree;

/// A retired word, what is written instead, and the folders where it is gone. `""` is the whole
/// repository. To retire a word, add a row; to retire it in more places, add folders.
const RETIRED: &[(&str, &str, &[&str])] = &[
    ("sign of life", "heartbeat", CLEAN),
    ("signs of life", "heartbeats", CLEAN),
    ("SignOfLife", "Heartbeat", &[""]),
    ("anew", "restart, redo, retry or requeue, as the case is", CLEAN),
    ("whoever", "name the subject", CLEAN),
    ("in hand", "in flight", CLEAN),
    ("in_hand", "in_flight", &["broker/coordinator/", "schemas/tests/"]),
    ("handed in", "submitted", CLEAN),
    ("hand in", "submit", CLEAN),
    ("put again", "requeued", CLEAN),
    ("asked_otherwise", "mismatched_request", &[""]),
    ("of use", "needed, useful", CLEAN),
];

/// Folders that are written in the glossary's words throughout.
const CLEAN: &[&str] = &[
    "broker/",
    "loadtest/",
    "schemas/src/",
    "schemas/tests/",
    "workers/kernels/src/",
    "workers/policy/src/",
    "workers/src/",
    "workers/torch/src/",
];

/// Words that a clean folder still has.
const LEFT: &[(&str, &str)] = &[
    // In the name of a test.
    ("loadtest/src/chaos/cost/tests.rs", "anew"),
    ("workers/torch/src/decoder/model.rs", "anew"),
    // A leaf "by hand in this bucket".
    ("workers/torch/src/gang/bridge.rs", "hand in"),
];

/// This file, which has to name the words.
const OWN: &str = "schemas/tests/tidy/words.rs";

/// Whether `text` has `word` between characters that are no letters, in lower or upper case.
fn has(text: &str, word: &str) -> bool {
    let (text, word) = (text.to_lowercase(), word.to_lowercase());
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphabetic);
    text.match_indices(&word).any(|(at, _)| {
        let (before, after) = (text[..at].chars().next_back(), text[at + word.len()..].chars().next());
        !is_letter(before) && !is_letter(after)
    })
}

/// Line numbers, from 1, of lines with `word`, also where a comment wraps within it.
fn lines_with(text: &str, word: &str) -> Vec<usize> {
    let prose = |line: &str| line.trim_start().trim_start_matches(['/', '!', '#']).trim().to_owned();
    let lines: Vec<&str> = text.lines().collect();
    let wraps = |at: usize| {
        let next = lines.get(at + 1).map(|line| prose(line)).unwrap_or_default();
        let here = prose(lines[at]);
        !has(&here, word) && !has(&next, word) && has(&format!("{here} {next}"), word)
    };
    (0..lines.len()).filter(|at| has(lines[*at], word) || wraps(*at)).map(|at| at + 1).collect()
}

#[test]
fn retired_words_do_not_come_back() {
    let mut faults = Vec::new();
    for file in tree::files(&[".rs", ".md", ".cc", ".cu", ".h"]).iter().filter(|file| file.path != OWN) {
        for (word, instead, folders) in RETIRED {
            let is_left = LEFT.contains(&(file.path.as_str(), word));
            if !is_left && folders.iter().any(|folder| file.path.starts_with(folder)) {
                let lines = lines_with(&file.text, word).into_iter();
                faults.extend(lines.map(|line| format!("{}:{line}: \"{word}\"; write {instead}", file.path)));
            }
        }
    }
    tree::none("use the glossary's words, schemas/README.md", &faults);
}

#[test]
fn a_retired_word_is_found_in_any_case_and_across_a_line_break() {
    assert_eq!(lines_with("a\n/// Begun Anew.\nb", "anew"), [2]);
    assert_eq!(lines_with("/// What is in\n/// hand.\n", "in hand"), [1]);
    assert_eq!(lines_with("a renewal, within handles", "in hand"), [] as [usize; 0]);
    assert_eq!(lines_with("let x = in_hand(1);", "in_hand"), [1]);
}

/// Names that say nothing of a type, and the one file that may have it.
const NAMELESS: &[(&str, &str)] = &[
    ("State", "broker/coordinator/src/fold/state.rs"),
    ("Tally", "loadtest/src/sim.rs"),
    ("Shared", ""),
    ("Seen", ""),
];

#[test]
fn a_type_has_a_name_of_its_own() {
    let mut faults = Vec::new();
    for file in tree::files(&[".rs"]) {
        for (number, line) in file.code() {
            let declared = ["struct ", "enum "].iter().find_map(|word| line.split_once(word));
            let Some((_, name)) = declared
                .filter(|(before, _)| before.trim_end().ends_with([')', 'b']) || before.trim().is_empty())
            else {
                continue;
            };
            let name: String = name.chars().take_while(|c| c.is_alphanumeric()).collect();
            if NAMELESS.iter().any(|(word, only)| *word == name && *only != file.path) {
                faults.push(format!("{}:{number}: {name}: say whose, or of what", file.path));
            }
        }
    }
    tree::none("several types of one name cannot be told apart", &faults);
}
