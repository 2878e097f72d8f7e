//! Which crate may depend on what. Asked of cargo itself, so that a feature or a crate in between
//! counts.

use std::collections::BTreeSet;
use std::process::Command;

use crate::tree;

/// What `package` is built from with its default features, itself first.
fn built_from(package: &str) -> Vec<String> {
    cargo(&["tree", "--package", package, "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .lines()
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect()
}

pub(crate) fn cargo(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(args)
        .args(["--locked", "--offline"])
        .current_dir(tree::root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("cargo prints text")
}

fn refuse(package: &str, unwanted: &[&str]) {
    let parts = built_from(package);
    assert_eq!(parts.first().map(String::as_str), Some(package), "cargo tree begins with the package");
    let faults: Vec<String> = parts.into_iter().filter(|name| unwanted.contains(&name.as_str())).collect();
    tree::none(&format!("{package} is built without these"), &faults);
}

#[test]
fn schemas_have_neither_runtime_nor_client_nor_libtorch() {
    refuse("millrace-schemas", &["tokio", "async-nats", "tch", "torch-sys", "object_store"]);
}

#[test]
fn workers_need_libtorch_only_where_it_is_asked_for() {
    refuse("millrace-workers", &["tch", "torch-sys"]);
}

#[test]
fn what_a_policy_is_needs_neither_libtorch_nor_a_client() {
    refuse("millrace-policy", &["tch", "torch-sys", "async-nats", "object_store", "reqwest"]);
}

#[test]
fn sandboxes_know_neither_the_queue_nor_a_run() {
    let unwanted = ["millrace-queue", "millrace-schemas", "millrace-workers", "async-nats", "object_store"];
    refuse("millrace-sandbox", &unwanted);
    refuse("millrace-sandbox-service", &unwanted);
}

#[test]
fn the_coordinator_knows_no_worker_and_no_libtorch() {
    refuse("millrace-coordinator", &["millrace-workers", "tch", "torch-sys"]);
}

#[test]
fn only_the_queue_names_its_client_and_only_objects_the_store() {
    let metadata: serde_json::Value =
        serde_json::from_str(&cargo(&["metadata", "--format-version", "1", "--no-deps"]))
            .expect("metadata is JSON");
    let mut faults = Vec::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a package has a name");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let of = dependency["name"].as_str().expect("a dependency has a name");
            let owner = [("async-nats", "millrace-queue"), ("object_store", "millrace-objects")];
            if owner.iter().any(|(dependency, owner)| of == *dependency && name != *owner) {
                faults.push(format!("{name} depends on {of}"));
            }
        }
    }
    tree::none("async-nats is for millrace-queue, object_store for millrace-objects", &faults);
}

/// Licences under which a dependency may be used.
const LICENCES: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether an SPDX expression leaves a choice of [`LICENCES`] alone. Crates write `OR` as `/` too.
fn permitted(expression: &str) -> bool {
    expression.split(" AND ").all(|part| {
        let mut choices = part.split(" OR ").flat_map(|choice| choice.split('/'));
        choices.any(|choice| LICENCES.contains(&choice.trim_matches([' ', '(', ')'])))
    })
}

#[test]
fn every_dependency_may_be_used() {
    let list = cargo(&[
        "tree",
        "--workspace",
        "--features",
        "millrace-workers/torch",
        "--edges",
        "all",
        "--prefix",
        "none",
        "--format",
        "{p}|{l}",
    ]);
    // A package that was listed before is marked.
    let lines = list.lines().map(|line| line.trim_end_matches(" (*)"));
    let packages: BTreeSet<(&str, &str)> = lines.filter_map(|line| line.split_once('|')).collect();
    assert!(packages.len() > 100, "only {} packages were seen", packages.len());
    let faults: Vec<String> = packages
        .into_iter()
        .filter(|(_, licence)| !permitted(licence))
        .map(|(package, licence)| format!("{package}: {licence:?}"))
        .collect();
    tree::none("licences that are not on the list", &faults);
}

#[test]
fn licences_are_read_as_they_are_written() {
    for fine in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
        assert!(permitted(fine), "{fine}");
    }
    for not in ["", "GPL-3.0", "MIT AND GPL-3.0", "LGPL-2.1-or-later", "Apache-2.0 AND (GPL-2.0 OR MPL-2.0)"]
    {
        assert!(!permitted(not), "{not}");
    }
}

#[test]
fn dependencies_come_from_the_registry() {
    let lock = std::fs::read_to_string(tree::root().join("Cargo.lock")).expect("versions are locked");
    let registry = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    let faults: Vec<String> = lock
        .lines()
        .filter(|line| line.starts_with("source = ") && *line != registry)
        .map(str::to_owned)
        .collect();
    tree::none("not from crates.io", &faults);
}
