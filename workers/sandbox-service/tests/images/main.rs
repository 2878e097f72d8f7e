//! Images of an object store that is a folder: pushed by `millrace env`, used by the service.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use serde_json::{Value, json};

#[path = "../rock/service.rs"]
mod service;
mod loads;
use service::{KEY, OTHER, PATIENCE, Service, service};

/// A store, a cache, and sources of images.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Sandboxes read the cache as nobody.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let place = Self { folder };
        std::fs::create_dir(place.at("store")).unwrap();
        let made = Command::new("python3")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/image_sources.py"))
            .arg(place.folder.path())
            .status();
        assert!(made.unwrap().success());
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn env(&self, words: &[&str]) -> Output {
        let program = Path::new(env!("CARGO_BIN_EXE_millrace-sandboxes")).with_file_name("millrace");
        assert!(program.exists(), "build it first: cargo build --release -p millrace-cli");
        Command::new(program)
            .args(["env", words[0]])
            .args(&words[1..])
            .arg("--objects")
            .arg(self.at("store"))
            .output()
            .unwrap()
    }

    fn push(&self, source: &str, words: &[&str]) -> String {
        let source = self.at(source);
        let ran = self.env(&[&["push", source.to_str().unwrap()], words].concat());
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
        said
    }

    fn host(&self) -> Service {
        self.host_with(&[])
    }

    fn host_with(&self, more: &[&str]) -> Service {
        let (store, cache) = (self.at("store"), self.at("cache"));
        let place = ["--image-store", store.to_str().unwrap(), "--image-cache", cache.to_str().unwrap()];
        service(&[&place, more].concat())
    }

    /// Waits until the cache has these layers, or some of them.
    fn shrinks_to(&self, wanted: impl Fn(&[String]) -> bool) {
        let began = Instant::now();
        while !wanted(&self.layers()) {
            assert!(began.elapsed() < PATIENCE, "{:?}", self.layers());
            std::thread::yield_now();
        }
    }

    /// Names in the cache's folder of layers.
    fn layers(&self) -> Vec<String> {
        let found = std::fs::read_dir(self.at("cache/layers")).into_iter().flatten();
        let mut names: Vec<String> =
            found.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Service {
    fn rock(&self, path: &str, body: &Value) -> Value {
        let key = format!("Bearer {KEY}");
        let headers = [("Authorization", key.as_str()), ("Content-Type", "application/json")];
        let path = format!("/apis/envs/sandbox/v1{path}");
        serde_json::from_str(&self.ask("POST", &path, &headers, body.to_string().as_bytes()).1).unwrap()
    }

    fn start(&self, image: &str) -> String {
        let made = self.rock("/start", &json!({ "image": image }));
        made["result"]["sandbox_id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    }

    /// Why there is no sandbox of this image.
    fn refused(&self, image: &str) -> String {
        let made = self.rock("/start", &json!({ "image": image }));
        made["error"].as_str().unwrap_or_else(|| panic!("{image}: {made}")).to_owned()
    }

    fn run(&self, id: &str, line: &str) -> String {
        let ran = self.rock("/execute", &json!({ "sandbox_id": id, "command": line }));
        let text =
            |stream: &str| ran["result"][stream].as_str().unwrap_or_else(|| panic!("{ran}")).to_owned();
        text("stdout") + &text("stderr")
    }
}

#[test]
fn a_sandbox_begins_with_its_images_files_and_writes_its_own() {
    let place = Place::new();
    let said = place.push("layout", &["task:1", "--system", "--warm", "2"]);
    // The same image from a tar of the layout has the same digest.
    let digest = said.split_whitespace().nth(2).unwrap();
    assert!(place.push("layout.tar", &["task:2", "--system"]).contains(digest), "{said}");
    let listed = String::from_utf8(place.env(&["ls"]).stdout).unwrap();
    assert!(listed.contains("task:1") && listed.contains("warm 2") && listed.contains("task:2"), "{listed}");

    let host = place.host();
    let (one, two) = (host.start("task:1"), host.start("task:1"));
    let seen = host.run(&one, "cd /; cat data/kept data/changed data/secret data/second data/absolute data/climbs; ls data; ls -a covered replaced; cat long/*/*; echo $GREETING");
    let wanted = "below\nabove\nfor its owner\ntwice\nbelow\nbelow\nabsolute\nchanged\nclimbs\nfirst\nkept\nsecond\nsecret\n\
                  covered:\n.\n..\nnew\n\nreplaced:\n.\n..\nnew\nlong\nhello=world\n";
    assert_eq!(seen, wanted);
    assert_eq!(host.run(&one, "echo mine > /data/kept; rm /data/first; mkdir /data/new; echo $?"), "0\n");
    assert_eq!(
        host.run(&two, "cat /data/kept /data/first; ls /data/new 2>&1 | grep -c 'No such'"),
        "below\ntwice\n1\n"
    );
    assert_eq!(host.run(&host.start("task:2"), "cat /data/kept"), "below\n");
    assert_eq!(place.layers().len(), 2, "both names have the same layers");
    // E2B's template names an image, too.
    let headers = [("X-API-Key", OTHER), ("Content-Type", "application/json")];
    let (status, made) = host.ask("POST", "/sandboxes", &headers, b"{\"templateID\":\"task:1\"}");
    assert!(status == 201 && made.contains("\"templateID\":\"task:1\""), "{status} {made}");
    for (image, words) in [("task:3", "is not there"), ("../task", "NAME:TAG"), ("--help", "NAME:TAG")] {
        assert!(host.refused(image).contains(words), "{}", host.refused(image));
    }
    let gone = place.env(&["rm", "task:1"]);
    assert!(gone.status.success() && place.env(&["rm", "task:1"]).status.code() == Some(1));
    assert!(!String::from_utf8(place.env(&["ls"]).stdout).unwrap().contains("task:1"));
}

const GAMES: &str = r#"
import millrace
@millrace.environment("told")
class Told:
    def reset(self, seed): return open("/opt/words").read()
    def step(self, said): return "", 1.0, True
millrace.serve()
"#;

#[test]
fn environments_run_in_an_image_of_the_store() {
    let place = Place::new();
    let root = place.at("games");
    std::fs::create_dir_all(root.join("opt")).unwrap();
    std::fs::write(root.join("opt/games.py"), GAMES).unwrap();
    std::fs::write(root.join("opt/words"), "of the image").unwrap();
    place.push("games", &["games:1", "--system"]);
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python").canonicalize().unwrap();
    let package = package.to_str().unwrap();
    let command = format!("env PYTHONPATH={package} python3 /opt/games.py");
    let gem = |image: &str| {
        let host = place.host_with(&["--gem", &command, "--gem-read", package, "--gem-image", image]);
        let key = format!("Bearer {KEY}");
        let headers = [("Authorization", key.as_str()), ("Content-Type", "application/json")];
        let post = |path: &str, body: Value| {
            let path = format!("/apis/v1/envs/gem/{path}");
            let (status, said) = host.ask("POST", &path, &headers, body.to_string().as_bytes());
            (status, serde_json::from_str::<Value>(&said).unwrap())
        };
        match post("make", json!({ "env_id": "told" })) {
            (200, made) => post("reset", json!({ "sandbox_id": made["sandbox_id"], "seed": 1 })),
            refused => refused,
        }
    };
    assert_eq!(gem("games:1").1["observation"], "of the image");
    let (status, said) = gem("games:2");
    assert!(
        (400..500).contains(&status) && said["detail"].as_str().unwrap().contains("is not there"),
        "{said}"
    );
}

#[test]
fn a_folder_with_its_own_programs_needs_none_of_the_machines() {
    let place = Place::new();
    let root = place.at("root");
    for program in ["/bin/bash", "/bin/cat"] {
        let needs = Command::new("ldd").arg(program).output().unwrap();
        let needs = String::from_utf8(needs.stdout).unwrap();
        for file in needs.split_whitespace().filter(|word| word.starts_with('/')).chain([program]) {
            let to = root.join(file.trim_start_matches('/'));
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(file, to).unwrap();
        }
    }
    std::fs::write(root.join("words"), "its own\n").unwrap();
    place.push("root", &["own"]);
    let host = place.host();
    let id = host.start("own");
    assert_eq!(host.run(&id, "cat /words; test -e /usr/bin/python3 || echo alone"), "its own\nalone\n");
    // Terminals need none either.
    host.rock("/create_session", &json!({ "sandbox_id": id }));
    let asks = json!({ "sandbox_id": id, "command": "read -p 'what? '; cat /$REPLY", "expect": ["what"] });
    assert_eq!(host.rock("/run_in_session", &asks)["result"]["expect_string"], "what");
    let words = host.rock("/run_in_session", &json!({ "sandbox_id": id, "command": "words" }));
    assert!(words["result"]["output"].as_str().unwrap().ends_with("its own"), "{words}");
    // What a push can see it refuses.
    std::fs::set_permissions(root.join("words"), PermissionsExt::from_mode(0o4755)).unwrap();
    let refused = place.env(&["push", root.to_str().unwrap(), "own"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("words") && said.contains("chmod ug-s"), "{said}");
}

#[test]
fn a_hostile_layer_is_refused_in_words_and_nothing_of_it_is_left() {
    let place = Place::new();
    let host = place.host();
    for (source, words) in [
        ("climbs.tar", "climbs by `..`"),
        ("climbs-within.tar", "climbs by `..`"),
        ("absolute.tar", "begins with `/`"),
        ("through-absolute-symlink.tar", "through the symlink /out"),
        ("through-climbing-symlink.tar", "through the symlink /out"),
        ("link-out.tar", "climbs by `..`"),
        ("link-absolute.tar", "begins with `/`"),
        ("link-to-nothing.tar", "not in the layer"),
        ("link-through-symlink.tar", "not in the layer"),
        ("device.tar", "it is a device"),
        ("setuid.tar", "chmod ug-s"),
        ("setgid.tar", "chmod ug-s"),
        ("whiteout-climbs.tar", "removes no name"),
        ("whiteout-of-above.tar", "removes no name"),
        ("no-tar.tar.zst", "failed to"),
    ] {
        // A host may take a name for known for a while: a name for each.
        let name = source.trim_end_matches(".zst").trim_end_matches(".tar").replace(".tar", "");
        place.push(&format!("hostile/{source}"), &[&name, "--system"]);
        let said = host.refused(&name);
        assert!(said.contains(words), "{source}: {said}");
        assert_eq!(place.layers(), Vec::<String>::new(), "{source}");
    }
    assert!(!place.at("escaped").exists() && !place.at("cache/escaped").exists());
    let cut = place.at("hostile/cut.tar.gz");
    let refused = place.env(&["push", cut.to_str().unwrap(), "cut"]);
    assert!(!refused.status.success(), "a tar that is cut is seen by the push");
}

#[test]
fn a_layer_that_is_damaged_is_refused_until_it_is_whole() {
    let place = Place::new();
    place.push("layout", &["task", "--system"]);
    let layers = std::fs::read_dir(place.at("store/images/layers")).unwrap();
    let layer =
        layers.map(|one| one.unwrap().path()).max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&layer).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&layer, &bytes).unwrap();
    let host = place.host();
    assert!(host.refused("task").contains("sha256"), "{}", host.refused("task"));
    place.push("layout", &["task", "--system"]);
    // What other writers left in the cache half done is no layer.
    let digest = layer.file_name().unwrap().to_str().unwrap();
    std::fs::create_dir_all(place.at(&format!("cache/layers/.{digest}.part/u/data"))).unwrap();
    std::fs::write(place.at(&format!("cache/layers/.{digest}.part/u/data/kept")), "half").unwrap();
    std::fs::create_dir_all(place.at("cache/blobs")).unwrap();
    std::fs::write(place.at(&format!("cache/blobs/{digest}")), &bytes).unwrap();
    let id = host.start("task");
    assert_eq!(host.run(&id, "cat /data/kept /data/changed"), "below\nabove\n");
    assert!(place.layers().iter().all(|name| !name.starts_with('.')), "{:?}", place.layers());
}

#[test]
fn a_host_that_is_killed_while_it_unpacks_leaves_a_cache_that_others_use() {
    let place = Place::new();
    place.push("many.tar.gz", &["many", "--system"]);
    let host = place.host();
    let began = Instant::now();
    let key = format!("Bearer {KEY}");
    let headers = [("Authorization", key.as_str())];
    let asked = host.send("POST", "/apis/envs/sandbox/v1/start", &headers, b"{\"image\":\"many\"}");
    while !place.layers().iter().any(|name| name.ends_with(".part")) {
        assert!(began.elapsed() < PATIENCE, "it does not unpack");
    }
    // This kills it.
    drop(host);
    drop(asked);
    let left = place.layers();
    assert!(left.iter().any(|name| name.ends_with(".part")), "it was in the middle: {left:?}");
    let next = place.host();
    let id = next.start("many");
    assert_eq!(next.run(&id, "ls /many | wc -l; cat /many/* | wc -c"), "20000\n200000000\n");
    assert_eq!(place.layers().len(), 1, "{:?}", place.layers());
}

#[test]
fn two_hosts_at_once_unpack_a_layer_once() {
    let place = Place::new();
    place.push("many.tar.gz", &["many", "--system"]);
    let hosts = [place.host(), place.host()];
    std::thread::scope(|scope| {
        let all: Vec<_> = hosts.iter().flat_map(|host| [host; 3]).collect();
        let seen: Vec<_> = all
            .into_iter()
            .map(|host| scope.spawn(|| host.run(&host.start("many"), "ls /many | wc -l")))
            .collect();
        for one in seen {
            assert_eq!(one.join().unwrap(), "20000\n");
        }
    });
    assert_eq!(place.layers().len(), 1, "{:?}", place.layers());
    assert_eq!(
        std::fs::read_dir(place.at("cache/blobs")).unwrap().count(),
        0,
        "what is unpacked is not kept packed"
    );
}

/// The process that unpacked a layer may lock it for its sandboxes before another that waited to unpack it looks again.
#[test]
fn who_waits_for_a_layer_does_not_wait_for_those_that_use_it() {
    let place = Place::new();
    std::fs::create_dir(place.at("one")).unwrap();
    std::fs::write(place.at("one/words"), "below\n").unwrap();
    std::fs::set_permissions(place.at("one"), PermissionsExt::from_mode(0o555)).unwrap();
    place.push("one", &["task", "--system"]);
    place.host().start("task");
    let [layer] = &place.layers()[..] else { panic!("one layer: {:?}", place.layers()) };
    let (away, here) = (place.at("away"), place.at(&format!("cache/layers/{layer}")));
    std::fs::rename(&here, &away).unwrap();
    // As a sandbox of another process uses it.
    let used = std::fs::File::open(place.at(&format!("cache/locks/{layer}"))).unwrap();
    used.lock_shared().unwrap();
    let host = place.host();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| host.start("task"));
        let began = Instant::now();
        while !place.at(&format!("cache/blobs/{layer}")).exists() {
            assert!(began.elapsed() < PATIENCE && !waits.is_finished(), "it does not fetch the layer");
        }
        // Nothing shows when it looks for the layer: right after it has the bytes.
        let has = Instant::now();
        while has.elapsed().as_millis() < 300 {
            std::thread::yield_now();
        }
        std::fs::rename(&away, &here).unwrap();
        let id = waits.join().unwrap();
        assert_eq!(host.run(&id, "cat /words"), "below\n");
    });
}

