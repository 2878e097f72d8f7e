//! Everything in processes of their own: a nats-server, `millrace coordinator`, and one for each
//! worker.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use async_trait::async_trait;
use millrace_cli::tied::tied;
use millrace_queue::port::Notices;
use millrace_schemas::api::{RunRequest, RunState, Status};
use millrace_schemas::notice::WorkerNotice;
use millrace_schemas::scale::ScaleStatus;
use millrace_schemas::subjects::NOTICE_WORKERS;
use millrace_schemas::submit::from_toml;
use millrace_schemas::{RunId, Stage};
use millrace_workers::Departure;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::ground::{Ground, Progress};
use super::machines::{Host, Machines, Ready, Shape};
use super::work::{Begun, Law, Pace};
use crate::chaos::player::Player;
use crate::chaos::role::Role;
use crate::chaos::stack::{Stack, StackOptions, beside};

/// The environment variable with which a worker gets its pace.
pub(super) const PACE: &str = "MILLRACE_LOADTEST_PACE";
/// The environment variable with the file in which a worker notes what it begins.
pub(super) const BEGUN: &str = "MILLRACE_LOADTEST_BEGUN";
/// Grace period of a worker in virtual time, in seconds.
const GRACE_S: f64 = 20.0;
/// Between two looks at the decisions.
const LOOK: Duration = Duration::from_millis(250);

/// The processes that are always there.
pub(super) struct Processes {
    stack: Stack,
    player: Player,
    pace: Pace,
    host: Arc<Children>,
    hearing: JoinHandle<()>,
    submitted: Mutex<Option<RunId>>,
}

impl Processes {
    /// Starts them in `folder`, which is emptied before.
    pub(super) async fn start(
        folder: &Path,
        law: Law,
        ack_wait_s: f64,
        scaling: Option<String>,
    ) -> anyhow::Result<Self> {
        let file = folder.with_extension("toml");
        let mut arguments = BTreeMap::new();
        if let Some(text) = scaling {
            if let Some(parent) = file.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::write(&file, text).with_context(|| format!("failed to write {}", file.display()))?;
            let file = file.canonicalize()?.to_string_lossy().into_owned();
            arguments.insert(Role::Coordinator, vec!["--scale".to_owned(), file]);
        }
        let none = [Role::Generate, Role::Env, Role::Train, Role::Publish].map(|role| (role, 0));
        let processes = none.into_iter().chain([(Role::Coordinator, 1)]).collect();
        let ack_wait_s = (ack_wait_s / law.fleet_faster).max(1.0);
        let options =
            StackOptions { processes, arguments, ack_wait_s, ..StackOptions::in_folder(folder.to_owned()) };
        let stack = Stack::start(&options).await?;
        let player = Player::connect(stack.url(), "scale").await?;
        let pace = Pace::new(law, Instant::now());
        let heard = Arc::<watch::Sender<BTreeSet<String>>>::default();
        let hearing = tokio::spawn(hear(player.clone(), heard.clone()));
        let host = Arc::new(Children {
            heard,
            millrace: beside("millrace")?,
            own: std::env::current_exe().context("failed to find this program")?,
            server: stack.servers[0],
            objects: stack.objects.clone(),
            logs: folder.canonicalize()?.join("logs"),
            grace: (GRACE_S / law.fleet_faster).to_string(),
            pace: pace.to_json(),
        });
        Ok(Self { stack, player, pace, host, hearing, submitted: Mutex::default() })
    }

    fn asked(&self) -> RunRequest {
        RunRequest { run: self.submitted.lock().unwrap_or_else(PoisonError::into_inner).clone() }
    }
}

#[async_trait]
impl Ground for Processes {
    fn pace(&self) -> &Pace {
        &self.pace
    }

    fn host(&self) -> Arc<dyn Host> {
        self.host.clone()
    }

    fn drains(&self) -> bool {
        true
    }

    async fn submit(&self, text: &str) -> anyhow::Result<()> {
        let spec = from_toml(text)?;
        self.player.submit(&spec).await?;
        *self.submitted.lock().unwrap_or_else(PoisonError::into_inner) = Some(spec.name);
        Ok(())
    }

    async fn progress(&self) -> anyhow::Result<Progress> {
        let status = loop {
            // It is asked again where no answer came.
            if let Ok(Some(status)) = self.player.call::<Status>("status", &self.asked()).await {
                break status;
            }
            sleep(LOOK).await;
        };
        if matches!(status.state, RunState::Paused | RunState::Failed) {
            bail!("the run is {}: {}", status.state.name(), status.reason.unwrap_or_default());
        }
        let tasks = Stage::QUEUED.iter().map(|stage| (*stage, status.tasks.get(stage.name()).copied()));
        Ok(Progress {
            over: status.state.is_over(),
            version: status.version.0,
            turns: status.counters.turns,
            trained_turns: status.counters.trained_turns,
            dropped: status.ledger.dropped.values().sum(),
            tasks: tasks.map(|(stage, tasks)| (stage, tasks.unwrap_or(0))).collect(),
        })
    }

