//! The processes of a `millrace up`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use millrace_queue::args::CONNECT_ENV;
use millrace_queue::{ConnectArgs, Objects, QueueSettings};
use millrace_schemas::RunSpec;
use millrace_schemas::dataset::ToolRef;
use millrace_schemas::limits;
use millrace_server::{ServerError, find_server};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use super::folder::Folder;
use super::gpus;
use super::scaled;
use super::supervisor::{Role, Supervisor};
use crate::connect::{Api, SERVICE_PATIENCE};
use crate::follow::News;
use crate::term::say;
use crate::worker;

/// Time for a worker to finish or return its tasks in flight when asked to end; its own limit is 25
/// s.
const WORKER_GRACE: Duration = Duration::from_secs(30);
/// Time for coordinator and nats-server to write their state.
const SERVER_GRACE: Duration = Duration::from_secs(10);
/// The durability of the queue, for the user.
const DURABILITY: &str = "the queue is a nats-server of its own: a killed process loses nothing, a power failure may lose \
                          the last seconds";
/// The same for a queue that syncs each write.
const SYNCED: &str = "the queue is a nats-server of its own that syncs every write to the disk";
/// The name of nats-server's process.
const SERVER: &str = "nats-server";
/// The pool that trains. It is as large as the gang, and is not scaled.
const TRAIN: &str = "train";
/// The pool that samples and trains in turn. It is not scaled either.
const FLEXIBLE: &str = "flexible";
/// The coordinator's name. It is constant, so that a restarted coordinator takes its lease back at
/// once.
const COORDINATOR: &str = "coordinator-0";
/// Processes of one kind, at most: more are a typing error on any machine. Sums of a few such numbers
/// fit into 32 bits.
const MOST_PROCESSES: u32 = 1_024;

/// Number of workers of each kind.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Counts {
    /// Processes that sample turns
    #[arg(long, default_value_t = 1, value_name = "N")]
    generate: u32,
    /// Processes that step environments
    #[arg(long, default_value_t = 1, value_name = "N")]
    env: u32,
    /// Processes that only score rollouts; 0 lets the environments' processes do it
    #[arg(long, default_value_t = 0, value_name = "N")]
    reward: u32,
    /// Processes that train and commit versions. Default: the run file's gang.ranks
    #[arg(long, value_name = "N")]
    train: Option<u32>,
    /// Processes that sample and train in turn, each on one device (time division). With them,
    /// --generate and --train may be 0; --train then is, unless it is given
    #[arg(long, default_value_t = 0, value_name = "N")]
    time_division: u32,
    /// A program of your own beside each process for environments and rewards: it serves those that
    /// Millrace does not have
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    /// An MCP server whose tools the run's policy may call, as in environment.tools, beside each
    /// environments' process: calculator="python3 calc.py". Several by repeating it, or a line each in
    /// the variable
    #[arg(long, env = "MILLRACE_MCP", value_name = "NAME=COMMAND", value_delimiter = '\n')]
    mcp: Vec<String>,
    /// How the environments' processes host agents, as words of their command line; none without.
    #[arg(skip)]
    hosting: Vec<String>,
    /// Let the processes that sample, step and score come and go with the work. The numbers above are
    /// then the most that run at once
    #[arg(long)]
    pub(super) autoscale: bool,
}

/// Settings of the queue.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct QueueArgs {
    /// Visibility timeout of a task, in seconds: without a heartbeat for so long, a worker's tasks
    /// are redelivered. Short, because on one machine the network does not fail
    #[arg(long, value_name = "SECONDS", default_value_t = limits::ACK_WAIT_ONE_MACHINE_MS as f64 / 1000.0)]
    ack_wait: f64,
    /// Sync every write to the disk: a power failure loses nothing, and the queue is ten times
    /// slower
    #[arg(long)]
    sync_always: bool,
}

/// Everything that `millrace up` keeps alive.
pub(super) struct Stack {
    supervisor: Arc<Supervisor>,
    /// Starts the workers that the autoscaler asks for; `None` without one.
    scaled: Option<JoinHandle<()>>,
    news: UnboundedReceiver<News>,
    url: String,
    who: ConnectArgs,
    objects: String,
}

impl Stack {
    /// Checks the options and that the programs are there, before anything is written.
    ///
    /// # Errors
    /// What is wrong, and the remedy.
    pub(super) fn check(objects: Option<&str>, counts: &Counts, queue: &QueueArgs) -> Result<()> {
        counts.check()?;
        queue.check()?;
        worker::find()?;
        find_server(None).ok_or(ServerError::NotFound)?;
        // To open a folder is to create it.
        if let Some(location) = objects.filter(|location| !is_folder(location)) {
            Objects::open(location).with_context(|| format!("--objects {location}"))?;
        }
        Ok(())
    }

