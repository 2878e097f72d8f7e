//! What the HTTP servers of the workers do alike: `unread.rs` reads what a refused client still sends.

pub mod unread;
