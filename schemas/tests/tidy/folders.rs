//! What the folders hold, and what nothing may hold.

use std::fs;

use crate::tree;

#[test]
fn the_top_level_is_fixed() {
    let fixed = [
        "Cargo.lock",
        "Cargo.toml",
        "LICENSE",
        "Makefile",
        "README.md",
        "broker",
        "infra",
        "loadtest",
        "schemas",
        "terraform",
        "workers",
    ];
    let faults: Vec<String> =
        tree::entries(&tree::root()).into_iter().filter(|name| !fixed.contains(&name.as_str())).collect();
    tree::none("the top level holds only what the README's layout says", &faults);
}

#[test]
fn every_folder_of_the_top_level_has_a_readme() {
    let root = tree::root();
    let faults: Vec<String> = tree::entries(&root)
        .into_iter()
        .filter(|name| root.join(name).is_dir() && !root.join(name).join("README.md").is_file())
        .collect();
    tree::none("a README.md says what is in the folder", &faults);
}

#[test]
fn a_folders_readme_names_what_is_in_it() {
    let mut faults = Vec::new();
    for readme in tree::files(&["README.md"]) {
        if readme.path == "README.md" {
            continue; // The project's front page; its layout is fixed above.
        }
        let folder = tree::root().join(&readme.path).parent().expect("a file lies in a folder").to_owned();
        for name in tree::entries(&folder) {
            if name != "README.md" && name != "Cargo.toml" && !readme.text.contains(&name) {
                faults.push(format!("{} does not name {name}", readme.path));
            }
        }
    }
    tree::none("a README.md names its folder's files", &faults);
}

#[test]
fn the_project_holds_no_place_of_one_machine_and_no_leftovers() {
    // In pieces, so that this file may pass.
    let words = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
        // Of two texts that were merged.
        concat!("<<<", "<<<< "),
        concat!(">>>", ">>>> "),
    ];
    // Where programs are at home within a sandbox, on every machine.
    let within = concat!("/ho", "me/user");
    let mut faults = Vec::new();
    for file in tree::files(&[".rs", ".md", ".toml", ".sh", ".py", ".txt", ".yaml", "Makefile"]) {
        for (number, line) in file.text.lines().enumerate() {
            let line = line.replace(within, "");
            if let Some(word) = words.iter().find(|word| line.contains(**word)) {
                faults.push(format!("{}:{}: {word}", file.path, number + 1));
            }
        }
    }
    tree::none("no path of one machine, nothing left to do", &faults);
}

#[test]
fn every_crate_takes_the_workspaces_lints_and_versions() {
    let mut faults = Vec::new();
    for file in tree::files(&["Cargo.toml"]) {
        if file.path == "Cargo.toml" {
            continue;
        }
        if !file.text.contains("[lints]\nworkspace = true") {
            faults.push(format!("{}: not under the workspace's lints", file.path));
        }
        for line in file.text.lines().filter(|line| line.contains("version = \"")) {
            faults.push(format!("{}: {line}: versions stand in the workspace", file.path));
        }
    }
    tree::none("crates are alike", &faults);
}

#[test]
fn the_workspaces_dependencies_stand_a_to_z() {
    let text = fs::read_to_string(tree::root().join("Cargo.toml")).expect("the workspace");
    let (_, rest) = text.split_once("[workspace.dependencies]\n").expect("the list of dependencies");
    let names = |block: &str| -> Vec<String> {
        let lines = block.lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name.replace('_', "-")).collect()
    };
    let own_crates_apart: Vec<&str> = rest.split("\n[").next().unwrap_or_default().split("\n\n").collect();
    for block in own_crates_apart {
        let names = names(block);
        assert!(names.is_sorted(), "not A to Z: {:?}", names.windows(2).find(|two| two[0] > two[1]));
    }
}

/// A file of tests that its program does not name would never run.
#[test]
fn no_file_of_tests_is_left_out_of_its_program() {
    let (files, mut faults, mut modules) = (tree::files(&[".rs"]), Vec::new(), 0);
    let text = |path: &str| files.iter().find(|file| file.path == path).map(|file| &file.text);
    for file in &files {
        let Some((_, inner)) = file.path.split_once("/tests/") else { continue };
        let (folder, name) = file.path.rsplit_once('/').expect("a file of a folder");
        if !inner.contains('/') || name == "main.rs" {
            continue;
        }
        modules += 1;
        let parent = text(&format!("{folder}/main.rs")).or_else(|| text(&format!("{folder}.rs")));
        let module = format!("mod {};", name.trim_end_matches(".rs"));
        if !parent.is_some_and(|parent| parent.lines().any(|line| line.ends_with(&module))) {
            faults.push(file.path.clone());
        }
    }
    assert!(modules >= 100, "only {modules} modules of tests were found");
    tree::none("name these in main.rs, or in the file of the module above", &faults);
}