    /// Starts all processes. They wait for one another. [`Self::check`] comes first.
    pub(super) fn start(
        folder: &Folder,
        objects: Option<&str>,
        counts: &Counts,
        queue: &QueueArgs,
    ) -> Result<Self> {
        let worker = worker::find()?;
        let (sender, news) = unbounded_channel();
        let supervisor = Supervisor::new(folder.path("logs"), folder.path("pids.json"), sender);
        let objects = match objects {
            Some(location) => location.to_owned(),
            None => folder.path("objects").to_string_lossy().into_owned(),
        };
        let port = folder.nats_port()?;
        let (key, public) = folder.server_key()?;
        supervisor.keep(server_role(folder, port, &public, queue.sync_always)?);
        say(if queue.sync_always { SYNCED } else { DURABILITY });
        // The server accepts this key and no other.
        let who = ConnectArgs { nats_nkey: Some(key), ..ConnectArgs::default() };
        let url = format!("nats://127.0.0.1:{port}");
        let common = ["--nats", &url, "--objects", &objects].map(str::to_owned);
        let common = [common.to_vec(), who.to_arguments()].concat();
        let pools = counts.pools(&worker, &common);
        let scale = if counts.autoscale { Some(scaled::write_file(folder, &pools)?) } else { None };
        supervisor.keep(coordinator_role(&common, queue, scale.as_deref())?);
        let supervisor = Arc::new(supervisor);
        let (moving, fixed): (Vec<_>, Vec<_>) = pools.into_iter().partition(|pool| pool.may_leave);
        for role in fixed.iter().flat_map(|pool| (0..pool.count).map(|number| pool.role(number))) {
            supervisor.keep(role);
        }
        let scaled = counts
            .autoscale
            .then(|| tokio::spawn(scaled::follow(url.clone(), who.clone(), moving, supervisor.clone())));
        Ok(Self { supervisor, scaled, news, url, who, objects })
    }

    /// Waits until the queue can be reached.
    ///
    /// # Errors
    /// A process is given up, or the queue cannot be reached in time.
    pub(super) async fn connect(&mut self) -> Result<Api> {
        let (url, who) = (self.url.clone(), self.who.clone());
        self.or_given_up(Api::connect(&url, &who, SERVICE_PATIENCE)).await
    }

    /// Awaits `what`, unless a process is given up meanwhile.
    ///
    /// # Errors
    /// Those of `what`, or why the process is given up.
    pub(super) async fn or_given_up<T>(&mut self, what: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            done = what => done,
            reason = given_up(&mut self.news) => bail!(reason),
        }
    }

    /// News of the processes for the user.
    pub(super) const fn news(&mut self) -> &mut UnboundedReceiver<News> {
        &mut self.news
    }

    /// The object store's location.
    pub(super) fn objects(&self) -> &str {
        &self.objects
    }

    /// Counts restarts of processes.
    pub(super) fn restarts(&self) -> Arc<AtomicU64> {
        self.supervisor.restarts()
    }

    /// Ends all processes: workers first, so that they can return their tasks; the queue last.
    pub(super) async fn drain(mut self) {
        if let Some(scaled) = self.scaled.take() {
            scaled.abort();
            // It is cancelled: nobody starts workers any more.
            let _ = scaled.await;
        }
        self.supervisor.stop(|name| name != SERVER && name != COORDINATOR).await;
        self.supervisor.stop(|name| name != SERVER).await;
        self.supervisor.stop(|_| true).await;
    }
}

/// Whether a location of objects names a folder.
fn is_folder(location: &str) -> bool {
    let folder = location.strip_prefix("file://").unwrap_or(location);
    !folder.is_empty() && !folder.contains("://")
}

/// Waits until a process is given up. Returns the reason.
async fn given_up(news: &mut UnboundedReceiver<News>) -> String {
    loop {
        match news.recv().await {
            Some(News::Fatal(reason)) => return reason,
            Some(News::Line(_)) => {}
            None => std::future::pending().await,
        }
    }
}

impl Counts {
    /// The numbers that the run needs, where the user gave none, and how its agents are hosted.
    pub(super) fn for_run(&self, spec: &RunSpec, hosting: Vec<String>) -> Self {
        let train = if self.time_division > 0 { 0 } else { spec.gang.ranks };
        Self { train: self.train.or(Some(train)), hosting, ..self.clone() }
    }

