//! Programs that talk, in the foreground of a session. ROCK's own client does not say
//! `is_interactive_command` and `expect`; its protocol does.

use std::time::Instant;

use serde_json::{Value, json};

use super::service::{PATIENCE, Service, service};

struct Talk {
    service: Service,
    id: String,
}

impl Talk {
    fn begin() -> Self {
        let service = service(&[]);
        let id = service.start();
        let talk = Self { service, id };
        talk.create();
        talk
    }

    fn create(&self) {
        let asked = json!({ "sandbox_id": self.id, "env": { "A": "it's\n$here" } });
        let made = self.service.post("/create_session", &asked);
        assert_eq!(made["status"], "Success", "{made}");
    }

    fn ask(&self, command: &str, more: &Value) -> Value {
        let mut asked = json!({ "sandbox_id": self.id, "command": command });
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.service.post("/run_in_session", &asked)
    }

    /// Output, exit code and what was found of what was expected.
    fn told(&self, command: &str, more: &Value) -> (String, Option<i64>, String) {
        let said = self.ask(command, more);
        assert_eq!(said["status"], "Success", "{command}: {said}");
        let result = &said["result"];
        let text = |field: &str| result[field].as_str().unwrap().to_owned();
        (text("output"), result["exit_code"].as_i64(), text("expect_string"))
    }

    fn run(&self, command: &str) -> String {
        self.told(command, &json!({})).0
    }

    fn fails(&self, command: &str, more: &Value, words: &str) {
        let said = self.ask(command, more);
        let error = said["error"].as_str().unwrap_or_default();
        assert!(said["status"] == "Failed" && error.contains(words), "{command}: {said}");
    }

    /// Waits until no process of this name is left.
    fn gone(&self, name: &str) {
        let began = Instant::now();
        let line = format!("grep -las ^{name} /proc/[0-9]*/cmdline | wc -l");
        while self.service.post("/execute", &json!({ "sandbox_id": self.id, "command": line }))["result"]["stdout"]
            != "0\n"
        {
            assert!(began.elapsed() < PATIENCE, "{name} goes on");
        }
    }
}

fn told(output: &str, exit_code: Option<i64>, expected: &str) -> (String, Option<i64>, String) {
    (output.to_owned(), exit_code, expected.to_owned())
}

#[test]
fn a_program_talks_over_many_requests_where_the_session_stands() {
    let talk = Talk::begin();
    talk.run("mkdir -p '/tmp/it is' && cd '/tmp/it is' && export B=2 && C=3");
    let prompt = json!({ "is_interactive_command": true, "expect": [">>> "] });
    assert_eq!(talk.told("python3 -q", &prompt), told("", Some(0), ">>> "));
    assert_eq!(talk.told("import os, sys; x = 21", &prompt), told("", Some(0), ">>> "));
    let asked = "print(x * 2, sys.stdin.isatty(), os.getcwd(), os.environ['A'], os.environ['B'])";
    assert_eq!(talk.told(asked, &prompt).0, "42 True /tmp/it is it's\n$here 2");
    // Whatever is asked now is a line for it; one that is no line of Python says so.
    assert!(talk.told("echo $C", &prompt).0.contains("SyntaxError"));
    assert_eq!(talk.told("exit(3)", &json!({ "is_interactive_quit": true })), told("", Some(3), ""));
    assert_eq!(talk.run("echo $B $C; pwd"), "2 3\n/tmp/it is");
    talk.gone("python3");
}

