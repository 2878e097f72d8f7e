//! The port to the queue, and what is behind it. Nothing else in Millrace names `async_nats`.

pub mod port;
mod partitions;
mod settings;
mod filter;
mod trace;

pub mod clock;
mod memory;
mod jetstream;
pub mod args;

pub mod broker;
pub mod service;

#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "testing")]
pub mod conformance;

pub use args::ConnectArgs;
pub use broker::{Broker, BrokerError, DeadLetter, Log, Logged, OpenError, Policies, TrimRule};
pub use jetstream::{Credentials, JetStream, JetStreamOptions, Storage, StreamReport, Tls, without_password};
pub use memory::MemoryQueue;
pub use millrace_objects::{Created, Listed, ObjectError, Objects, staged_object};
pub use port::{DeadLetterQueue, Delivery, EventLog, KeyStore, Notices, Queue, QueueError, TaskQueue};
pub use service::{ApiHandler, RequestError, request};
pub use settings::{AckWaitError, Durability, QueueSettings};
pub use trace::{Trace, traceparent};
