//! Sandboxes that were stopped and may be started again: their files, for as long as their clients
//! asked for, in the place of others that could run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_sandbox::live::{LiveError, Stopped};

use crate::hosted::Hosted;
use crate::keys::Owner;
use crate::service::{Place, Service, ServiceError, invalid, missing};

/// All of them, by name.
#[derive(Debug, Default)]
pub(crate) struct StoppedOnes(HashMap<String, One>);

#[derive(Debug)]
struct One {
    /// As it was.
    before: Arc<Hosted>,
    /// `None`: it is being stopped.
    files: Option<Stopped>,
    stopped: Instant,
}

impl StoppedOnes {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    /// This one is being stopped.
    pub(crate) fn expect(&mut self, before: &Arc<Hosted>) {
        let one = One { before: Arc::clone(before), files: None, stopped: Instant::now() };
        self.0.insert(before.id.clone(), one);
    }

    /// Its files. They go where it left none, and where it was forgotten meanwhile: another may have
    /// its name by now.
    pub(crate) fn arrived(&mut self, before: &Arc<Hosted>, files: Option<Stopped>) {
        let expected = self.0.get_mut(&before.id).filter(|one| Arc::ptr_eq(&one.before, before));
        match (expected, files) {
            (Some(one), Some(files)) => one.files = Some(files),
            (Some(_), None) => drop(self.0.remove(&before.id)),
            (None, _) => {}
        }
    }

    /// What one is started again with; `None`: nothing of it is left.
    fn take(&mut self, owner: Owner, id: &str) -> Result<Option<(Arc<Hosted>, Stopped)>, ServiceError> {
        let Some(one) = self.0.get_mut(id).filter(|one| one.before.owner == owner) else { return Ok(None) };
        let Some(files) = one.files.take() else {
            return Err(invalid("sandbox_id", id, "it is being stopped; ask again"));
        };
        Ok(self.0.remove(id).map(|one| (one.before, files)))
    }

    /// Removes the files of one. Returns whether there were any.
    fn forget(&mut self, owner: Owner, id: &str) -> bool {
        let is_there = self.0.get(id).is_some_and(|one| one.before.owner == owner);
        is_there && self.0.remove(id).is_some()
    }

    /// Removes the files of the one that was stopped first.
    pub(crate) fn forget_oldest(&mut self) {
        let oldest = self.0.iter().min_by_key(|(_, one)| one.stopped).map(|(id, _)| id.clone());
        if let Some(id) = oldest {
            tracing::info!(sandbox = id, "its files make room for another sandbox");
            self.0.remove(&id);
        }
    }

    /// Removes the files of those whose time is over.
    pub(crate) fn forget_old(&mut self) {
        self.0.retain(|_, one| one.stopped.elapsed() < one.before.wanted.keep);
    }
}

impl Service {
    /// For how long the files of a sandbox stay once it is stopped, where its client asks for this.
    pub(crate) fn keep(&self, asked: Option<Duration>) -> Duration {
        let (unasked, most) = self.settings().keep;
        asked.unwrap_or(unasked).min(most)
    }

    /// Starts one again that was stopped, with the files that it left.
    pub(crate) async fn restart(&self, owner: Owner, id: &str) -> Result<Arc<Hosted>, ServiceError> {
        if self.look(owner, id).is_ok() {
            return Err(invalid("sandbox_id", id, "it runs; stop it first"));
        }
        let (service, id) = (self.clone(), id.to_owned());
        // To its end, whether or not its client waits for it: its files are nowhere else meanwhile.
        let started = tokio::spawn(async move { service.start_again(owner, &id).await });
        started.await.unwrap_or_else(|error| Err(LiveError::Refused(error.to_string()).into()))
    }

    async fn start_again(&self, owner: Owner, id: &str) -> Result<Arc<Hosted>, ServiceError> {
        let ended = self.ended(owner, id).is_some();
        let (place, before, files) = {
            let mut table = self.table();
            if ended && table.live.contains_key(id) {
                return Err(invalid("sandbox_id", id, "it is being started; ask again"));
            }
            let Some((before, files)) = table.stopped.take(owner, id)? else {
                let remedy = "nothing of it is left; the files of a sandbox stay for the auto_delete_seconds that it \
                              was started with, while there is room";
                return Err(if ended { invalid("sandbox_id", id, remedy) } else { missing(id) });
            };
            table.live.insert(id.to_owned(), None);
            (Place { service: self, id: Some(id.to_owned()) }, before, files)
        };
        let made = match self.spec(&before.wanted, before.base.as_deref()) {
            Ok((spec, gate)) => {
                files.start(spec).await.map(|live| (live, gate)).map_err(|(files, e)| (files, e.into()))
            }
            Err(error) => Err((files, error)),
        };
        match made {
            Ok(made) => place.fill(made, (owner, before.wanted.clone(), before.base.clone())),
            Err((files, error)) => {
                let mut table = self.table();
                table.stopped.expect(&before);
                table.stopped.arrived(&before, Some(files));
                Err(error)
            }
        }
    }

    /// Ends a sandbox and keeps nothing; of one that was stopped it removes the files.
    pub(crate) async fn delete(&self, owner: Owner, id: &str) -> Result<(), ServiceError> {
        let stopped = self.stop(owner, id).await;
        if self.table().stopped.forget(owner, id) { Ok(()) } else { stopped }
    }
}

#[cfg(test)]
mod tests;
