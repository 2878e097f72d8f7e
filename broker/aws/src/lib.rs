//! What Millrace asks of AWS: [`ScalingGroups`] for the autoscaler, [`Metadata`] for a worker that
//! must know when its instance will be taken back, [`Bucket`] for `millrace bucket`. Addresses and credentials come from where the AWS
//! SDKs take them: the environment, the profile, the instance's role.

mod client;
mod bucket;
mod groups;
mod metadata;

pub use bucket::{Bucket, LifecycleRule, MissingRules, Presence, PublicBlock, Setting, Versioning};
pub use client::AwsError;
pub use groups::{GroupState, Instance, Phase, ScalingGroups};
pub use metadata::{Metadata, Notices};
