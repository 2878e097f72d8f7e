//! The wire's ledger: `golden/v<n>/<message>.hex` holds the bytes that version n of the wire wrote.
//! They are never rewritten: a change that alters them is a new version with a folder of its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::samples;

/// The newest version: what this code writes.
const WIRE_VERSION: u32 = 2;

fn folder(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}"))
}

/// Hex digits, 32 bytes a line, so that a difference can be read.
fn to_lines(bytes: &[u8]) -> String {
    bytes.chunks(32).map(|line| hex::encode(line) + "\n").collect()
}

fn read(path: &PathBuf) -> Vec<u8> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    hex::decode(text.split_whitespace().collect::<String>()).expect("golden files hold hex digits")
}

#[test]
fn todays_bytes_are_the_newest_versions() {
    for sample in samples::all() {
        let path = folder(WIRE_VERSION).join(format!("{}.hex", sample.name));
        if std::env::var_os("UPDATE").is_some() && !path.exists() {
            fs::create_dir_all(folder(WIRE_VERSION)).expect("the folder can be made");
            fs::write(&path, to_lines(&sample.bytes)).expect("the file can be written");
        }
        assert_eq!(
            to_lines(&sample.bytes),
            to_lines(&read(&path)),
            "{} is encoded otherwise than in v{WIRE_VERSION}. Messages of before must still be read: raise \
             WIRE_VERSION, run with UPDATE=1, and keep the old folder.",
            sample.name
        );
    }
}

#[test]
fn every_past_version_still_decodes() {
    let samples = samples::all();
    for version in 1..=WIRE_VERSION {
        let mut seen = BTreeSet::new();
        for entry in fs::read_dir(folder(version)).expect("every version has a folder") {
            let path = entry.expect("the folder can be read").path();
            let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
            let sample = samples
                .iter()
                .find(|sample| sample.name == name)
                .unwrap_or_else(|| panic!("v{version} has {name}, which no sample can decode"));
            let bytes = read(&path);
            let again = (sample.again)(&bytes).unwrap_or_else(|e| panic!("v{version}/{name}: {e}"));
            if version == WIRE_VERSION {
                assert_eq!(again, bytes, "v{version}/{name} comes back otherwise");
            }
            seen.insert(name);
        }
        assert!(!seen.is_empty(), "v{version} is empty");
    }
}
