//! A server process, an executor that samples with it, and the oracle for both.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millrace_policy::probe::PROBE_FILE;
use millrace_queue::clock::SystemClock;
use millrace_queue::testing::free_port;
use millrace_queue::{Broker, MemoryQueue, Objects};
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::generate::{GenerateDone, GenerateTask, Sampling};
use millrace_schemas::policy::Policy;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::subjects::GENERATE_POOL;
use millrace_schemas::train_shard::FileRef;
use millrace_schemas::{OutcomeBody, PolicyVersion, RolloutId, RunId, Stage, Task, TaskBody, TaskKey};
use millrace_workers::policy::openai::{Dialect, ServerSettings};
use millrace_workers::runtime::policies;
use millrace_workers::{Executor, Executors, Verdict};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::server::Server;

/// The model that a server starts with; no version is it.
pub(crate) const BASE: u64 = 0;

pub(crate) fn run() -> RunId {
    "lake".parse().unwrap()
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workers/openai/server.py")
}

/// The project's own Python, with torch and transformers.
pub(crate) fn python() -> Command {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/bin/python");
    Command::new(if own.exists() { own } else { "python3".into() })
}

/// Tiny models `v0` to `v3`, made once for each text of the script, in the build's own folder: no process
/// knows when the last test is over.
pub(crate) fn models() -> &'static Path {
    static MODELS: OnceLock<PathBuf> = OnceLock::new();
    MODELS.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        std::fs::read(script()).unwrap().hash(&mut hasher);
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let models = place.join(format!("openai-models-{:016x}", hasher.finish()));
        if !models.exists() {
            let part = TempDir::new_in(place).unwrap();
            let mut make = python();
            make.arg(script()).arg("make").arg(part.path()).args(["0", "1", "2", "3"]);
            let made = make.output().unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            // Another process may have made them meanwhile.
            let whole = std::fs::rename(part.path(), &models);
            assert!(whole.is_ok() || models.exists(), "{whole:?}");
        }
        models
    })
}

pub(crate) fn model(version: u64) -> PathBuf {
    models().join(format!("v{version}"))
}

/// A server of models.
pub(crate) struct Python(Server);

impl Python {
    /// With the base model, at a port that another one may have after it.
    pub(crate) fn start() -> Self {
        Self::at(free_port().unwrap())
    }

    pub(crate) fn at(port: u16) -> Self {
        let mut command = python();
        command.arg(script()).arg("serve").arg(model(BASE)).args(["--port", &port.to_string()]);
        Self(Server::start(command.stderr(Stdio::null())))
    }

    pub(crate) fn url(&self) -> String {
        self.0.url()
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.0.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    /// `kill -9`, and another one in its place, with the base model.
    pub(crate) fn replace(mut self) -> Self {
        self.kill();
        Self::at(self.0.port)
    }

    fn kill(&mut self) {
        self.0.child.kill().unwrap();
        self.0.child.wait().unwrap();
    }

    /// Sets its defects from now on.
    pub(crate) fn set(&self, wicked: &Value) {
        self.0.call("POST", "/test/set", wicked);
    }

    pub(crate) fn journal(&self) -> Value {
        self.0.call("GET", "/test/journal", &Value::Null)
    }

    /// Requests in flight.
    pub(crate) fn active(&self) -> u64 {
        self.journal()["active"].as_u64().unwrap()
    }

    /// Transformers' log-probabilities of tokens after a context, with the weights of a version.
    pub(crate) fn oracle(
        &self,
        version: u64,
        context: &[u32],
        tokens: &[u32],
        sampling: &Sampling,
    ) -> Vec<f64> {
        let Sampling { temperature, sample_below, top_p, top_k, min_p, .. } = sampling;
        let how = json!({
            "temperature": temperature, "below": sample_below, "top_p": top_p, "top_k": top_k, "min_p": min_p,
        });
        let question = json!({"folder": model(version), "context": context, "tokens": tokens, "how": how});
        let said = self.0.call("POST", "/test/logprobs", &question);
        said.as_array().unwrap().iter().map(|p| p.as_f64().unwrap()).collect()
    }
}

/// An executor that samples with a server, and the broker whose policies it follows.
pub(crate) struct Bench {
    pub(crate) broker: Broker,
    pub(crate) generate: Arc<dyn Executor>,
    folders: TempDir,
}

impl Bench {
    pub(crate) fn new(python: &Python, dialect: Dialect) -> Self {
        Self::with(python, dialect, |_| {})
    }

