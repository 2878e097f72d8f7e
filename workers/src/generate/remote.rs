//! Turns that an inference server samples. No turn starts before the server has proved its weights,
//! and none is returned before it has proved them again afterwards. So the version in a turn is the
//! one that sampled it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_policy::stop_criteria::StopCriteria;
use millrace_policy::{CONFIG_FILE, LoadedVersion, PolicyError};
use millrace_schemas::RunId;
use serde::Deserialize;
use tokio::sync::watch;

use super::driver::Request;
use super::follow::{LoadError, Serving};
use crate::model::versions::{VersionError, VersionStore};
use crate::policy::openai::{
    LayoutError, OutputLayer, ProbedWeights, Server, ServerError, ServerSettings, VersionFolders,
};
use session::Session;
pub(super) use tenancy::Admission;
use tenancy::Tenancy;

mod prover;
mod session;
mod tenancy;
mod turn;

/// A handle to an inference server. It has one set of weights, so it serves one run at a time.
#[derive(Debug, Clone)]
pub(super) struct Remote(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    server: Arc<Server>,
    folders: VersionFolders,
    /// `None` until a run's first task, and after a run's end.
    tenancy: Mutex<Option<Tenancy>>,
    /// Of the version that was loaded last: a tokenizer that does not change is read once.
    ends: Mutex<Arc<StopCriteria>>,
}

/// The fields of `config.json` that the sampler needs.
#[derive(Debug, Deserialize)]
struct Config {
    vocab_size: u32,
    #[serde(default)]
    tie_word_embeddings: bool,
    /// Tokens of a sequence at most, where the run sets it.
    millrace_context: Option<usize>,
    /// Where it does not.
    max_position_embeddings: Option<usize>,
}

/// A version that the server is to load.
struct NextVersion {
    weights: ProbedWeights,
    vocabulary: u32,
    /// Tokens of a sequence at most, where it says so.
    context: Option<usize>,
    ends: Arc<StopCriteria>,
    folder: PathBuf,
    /// Its name at the server.
    label: String,
}

impl Remote {
    pub(super) fn new(settings: ServerSettings) -> Self {
        let folders = VersionFolders::new(&settings.weights_dir);
        let server = Arc::new(Server::new(settings));
        if !server.takes_seeds() {
            tracing::info!("requests to the engine's server carry no seeds; --engine-seeds on sends them");
        }
        Self(Arc::new(Inner { server, folders, tenancy: Mutex::default(), ends: Mutex::default() }))
    }

    fn tenancy(&self) -> MutexGuard<'_, Option<Tenancy>> {
        // A panic cannot leave it half changed.
        self.0.tenancy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another run has the server, and will keep it for now.
    pub(super) fn is_taken_from(&self, run: &RunId) -> bool {
        let idle = self.0.server.settings().idle;
        self.tenancy().as_ref().is_some_and(|tenancy| tenancy.run != *run && !tenancy.is_idle(idle))
    }

    /// Lets a task of `run` use the server. A run that has had no task for a while makes room for it.
    ///
    /// # Errors
    /// Another run has the server; the reason.
    pub(super) fn admit(&self, run: &RunId) -> Result<Admission, String> {
        let mut current = self.tenancy();
        let idle = self.0.server.settings().idle;
        if let Some(tenancy) = current.take_if(|other| other.run != *run && other.is_idle(idle)) {
            if !tenancy.yield_server() {
                let reason = self.taken(&tenancy.run, run);
                *current = Some(tenancy);
                return Err(reason);
            }
            tracing::info!(from = %tenancy.run, to = %run, "the engine's server changes to another run");
        }
        match &*current {
            Some(other) if other.run != *run => Err(self.taken(&other.run, run)),
            Some(tenancy) => Ok(tenancy.admit()),
            None => Ok(current.insert(Tenancy::new(run.clone())).admit()),
        }
    }

    fn taken(&self, by: &RunId, run: &RunId) -> String {
        let ServerSettings { url, idle, .. } = self.0.server.settings();
        format!(
            "the server at {url} has one set of weights, that of run={by}; run={run} gets it when that run ends or has no \
             task here for {} s",
            idle.as_secs()
        )
    }

