//! Millrace from a shell with the `nats` command: submit, status, discovery, notices, the policy
//! key.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::processes::{PATIENCE, Processes, root};

/// The command that set-up built, or the one on the path.
fn find_nats() -> Option<PathBuf> {
    let built = root().join("target/tools/nats");
    let candidates = [built, PathBuf::from("nats")];
    candidates
        .into_iter()
        .find(|nats| Command::new(nats).arg("--version").output().is_ok_and(|o| o.status.success()))
}

/// A shell's view of one server, apart from the contexts that a user of this machine may have.
struct Shell<'a> {
    nats: &'a Path,
    url: &'a str,
    home: &'a Path,
}

impl Shell<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.nats);
        command.args(["--server", self.url, "--no-context", "--timeout", "30s"]).args(args);
        command.env("HOME", self.home).env("XDG_CONFIG_HOME", self.home).env_remove("NATS_CONTEXT");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("nats runs")
    }

    /// What the command prints; it must succeed.
    fn run(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "nats {args:?}: {out}{err}");
        out.into_owned()
    }

    fn json(&self, args: &[&str]) -> Value {
        let text = self.run(args);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("nats {args:?} is not JSON: {e}: {text}"))
    }

    /// A command that keeps running.
    fn follow(&self, args: &[&str]) -> Follower {
        let mut child = self.command(args).stderr(Stdio::null()).spawn().expect("nats runs");
        let output = BufReader::new(child.stdout.take().expect("its output is ours"));
        let (sender, lines) = mpsc::channel();
        // Ends with the command's output, or when the receiver is dropped.
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Follower { child, lines }
    }

    /// Follows a subject, and gives the follower once the server sends it what is published there.
    fn subscribe(&self, filter: &str, probe: &str) -> Follower {
        let follower = self.follow(&["sub", "--raw", filter]);
        let deadline = Instant::now() + PATIENCE;
        while follower.lines.recv_timeout(Duration::from_millis(200)).is_err() {
            assert!(Instant::now() < deadline, "nats sub {filter} hears nothing");
            self.run(&["pub", probe, "probe"]);
        }
        follower
    }
}

/// A running command; killed when dropped.
struct Follower {
    child: Child,
    lines: Receiver<String>,
}

impl Follower {
    /// The first line that `wanted` takes.
    fn line(&self, wanted: impl Fn(&str) -> bool) -> String {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if wanted(&line) => return line,
                Ok(line) => seen.push(line),
                Err(e) => panic!("{e}; seen: {seen:#?}"),
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run_file(name: &str) -> String {
    json!({
        "name": name,
        "steps": 5,
        "model": { "kind": "scripted" },
        "environment": { "name": "counter", "turns": 3 },
        "rollout": { "groups_per_step": 4, "group_size": 4 },
        "evaluate": { "prompts": 4 },
    })
    .to_string()
}

#[tokio::test]
async fn the_nats_command_is_enough() {
    let Some(nats) = find_nats() else {
        // Not by println: that is shown only of tests that fail.
        let note = "SKIPPED the_nats_command_is_enough: neither Go nor `nats` is on this machine\n";
        std::io::stderr().write_all(note.as_bytes()).expect("the note can be written");
        return;
    };
    let processes = Processes::start().await;
    let shell = Shell { nats: &nats, url: processes.url(), home: processes.folder() };
    discovery(&shell);
    refusal(&shell);
    submit_and_watch(&shell);
    streams(&shell);
    contexts(&shell);
}

/// A context that `nats` saved leads `millrace` to its server.
fn contexts(shell: &Shell<'_>) {
    shell.run(&["context", "save", "fleet"]);
    let millrace = |context: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        command.args(["list", "--context", context]).env_remove("NATS_URL");
        command.env("HOME", shell.home).env("XDG_CONFIG_HOME", shell.home);
        command.output().expect("millrace runs")
    };
    let listed = millrace("fleet");
    assert!(String::from_utf8_lossy(&listed.stdout).contains("cli"), "{listed:?}");
    let unknown = millrace("flet");
    let error = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(!unknown.status.success() && error.contains("nats context ls"), "{error}");
}

/// `nats micro ls`, `info`, `stats`, `ping`.
fn discovery(shell: &Shell<'_>) {
    assert!(shell.run(&["micro", "ls"]).contains("millrace"));
    let info = shell.run(&["micro", "info", "millrace"]);
    for endpoint in ["submit", "status", "list", "ledger", "pause", "resume", "cancel", "rm"] {
        assert!(info.contains(&format!("mr.api.{endpoint}")), "{endpoint}: {info}");
    }
    assert!(shell.run(&["micro", "stats", "millrace"]).contains("ledger"));
    assert!(shell.run(&["micro", "ping", "millrace"]).contains("millrace"));
}

/// A wrong run file: headers and body show what to do.
fn refusal(shell: &Shell<'_>) {
    let wrong = run_file("wrong").replace("\"group_size\":4", "\"group_size\":1");
    let output = shell.output(&["req", "mr.api.submit", &wrong]);
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    for part in ["Nats-Service-Error-Code: 400", "rollout.group_size", "2 or more"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// `nats req mr.api.submit "$(cat run.json)"`, then everything that a user may look at.
fn submit_and_watch(shell: &Shell<'_>) {
    // Workers tell of themselves all the time.
    assert!(shell.run(&["sub", "--count", "1", "mr.notice.>"]).contains("worker-0"));
    let notices = shell.subscribe("mr.notice.cli.>", "mr.notice.cli.probe");
    let keys = shell.follow(&["kv", "watch", "MILLRACE_POLICY"]);
    assert_eq!(shell.json(&["req", "--raw", "mr.api.submit", &run_file("cli")]), json!({ "run": "cli" }));
    let ended = notices.line(|line| line.contains("\"ended\""));
    let ended: Value = serde_json::from_str(&ended).expect("a notice is JSON");
    assert_eq!((&ended["state"], &ended["version"]), (&json!("finished"), &json!(5)));
    keys.line(|line| line.contains("cli") && line.contains("\"version\":5"));

    // With one run known, nothing need be said.
    let status = shell.json(&["req", "--raw", "mr.api.status", ""]);
    assert_eq!(
        (&status["run"], &status["state"], &status["version"]),
        (&json!("cli"), &json!("finished"), &json!(5))
    );
    let ledger = shell.json(&["req", "--raw", "mr.api.ledger", r#"{"run":"cli"}"#]);
    assert_eq!((&ledger["trained"], &ledger["in_flight"]), (&json!(5 * 4 * 4), &json!(0)));
    let list = shell.json(&["req", "--raw", "mr.api.list", ""]);
    assert_eq!((&list["runs"][0]["run"], list["runs"].as_array().map(Vec::len)), (&json!("cli"), Some(1)));
    assert_eq!(list.get("next"), None, "one page holds it");
    let policy = shell.json(&["kv", "get", "MILLRACE_POLICY", "cli", "--raw"]);
    assert_eq!((&policy["version"], &policy["ended"]), (&json!(5), &json!(true)));
}

/// `nats stream ls` and `nats consumer ls` show the queues under their names.
fn streams(shell: &Shell<'_>) {
    let streams = shell.run(&["stream", "ls", "--names"]);
    for stream in ["MILLRACE_LOG", "MILLRACE_DEAD", "MILLRACE_TASK_GENERATE", "MILLRACE_TASK_TRAIN_SHARD"] {
        assert!(streams.contains(stream), "{stream}: {streams}");
    }
    assert!(shell.run(&["consumer", "ls", "MILLRACE_TASK_GENERATE", "--names"]).contains("pool_"));
}
