//! The autoscaler: how many workers each pool of workers is to have, and how they come and go.
//!
//! ```text
//! demand (the fold) ─┐
//! speeds (notices)  ─┴► plan ──► decision in the log ──► target: AWS, Kubernetes, KEDA, `millrace up`
//! ```
//!
//! It follows the staleness budget, not the length of a queue: it asks how fast rollouts must come
//! for the trainer never to wait, and buys no capacity whose work would be dropped or would wait.
//!
//! - `spec.rs`: the scaling file.
//! - `fleet.rs`: which workers live, and how fast they are, by their notices.
//! - `plan.rs`: pure; how many workers a pool needs, and why.
//! - `limits.rs`: pure; bounds, steps and the cool-down.
//! - `leave.rs`: pure; which worker goes. `recall.rs`: pure; which one that stands by serves again.
//! - `scaler.rs`: the loop of the leader. `targets/`: what makes a decision true.
//! - `board.rs`: the standing decisions; `external.rs` tells KEDA them over gRPC.

pub mod spec;
pub mod fleet;
pub mod plan;
pub mod limits;
pub mod leave;
pub mod recall;
pub mod targets;
pub mod board;
pub mod scaler;
pub mod external;

pub use board::Board;
pub use external::ExternalScaler;
pub use scaler::{Autoscaler, run};
pub use spec::{ScalingFile, SpecError};