/// What nobody uses leaves; what a sandbox of any process uses stays, however far beyond the bound.
#[test]
fn beyond_the_caches_bound_the_layers_that_nobody_uses_are_removed() {
    let place = Place::new();
    for name in ["one", "two", "three"] {
        std::fs::create_dir(place.at(name)).unwrap();
        std::fs::write(place.at(name).join("words"), name.repeat(600_000)).unwrap();
        std::fs::set_permissions(place.at(name), PermissionsExt::from_mode(0o555)).unwrap();
        place.push(name, &[name, "--system"]);
    }
    let (other, host) = (place.host(), place.host_with(&["--image-cache-mib", "1"]));
    let ones = other.start("one");
    let one = place.layers();
    let twos = host.start("two");
    let both = place.layers();
    assert!(one.len() == 1 && both.len() == 2, "{one:?} {both:?}");
    // A process that was killed while it removed one.
    std::fs::create_dir_all(place.at("cache/layers/.0000.gone/u")).unwrap();
    let threes = host.start("three");
    place.shrinks_to(|left| !left.iter().any(|name| name.ends_with(".gone")));
    for (host, id, length) in
        [(&other, &ones, 1_800_000), (&host, &twos, 1_800_000), (&host, &threes, 3_000_000)]
    {
        assert_eq!(host.run(id, "wc -c < /words"), format!("{length}\n"), "in use, and there");
    }
    assert_eq!(place.layers().len(), 3);
    // Its sandboxes end with it, and it lets go.
    drop(other);
    std::fs::create_dir(place.at("four")).unwrap();
    place.push("four", &["four", "--system"]);
    host.start("four");
    place.shrinks_to(|left| left.len() == 3 && !left.contains(&one[0]));
    assert_eq!(host.run(&twos, "wc -c < /words"), "1800000\n");
    // It is fetched again.
    assert_eq!(host.run(&host.start("one"), "wc -c < /words"), "1800000\n");
}