    pub(crate) fn with(python: &Python, dialect: Dialect, change: impl FnOnce(&mut ServerSettings)) -> Self {
        let queue = MemoryQueue::new(Arc::new(SystemClock::new()));
        let broker = Broker::new(Arc::new(queue), Objects::memory());
        let (table, watch) = policies(broker.clone());
        tokio::spawn(watch.run());
        let folders = TempDir::new().unwrap();
        let port = python.0.port;
        let mut settings = ServerSettings::new(&python.url(), dialect, folders.path());
        // The server computes in f32.
        settings.tolerance = 1e-3;
        if dialect == Dialect::LlamaCpp {
            let python = self::python().get_program().to_string_lossy().into_owned();
            settings.reload = Some(format!("{python} {} load {port}", script().display()));
        }
        change(&mut settings);
        let executors = Executors::new(broker.objects().clone(), table).generating_at(Some(settings));
        Self { generate: executors.executor(Stage::Generate), broker, folders }
    }

    /// Version 1 is served: the server has sampled a token with it.
    pub(crate) async fn begin(&self) {
        self.announce(1, true).await;
        done(self.execute(task(9, 1, 1, Sampling::at(1.0))).await);
    }

    /// Commits a model as the version of its number and names it in the policy.
    pub(crate) async fn announce(&self, version: u64, recorded: bool) {
        announce_with(&self.broker, version, recorded, &[]).await;
    }

    /// Commits the weights of version 1 once more, as version 2, in a file of other bytes: a step without
    /// a gradient makes such a version of a model that another program wrote.
    pub(crate) async fn announce_unmoved(&self) {
        let mut files = files_of(1);
        let weights = files.get_mut("model.safetensors").unwrap();
        let header = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
        // The header may end with spaces.
        weights.splice(header..header, *b"        ");
        weights.splice(..8, (header as u64).to_le_bytes());
        commit(&self.broker, &run(), 2, files).await;
    }

    /// Commits a model as the version of its number of another run, and names it in that run's policy.
    pub(crate) async fn announce_of(&self, run: &RunId, version: u64) {
        commit(&self.broker, run, version, files_of(version)).await;
    }

    /// Ends the run, at version 1.
    pub(crate) async fn end_run(&self) {
        let policy = self.broker.seen_policy(&run()).await.unwrap().unwrap();
        self.broker.set_policy(&run(), &Policy { ended: true, ..policy }).await.unwrap();
    }

    pub(crate) async fn execute(&self, task: Task) -> Verdict {
        self.generate.execute(task, CancellationToken::new()).await
    }

    /// Runs a task in the background.
    pub(crate) fn spawn(&self, task: Task) -> tokio::task::JoinHandle<Verdict> {
        let generate = self.generate.clone();
        tokio::spawn(async move { generate.execute(task, CancellationToken::new()).await })
    }

