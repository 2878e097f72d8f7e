//! Agents that are programs, trained through the queue: a tiny model that knows nothing, and whole
//! runs with books that balance, whatever is killed.

use std::path::{Path, PathBuf};

use millrace_schemas::report::Report;
use nix::sys::signal::Signal;

use tokio::time::timeout;

use super::support::{PATIENCE, Up, change, millrace, send, stderr, stdout, until};

mod model;

/// An agent on Python's own library: two calls, then a file.
const AGENT: &str = r#"
import json, os, urllib.request
def ask(messages):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    data = json.dumps({"model": "any", "messages": messages, "max_tokens": 6}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", data, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
talk = [{"role": "user", "content": os.environ["MILLRACE_PROMPT"]}]
for _ in range(2):
    talk += [ask(talk), {"role": "user", "content": "again"}]
open("answer", "w").write(talk[1]["content"])
"#;

/// Writes the model, the tasks and the run file of `steps` steps.
fn written(folder: &Path, agent: &str, more: &str) -> PathBuf {
    model::write(&folder.join("model"));
    let rows = (0..12).map(|i| format!("{{\"prompt\": \"task {i} mark{}\"}}\n", mark(folder)));
    std::fs::write(folder.join("tasks.jsonl"), rows.collect::<String>()).unwrap();
    let text = format!(
        r#"
        name = "counter"
        steps = 3
        model = {{ kind = "hugging_face", path = {model:?}, context = 200, precision = "f32" }}
        rollout = {{ groups_per_step = 2, group_size = 2, alpha = 1.0, max_new_tokens = 8 }}
        algorithm = {{ learning_rate = 1e-4 }}
        evaluate = {{ prompts = 2 }}
        [environment]
        name = "agent"
        command = ["python3", "agent.py", "{mark}"]
        reward = ["python3", "check.py"]
        max_turns = 4
        context_tokens = 150
        {more}
        [environment.rows]
        path = "tasks.jsonl"
        answer = ""
        held_out = 0.5
        [environment.files]
        "agent.py" = '''{agent}'''
        [environment.reward_files]
        "check.py" = "print(len(open('answer').read()) % 3 / 2)"
        "#,
        model = folder.join("model"),
        mark = mark(folder),
    );
    let file = folder.join("run.toml");
    std::fs::write(&file, text).unwrap();
    file
}

/// A text that only this test's agents have in their command lines.
fn mark(folder: &Path) -> String {
    format!("mark{}", folder.file_name().unwrap().to_string_lossy().trim_start_matches('.'))
}

/// The processes of this test's agents.
fn agents(folder: &Path) -> usize {
    let mark = mark(folder);
    let lines = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = lines.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(&mark)).count()
}

/// Plays the run to its end: all that it asks for is trained, and no rollout failed.
async fn played(folder: &Path, file: &Path) -> Report {
    // Two workers: a step is pulled by either, and asked of the one that hosts the agent.
    let mut up = Up::start_file(folder, file, &["--env", "2"]);
    assert!(up.ended().await.success(), "{}", up.output());
    let report = up.report();
    assert!(report.balanced && report.audited, "{report:#?}");
    assert_eq!((report.final_version, report.ledger.trained), (3, 3 * 2 * 2), "{report:#?}");
    assert_eq!(report.ledger.dropped.get("failed"), None, "{}", up.output());
    assert_eq!(agents(folder), 0, "they stay when their run has ended");
    report
}

#[tokio::test]
async fn agents_are_trained_and_the_books_balance() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), AGENT, "");
    played(folder.path(), &file).await;
}

/// A main agent, whose sub-agent has a conversation of its own, and which then goes on.
#[tokio::test]
async fn forks_are_trained_on_in_the_context_that_they_were_sampled_in() {
    const TALK: &str =
        "for _ in range(2):\n    talk += [ask(talk), {\"role\": \"user\", \"content\": \"again\"}]\n";
    const FORKED: &str = "talk += [ask(talk), {\"role\": \"user\", \"content\": \"again\"}]\n\
                          sub = [{\"role\": \"user\", \"content\": \"a sub-agent\"}]\n\
                          sub += [ask(sub), {\"role\": \"user\", \"content\": \"go on\"}]\n\
                          ask(sub)\n\
                          ask(talk)\n";
    let folder = tempfile::tempdir().unwrap();
    let agent = AGENT.replace(TALK, FORKED);
    assert_ne!(agent, AGENT);
    let file = written(folder.path(), &agent, "forks = \"separate\"");
    change(&file, &TOLD_APART);
    let report = played(folder.path(), &file).await;
    assert!(report.counters.turns >= 4 * report.ledger.trained, "each call is a turn: {report:#?}");
    let drift = drift(&report);
    assert!(drift < 1e-4, "the trainer sees other contexts than the sampler: {drift}");
}