impl Service {
    /// Stores a sandbox as an image, and waits for the end. Returns the last status.
    fn commit(&self, id: &str, image: &str) -> Value {
        let begun = self.rock("/commit", &json!({ "sandbox_id": id, "image_tag": image }));
        assert_eq!(begun["status"], "Success", "{begun}");
        let (key, began) = (format!("Bearer {KEY}"), Instant::now());
        loop {
            let path = format!("/apis/envs/sandbox/v1/commit/{id}");
            let said = self.ask("GET", &path, &[("Authorization", key.as_str())], b"").1;
            let said: Value = serde_json::from_str(&said).unwrap();
            if said["result"]["phase"] != "RUNNING" {
                return said["result"].clone();
            }
            assert!(began.elapsed() < PATIENCE, "{said}");
        }
    }
}

#[test]
fn a_sandbox_that_is_committed_is_an_image_over_the_one_that_it_began_with() {
    let place = Place::new();
    place.push("layout", &["task:1", "--system"]);
    let host = place.host_with(&["--image-commits", "saved-"]);
    let id = host.start("task:1");
    // No name points to what is below any more.
    assert!(place.env(&["rm", "task:1"]).status.success());
    host.run(&id, "cd /; echo mine > data/kept; rm data/first; mkdir data/new; rm -r covered; mkdir covered");
    assert_eq!(host.commit(&id, "saved-a")["phase"], "SUCCEEDED");
    // What is written since is not in it, nor what the next commit of this name has for who began before.
    host.run(&id, "rm -r /data/new");
    let (copy, look) =
        (host.start("saved-a"), "cd /data; cat kept changed; ls; ls ../covered; echo $GREETING");
    let wanted = "mine\nabove\nabsolute\nchanged\nclimbs\nkept\nnew\nsecond\nsecret\nhello=world\n";
    assert_eq!(host.run(&copy, look), wanted);
    assert_eq!(host.commit(&id, "saved-a")["phase"], "SUCCEEDED");
    assert_eq!(host.run(&copy, look), wanted);
    assert_eq!(host.run(&host.start("saved-a"), look), wanted.replace("new\n", ""));
    // Another host of another cache, and an image over an image.
    host.run(&copy, "echo twice > /data/kept");
    assert_eq!(host.commit(&copy, "saved-b")["phase"], "SUCCEEDED");
    let there = service(&[
        "--image-store",
        place.at("store").to_str().unwrap(),
        "--image-cache",
        place.at("other").to_str().unwrap(),
    ]);
    assert_eq!(there.run(&there.start("saved-b"), look), wanted.replace("mine", "twice"));
    assert_eq!(std::fs::read_dir(place.at("cache/commits")).unwrap().count(), 0, "nothing is left over");
    let refused = there.rock("/commit", &json!({ "sandbox_id": id, "image_tag": "saved-c" }));
    assert!(refused["error"].as_str().unwrap().contains("not there"), "{refused}");
    let id = there.start("saved-a");
    let refused = there.rock("/commit", &json!({ "sandbox_id": id, "image_tag": "saved-c" }));
    assert!(refused["error"].as_str().unwrap().contains("--image-commits"), "{refused}");
}