#[test]
fn a_command_that_asks_is_answered_and_its_code_is_told() {
    let talk = Talk::begin();
    let asks = "read -p 'name? ' name; printf '\\033[1mhello\\033[0m %s\\n' $name; exit 4";
    let expect = json!({ "expect": ["(?i)password", "name\\?"] });
    assert_eq!(talk.told(asks, &expect), told("", None, "name?"));
    talk.fails("me", &json!({ "error_msg": "as asked" }), "as asked: the command failed with exit code 4");
    assert_eq!(talk.told(asks, &expect), told("", None, "name?"));
    assert_eq!(talk.told("you", &json!({ "check": "silent" })), told("hello you", Some(4), ""));
    // What ends before it says what is expected is told all the same.
    assert_eq!(talk.told("echo none", &expect), told("none", Some(0), ""));
    // ^D ends what reads, ^C what runs.
    let ready = json!({ "is_interactive_command": true, "expect": ["ready"] });
    talk.told("trap 'echo caught' INT; echo ready; while :; do sleep 0.05; done", &ready);
    let caught = json!({ "is_interactive_command": true, "expect": ["caught"] });
    assert_eq!(talk.told("\u{3}", &caught).2, "caught");
    // A session that ends takes it along.
    talk.service.post("/close_session", &json!({ "sandbox_id": talk.id }));
    talk.gone("sleep");
    talk.create();
    talk.told("echo ready; cat > /dev/null; echo over", &ready);
    let over = talk.told("some\n\u{4}", &json!({ "is_interactive_quit": true }));
    assert_eq!(over, told("over", Some(0), ""));
}

#[test]
fn a_program_that_says_nothing_of_what_is_expected_is_killed_alone() {
    let talk = Talk::begin();
    talk.run("C=3");
    let late = json!({ "is_interactive_command": true, "timeout": 0.5, "expect": ["never"] });
    for line in ["(setsid sleep 3000) & trap '' HUP TERM INT; sleep 3000", "cat /dev/zero | tr '\\0' x"] {
        talk.fails(line, &late, "the session goes on");
        assert_eq!(talk.run("echo $C"), "3");
    }
    talk.gone("sleep");
    talk.gone("cat");
    // One that cannot be started ends nothing.
    talk.run("export LONG=$(head -c 200000 /dev/zero | tr '\\0' x)");
    talk.fails("echo on", &json!({ "expect": ["on"] }), "failed to start");
    assert_eq!(talk.run("unset LONG; echo $C"), "3");
    // What it had left unsaid is not taken for what another says.
    let ready = json!({ "is_interactive_command": true, "expect": ["ready"] });
    talk.told("echo ready; echo ready; read a; echo got $a; read b", &ready);
    let (output, _, _) = talk.told("one", &json!({ "is_interactive_command": true, "expect": ["got .*\n"] }));
    assert_eq!(output, "ready", "it said so before it was asked");
    talk.told("two", &json!({ "is_interactive_quit": true }));
    for (expect, words) in [
        (json!(["("]), "regular expression"),
        (json!(["a*"]), "matches something"),
        (json!(["(a{1000}){1000}"]), "too large"),
        (json!(["ready", "a[ab]{15000}[^ab]"]), "expect=a[ab]{15000}[^ab]: it is too large"),
        (json!(["a".repeat(1025)]), "1024 bytes"),
        (json!(vec!["a"; 17]), "16 at most"),
        (json!("a"), "expect"),
    ] {
        talk.fails("true", &json!({ "expect": expect }), words);
    }
    assert_eq!(talk.run("echo $C"), "3");
}

/// The most memory that the service's own process has had so far.
fn peak_bytes(service: &Service) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn what_the_background_writes_while_a_program_talks_is_kept_for_nobody() {
    let talk = Talk::begin();
    talk.run("(until [ -e go ]; do sleep 0.01; done; head -c 400000000 /dev/zero; touch written) &");
    let before = peak_bytes(&talk.service);
    let until = "touch go; until [ -e written ]; do sleep 0.01; done";
    talk.told(until, &json!({ "is_interactive_command": true }));
    let grown = peak_bytes(&talk.service) - before;
    assert!(grown < 64 << 20, "the service keeps {grown} bytes");
    assert!(talk.run("echo on").ends_with("on"), "the session goes on");
}
