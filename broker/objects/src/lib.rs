//! The object store: a folder, any S3 server, or memory. Everything over 256 KiB lives there.

pub mod delta;
mod store;
mod tls;
#[cfg(feature = "testing")]
pub mod gate;
#[cfg(feature = "testing")]
pub mod signed;

pub use store::{
    BucketAccess, BucketLocation, Created, Listed, ObjectError, Objects, from_anchor, staged_object,
};
pub use tls::choose_ring;