/// A main agent with three sub-agents that work side by side, each in a conversation of its own. It waits before each call.
fn with_sub_agents(wait: f64) -> String {
    const TALK: &str =
        "for _ in range(2):\n    talk += [ask(talk), {\"role\": \"user\", \"content\": \"again\"}]\n";
    let side_by_side = format!(
        "import threading, time\n\
         def sub(name):\n    own = [{{\"role\": \"user\", \"content\": f\"sub {{name}}\"}}]\n    \
         time.sleep({wait})\n    own += [ask(own), {{\"role\": \"user\", \"content\": \"go on\"}}]\n    ask(own)\n\
         talk += [ask(talk), {{\"role\": \"user\", \"content\": \"again\"}}]\n\
         subs = [threading.Thread(target=sub, args=(name,)) for name in \"xyz\"]\n\
         [sub.start() for sub in subs]\n[sub.join() for sub in subs]\nask(talk)\n"
    );
    let agent = AGENT.replace(TALK, &side_by_side);
    assert_ne!(agent, AGENT);
    agent
}

/// Its run file.
fn written_side_by_side(folder: &Path, wait: f64) -> PathBuf {
    let file = written(folder, &with_sub_agents(wait), "forks = \"separate\"\nparallel_calls = 3");
    change(&file, &[("max_turns = 4", "max_turns = 8")]);
    change(&file, &TOLD_APART);
    file
}

/// All that is said would not have room in one context. And each step is on-policy: the drift between sampler and trainer is
/// of on-policy tokens alone.
const TOLD_APART: [(&str, &str); 2] =
    [("context_tokens = 150", "context_tokens = 75"), ("alpha = 1.0", "alpha = 0.0")];

/// The largest of the last step.
fn drift(report: &Report) -> f64 {
    let manifest = std::fs::read(Path::new(&report.weights_path).join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    manifest["metrics"]["sampler_trainer_drift_max"].as_f64().unwrap()
}

#[tokio::test]
async fn sub_agents_side_by_side_are_trained_on_in_their_own_contexts() {
    let folder = tempfile::tempdir().unwrap();
    let file = written_side_by_side(folder.path(), 0.0);
    let report = played(folder.path(), &file).await;
    assert_eq!(report.ledger.dropped.get("lost"), None, "{report:#?}");
    assert!(report.counters.turns >= 8 * report.ledger.trained, "each call is a turn: {report:#?}");
    let drift = drift(&report);
    assert!(drift < 1e-4, "the trainer sees other contexts than the sampler: {drift}");
}

#[tokio::test]
async fn sub_agents_side_by_side_go_on_when_what_serves_them_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let file = written_side_by_side(folder.path(), 0.2);
    change(&file, &[("steps = 3", "steps = 8")]);
    let mut up = Up::start_file(folder.path(), &file, &["--env", "2", "--ack-wait", "2"]);
    for role in ["generate-0", "coordinator-0", "nats-server", "env-0"] {
        until("agents run", async || (agents(folder.path()) > 2).then_some(())).await;
        let pid = up.pid_of(role, None).await;
        send(pid, Signal::SIGKILL);
        up.pid_of(role, Some(pid)).await;
    }
    assert!(up.ended().await.success(), "{}", up.output());
    let report = up.report();
    assert!(report.balanced && report.audited, "{report:#?}");
    assert_eq!((report.final_version, report.ledger.trained), (8, 8 * 2 * 2), "{report:#?}");
    assert_eq!(report.ledger.dropped.get("failed"), None, "no loss is a failure: {}", up.output());
    let drift = drift(&report);
    assert!(drift < 1e-4, "the trainer sees other contexts than the sampler: {drift}");
    until("no agent is left", async || (agents(folder.path()) == 0).then_some(())).await;
}

