//! Environments as ROCK's own client uses them: `rock.make`, and what goes wrong in them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::Instant;

#[path = "../e2b/readme.rs"]
mod readme;
#[path = "../rock/service.rs"]
mod service;
#[path = "../rock/drive.rs"]
mod drive;
use service::{KEY, OTHER, PATIENCE, Service, service};

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name).canonicalize().unwrap()
}

/// A service with environments, whose programs have this mark.
fn environments(mark: &str, args: &[&str]) -> Service {
    let (program, package) = (here("tests/gem_env.py"), here("../python"));
    let (program, package) = (program.to_str().unwrap(), package.to_str().unwrap());
    let command = format!("env PYTHONPATH={package} python3 {program} {mark}");
    let read = format!("{program},{package}");
    service(&[&["--gem", &command, "--gem-read", &read], args].concat())
}

fn drive(service: &Service, what: &str) {
    service.drive(&here("tests/gem_client.py"), &[&service.address, KEY, OTHER, what], &[]);
}

/// Programs of environments with this mark that run on this machine.
fn programs(mark: &str) -> usize {
    let end = format!("gem_env.py\0{mark}\0");
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.starts_with("python3\0") && line.ends_with(&end)).count()
}

/// How many sandboxes the key has.
fn sandboxes(service: &Service) -> usize {
    let (_, text) = service.ask("GET", "/v2/sandboxes?limit=100", &[("X-API-Key", KEY)], b"");
    text.matches("\"sandboxID\"").count()
}

#[test]
fn an_episode_has_gyms_five_values_and_follows_from_its_seed() {
    drive(&environments("episodes", &[]), "episodes");
}

#[test]
fn the_example_of_the_readme_works() {
    let package = here("../python");
    let package = package.to_str().unwrap();
    let command = format!("python3 {package}/examples/riddles.py");
    let service = service(&["--gem", &command, "--gem-read", package]);
    let address = service.address.replace("http://", &format!("http://gem:{KEY}@"));
    let example = readme::example("rock.make").replace("http://gem:KEY@127.0.0.1:8080", &address);
    // A game of a package that needs none.
    let example = example.replace("game:GuessTheNumber-v0-easy", "larger");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("example.py");
    std::fs::write(&program, format!("{example}\nassert not terminated and info['valid']\nprint('done')\n"))
        .unwrap();
    service.drive(&program, &[], &[]);
    assert_eq!(sandboxes(&service), 0, "it left nothing");
}

#[test]
fn a_fault_is_an_answer_in_words_and_the_others_go_on() {
    drive(&environments("faults", &["--gem-step-s", "5"]), "faults");
}

#[test]
fn a_wrong_request_and_anothers_id_are_refused() {
    drive(&environments("wrong", &[]), "wrong");
}

#[test]
fn no_more_are_made_than_may_be() {
    drive(&environments("full", &["--gem-most", "2"]), "full");
}

#[test]
fn nothing_is_left_of_those_that_nobody_closes() {
    let service = environments("abandoned", &["--idle-s", "30"]);
    std::thread::scope(|scope| {
        let made = scope.spawn(|| drive(&service, "abandon"));
        let began = Instant::now();
        while programs("abandoned") < 50 {
            assert!(began.elapsed() < PATIENCE && !made.is_finished(), "the programs are not seen");
        }
    });
    let began = Instant::now();
    while sandboxes(&service) > 0 {
        assert!(began.elapsed() < PATIENCE, "sandboxes={} are left", sandboxes(&service));
    }
    let began = Instant::now();
    while programs("abandoned") > 0 {
        assert!(began.elapsed() < PATIENCE, "programs={} are left", programs("abandoned"));
    }
}

#[test]
fn without_the_flag_no_environment_is_served() {
    let service = service(&[]);
    let key = format!("Bearer {KEY}");
    let (status, said) = service.ask("POST", "/apis/v1/envs/gem/make", &[("Authorization", &key)], b"{}");
    assert!(status == 404 && said.contains("--gem COMMAND"), "{status} {said}");
}
