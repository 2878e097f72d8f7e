//! Which crate may depend on what. Asked of cargo itself, so that a feature or a crate in between counts.

use std::process::Command;

use crate::tree;

/// What `package` is built from with its default features, itself first.
fn built_from(package: &str) -> Vec<String> {
    cargo(&["tree", "--package", package, "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .lines()
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect()
}

fn cargo(args: &[&str]) -> String {
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
fn the_coordinator_knows_no_worker_and_no_libtorch() {
    refuse("millrace-coordinator", &["millrace-workers", "tch", "torch-sys"]);
}

#[test]
fn only_the_queue_names_its_client_and_its_store() {
    let metadata: serde_json::Value =
        serde_json::from_str(&cargo(&["metadata", "--format-version", "1", "--no-deps"]))
            .expect("metadata is JSON");
    let mut faults = Vec::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a package has a name");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let of = dependency["name"].as_str().expect("a dependency has a name");
            if name != "millrace-queue" && ["async-nats", "object_store"].contains(&of) {
                faults.push(format!("{name} depends on {of}"));
            }
        }
    }
    tree::none("only millrace-queue names them", &faults);
}
