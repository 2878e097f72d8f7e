//! The release bundle: the same inputs give the same bytes, and it is uploaded once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{run, stderr, stdout};

/// The repository.
fn source() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").to_string_lossy().into_owned()
}

/// Programs that are none, for bundles that nobody runs.
fn programs(folder: &Path) -> PathBuf {
    let bin = folder.join("bin");
    fs::create_dir(&bin).unwrap();
    for name in ["millrace", "millrace-worker", "millrace-sandbox", "millrace-agent-guard"] {
        fs::write(bin.join(name), format!("the program {name}")).unwrap();
    }
    bin
}

#[tokio::test]
async fn the_same_inputs_make_the_same_bundle_and_it_is_uploaded_once() {
    let folder = tempfile::tempdir().unwrap();
    let bin = programs(folder.path()).to_string_lossy().into_owned();
    let place = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let store = place("store");
    let make = async |out: &str| {
        let words = ["release", "--bin", &bin, "--source", &source(), "--out", &place(out), "--to", &store];
        let made = run(&words).await;
        assert!(made.status.success(), "{}", stderr(&made));
        stdout(&made)
    };
    let first = make("first").await;
    let line = first.lines().last().unwrap();
    let (sha256, path) = line.split_once("  ").unwrap();
    assert!(first.contains(&format!("releases/{sha256}.tar.gz: uploaded")), "{first}");
    // Another time, and other times of the files.
    for name in ["millrace", "millrace-worker"] {
        let path = Path::new(&bin).join(name);
        fs::write(&path, fs::read(&path).unwrap()).unwrap();
    }
    let second = make("second").await;
    assert!(second.lines().last().unwrap().starts_with(sha256), "{first}{second}");
    assert!(second.contains("was there already"), "{second}");
    let uploaded = fs::read(Path::new(&store).join(format!("releases/{sha256}.tar.gz"))).unwrap();
    assert_eq!(uploaded, fs::read(path).unwrap());

    // Tools of the instance agree: what its user data checks, and what it unpacks.
    let sum = Command::new("sha256sum").arg(path).output().unwrap();
    assert!(String::from_utf8_lossy(&sum.stdout).starts_with(sha256));
    let unpacked = folder.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let tar = Command::new("tar").args(["-xzf", path, "-C"]).arg(&unpacked).status().unwrap();
    assert!(tar.success());
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(unpacked.join("manifest.json")).unwrap()).unwrap();
    let files = manifest["files"].as_object().unwrap();
    for (name, sha256) in files {
        let sum = Command::new("sha256sum").arg(unpacked.join(name)).output().unwrap();
        assert!(String::from_utf8_lossy(&sum.stdout).starts_with(sha256.as_str().unwrap()), "{name}");
    }
    for name in ["bin/millrace-worker", "install.sh", "systemd/nats-server.service", "python/pyproject.toml"]
    {
        assert!(files.contains_key(name), "{name}: {manifest:#}");
    }
    assert!(!files.keys().any(|name| name.contains("__pycache__")), "{manifest:#}");
    let install = Command::new("test").arg("-x").arg(unpacked.join("install.sh")).status().unwrap();
    assert!(install.success(), "install.sh cannot be run");
}

#[tokio::test]
async fn programs_are_packed_without_line_numbers_and_as_they_are_where_that_fails() {
    let folder = tempfile::tempdir().unwrap();
    let bin = programs(folder.path());
    let ours = Path::new(env!("CARGO_BIN_EXE_millrace"));
    // One is a program of this system, and one begins like it and is none.
    fs::copy(ours, bin.join("millrace")).unwrap();
    fs::write(bin.join("millrace-sandbox"), b"\x7fELF and no more").unwrap();
    let out = folder.path().join("out").to_string_lossy().into_owned();
    let made = run(&["release", "--bin", &bin.to_string_lossy(), "--source", &source(), "--out", &out]).await;
    let said = stdout(&made);
    assert!(made.status.success() && said.contains("millrace-sandbox: with its line numbers"), "{said}");
    let path = said.lines().last().unwrap().split_once("  ").unwrap().1;
    let unpacked = folder.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let tar = Command::new("tar").args(["-xzf", path, "-C"]).arg(&unpacked).status().unwrap();
    assert!(tar.success());
    let packed = unpacked.join("bin/millrace");
    assert!(fs::metadata(&packed).unwrap().len() < fs::metadata(ours).unwrap().len() * 2 / 3);
    let ran = Command::new(&packed).arg("--version").output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(fs::read(unpacked.join("bin/millrace-sandbox")).unwrap(), b"\x7fELF and no more");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1, "nothing else stays");
}

#[tokio::test]
async fn a_missing_program_is_named_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let bin = programs(folder.path());
    fs::remove_file(bin.join("millrace-sandbox")).unwrap();
    let out = folder.path().join("out").to_string_lossy().into_owned();
    let made = run(&["release", "--bin", &bin.to_string_lossy(), "--source", &source(), "--out", &out]).await;
    let said = stderr(&made);
    assert!(!made.status.success() && said.contains("millrace-sandbox"), "{said}");
    assert!(said.contains("make programs") && !Path::new(&out).exists(), "{said}");
    let made = run(&["release", "--source", &out, "--bin", &bin.to_string_lossy(), "--out", &out]).await;
    assert!(!made.status.success() && stderr(&made).contains("millrace-sandbox"));
}
