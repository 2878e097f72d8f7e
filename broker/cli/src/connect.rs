//! Connections to the queue, the object store and a coordinator.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use millrace_queue::port::{Listener, Notices};
use millrace_queue::service::{RequestError, request};
use millrace_queue::{Broker, ConnectArgs, JetStream, JetStreamOptions, Objects, without_password};
use millrace_schemas::RunId;
use millrace_schemas::api::{ApiError, RunRequest, Status};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::{NatsContext, variable};
use super::up::KEY_FILE;
use super::up::reopen::{Asks, Kept, reopen};

/// The default URL of nats-server.
const DEFAULT_NATS: &str = "nats://127.0.0.1:4222";
/// How long a command waits for a connection to nats-server.
const COMMAND_PATIENCE: Duration = Duration::from_secs(2);
/// How long a process waits for a nats-server that starts beside it.
pub(super) const SERVICE_PATIENCE: Duration = Duration::from_secs(30);
/// Timeout of a request to a coordinator.
const ANSWER: Duration = Duration::from_secs(5);

/// A command that uses the queue or the object store: its own arguments, and those of the
/// connection.
#[derive(Debug, clap::Args)]
pub(super) struct At<A: clap::Args> {
    #[command(flatten)]
    pub(super) args: A,
    #[command(flatten)]
    pub(super) connection: ConnectionArgs,
}

/// Arguments that locate the queue and the object store.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(super) struct ConnectionArgs {
    /// The nats-server; several with commas [env: NATS_URL] [default: nats://127.0.0.1:4222]
    #[arg(long, global = true, value_name = "URL")]
    pub(super) nats: Option<String>,
    /// A context of the `nats` command: its server, user and trust
    #[arg(long, global = true, value_name = "NAME", conflicts_with_all = ["nats", "dir"])]
    context: Option<String>,
    /// The object store: a folder, or s3://bucket/prefix [env: MILLRACE_OBJECTS]
    #[arg(long, global = true, value_name = "LOCATION")]
    pub(super) objects: Option<String>,
    /// The folder of a `millrace up`: gives --nats and --objects
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(super) connect: ConnectArgs,
    /// What runs for this command alone.
    #[arg(skip)]
    kept: Kept,
}

impl ConnectionArgs {
    /// The `nats` command's context, if one is given.
    fn context(&self) -> Result<Option<NatsContext>> {
        self.context.as_deref().map(NatsContext::load).transpose()
    }

    /// The nats-server's URL.
    pub(super) fn nats_url(&self) -> Result<String> {
        if let Some(context) = self.context()? {
            return context.url();
        }
        match (&self.nats, &self.dir) {
            (Some(url), _) => Ok(url.clone()),
            (None, Some(dir)) => {
                let path = dir.join("nats.url");
                let url = std::fs::read_to_string(&path).with_context(|| {
                    format!("failed to read path={}; is --dir the folder of a `millrace up`?", path.display())
                })?;
                Ok(url.trim().to_owned())
            }
            (None, None) => Ok(variable("NATS_URL").unwrap_or_else(|| DEFAULT_NATS.into())),
        }
    }

    /// Credentials. With --dir, the key in the folder of a `millrace up`.
    pub(super) fn who(&self) -> Result<ConnectArgs> {
        if let Some(context) = self.context()? {
            return Ok(context.who(&self.connect));
        }
        let key = self.dir.as_ref().filter(|_| self.nats.is_none()).map(|dir| dir.join(KEY_FILE));
        match key.filter(|key| key.exists()) {
            Some(key) => Ok(ConnectArgs { nats_nkey: Some(key), ..ConnectArgs::default() }),
            None => Ok(self.connect.clone()),
        }
    }

    /// The object store's location.
    pub(super) fn objects_location(&self) -> Result<String> {
        let found = match (&self.objects, &self.dir) {
            (Some(location), _) => Some(location.clone()),
            (None, Some(dir)) => Some(dir.join("objects").to_string_lossy().into_owned()),
            (None, None) => variable("MILLRACE_OBJECTS"),
        };
        let Some(location) = found else {
            bail!(
                "no object store is given: use --objects LOCATION or MILLRACE_OBJECTS, or --dir DIR of a `millrace up`"
            );
        };
        if !location.contains("://") && location != "memory:" {
            check_folder(&location)?;
        }
        Ok(location)
    }

    /// The object store.
    pub(super) fn open_objects(&self) -> Result<Objects> {
        Ok(Objects::open(&self.objects_location()?)?)
    }

    /// Connects to the queue without an object store.
    pub(super) async fn api(&self) -> Result<Api> {
        let url = self.nats_url()?;
        Api::connect(&url, &self.who()?, COMMAND_PATIENCE).await.with_context(|| {
            let remedy = match self.folder() {
                Some(dir) => format!(
                    "no `millrace up` runs in {0}. `millrace up RUN.toml --dir {0}` continues a run that is not over; \
                     `millrace status`, `ledger`, `rollouts`, `log export` and `dead ls` read one that is",
                    dir.display()
                ),
                None => "is it running? `millrace up RUN.toml` starts one, and --nats or --dir set its address".into(),
            };
            format!("failed to reach nats-server url={}; {remedy}", without_password(&url))
        })
    }

