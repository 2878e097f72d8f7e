//! A sandbox's files, stored as an image for those that come after. It is done in the background:
//! the client asks how far it is.

use std::sync::Arc;
use std::time::SystemTime;

use crate::hosted::Hosted;
use crate::keys::Owner;
use crate::service::{Service, ServiceError, invalid};

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    Succeeded,
    Failed(String),
}

/// The last commit of a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Commit {
    pub(crate) image: String,
    pub(crate) phase: Phase,
    pub(crate) began: SystemTime,
    pub(crate) ended: Option<SystemTime>,
}

#[expect(clippy::disallowed_methods, reason = "clients are told when; nothing is decided by it")]
fn now() -> SystemTime {
    SystemTime::now()
}

impl Hosted {
    /// Notes that a commit begins, unless one runs. Returns it, or the one that runs.
    fn begin_commit(&self, image: &str) -> Result<Commit, Commit> {
        let mut last = self.last_commit();
        if let Some(running) = last.as_ref().filter(|last| last.phase == Phase::Running) {
            return Err(running.clone());
        }
        let begun = Commit { image: image.to_owned(), phase: Phase::Running, began: now(), ended: None };
        *last = Some(begun.clone());
        Ok(begun)
    }

    fn end_commit(&self, done: Result<(), String>) {
        if let Some(last) = &mut *self.last_commit() {
            last.phase = done.map_or_else(Phase::Failed, |()| Phase::Succeeded);
            last.ended = Some(now());
        }
    }
}

impl Service {
    /// Begins to store the files of a sandbox as an image. To ask twice is to ask once.
    pub(crate) fn commit(&self, owner: Owner, id: &str, image: &str) -> Result<Commit, ServiceError> {
        let sandbox = self.use_it(owner, id)?;
        let Some(images) = self.images() else {
            return Err(invalid("image_tag", image, "there is no --image-store to put it into"));
        };
        images.check_commit(image)?;
        let begun = match sandbox.begin_commit(image) {
            Ok(begun) => begun,
            Err(running) if running.image == image => return Ok(running),
            Err(running) => {
                let remedy = format!("{} is being stored from this sandbox; wait for its end", running.image);
                return Err(invalid("image_tag", image, remedy));
            }
        };
        let (service, name) = (self.clone(), image.to_owned());
        tokio::spawn(async move {
            let Some(images) = service.images() else { return };
            let done = images.commit(&sandbox.live, sandbox.base.as_deref(), &name).await;
            if let Err(words) = &done {
                tracing::warn!(image = name, sandbox = sandbox.id, words, "failed to store an image");
            }
            sandbox.end_commit(done);
        });
        Ok(begun)
    }

    /// The last commit of a sandbox.
    pub(crate) fn last_commit(&self, owner: Owner, id: &str) -> Result<Option<Commit>, ServiceError> {
        let sandbox: Arc<Hosted> = self.look(owner, id)?;
        let last = sandbox.last_commit().clone();
        Ok(last)
    }
}