#[test]
fn files_that_change_while_they_are_committed_are_whole_and_a_killed_host_stores_nothing() {
    let place = Place::new();
    let host = place.host_with(&["--image-commits", "saved-"]);
    let id = host.start("base");
    // Packed in the order of their names; a line in `a` is one in `c` a moment later.
    let script =
        "head -c 30000000 /dev/urandom > big; echo ready; while :; do echo x >> a; echo x >> c; done";
    host.rock("/write_file", &json!({ "sandbox_id": id, "path": "write.sh", "content": script }));
    host.run(&id, "bash write.sh > said 2>&1 & until grep -q ready said; do :; done");
    for name in ["saved-1", "saved-2", "saved-3"] {
        let done = host.commit(&id, name);
        assert_eq!(done["phase"], "SUCCEEDED", "{done}");
        let seen = host.run(&host.start(name), "wc -c < big; echo $(($(wc -l < a) - $(wc -l < c)))");
        assert!(["30000000\n0\n", "30000000\n1\n"].contains(&seen.as_str()), "of one moment: {seen}");
    }
    let grown = host.run(&id, "x=$(wc -l < a); until [ $(wc -l < a) != $x ]; do :; done; echo on");
    assert_eq!(grown, "on\n");
    let asked = host.rock("/commit", &json!({ "sandbox_id": id, "image_tag": "saved-4" }));
    assert_eq!(asked["result"]["phase"], "RUNNING", "{asked}");
    drop(host);
    let next = place.host();
    assert_eq!(next.run(&next.start("saved-3"), "wc -c < big"), "30000000\n");
    // Either all of it or nothing is there.
    let made = next.rock("/start", &json!({ "image": "saved-4" }));
    match made["result"]["sandbox_id"].as_str() {
        Some(id) => assert_eq!(next.run(id, "wc -c < big"), "30000000\n"),
        None => assert!(made["error"].as_str().unwrap().contains("is not there"), "{made}"),
    }
}
