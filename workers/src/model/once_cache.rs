//! A cache for values that many tasks need and that are expensive to make: each is made once, and
//! the last few are kept.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::sync::OnceCell;

/// Values in the cache at most; the one first asked for longest ago goes first.
const MAX_VALUES: usize = 16;

type Cell<V> = Arc<OnceCell<Arc<V>>>;
type Cells<K, V> = VecDeque<(K, Cell<V>)>;

/// Values by key. Clones share them.
pub(crate) struct OnceCache<K, V>(Arc<Mutex<Cells<K, V>>>);

impl<K, V> Default for OnceCache<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K, V> Clone for OnceCache<K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, V> fmt::Debug for OnceCache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceCache").finish_non_exhaustive()
    }
}

impl<K: PartialEq + Clone, V> OnceCache<K, V> {
    /// The value of `key`. Of several concurrent callers one makes it; if that fails, the next
    /// caller does.
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

    /// The cell of `key`, with a value or without one yet.
    fn cell(&self, key: &K) -> Cell<V> {
        let mut cells = self.0.lock().expect("no code panics while it has the lock");
        if let Some((_, cell)) = cells.iter().find(|(of, _)| of == key) {
            return cell.clone();
        }
        if cells.len() >= MAX_VALUES {
            cells.pop_front();
        }
        let cell = Cell::default();
        cells.push_back((key.clone(), cell.clone()));
        cell
    }
}
