//! The workers of a `millrace up`: how many of each kind, and how each is started.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use millrace_queue::args::CONNECT_ENV;
use millrace_schemas::RunSpec;
use millrace_schemas::dataset::ToolRef;

use super::gpus;
use super::supervisor::Role;

/// Time for a worker to finish or return its tasks in flight when asked to end; its own limit is 25
/// s.
const WORKER_GRACE: Duration = Duration::from_secs(30);
/// The pool that trains. It is as large as the gang, and is not scaled.
const TRAIN: &str = "train";
/// The pool that samples and trains in turn. It is not scaled either.
const FLEXIBLE: &str = "flexible";
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

    pub(super) fn check(&self) -> Result<()> {
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

    pub(super) fn pools(&self, worker: &Path, common: &[String]) -> Vec<WorkerPool> {
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

/// Credentials are taken from the arguments, not from the environment.
pub(super) fn nobody() -> Vec<(&'static str, String)> {
    CONNECT_ENV.map(|name| (name, String::new())).to_vec()
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
}