    /// The stop criteria of this version.
    fn ends(&self, loaded: &LoadedVersion) -> Result<Arc<StopCriteria>, PolicyError> {
        let mut latest = self.0.ends.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = Arc::new(StopCriteria::of(loaded)?.following(&latest));
        Ok(latest.clone())
    }

    /// Lays the version out, makes the server load it, and proves that the server did. `loaded` has
    /// at least the small files. While the files are fetched, the version before continues to
    /// serve. From the reload to the proof, none does.
    pub(super) async fn load(
        &self,
        versions: &VersionStore,
        loaded: &LoadedVersion,
        serving: watch::Sender<Serving>,
    ) -> Result<(), LoadError> {
        let run = &loaded.manifest.run;
        let session = self.session_of(run, serving)?;
        let config: Config = serde_json::from_slice(loaded.file(CONFIG_FILE)?)
            .map_err(|error| PolicyError::Impossible(format!("failed to read {CONFIG_FILE}: {error}")))?;
        let context = config.millrace_context.or(config.max_position_embeddings);
        let vocabulary = config.vocab_size;
        let probed = ProbedWeights::of(loaded, vocabulary)?;
        let output_layer =
            if config.tie_word_embeddings { self.0.server.output_layer() } else { OutputLayer::AsPublished };
        let folder = self.0.folders.lay_out(versions, loaded, output_layer).await.map_err(layout_error)?;
        let label = format!("{run}/{}/{}", loaded.version, loaded.sha.short());
        let ends = self.ends(loaded)?;
        let next = NextVersion { weights: probed, vocabulary, context, ends, folder: folder.clone(), label };
        if let Err(error) = session.change(next).await {
            return Err(server_error(self.0.server.diagnosed(error).await));
        }
        self.0.folders.remove_others(run, &folder).await;
        Ok(())
    }

    /// The session of `run` with the server.
    fn session_of(&self, run: &RunId, serving: watch::Sender<Serving>) -> Result<Arc<Session>, LoadError> {
        let mut current = self.tenancy();
        let tenancy = current.get_or_insert_with(|| Tenancy::new(run.clone()));
        if tenancy.run != *run {
            return Err(LoadError::Taken(self.taken(&tenancy.run, run)));
        }
        let start = || Session::start(run.clone(), self.0.server.clone(), serving);
        Ok(tenancy.session.get_or_insert_with(start).clone())
    }

    /// Submits a request. The reply is dropped if there is no session.
    pub(super) fn request(&self, run: &RunId, request: Request) {
        let session = self.tenancy().as_ref().and_then(|tenancy| tenancy.session.clone());
        match session.filter(|session| session.run == *run) {
            Some(session) => session.admit(request),
            None => {
                let reason = format!("no engine for run={run}");
                let _ = request.reply.send(Err(PolicyError::Temporary(reason)));
            }
        }
    }

    /// Ends the session of a run. The server is free for another one.
    pub(super) fn forget(&self, run: &RunId) {
        let ended = self.tenancy().take_if(|tenancy| tenancy.run == *run);
        if let Some(session) = ended.and_then(|tenancy| tenancy.session) {
            session.end();
        }
    }
}

fn server_error(error: ServerError) -> LoadError {
    match error {
        ServerError::Away(_) | ServerError::Busy { .. } => LoadError::Away(error.to_string()),
        ServerError::Failed(_)
        | ServerError::Refused(_)
        | ServerError::Unfit(_)
        | ServerError::OtherWeights(_) => LoadError::Engine(error.into()),
    }
}

fn layout_error(error: LayoutError) -> LoadError {
    match error {
        LayoutError::Object(error) => LoadError::Weights(VersionError::Object(error)),
        LayoutError::Weights(error) => LoadError::Engine(error),
        LayoutError::Name(_) | LayoutError::Disk { .. } => {
            LoadError::Engine(PolicyError::Temporary(error.to_string()))
        }
    }
}
