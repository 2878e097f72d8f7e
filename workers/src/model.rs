//! Versions of a run, from the object store.
//!
//! Nothing here computes with a model or needs libtorch. From `runtime` come the verdict on a task
//! whose files are not there, and the table of policies, which names the version whose text codec a
//! run uses.

pub mod versions;
pub mod blob_cache;
pub mod codecs;
pub mod files;
pub(crate) mod folder;
pub(crate) mod once_cache;
