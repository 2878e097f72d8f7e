//! An AWS auto-scaling group. Its instances have one worker each, or several that belong to one pool.

use async_trait::async_trait;
use millrace_aws::{AwsError, GroupState, ScalingGroups};

use super::{Order, Target, TargetError};

pub(super) struct Aws {
    groups: ScalingGroups,
    group: String,
}

impl Aws {
    pub(super) async fn connect(group: String) -> Self {
        Self { groups: ScalingGroups::connect().await, group }
    }
}

/// What to ask of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// It is as it should be.
    Nothing,
    /// It keeps so many instances.
    Set(u32),
    /// These instances end, one less each.
    End(Vec<String>),
}

/// The step from a group's state to the order. An order outside of the group's bounds goes as far as
/// they allow.
pub(super) fn step(state: &GroupState, desired: u32, machines: &[String]) -> Step {
    let desired = desired.clamp(state.min, state.max.max(state.min));
    if desired >= state.desired {
        return if desired == state.desired { Step::Nothing } else { Step::Set(desired) };
    }
    let surplus = (state.desired - desired) as usize;
    let is_active = |name: &&String| state.instances.iter().any(|i| i.is_active && i.id == **name);
    let mut chosen: Vec<String> = machines.iter().filter(is_active).cloned().collect();
    chosen.dedup();
    chosen.truncate(surplus);
    // An instance that does not serve yet has no worker to be chosen: AWS chooses among all.
    if chosen.is_empty() { Step::Set(desired) } else { Step::End(chosen) }
}

fn failed(error: &AwsError) -> TargetError {
    TargetError(error.to_string())
}

#[async_trait]
impl Target for Aws {
    async fn follow(&self, desired: u32, order: &Order) -> Result<(), TargetError> {
        let state = self.groups.describe(&self.group).await.map_err(|e| failed(&e))?;
        if desired > state.max || desired < state.min {
            let (group, min, max) = (&self.group, state.min, state.max);
            tracing::warn!(group, desired, min, max, "the group's bounds are narrower than the pool's");
        }
        match step(&state, desired, &order.machines) {
            Step::Nothing => Ok(()),
            Step::Set(desired) => self.groups.set_desired(&self.group, desired).await.map_err(|e| failed(&e)),
            Step::End(instances) => {
                for instance in instances {
                    self.groups.end(&instance).await.map_err(|e| failed(&e))?;
                }
                Ok(())
            }
        }
    }
}