#[tokio::test]
async fn a_worker_that_is_killed_takes_its_agents_along_and_their_rollouts_restart() {
    let folder = tempfile::tempdir().unwrap();
    let slow = AGENT.replace("for _", "import time; time.sleep(0.5)\nfor _");
    let file = written(folder.path(), &slow, "");
    let mut up = Up::start_file(folder.path(), &file, &["--env", "2", "--ack-wait", "2"]);
    let pid = up.pid_of("env-0", None).await;
    until("agents run", async || (agents(folder.path()) > 2).then_some(())).await;
    // All agents at once would be the end of those of the other worker, too.
    let mark = mark(folder.path());
    let hosted = until("the worker hosts agents", async || {
        let all = descendants(pid);
        all.iter().any(|process| process.line.contains(&mark)).then_some(all)
    });
    let hosted = hosted.await;
    // Its sandboxes, with what they are made of.
    assert!(hosted.iter().any(|process| process.line.contains("millrace-sandbox")), "{hosted:?}");
    send(pid, Signal::SIGKILL);
    up.pid_of("env-0", Some(pid)).await;
    assert!(up.ended().await.success(), "{}", up.output());
    let report = up.report();
    assert!(report.balanced && report.audited, "{report:#?}");
    assert_eq!((report.final_version, report.restarts), (3, 1), "{}", up.output());
    assert_eq!(report.ledger.dropped.get("failed"), None, "no loss is a failure: {report:#?}");
    let known = |process: &Process| {
        hosted.iter().any(|was| (was.pid, &was.started) == (process.pid, &process.started))
    };
    let is_left = || processes().iter().any(known);
    until("nothing of its sandboxes is left", async || (!is_left()).then_some(())).await;
    until("no agent is left", async || (agents(folder.path()) == 0).then_some(())).await;
}

#[tokio::test]
async fn a_run_of_ones_own_goes_on_without_a_sandbox_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), AGENT, "");
    let file = file.to_str().unwrap();
    let at = folder.path().join("up");
    let up = async |more: &[&str]| {
        let mut up = millrace();
        up.env("MILLRACE_SANDBOX", "/no/such/program").args(["up", file, "--steps", "1", "--dir"]);
        let ran = up.arg(&at).args(more).output();
        timeout(PATIENCE, ran).await.expect("millrace ends").unwrap()
    };
    // Who names folders wants walls.
    let refused = up(&["--agents-read", "/usr"]).await;
    let said = stderr(&refused);
    assert!(!refused.status.success() && said.contains("cannot be sandboxed"), "{said}");
    let refused = up(&["--agents-network", "pypi.org:443"]).await;
    let said = stderr(&refused);
    assert!(!refused.status.success() && said.contains("cannot be sandboxed"), "{said}");
    let ran = up(&[]).await;
    let said = [stdout(&ran), stderr(&ran)].concat();
    assert!(ran.status.success(), "{said}");
    assert!(said.contains("WARNING: agents run as you") && said.contains("/no/such/program"), "{said}");
}

#[tokio::test]
async fn a_run_that_asks_for_hosts_that_its_user_did_not_name_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), AGENT, r#"network = ["pypi.org:443", "a.b.test:443"]"#);
    let up = async |more: &[&str]| {
        let mut up = millrace();
        up.args(["up", file.to_str().unwrap(), "--steps", "1", "--dir"]).arg(folder.path().join("up"));
        timeout(PATIENCE, up.args(more).output()).await.expect("millrace ends").unwrap()
    };
    for (flags, missing) in
        [(&[][..], "pypi.org:443"), (&["--agents-network", "pypi.org:443"], "a.b.test:443")]
    {
        let refused = up(flags).await;
        let said = stderr(&refused);
        let remedy = format!(
            "environment.network={missing:?} is not allowed; remove it, or add --agents-network {missing}"
        );
        assert!(!refused.status.success() && said.contains(&remedy), "{flags:?}: {said}");
    }
    // Its workers get what it names, and its agents run.
    let ran =
        up(&["--agents-network", "pypi.org:443,*.b.test:443", "--agents-network-private", "127.0.0.1:1"])
            .await;
    assert!(ran.status.success(), "{}", [stdout(&ran), stderr(&ran)].concat());
}

/// A process of this machine.
#[derive(Debug, Clone)]
struct Process {
    pid: u32,
    parent: u32,
    /// When it started: tells it from a later one of the same number.
    started: String,
    line: String,
}

fn processes() -> Vec<Process> {
    let read = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let words: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let line = String::from_utf8_lossy(&std::fs::read(entry.path().join("cmdline")).ok()?).into_owned();
        Some(Process { pid, parent: words[1].parse().ok()?, started: words[19].to_owned(), line })
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(read).collect()
}

/// All that came of `pid` and runs.
fn descendants(pid: u32) -> Vec<Process> {
    let (all, mut found, mut open) = (processes(), Vec::new(), vec![pid]);
    while let Some(pid) = open.pop() {
        let children = all.iter().filter(|process| process.parent == pid);
        open.extend(children.clone().map(|process| process.pid));
        found.extend(children.cloned());
    }
    found
}