    /// The servers of tools, as words of a worker's command line.
    pub(super) fn mcp(&self) -> Vec<String> {
        self.mcp.iter().flat_map(|server| ["--mcp".to_owned(), server.clone()]).collect()
    }

    /// Checks that the servers of tools which the run names are given.
    ///
    /// # Errors
    /// The first one that is not; the remedy.
    pub(super) fn check_tools(&self, spec: &RunSpec) -> Result<()> {
        let datasets = spec.parts().filter_map(|domain| domain.environment.dataset());
        for tool in datasets.flat_map(|dataset| &dataset.tools) {
            // What names no server was refused with the run file.
            let Ok(ToolRef { server, .. }) = tool.parse() else { continue };
            if !self.mcp.iter().any(|given| given.split('=').next().unwrap_or_default().trim() == server) {
                bail!(
                    "environment.tools names {tool:?}, and no process has the server; add --mcp {server}=COMMAND"
                );
            }
        }
        Ok(())
    }

    fn trainers(&self) -> u32 {
        self.train.unwrap_or(1)
    }

    fn check(&self) -> Result<()> {
        for (flag, count) in [
            ("--generate", self.generate),
            ("--env", self.env),
            ("--reward", self.reward),
            ("--train", self.trainers()),
            ("--time-division", self.time_division),
        ] {
            if count > MOST_PROCESSES {
                bail!("{flag} {count}: choose at most {MOST_PROCESSES}");
            }
        }
        for (flag, count) in [
            ("--generate", self.generate + self.time_division),
            ("--env", self.env),
            ("--train", self.trainers() + self.time_division),
        ] {
            if count == 0 {
                bail!("{flag} 0: no process would do this work; give at least 1");
            }
        }
        Ok(())
    }

    fn pools(&self, worker: &Path, common: &[String]) -> Vec<WorkerPool> {
        let env_stages = if self.reward == 0 { "env_step,reward" } else { "env_step" };
        let program = self.exec.iter().flat_map(|command| ["--exec".to_owned(), command.clone()]);
        let (asking, nothing) = (program.collect::<Vec<_>>(), Vec::new());
        let dividing = vec!["--time-division".to_owned()];
        let hosting = [asking.as_slice(), &self.mcp(), &self.hosting].concat();
        let kinds = [
            ("generate", "generate", self.generate, &nothing),
            ("env", env_stages, self.env, &hosting),
            ("reward", "reward", self.reward, &asking),
            (TRAIN, "train_shard,publish_weights", self.trainers(), &nothing),
            (FLEXIBLE, "generate,train_shard,publish_weights", self.time_division, &dividing),
        ];
        // The ranks of a gang need a GPU each, so they come first.
        let first_gpu = |name| match name {
            TRAIN => 0,
            FLEXIBLE => self.trainers(),
            _ => self.trainers() + self.time_division,
        };
        let gpus = gpus::count();
        let env = [self.threads(), nobody()].concat();
        let pools = kinds.into_iter().filter(|(_, _, count, _)| *count > 0);
        let pool =
            |(name, stages, count, more): (&'static str, &'static str, u32, &Vec<String>)| WorkerPool {
                name,
                stages,
                count,
                program: worker.to_owned(),
                args: [common, more].concat(),
                env: env.clone(),
                first_gpu: first_gpu(name),
                gpus,
                may_leave: self.autoscale && ![TRAIN, FLEXIBLE].contains(&name),
            };
        pools.map(pool).collect()
    }

    /// Threads of one process's tensor operations: the cores divided among the processes that
    /// compute, unless the user has set it.
    fn threads(&self) -> Vec<(&'static str, String)> {
        const NAME: &str = "OMP_NUM_THREADS";
        if std::env::var_os(NAME).is_some() {
            return vec![];
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let each = cores / (self.generate + self.trainers() + self.time_division).max(1) as usize;
        vec![(NAME, each.max(1).to_string())]
    }
}

impl Default for QueueArgs {
    /// As without options.
    fn default() -> Self {
        Self { ack_wait: limits::ACK_WAIT_ONE_MACHINE_MS as f64 / 1000.0, sync_always: false }
    }
}

impl QueueArgs {
    fn check(&self) -> Result<()> {
        QueueSettings::default().with_ack_wait(self.ack_wait).context("--ack-wait")?;
        Ok(())
    }
}

/// Workers of one kind.
pub(super) struct WorkerPool {
    /// Its name, and the start of its workers' names.
    pub(super) name: &'static str,
    /// What they serve, as the worker's argument has it.
    pub(super) stages: &'static str,
    /// Workers, or the most of them.
    pub(super) count: u32,
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
    /// The GPU of its first worker, and how many there are.
    first_gpu: u32,
    gpus: usize,
    /// It is scaled: its workers may leave.
    pub(super) may_leave: bool,
}

impl WorkerPool {
    /// The name of its worker of this number.
    pub(super) fn worker(&self, number: u32) -> String {
        format!("{}-{number}", self.name)
    }

