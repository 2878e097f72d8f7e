//! The sandbox of the reward `code` and of agents, tried before anything is started: by the worker's own program,
//! which will use it.

use std::path::PathBuf;

use anyhow::{Result, bail};
use millrace_egress::{Private, Rule, Rules};
use millrace_schemas::RunSpec;
use millrace_schemas::env_step::{AGENT, EnvironmentSpec};
use millrace_schemas::reward::RewardRule;

use crate::term::say;
use crate::worker;

/// Checks the sandbox, if a reward of the run needs all of its walls.
///
/// # Errors
/// A wall is missing. The message has the remedy.
pub(super) async fn check(spec: &RunSpec) -> Result<()> {
    let mut rewards = spec.parts().flat_map(|domain| domain.rewards);
    // Runs with `may_lack` are checked by the workers.
    if !rewards.any(|reward| reward.rule == RewardRule::Code && !reward.settings.contains_key("may_lack")) {
        return Ok(());
    }
    if let Err(summary) = worker::check(&worker::find()?, ["check-sandbox"], b"").await? {
        bail!(
            "a reward has rule = \"code\", and its sandbox does not work on this machine, so nothing is started:\n{summary}"
        );
    }
    Ok(())
}

/// Agents of a `millrace up`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct AgentArgs {
    /// Folders that agents may read at the same place, besides /usr, /bin and /lib*: a Python environment
    /// for example. A folder bin in one of them is on the agents' PATH
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    agents_read: Vec<PathBuf>,
    /// Hosts that the run may open for its agents by environment.network: pypi.org:443, or
    /// *.pythonhosted.org:443 for all names below one
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    agents_network: Vec<Rule>,
    /// Private addresses that these hosts may have
    #[arg(long, value_name = "ADDRESS:PORT", value_delimiter = ',', requires = "agents_network")]
    agents_network_private: Vec<Private>,
    /// Run agents as yourself, with nothing between them and this machine
    #[arg(long, conflicts_with_all = ["agents_read", "agents_network"])]
    agents_without_sandbox: bool,
}

impl AgentArgs {
    /// How the run's agents are hosted, as words of a worker's command line. The machine, the run file
    /// and so the agents are the user's own: where there is no sandbox, they run without, and the user
    /// is told.
    ///
    /// # Errors
    /// The worker cannot be run, a folder was named and cannot be shown, or the run's agents ask for hosts
    /// that were not named.
    pub(super) async fn hosting(&self, spec: &RunSpec) -> Result<Vec<String>> {
        if !spec.parts().any(|domain| domain.environment.pool() == AGENT) {
            return Ok(Vec::new());
        }
        let bare = ["--agents", "--agents-without-sandbox"].map(str::to_owned).to_vec();
        if self.agents_without_sandbox {
            say("WARNING: agents run as you, with nothing between them and this machine");
            return Ok(bare);
        }
        self.check_network(spec)?;
        let network = self.agents_network.iter().map(|rule| ("--agents-network", rule.to_string()));
        let private = self.agents_network_private.iter();
        let private = private.map(|private| ("--agents-network-private", private.0.to_string()));
        let network = network.chain(private).flat_map(|(flag, value)| [flag.to_owned(), value]);
        let read = self.agents_read.iter().map(std::path::absolute);
        let read = read.map(|path| Ok(["--agents-read".to_owned(), path?.to_string_lossy().into_owned()]));
        let asked_for = read.collect::<Result<Vec<_>>>()?.concat().into_iter().chain(network);
        let asked_for: Vec<String> = asked_for.collect();
        let asked = ["check-sandbox", "--agents"].map(str::to_owned);
        let asked = worker::check(&worker::find()?, asked.iter().chain(&asked_for), b"").await?;
        match asked {
            Ok(_) => Ok([vec!["--agents".to_owned()], asked_for].concat()),
            // Without a sandbox folders and hosts could be reached anyway; but who names them wants one.
            Err(summary) if !asked_for.is_empty() => bail!("agents cannot be sandboxed:\n{summary}"),
            Err(summary) => {
                say(format_args!(
                    "WARNING: agents run as you, with nothing between them and this machine, because:\n{summary}"
                ));
                Ok(bare)
            }
        }
    }

    /// Finds out before the first rollout fails.
    fn check_network(&self, spec: &RunSpec) -> Result<()> {
        let allowed: Rules = self.agents_network.iter().cloned().collect();
        for domain in spec.parts() {
            let EnvironmentSpec::Agent(agent) = domain.environment else { continue };
            // What is no rule was refused with the run file.
            let Ok(asked) = Rules::read(&agent.network) else { continue };
            if let Some(host) = asked.first_beyond(&allowed) {
                bail!(
                    "environment.network={:?} is not allowed; remove it, or add --agents-network {host}",
                    host.to_string()
                );
            }
        }
        Ok(())
    }
}
