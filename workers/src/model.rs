//! Models as files: the versions of a run in the object store, and model directories on disk.
//!
//! Nothing here computes with a model or needs libtorch. From `policy` come the names of a
//! version's files and the layout of a decoder's tensors; from `runtime` the verdict on a task
//! whose files are not there, and the table of policies, which names the version whose text codec a
//! run uses.

pub mod versions;
pub mod blob_cache;
pub mod text_codec;
pub mod directory;
pub(crate) mod once_cache;