    /// Executes a task until it is done; also returns the reasons of the retries.
    pub(crate) async fn insist(&self, task: Task) -> (GenerateDone, Vec<String>) {
        let mut said = Vec::new();
        let insist = async {
            loop {
                match self.execute(task.clone()).await {
                    Verdict::RetryAfter(_, reason) => said.push(reason),
                    verdict => return done(verdict),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let done = tokio::time::timeout(Duration::from_secs(120), insist).await;
        (done.expect("it is done in the end"), said)
    }

    /// The versions of the run that lie on the disk.
    pub(crate) fn laid_out(&self) -> Vec<String> {
        names_in(&self.folders.path().join(run().as_str()))
    }

    /// The runs of which versions lie on the disk.
    pub(crate) fn laid_out_runs(&self) -> Vec<String> {
        names_in(self.folders.path())
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Commits a model as the version of its number and names it in the policy, with these files
/// besides its own.
pub(crate) async fn announce_with(broker: &Broker, version: u64, recorded: bool, more: &[(&str, Value)]) {
    let mut contents = files_of(version);
    contents.retain(|name, _| recorded || name != PROBE_FILE);
    contents.extend(more.iter().map(|(name, json)| ((*name).to_owned(), json.to_string().into_bytes())));
    commit(broker, &run(), version, contents).await;
}

/// The files of a model, by name.
fn files_of(version: u64) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(model(version)).unwrap().map(Result::unwrap);
    let file = |entry: std::fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    entries.map(file).collect()
}

async fn commit(broker: &Broker, run: &RunId, version: u64, contents: BTreeMap<String, Vec<u8>>) {
    let mut files = Vec::new();
    for (name, content) in contents {
        let blob = broker.objects().put_blob(run, content.into()).await.unwrap();
        files.push(FileRef::whole(name, blob));
    }
    let (batch, metrics, version) = (None, BTreeMap::new(), PolicyVersion(version));
    let manifest =
        Manifest { run: run.clone(), version, parent: None, batch, config: Sha::of(b""), files, metrics };
    broker.objects().put(&paths::manifest(run, version), manifest.to_json().into()).await.unwrap();
    let (sha, floor) = (Sha::of(&manifest.to_json()), PolicyVersion(0));
    let policy = Policy { version, manifest: sha, floor, attempt: 0, partitions: 1, ended: false };
    broker.set_policy(run, &policy).await.unwrap();
}

/// A task; its context follows from its index.
pub(crate) fn task(index: u32, min_version: u64, max_new_tokens: u32, sampling: Sampling) -> Task {
    let context = (0..5 + index % 7).map(|at| 2 + (at * 7 + index * 11) % 60).collect();
    let min_version = PolicyVersion(min_version);
    let seed = u64::from(index) + 1;
    Task {
        run: run(),
        key: TaskKey::Generate { rollout: RolloutId { group: 0, index, attempt: 0 }, turn: 1 },
        pool: GENERATE_POOL.parse().unwrap(),
        version: min_version,
        evaluate: false,
        body: TaskBody::Generate(GenerateTask {
            min_version,
            ..GenerateTask::new(context, max_new_tokens, sampling, seed)
        }),
    }
}

pub(crate) fn asked(task: &Task) -> &GenerateTask {
    match &task.body {
        TaskBody::Generate(asked) => asked,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn done(verdict: Verdict) -> GenerateDone {
    match verdict {
        Verdict::Done(OutcomeBody::Generate(done), _) => done,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn versions(done: &GenerateDone) -> Vec<u64> {
    done.segments.iter().map(|segment| segment.version.0).collect()
}

/// Each segment's log-probabilities are what transformers give with that segment's weights.
pub(crate) fn check_against_oracle(python: &Python, task: &Task, done: &GenerateDone) {
    done.check().unwrap();
    let asked = asked(task);
    assert_eq!(done.uncut_logprobs.len(), if asked.sampling.cuts() { done.tokens.len() } else { 0 });
    let mut context = asked.context.clone();
    let mut at = 0;
    for segment in &done.segments {
        let tokens = &done.tokens[at..at + segment.tokens as usize];
        let oracle = python.oracle(segment.version.0, &context, tokens, &asked.sampling);
        for (ours, theirs) in done.logprobs[at..].iter().zip(&oracle) {
            let off = (f64::from(*ours) - theirs).abs();
            assert!(off < 1e-4, "version={} off={off}: {ours} {theirs}", segment.version);
        }
        if asked.sampling.cuts() {
            let oracle = python.oracle(segment.version.0, &context, tokens, &Sampling::at(1.0));
            for (ours, theirs) in done.uncut_logprobs[at..].iter().zip(&oracle) {
                assert!((f64::from(*ours) - theirs).abs() < 1e-4, "uncut: {ours} {theirs}");
            }
        }
        context.extend(tokens);
        at += tokens.len();
    }
    assert_eq!(at, done.tokens.len());
}

/// Waits until `condition` holds.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), wait).await.unwrap_or_else(|_| panic!("{what}"));
}
