//! Things that many tasks need and that take a while to make: each is made once, and the last few are kept.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::sync::OnceCell;

/// Things that are kept; the one first asked for longest ago goes first.
const KEPT: usize = 16;

type Cell<V> = Arc<OnceCell<Arc<V>>>;
type Cells<K, V> = VecDeque<(K, Cell<V>)>;

/// Things by key. Clones share them.
pub(crate) struct Held<K, V>(Arc<Mutex<Cells<K, V>>>);

impl<K, V> Default for Held<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K, V> Clone for Held<K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, V> fmt::Debug for Held<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

impl<K: PartialEq + Clone, V> Held<K, V> {
    /// The thing of `key`. Of several that ask at once, one makes it; if that fails, the next that asks does.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) async fn get<E>(
        &self,
        key: &K,
        make: impl AsyncFnOnce() -> Result<V, E>,
    ) -> Result<Arc<V>, E> {
        self.cell(key).get_or_try_init(async || make().await.map(Arc::new)).await.cloned()
    }

    /// Where the thing is or comes to be.
    fn cell(&self, key: &K) -> Cell<V> {
        let mut held = self.0.lock().expect("no code panics while it holds what is held");
        if let Some((_, cell)) = held.iter().find(|(of, _)| of == key) {
            return cell.clone();
        }
        if held.len() >= KEPT {
            held.pop_front();
        }
        let cell = Cell::default();
        held.push_back((key.clone(), cell.clone()));
        cell
    }
}
