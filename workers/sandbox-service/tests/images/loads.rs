//! Images that take long to load.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::service::{KEY, OTHER, PATIENCE, service};

/// Notes the name that it is asked for, and gives no answer as long as the service lives.
const NEVER: &str = "#!/bin/sh\necho \"$3\" >> \"$0.began\"\nexec tail --pid=$PPID -f /dev/null\n";

/// A program in place of `millrace`.
fn never(folder: &Path) -> String {
    let (draft, path) = (folder.join("draft"), folder.join("never"));
    std::fs::write(&draft, NEVER).unwrap();
    // By another process: a file that this one wrote is busy while a fork of another thread has it open, too.
    assert!(Command::new("install").arg("-m755").args([&draft, &path]).status().unwrap().success());
    path.to_str().unwrap().to_owned()
}

#[test]
fn one_key_asks_for_any_number_of_images_and_keeps_no_other_from_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let program = never(folder.path());
    let (store, cache) = (folder.path().join("store"), folder.path().join("cache"));
    let place = ["--image-store", store.to_str().unwrap(), "--image-cache", cache.to_str().unwrap()];
    let host = service(&[&place[..], &["--millrace", &program]].concat());
    let ask = |key: &str, image: &str| {
        let headers = [("X-Key", key), ("Content-Type", "application/json")];
        let body = format!("{{\"image\":\"{image}\"}}");
        host.send("POST", "/apis/envs/sandbox/v1/start", &headers, body.as_bytes())
    };
    let began = |of: &str| {
        let all = std::fs::read_to_string(format!("{program}.began")).unwrap_or_default();
        all.lines().filter(|name| name.starts_with(of)).count()
    };
    let at = Instant::now();
    let until = |of: &str, wanted: usize| {
        while began(of) < wanted {
            assert!(at.elapsed() < PATIENCE, "{of}: {} of {wanted}", began(of));
            std::thread::yield_now();
        }
    };
    let many: Vec<_> = (0..40).map(|n| ask(KEY, &format!("many{n}"))).collect();
    until("many", 4);
    let others: Vec<_> = (0..4).map(|n| ask(OTHER, &format!("own{n}"))).collect();
    until("own", 4);
    assert_eq!(began("many"), 4, "each of them is a process");
    drop((many, others));
}
