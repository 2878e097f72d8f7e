//! No circle among the coordinator's modules. The dependencies are read from the paths that begin
//! with `crate::` or `super::`.
//!
//! A file and the folder of its name are one module, whose parts may know one another. A file that
//! holds nothing but a list of modules makes no module: each file of its folder is one of its own.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree;

const CRATE: &str = "broker/coordinator/src/";

type Path = Vec<String>;

/// The paths of a use tree at the start of `text`: `a::{b, c::D}` is `a::b` and `a::c::D`. Returns
/// the rest, too.
fn paths_of<'a>(mut text: &'a str, prefix: &Path, found: &mut Vec<Path>) -> &'a str {
    let mut path = prefix.clone();
    loop {
        text = text.trim_start();
        if let Some(mut inside) = text.strip_prefix('{') {
            loop {
                inside = inside.trim_start();
                if let Some(rest) = inside.strip_prefix('}') {
                    return rest;
                }
                if inside.is_empty() {
                    return inside;
                }
                let rest = paths_of(inside, &path, found);
                // What is no path is passed over.
                let step = usize::from(rest.len() == inside.len());
                inside = rest.trim_start().get(step..).unwrap_or_default();
                inside = inside.strip_prefix(',').unwrap_or(inside);
            }
        }
        let end = text.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(text.len());
        if end == 0 {
            break;
        }
        path.push(text[..end].to_owned());
        text = &text[end..];
        match text.strip_prefix("::") {
            Some(rest) => text = rest,
            None => break,
        }
    }
    if path.len() > prefix.len() {
        found.push(path);
    }
    text
}

/// All paths in `code` that begin in this crate, from its root. `module` is where the code stands.
fn inner_paths(code: &str, module: &Path) -> Vec<Path> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if !code[..at].ends_with(|c: char| c == '_' || c == '$' || c.is_alphanumeric()) {
            paths_of(&code[at + "crate::".len()..], &Path::new(), &mut found);
        }
    }
    for (at, _) in code.match_indices("super::") {
        if code[..at].ends_with("::") {
            continue;
        }
        let (mut parent, mut rest) = (module.clone(), &code[at..]);
        while let Some(after) = rest.strip_prefix("super::") {
            parent.pop();
            rest = after;
        }
        paths_of(rest, &parent, &mut found);
    }
    found
}

/// Whether the file is a list of modules and of names that it hands on.
fn is_list(code: &str) -> bool {
    let mut lines = code.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.all(|line| ["mod ", "pub mod ", "pub use ", "#["].iter().any(|start| line.starts_with(start)))
}

/// Which modules each module names. `files` are their paths and code.
fn dependencies(files: &[(Path, String)]) -> BTreeMap<Path, BTreeSet<Path>> {
    let lists: BTreeMap<&Path, Vec<Path>> = files
        .iter()
        .filter(|(_, code)| is_list(code))
        .map(|(path, code)| {
            let mut names = Vec::new();
            for (at, _) in code.match_indices("pub use ") {
                paths_of(&code[at + "pub use ".len()..], path, &mut names);
            }
            (path, names)
        })
        .collect();
    let known: BTreeSet<&Path> = files.iter().map(|(path, _)| path).collect();
    // The module of a path: the first file on it that is no list.
    let module_of = |path: &Path| -> Option<Path> {
        let mut path = path.clone();
        for depth in 1.. {
            let head = path.get(..depth)?.to_vec();
            if !known.contains(&head) {
                return None;
            }
            let Some(names) = lists.get(&head) else { return Some(head) };
            let name = path.get(depth);
            if let Some(handed_on) = names.iter().find(|names| names.last() == name) {
                path.clone_from(handed_on);
            }
        }
        None
    };
    let mut dependencies = BTreeMap::<Path, BTreeSet<Path>>::new();
    for (path, code) in files {
        let Some(module) = module_of(path) else { continue };
        let named =
            inner_paths(code, path).iter().filter_map(&module_of).filter(|other| *other != module).collect();
        dependencies.entry(module).or_default().extend::<BTreeSet<Path>>(named);
    }
    dependencies
}

/// What is left once modules that depend on nothing that is left are taken away: all circles, and
/// what leads to them.
fn circles(mut dependencies: BTreeMap<Path, BTreeSet<Path>>) -> Vec<String> {
    loop {
        let left: BTreeSet<Path> = dependencies.keys().cloned().collect();
        dependencies.values_mut().for_each(|named| named.retain(|name| left.contains(name)));
        let before = dependencies.len();
        dependencies.retain(|_, named| !named.is_empty());
        if dependencies.len() == before {
            break;
        }
    }
    let line = |(module, named): (&Path, &BTreeSet<Path>)| {
        let named: Vec<String> = named.iter().map(|name| name.join("::")).collect();
        format!("{} -> {}", module.join("::"), named.join(", "))
    };
    dependencies.iter().map(line).collect()
}

#[test]
fn the_coordinators_modules_make_no_circle() {
    let files: Vec<(Path, String)> = tree::files(&[".rs"])
        .into_iter()
        .filter(|file| file.path.starts_with(CRATE) && !file.is_test())
        .map(|file| {
            let name = file.path.trim_start_matches(CRATE).trim_end_matches(".rs");
            let code: Vec<&str> = file.code().map(|(_, line)| line).collect();
            (name.split('/').map(str::to_owned).collect(), code.join("\n"))
        })
        .filter(|(path, _): &(Path, _)| path != &["lib"] && path != &["main"])
        .collect();
    assert!(files.len() > 40, "only {} files of the coordinator were found", files.len());
    let dependencies = dependencies(&files);
    assert!(dependencies.values().map(BTreeSet::len).sum::<usize>() > 100, "too few dependencies were read");
    tree::none("modules know one another in circles", &circles(dependencies));
}

#[test]
fn circles_are_found() {
    let file = |path: &str, code: &str| (path.split("::").map(str::to_owned).collect(), code.to_owned());
    let of = |files: &[(Path, String)]| circles(dependencies(files));
    let room = file("room", "pub mod a;\npub mod b;\npub use b::Thing;");
    let a = file("room::a", "use crate::room::{x::Y, b::{self, Z}};\nfn f() {}");
    assert_eq!(of(&[room.clone(), a.clone(), file("room::b", "fn g() {}")]), Vec::<String>::new());
    let back = file("room::b", "fn g() { super::a::f() }");
    assert_eq!(of(&[room.clone(), a.clone(), back]), ["room::a -> room::b", "room::b -> room::a"]);
    // Through a name that the list hands on, and from a part of a module.
    let whole = file("whole", "mod part;\nstruct W;");
    let part = file("whole::part", "use super::W;\nuse crate::room::Thing;");
    assert_eq!(
        of(&[room.clone(), file("room::b", "fn g() {}"), whole.clone(), part.clone()]),
        Vec::<String>::new()
    );
    let found = of(&[room, file("room::b", "type T = crate::whole::W;"), whole, part]);
    assert_eq!(found, ["room::b -> whole", "whole -> room::b"]);
}
