//! Room to load images: each load is a process that may run for minutes. Some at once are served, and no
//! key has all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::keys::Owner;
use crate::service::ServiceError;

/// Images that are loaded at once; more wait.
const LOADS: usize = 8;
/// Those of them that one key asked for.
const LOADS_OF_OWNER: usize = 4;
/// For how long a request waits for the loads of others.
pub(crate) const LOAD_WAIT: Duration = Duration::from_secs(60);

/// Loads of images.
#[derive(Debug)]
pub(crate) struct Loads {
    all: Arc<Semaphore>,
    /// Each key has an entry at most.
    own: Mutex<HashMap<Owner, Arc<Semaphore>>>,
}

/// Room for one load, until this value is dropped: in the share of its key, and among all.
#[derive(Debug)]
pub(crate) struct Room {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Default for Loads {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(LOADS)), own: Mutex::default() }
    }
}

impl Loads {
    fn of(&self, owner: Owner) -> Arc<Semaphore> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(own.entry(owner).or_insert_with(|| Arc::new(Semaphore::new(LOADS_OF_OWNER))))
    }

    /// Room that there is now.
    pub(crate) fn room_now(&self, owner: Owner) -> Option<Room> {
        let own = self.of(owner).try_acquire_owned().ok()?;
        Some(Room { _own: own, _all: Arc::clone(&self.all).try_acquire_owned().ok()? })
    }

    /// Room for an image, once there is some.
    pub(crate) async fn room(&self, owner: Owner, image: &str, until: Instant) -> Result<Room, ServiceError> {
        let room = async {
            // Who waits for its own loads takes no room from others.
            let own = self.of(owner).acquire_owned().await.ok()?;
            Some(Room { _own: own, _all: Arc::clone(&self.all).acquire_owned().await.ok()? })
        };
        let room = timeout_at(until, room).await.ok().flatten();
        room.ok_or_else(|| ServiceError::Loading(image.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;
    use axum::http::header::AUTHORIZATION;

    use super::*;
    use crate::keys::Keys;

    #[tokio::test]
    async fn no_key_has_all_room_and_who_has_waited_long_enough_is_told_so() {
        let names = ["key-of-the-first-owner", "key-of-another-owner", "key-of-the-third-owner"];
        let keys = Keys::parse(&names.join("\n")).unwrap();
        let owner =
            |key: &str| keys.owner(&HeaderMap::from_iter([(AUTHORIZATION, key.parse().unwrap())])).unwrap();
        let [one, two, three] = names.map(owner);
        let loads = Loads::default();
        let mut ones: Vec<Room> = (0..LOADS_OF_OWNER).map(|_| loads.room_now(one).unwrap()).collect();
        assert!(loads.room_now(one).is_none(), "the share of a key");
        let refused = loads.room(one, "task:1", Instant::now()).await.unwrap_err();
        assert_eq!(refused, ServiceError::Loading("task:1".to_owned()));
        let soon = Instant::now() + LOAD_WAIT;
        let twos: Vec<Room> = (0..LOADS - LOADS_OF_OWNER).map(|_| loads.room_now(two).unwrap()).collect();
        assert!(loads.room_now(three).is_none(), "all room");
        {
            let mut waits = std::pin::pin!(loads.room(three, "task:1", soon));
            assert!(futures::poll!(&mut waits).is_pending());
            ones.pop();
            waits.await.unwrap();
        }
        loads.room(one, "task:1", soon).await.unwrap();
        drop(twos);
    }
}