    fn follow(&self, pools: Vec<Arc<Machines>>) -> JoinHandle<()> {
        let player = self.player.clone();
        tokio::spawn(async move {
            loop {
                if let Ok(Some(decisions)) =
                    player.call::<ScaleStatus>("scale", &serde_json::Value::Null).await
                {
                    for pool in &pools {
                        pool.has(decisions.get(pool.shape.name).map_or(0, |known| known.last.desired));
                    }
                }
                sleep(LOOK).await;
            }
        })
    }

    fn begun(&self) -> anyhow::Result<Vec<Begun>> {
        let mut begun = Vec::new();
        for entry in std::fs::read_dir(&self.host.logs)? {
            let path = entry?.path();
            let Some(worker) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".begun")) else {
                continue;
            };
            let text = std::fs::read_to_string(&path)?;
            // A killed worker's last line may be half there.
            let lines =
                text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.split_once(' '));
            for (key, at_s) in lines {
                let (key, at_s) = (key.parse().ok(), at_s.parse().ok());
                let (key, at_s) =
                    key.zip(at_s).with_context(|| format!("{} has a bad line", path.display()))?;
                begun.push(Begun { worker: worker.to_owned(), key, at_s });
            }
        }
        Ok(begun)
    }

    async fn end(&self) {
        self.hearing.abort();
        for member in &self.stack.members {
            member.process.kill().await;
        }
    }
}

/// Consumes workers' notices, produces the names of those that were heard. Waits for a notice. Ends with
/// its task. On failure: listens again.
async fn hear(player: Player, heard: Arc<watch::Sender<BTreeSet<String>>>) {
    loop {
        if let Ok(mut notices) = player.queue().listen(NOTICE_WORKERS).await {
            while let Some(notice) = notices.next().await {
                let Ok(notice) = serde_json::from_slice::<WorkerNotice>(&notice.payload) else { continue };
                heard.send_if_modified(|heard| heard.insert(notice.worker));
            }
        }
        sleep(LOOK).await;
    }
}

/// Instances that are processes.
struct Children {
    /// The workers that have reported.
    heard: Arc<watch::Sender<BTreeSet<String>>>,
    millrace: PathBuf,
    own: PathBuf,
    server: SocketAddr,
    objects: PathBuf,
    logs: PathBuf,
    grace: String,
    pace: String,
}

impl Children {
    fn start(&self, shape: &Shape, name: &str) -> anyhow::Result<Child> {
        let stages = shape.stages.iter().map(|stage| match stage {
            // A step has the trainer alone.
            Stage::TrainShard | Stage::PublishWeights => stage.name().to_owned(),
            _ => format!("{}:{}", stage.name(), shape.slots),
        });
        let pools = shape.stages.iter().filter_map(|stage| match stage {
            Stage::EnvStep => Some("env_step/counter"),
            Stage::Reward => Some("reward/success"),
            _ => None,
        });
        let (stages, pools): (Vec<String>, Vec<&str>) = (stages.collect(), pools.collect());
        let mut command = tied(&self.millrace, &self.own, &self.logs.join(format!("{name}.log")))?;
        command.args(["slow-worker", "--id", name, "--member-of", shape.name, "--grace", &self.grace]);
        command.arg("--nats").arg(format!("nats://{}", self.server));
        command.arg("--objects").arg(&self.objects).arg("--stages").arg(stages.join(","));
        if !pools.is_empty() {
            command.arg("--pools").arg(pools.join(","));
        }
        command.env(BEGUN, self.logs.join(format!("{name}.begun")));
        command.env(PACE, &self.pace).env_remove("NATS_URL").env_remove("MILLRACE_OBJECTS");
        command.env("OMP_NUM_THREADS", "1").env("TOKIO_WORKER_THREADS", "1");
        command.spawn().context("failed to start a worker")
    }
}

#[async_trait]
impl Host for Children {
    /// Asks the process to leave as the system does, with SIGTERM.
    async fn serve(&self, shape: &Shape, name: &str, departure: &Departure, ready: Ready) {
        let mut child = match self.start(shape, name) {
            Ok(child) => child,
            Err(error) => return tracing::error!(name, "{error:#}"),
        };
        let serving = async {
            let mut heard = self.heard.subscribe();
            // The sender lives as long as this.
            if heard.wait_for(|heard| heard.contains(name)).await.is_ok() {
                ready();
            }
            std::future::pending::<()>().await;
        };
        let ended = async {
            tokio::select! {
                status = child.wait() => status,
                () = serving => unreachable!("it never ends"),
            }
        };
        let ended = departure.requested().run_until_cancelled(ended).await;
        let status = match ended {
            Some(status) => status,
            None => {
                if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
                    // It was not waited for yet, so its id is its own.
                    let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
                }
                child.wait().await
            }
        };
        if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
            tracing::error!(name, ?status, "a worker ended badly");
        }
    }
}
