//! The port to the queue, and what is behind it. Nothing else in Millrace names `async_nats`.

pub mod port;

pub use port::{Delivery, Queue, QueueError};
