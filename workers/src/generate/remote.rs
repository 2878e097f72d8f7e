//! Turns that another server samples. It takes none before it has proved its weights, and gives none out before it has
//! proved them again afterwards: what it sampled in between was sampled by the version that the turn says.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_schemas::RunId;
use serde::Deserialize;
use tokio::sync::watch;

use super::driver::Request;
use super::follow::{LoadError, Serving};
use crate::model::versions::{LoadedVersion, VersionError, VersionStore};
use crate::policy::openai::{
    LayoutError, ProbedWeights, Server, ServerError, ServerSettings, VersionFolders,
};
use crate::policy::stop_criteria::StopCriteria;
use crate::policy::{CONFIG_FILE, PolicyError};
use session::Session;

mod prover;
mod session;
mod turn;

/// A handle to a server. It serves one run at a time: it holds one set of weights.
#[derive(Debug, Clone)]
pub(super) struct Remote(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    server: Arc<Server>,
    folders: VersionFolders,
    session: Mutex<Option<Arc<Session>>>,
    /// Of the version that was wanted last: a tokenizer that does not change is read once.
    ends: Mutex<Arc<StopCriteria>>,
}

/// What the sampler must know of a model.
#[derive(Debug, Deserialize)]
struct Config {
    vocab_size: u32,
}

/// A version on its way to the server.
struct Wanted {
    weights: ProbedWeights,
    vocabulary: u32,
    ends: Arc<StopCriteria>,
    folder: PathBuf,
    /// Names it to the server.
    label: String,
}

impl Remote {
    pub(super) fn new(settings: ServerSettings) -> Self {
        let folders = VersionFolders::new(&settings.weights_dir);
        let server = Arc::new(Server::new(settings));
        Self(Arc::new(Inner { server, folders, session: Mutex::default(), ends: Mutex::default() }))
    }

    fn session(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        // Nothing in here can be left half done by a panic.
        self.0.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What ends a turn of this version.
    fn ends(&self, loaded: &LoadedVersion) -> Result<Arc<StopCriteria>, PolicyError> {
        let mut held = self.0.ends.lock().unwrap_or_else(PoisonError::into_inner);
        *held = Arc::new(held.following(loaded)?);
        Ok(held.clone())
    }

    /// Lays the version out, makes the server go over to it and has it prove that it did. `loaded` has at least the
    /// small files. While the files come the version before goes on serving; from the reload on, nothing does until
    /// the proof is there.
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
        let vocabulary = config.vocab_size;
        let probed = ProbedWeights::of(loaded, vocabulary)?;
        let folder = self.0.folders.lay_out(versions, loaded).await.map_err(layout_error)?;
        let label = format!("{run}/{}/{}", loaded.version, loaded.sha.short());
        let ends = self.ends(loaded)?;
        let wanted = Wanted { weights: probed, vocabulary, ends, folder: folder.clone(), label };
        session.change(wanted).await.map_err(server_error)?;
        self.0.folders.remove_others(run, &folder).await;
        Ok(())
    }

    /// The run's own session with the server.
    fn session_of(&self, run: &RunId, serving: watch::Sender<Serving>) -> Result<Arc<Session>, PolicyError> {
        let mut held = self.session();
        match &*held {
            Some(session) if session.run == *run => Ok(session.clone()),
            Some(session) => Err(PolicyError::Temporary(format!(
                "the server at {} serves run={} and has one set of weights; run={run} needs another",
                self.0.server.settings().url,
                session.run
            ))),
            None => {
                let session = Session::start(run.clone(), self.0.server.clone(), serving);
                *held = Some(session.clone());
                Ok(session)
            }
        }
    }

    /// Hands a request in. The reply is dropped if there is nobody to take it.
    pub(super) fn request(&self, run: &RunId, request: Request) {
        let session = self.session().clone();
        match session.filter(|session| session.run == *run) {
            Some(session) => session.admit(request),
            None => {
                let reason = format!("no engine for run={run}");
                let _ = request.reply.send(Err(PolicyError::Temporary(reason)));
            }
        }
    }

    /// Lets a run go: the server is free for another.
    pub(super) fn forget(&self, run: &RunId) {
        let mut held = self.session();
        if let Some(session) = held.take_if(|session| session.run == *run) {
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
        LayoutError::Name(_) | LayoutError::Disk { .. } => {
            LoadError::Engine(PolicyError::Temporary(error.to_string()))
        }
    }
}
