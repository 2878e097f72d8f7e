//! What travels: the messages of every stage in the order of a task's life, the run file, and the
//! names and bounds that more than one process must agree on.
//!
//! A task goes `submit → generate ⇄ env_step → reward → train_shard → publish_weights`. Each of
//! those modules has a twin of the same name in `broker/coordinator/src/fold/stages` (what happens
//! next) and in `workers/src` (how it is executed).

pub mod stage;
pub mod ids;
pub mod version;
pub mod limits;
pub mod subjects;
pub mod partition;
pub mod role;
pub mod blob;
pub mod image;
pub mod file_name;
pub mod envelope;

pub mod submit;
pub mod generate;
pub mod env_step;
pub mod dataset;
pub mod reward;
pub mod train_shard;
pub mod publish_weights;

pub mod outcome;
pub mod brief;
pub mod trajectory;
pub mod fork;
pub mod event;
pub mod log_segment;
pub mod policy;
pub mod member;
pub mod drain;
pub mod scale;
pub mod notice;
pub mod counters;
pub mod api;
pub mod report;
pub mod plan;
pub mod schema;
pub mod text;

mod omit;

pub use blob::BlobRef;
pub use envelope::{Task, TaskBody};
pub use event::Event;
pub use fork::Fork;
pub use ids::{PoolName, RolloutId, RunId, TaskKey, WorkerId};
pub use outcome::{Outcome, OutcomeBody};
pub use stage::Stage;
pub use submit::RunSpec;
pub use trajectory::EntryRef;
pub use version::PolicyVersion;