    /// Its worker of this number.
    pub(super) fn role(&self, number: u32) -> Role {
        let name = self.worker(number);
        let own = ["--stages", self.stages, "--member-of", self.name, "--id", &name].map(str::to_owned);
        let gpu = gpus::of_worker(self.first_gpu, number, self.gpus);
        let gpu = gpu.map(|gpu| (gpus::DEVICE, gpu.to_string()));
        Role {
            program: self.program.clone(),
            args: [&self.args[..], &own].concat(),
            env: self.env.iter().cloned().chain(gpu).collect(),
            grace: WORKER_GRACE,
            may_leave: self.may_leave,
            name,
        }
    }
}

/// The server, with one user only: other users of the machine can reach its port.
pub(super) fn server_role(folder: &Folder, port: u16, user: &str, sync_always: bool) -> Result<Role> {
    let store = folder.path("nats").to_string_lossy().into_owned();
    let port = port.to_string();
    let config = folder.path("nats.conf");
    let sync = if sync_always { "jetstream { sync_interval: always }\n" } else { "" };
    std::fs::write(&config, format!("authorization {{ users: [ {{ nkey: {user} }} ] }}\n{sync}"))
        .with_context(|| format!("failed to write path={}", config.display()))?;
    let config = config.to_string_lossy().into_owned();
    let args =
        ["--addr", "127.0.0.1", "--port", &port, "--jetstream", "--store_dir", &store, "--config", &config];
    Ok(Role {
        name: SERVER.into(),
        program: find_server(None).ok_or(ServerError::NotFound)?,
        args: args.into_iter().map(str::to_owned).collect(),
        env: vec![],
        grace: SERVER_GRACE,
        may_leave: false,
    })
}

/// Credentials are taken from the arguments, not from the environment.
fn nobody() -> Vec<(&'static str, String)> {
    CONNECT_ENV.map(|name| (name, String::new())).to_vec()
}

pub(super) fn coordinator_role(common: &[String], queue: &QueueArgs, scale: Option<&Path>) -> Result<Role> {
    let own =
        ["coordinator", "--id", COORDINATOR, "--ack-wait", &queue.ack_wait.to_string()].map(str::to_owned);
    let scale = scale.map(|file| ["--scale".to_owned(), file.to_string_lossy().into_owned()]);
    Ok(Role {
        name: COORDINATOR.into(),
        program: std::env::current_exe().context("failed to find this program")?,
        args: [&own[..], common, scale.as_ref().map_or(&[][..], |args| args)].concat(),
        env: nobody(),
        grace: SERVER_GRACE,
        may_leave: false,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        counts: Counts,
    }

    fn refusal(options: &[&str]) -> Option<String> {
        let words = [&["up"][..], options].concat();
        let counts = Options::try_parse_from(words).unwrap().counts;
        counts.check().err().map(|e| e.to_string())
    }

    #[test]
    fn more_processes_than_a_machine_can_start_are_refused() {
        for flag in ["--generate", "--env", "--reward", "--train", "--time-division"] {
            assert_eq!(refusal(&[flag, "1024"]), None);
            for count in ["1025", "100000", "4294967295"] {
                assert_eq!(refusal(&[flag, count]), Some(format!("{flag} {count}: choose at most 1024")));
            }
        }
        let both = ["--generate", "4294967295", "--time-division", "4294967295"];
        assert_eq!(refusal(&both).as_deref(), Some("--generate 4294967295: choose at most 1024"));
        assert_eq!(refusal(&["--generate", "0", "--time-division", "2"]), None);
        let none = refusal(&["--generate", "0"]);
        assert_eq!(none.as_deref(), Some("--generate 0: no process would do this work; give at least 1"));
    }

    #[test]
    fn only_what_is_no_folder_is_opened_before_the_start() {
        for (location, expected) in [
            ("objects", true),
            ("/var/objects", true),
            ("file:///var/objects", true),
            ("s3://bucket/prefix", false),
            ("gs://foo", false),
            ("file://", false),
            ("", false),
        ] {
            assert_eq!(is_folder(location), expected, "{location}");
        }
        let refused = Objects::open("gs://foo").unwrap_err().to_string();
        assert!(refused.contains("s3://bucket/prefix") && !refused.contains("memory:"), "{refused}");
    }
}
