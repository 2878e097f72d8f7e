//! What one crate needs must not come from another that happens to be built with it. To build each by itself
//! takes minutes, for each has other features of all that lies below. But only the features of what a crate
//! itself names matter to it. So `make alone` builds few groups, in each of which every member has of what it
//! names exactly what it has by itself; here it is proved that it does. Crates without a group have it in the
//! whole workspace, which `make lint` builds anyway.

use std::collections::{BTreeMap, BTreeSet};

use crate::dependencies::cargo;
use crate::tree;

/// Crates that nobody builds by themselves.
const NEVER_ALONE: [&str; 3] = ["kernels", "loadtest", "torch"];

/// Name and features of a package.
type Features = BTreeMap<String, String>;

/// What each root of a selection has of itself and of what it names.
fn features(selection: &[&str]) -> BTreeMap<String, Features> {
    let direct = ["tree", "--no-dedupe", "--depth", "1", "--edges", "normal,build,dev"];
    let asked = [&direct[..], &["--prefix", "depth", "--format", "{p}|{f}"][..], selection].concat();
    let mut roots = BTreeMap::new();
    let mut root: Option<String> = None;
    for line in cargo(&asked).lines().filter(|line| !line.is_empty()) {
        let (package, features) = line.split_once('|').expect("a package and its features");
        let (depth, package) = package.split_at(1);
        let name = package.split(' ').next().expect("a name").to_owned();
        if depth == "0" {
            root = Some(name.clone());
        }
        let root = root.clone().expect("a root comes before what it names");
        let known: &mut Features = roots.entry(root).or_default();
        known.insert(name, features.to_owned());
    }
    roots
}

fn of(name: &str) -> String {
    format!("millrace-{name}")
}

/// The groups of `make alone`, from the lines `ALONE_… := a b c`.
fn groups(makefile: &str) -> Vec<Vec<&str>> {
    let lines = makefile.lines().filter(|line| line.starts_with("ALONE_"));
    lines
        .filter_map(|line| line.split_once(":="))
        .map(|(_, names)| names.split_whitespace().collect())
        .collect()
}

/// What a crate has by itself and `together` has otherwise.
fn differences(alone: &Features, together: &Features) -> Vec<String> {
    let other = alone.iter().filter(|(name, features)| together.get(*name) != Some(*features));
    other
        .map(|(name, features)| format!("{name} with {features:?} alone, {:?} there", together.get(name)))
        .collect()
}

#[test]
fn a_crate_has_by_itself_what_it_has_where_it_is_checked() {
    let makefile = std::fs::read_to_string(tree::root().join("Makefile")).expect("a Makefile");
    let groups = groups(&makefile);
    assert_eq!(groups.len(), 3, "the groups of `make alone`: {groups:?}");
    let whole = features(&["--workspace"]);
    let together: Vec<_> = groups
        .iter()
        .map(|members| {
            let names: Vec<String> = members.iter().chain(&["kernels"]).map(|name| of(name)).collect();
            features(&names.iter().flat_map(|name| ["--package", name.as_str()]).collect::<Vec<_>>())
        })
        .collect();
    let mut faults = Vec::new();
    for crate_name in whole.keys().filter(|name| !NEVER_ALONE.map(of).contains(name)) {
        let group = groups.iter().position(|members| members.iter().any(|name| of(name) == *crate_name));
        let there = &group.map_or(&whole, |group| &together[group])[crate_name];
        let alone = &features(&["--package", crate_name.as_str()])[crate_name];
        let place = group.map_or("the whole workspace".to_owned(), |group| groups[group].join(" "));
        let found = differences(alone, there);
        faults.extend(found.into_iter().map(|words| format!("{crate_name} in {place}: {words}")));
    }
    tree::none("put them into another group of the Makefile, or name the feature in Cargo.toml", &faults);
}

#[test]
fn a_feature_that_comes_from_elsewhere_is_seen() {
    let alone = Features::from([("tokio".to_owned(), "fs".to_owned())]);
    assert_eq!(differences(&alone, &alone), Vec::<String>::new());
    let there = Features::from([("tokio".to_owned(), "fs,net".to_owned())]);
    assert_eq!(differences(&alone, &there).len(), 1);
    // With the queue's tests beside it, the object store has what is for tests.
    let together = features(&["--package", "millrace-objects", "--package", "millrace-queue"]);
    let alone = features(&["--package", "millrace-objects"]);
    assert_ne!(differences(&alone["millrace-objects"], &together["millrace-objects"]), Vec::<String>::new());
}

/// A feature that only tests turn on makes cargo build all that lies above it once for programs and once more for tests.
#[test]
fn tests_turn_on_no_feature_that_programs_lack() {
    let built = |edges| -> BTreeSet<String> {
        let whole = ["tree", "--workspace", "--features", "millrace-workers/torch", "--edges", edges];
        let list = cargo(&[&whole[..], &["--prefix", "none", "--format", "{p}|{f}"][..]].concat());
        list.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
    };
    let (programs, tests) = (built("normal,build"), built("normal,build,dev"));
    assert!(programs.len() > 100, "only {} packages were seen", programs.len());
    let faults: Vec<String> = programs.difference(&tests).cloned().collect();
    tree::none("of these, tests are built from another set of features", &faults);
}
