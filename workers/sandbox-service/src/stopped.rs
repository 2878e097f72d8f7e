//! Sandboxes that were stopped and may be started again: their files, for as long as their clients
//! asked for, in the place of others that could run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use millrace_sandbox::live::Stopped;

use crate::hosted::Hosted;
use crate::keys::Owner;
use crate::service::{ServiceError, invalid};

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

    /// Its files, unless it left none or was forgotten meanwhile.
    pub(crate) fn arrived(&mut self, id: &str, files: Option<Stopped>) {
        match (self.0.get_mut(id), files) {
            (Some(one), Some(files)) => one.files = Some(files),
            _ => drop(self.0.remove(id)),
        }
    }

    /// What one is started again with. `ended`: there was one of this name.
    pub(crate) fn take(
        &mut self,
        owner: Owner,
        id: &str,
        ended: bool,
    ) -> Result<(Arc<Hosted>, Stopped), ServiceError> {
        let Some(one) = self.0.get_mut(id).filter(|one| one.before.owner == owner) else {
            let remedy = "nothing of it is left; the files of a sandbox stay for the auto_delete_seconds that it was \
                          started with, while there is room";
            return Err(if ended {
                invalid("sandbox_id", id, remedy)
            } else {
                ServiceError::Missing(id.chars().take(64).collect())
            });
        };
        let Some(files) = one.files.take() else {
            return Err(invalid("sandbox_id", id, "it is being stopped; ask again"));
        };
        let before = Arc::clone(&one.before);
        self.0.remove(id);
        Ok((before, files))
    }

    /// Removes the files of one. Returns whether there were any.
    pub(crate) fn forget(&mut self, owner: Owner, id: &str) -> bool {
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
