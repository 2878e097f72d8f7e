//! A rendezvous of threads in one process.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::{GangError, Rendezvous};

/// Keys and values in memory.
#[derive(Debug, Default)]
pub struct MemoryRendezvous(Mutex<HashMap<String, Vec<u8>>>);

impl Rendezvous for MemoryRendezvous {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), GangError> {
        // A panic cannot leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), value.to_vec());
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, GangError> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned())
    }
}
