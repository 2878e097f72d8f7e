//! A gateway and programs to be its agents.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millrace_gateway::{
    Agents, AgentsSettings, BeginError, Plain, Sandboxed, Session, SessionName, Start, Step, Walls,
};
use millrace_sandbox::egress::Egress;
use millrace_schemas::dataset::{ChatMessage, ChatRole, Row};
use millrace_schemas::env_step::{AgentSpec, EnvStepDone};
use millrace_schemas::{PolicyVersion, RolloutId};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

/// Longest wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What each agent begins with: twenty lines on Python's own library.
const PRELUDE: &str = r#"
import json, os, subprocess, sys, urllib.error, urllib.request
def user(text): return {"role": "user", "content": text}
def body(messages, **more): return {"model": "any", "messages": messages, "temperature": 0, **more}
def request(path, body, key=os.environ["OPENAI_API_KEY"]):
    url = os.environ["OPENAI_BASE_URL"].removesuffix("/v1") + path
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.Request(url, data, {"Authorization": "Bearer " + key, "Content-Type": "application/json"})
def ask(messages):
    answer = urllib.request.urlopen(request("/v1/chat/completions", body(messages)))
    return json.load(answer)["choices"][0]["message"]
def status(messages, key=os.environ["OPENAI_API_KEY"], path="/v1/chat/completions", **more):
    try: return urllib.request.urlopen(request(path, body(messages, **more), key)).status
    except urllib.error.HTTPError as error: return error.code
def report(name, value): open(os.path.join(os.environ["REPORTS"], name), "w").write(json.dumps(value))
"#;

/// A host of agents.
pub(crate) struct World {
    pub(crate) agents: Arc<Agents>,
    /// A text that no other test's processes have.
    pub(crate) mark: String,
    reports: TempDir,
    begun: AtomicU64,
}

impl World {
    pub(crate) async fn start(most: usize) -> Self {
        let guard = vec![env!("CARGO_BIN_EXE_millrace-agent-guard").to_owned()];
        Self::within(Arc::new(Plain { guard }), most).await
    }

    /// One whose agents have a sandbox each, and may read these folders.
    pub(crate) async fn sandboxed(read: Vec<PathBuf>) -> Self {
        Self::within(Arc::new(Sandboxed::open(sandbox(), read).await.unwrap()), 8).await
    }

    /// One whose agents have a sandbox each, with these ways out of it.
    pub(crate) async fn with_network(egress: Egress) -> Self {
        let walls = Sandboxed::open(sandbox(), Vec::new()).await.unwrap();
        Self::within(Arc::new(walls.with_network(egress)), 8).await
    }

    async fn within(walls: Arc<dyn Walls>, most: usize) -> Self {
        let settings = AgentsSettings { most, ..AgentsSettings::new(walls) };
        let reports = tempfile::tempdir().unwrap();
        let mark = format!("mark{}", reports.path().file_name().unwrap().to_string_lossy());
        Self { agents: Agents::start(settings).await.unwrap(), mark, reports, begun: AtomicU64::new(0) }
    }

    /// A program that does `body`.
    pub(crate) fn agent(&self, body: &str) -> String {
        format!("{PRELUDE}\n{body}\n")
    }

    /// Starts an agent with these settings besides the usual.
    pub(crate) fn begin(&self, settings: &Value, row: Value) -> Result<Arc<Session>, BeginError> {
        let group = self.begun.fetch_add(1, Ordering::Relaxed);
        self.attempt(RolloutId { group, index: 0, attempt: 0 }, settings, row)
    }

    /// The same of this attempt at a rollout.
    pub(crate) fn attempt(
        &self,
        rollout: RolloutId,
        settings: &Value,
        row: Value,
    ) -> Result<Arc<Session>, BeginError> {
        let mut spec = json!({
            "command": ["python3", "agent.py"], "reward": ["true"], "rows": { "path": "rows.jsonl" },
            "env": { "REPORTS": self.reports.path() },
        });
        spec.as_object_mut().unwrap().append(&mut settings.as_object().unwrap().clone());
        let spec: AgentSpec = serde_json::from_value(spec).unwrap();
        let messages = vec![ChatMessage { role: ChatRole::User, content: "do it".to_owned() }];
        self.agents.begin(Start {
            name: SessionName { run: "test".parse().unwrap(), rollout },
            version: PolicyVersion(0),
            evaluate: false,
            spec: &spec,
            row: Row { messages, fields: serde_json::from_value(row).unwrap() },
            codec: crate::testing::codec(),
        })
    }

    /// Plays the row, whose agent leaves a daemon with this world's mark, until the run no longer needs it,
    /// and again until its worker goes away. No process must be left.
    pub(crate) async fn ends_with_run_and_worker(self, row: Value) {
        let session = self.begin(&json!({}), row.clone()).unwrap();
        done(session.step(0, 0, &[]).await);
        until("the daemon runs", || !processes_with(&self.mark).is_empty()).await;
        self.agents.retain(|_, _, _| false);
        assert!(lost(session.step(1, 1, &crate::testing::tokens("b$")).await).contains("no longer needs"));
        until("all are gone after the run", || processes_with(&self.mark).is_empty()).await;

        let session = self.begin(&json!({}), row).unwrap();
        done(session.step(0, 0, &[]).await);
        until("the daemon runs", || !processes_with(&self.mark).is_empty()).await;
        let World { agents, mark, .. } = self;
        drop(agents);
        until("all are gone after the worker", || processes_with(&mark).is_empty()).await;
    }

    /// What agents reported, by name.
    pub(crate) fn reports(&self) -> Value {
        let files = std::fs::read_dir(self.reports.path()).unwrap().flatten();
        let read = |path: PathBuf| {
            let name = path.file_name()?.to_string_lossy().into_owned();
            Some((name, serde_json::from_slice(&std::fs::read(path).ok()?).ok()?))
        };
        Value::Object(files.filter_map(|file| read(file.path())).collect())
    }
}

/// The sandbox's program, which belongs beside the guard.
pub(crate) fn sandbox() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_millrace-agent-guard")).with_file_name("millrace-sandbox");
    assert!(program.exists(), "build it first: cargo build --release -p millrace-sandbox");
    program
}

pub(crate) fn done(step: Step) -> EnvStepDone {
    match step {
        Step::Done(done) => *done,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn lost(step: Step) -> String {
    match step {
        Step::Lost(reason) => reason,
        other => panic!("{other:?}"),
    }
}

/// Processes that have `mark` in their command line.
pub(crate) fn processes_with(mark: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).into_owned()).filter(|line| line.contains(mark)).collect()
}

/// Waits for a condition.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < give_up, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
