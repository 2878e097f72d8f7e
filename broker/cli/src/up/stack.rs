//! The processes of a `millrace up`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use millrace_queue::{ConnectArgs, Objects, QueueSettings};
use millrace_schemas::limits;
use millrace_server::{ServerError, find_server};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use super::folder::Folder;
use super::scaled;
use super::supervisor::{Role, Supervisor};
use super::workers::{Counts, nobody};
use crate::connect::{Api, SERVICE_PATIENCE};
use crate::follow::News;
use crate::term::say;
use crate::worker;

/// Time for coordinator and nats-server to write their state.
const SERVER_GRACE: Duration = Duration::from_secs(10);
/// The durability of the queue, for the user.
const DURABILITY: &str = "the queue is a nats-server of its own: a killed process loses nothing, a power failure may lose \
                          the last seconds";
/// The same for a queue that syncs each write.
const SYNCED: &str = "the queue is a nats-server of its own that syncs every write to the disk";
/// The name of nats-server's process.
const SERVER: &str = "nats-server";
/// The coordinator's name. It is constant, so that a restarted coordinator takes its lease back at
/// once.
const COORDINATOR: &str = "coordinator-0";
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
        if let Some(location) = objects.filter(|location| Objects::folder_of(location).is_none()) {
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
    use super::*;

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
            assert_eq!(Objects::folder_of(location).is_some(), expected, "{location}");
        }
        let refused = Objects::open("gs://foo").unwrap_err().to_string();
        assert!(refused.contains("s3://bucket/prefix") && !refused.contains("memory:"), "{refused}");
    }
}