    /// Connects for a command that only reads. If --dir is the folder of a `millrace up` that has
    /// ended, its nats-server, and a coordinator if the command asks one, run until this value is
    /// dropped.
    pub(super) async fn reading(&self, asks: Asks) -> Result<Api> {
        let Some(dir) = self.folder() else { return self.api().await };
        match reopen(dir, || self.objects_location(), asks, &self.kept).await? {
            Some(api) => Ok(api),
            None => self.api().await,
        }
    }

    /// The folder of a `millrace up`, if it sets the address.
    fn folder(&self) -> Option<&Path> {
        self.dir.as_deref().filter(|_| self.nats.is_none() && self.context.is_none())
    }
}

/// A mistyped folder would be created, and would be empty.
fn check_folder(location: &str) -> Result<()> {
    let folder = Path::new(location);
    if folder.is_dir() {
        return Ok(());
    }
    let remedy = "give the one that the coordinator and workers use";
    if folder.exists() {
        bail!("object store location={location:?} is not a folder; {remedy}");
    }
    // `bucket init` takes a bare name for a bucket's.
    let here = if location.contains('/') { "" } else { "./" };
    bail!(
        "object store location={location:?} does not exist; {remedy}, or create it: `millrace bucket init {here}{location}`"
    );
}

/// A client of the coordinators.
#[derive(Clone)]
pub(super) struct Api {
    queue: Arc<JetStream>,
    url: String,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// No coordinator responds, or it asks for a retry.
    #[error("{0}")]
    Silent(String),
    /// The coordinator refuses the request.
    #[error("{}", words(.0))]
    Refused(ApiError),
    /// The response cannot be parsed.
    #[error(
        "failed to read the response of endpoint={endpoint}: {reason}; are `millrace` and the coordinator of the same version?"
    )]
    Unreadable {
        /// The endpoint that was called.
        endpoint: &'static str,
        /// The parser's message.
        reason: String,
    },
}

fn words(error: &ApiError) -> String {
    let fields = error.fields.iter().map(|f| format!("\n  {} = {}: {}", f.field, f.value, f.remedy));
    format!("{}{}", error.message, fields.collect::<String>())
}

impl Api {
    /// Connects to the queue, and retries for as long as `patience`.
    pub(super) async fn connect(url: &str, who: &ConnectArgs, patience: Duration) -> Result<Self> {
        Self::open(url, JetStreamOptions { connect_timeout: patience, ..who.options()? }).await
    }

    /// Connects as a coordinator, with the settings of what it creates on the server.
    pub(super) async fn coordinate(url: &str, options: JetStreamOptions) -> Result<Self> {
        Self::open(url, JetStreamOptions { connect_timeout: SERVICE_PATIENCE, ..options }).await
    }

    async fn open(url: &str, options: JetStreamOptions) -> Result<Self> {
        let queue = JetStream::connect(url, "millrace", options).await?;
        Ok(Self { queue, url: without_password(url) })
    }

    /// The queue without an object store, for commands that move no large payloads.
    pub(super) fn broker(&self) -> Broker {
        self.with_objects(Objects::memory())
    }

    /// Queue and object store.
    pub(super) fn with_objects(&self, objects: Objects) -> Broker {
        Broker::new(self.queue.clone(), objects)
    }

    /// The queue itself.
    pub(super) fn queue(&self) -> &JetStream {
        &self.queue
    }

    /// Calls an endpoint.
    pub(super) async fn call<A: DeserializeOwned>(
        &self,
        endpoint: &'static str,
        question: &impl Serialize,
    ) -> Result<A, CallError> {
        let unreadable = |reason: String| CallError::Unreadable { endpoint, reason };
        let payload = serde_json::to_vec(question).map_err(|e| unreadable(e.to_string()))?;
        match request(&self.queue, endpoint, payload.into(), ANSWER).await {
            Ok(body) => serde_json::from_slice(&body).map_err(|e| unreadable(e.to_string())),
            Err(RequestError::Api(e)) if e.code == 503 => Err(CallError::Silent(e.message)),
            Err(RequestError::Api(e)) => Err(CallError::Refused(e)),
            Err(e @ (RequestError::NoCoordinator | RequestError::Unavailable(_))) => {
                Err(CallError::Silent(format!("{e} (nats-server {})", self.url)))
            }
        }
    }

    /// The status of a run.
    pub(super) async fn status(&self, run: &RunId) -> Result<Status, CallError> {
        self.call("status", &RunRequest { run: Some(run.clone()) }).await
    }

    /// Listens to notices.
    pub(super) async fn listen(&self, filter: &str) -> Result<Box<dyn Listener>> {
        Ok(self.queue.listen(filter).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_objects_that_does_not_exist_is_told_from_a_file() {
        let said = |location: &str| {
            let objects = Some(location.to_owned());
            let found = ConnectionArgs { objects, ..ConnectionArgs::default() }.objects_location();
            found.unwrap_err().to_string()
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("objects");
        let location = path.to_str().unwrap();
        let missing = said(location);
        assert!(missing.contains("does not exist"), "{missing}");
        assert!(missing.ends_with(&format!("`millrace bucket init {location}`")), "{missing}");
        let bare = said("no-such-folder");
        assert!(bare.ends_with("`millrace bucket init ./no-such-folder`"), "{bare}");
        std::fs::write(&path, "").unwrap();
        assert!(said(location).contains("is not a folder; give"), "{}", said(location));
    }
}
