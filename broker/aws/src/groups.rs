//! Auto-scaling groups.

use aws_sdk_autoscaling::Client;
use aws_sdk_autoscaling::error::SdkError;
use aws_sdk_autoscaling::operation::terminate_instance_in_auto_scaling_group::TerminateInstanceInAutoScalingGroupError;
use aws_sdk_autoscaling::types::LifecycleState;

use crate::client::{AwsError, settings};

/// A client of EC2 Auto Scaling.
#[derive(Debug, Clone)]
pub struct ScalingGroups {
    client: Client,
}

/// A group as AWS reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupState {
    /// Its lower bound.
    pub min: u32,
    /// Its upper bound.
    pub max: u32,
    /// The number of instances that it keeps.
    pub desired: u32,
    /// Its instances, those that start or end included.
    pub instances: Vec<Instance>,
}

/// An instance of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Its id.
    pub id: String,
    /// Where it is in its life.
    pub phase: Phase,
}

/// Where an instance of a group is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It starts. It counts towards the group's number.
    Pending,
    /// It has started. It counts towards the group's number. AWS does not know whether a worker serves.
    InService,
    /// It ends or stands by, and does not count.
    Apart,
}

impl From<&LifecycleState> for Phase {
    fn from(state: &LifecycleState) -> Self {
        match state {
            LifecycleState::InService => Self::InService,
            LifecycleState::Pending | LifecycleState::PendingWait | LifecycleState::PendingProceed => {
                Self::Pending
            }
            _ => Self::Apart,
        }
    }
}

impl ScalingGroups {
    /// A client with the settings of the environment. It asks nothing yet.
    pub async fn connect() -> Self {
        Self { client: Client::new(&settings().await) }
    }

    /// The group of this name.
    ///
    /// # Errors
    /// AWS cannot be reached or refuses, or there is no such group.
    pub async fn describe(&self, group: &str) -> Result<GroupState, AwsError> {
        let action = || format!("describe the scaling group {group:?}");
        let asked = self.client.describe_auto_scaling_groups().auto_scaling_group_names(group).send().await;
        let groups = asked.map_err(|e| AwsError::new(action(), e))?;
        let Some(found) = groups.auto_scaling_groups().first() else {
            return Err(AwsError { action: action(), reason: "there is no group of this name".to_owned() });
        };
        let number =
            |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok()).unwrap_or_default();
        let instances = found.instances().iter().filter_map(|instance| {
            let phase = instance.lifecycle_state().map_or(Phase::Apart, Phase::from);
            Some(Instance { id: instance.instance_id()?.to_owned(), phase })
        });
        Ok(GroupState {
            min: number(found.min_size()),
            max: number(found.max_size()),
            desired: number(found.desired_capacity()),
            instances: instances.collect(),
        })
    }

    /// Sets how many instances the group keeps.
    ///
    /// # Errors
    /// AWS cannot be reached or refuses: the number is outside the group's bounds.
    pub async fn set_desired(&self, group: &str, desired: u32) -> Result<(), AwsError> {
        let number = i32::try_from(desired).unwrap_or(i32::MAX);
        let request = self.client.set_desired_capacity().auto_scaling_group_name(group);
        let set = request.desired_capacity(number).honor_cooldown(false).send().await;
        set.map(drop)
            .map_err(|e| AwsError::new(format!("set desired={desired} of the scaling group {group:?}"), e))
    }

    /// Ends this instance and keeps one less. Its group's hook lets the instance drain before.
    ///
    /// # Errors
    /// AWS cannot be reached or refuses: the instance ends already, or the group is at its lower
    /// bound.
    pub async fn end(&self, instance: &str) -> Result<(), AwsError> {
        let ended = self.terminate(instance, true).await;
        ended.map_err(|e| AwsError::new(format!("end the instance {instance}"), e))
    }

    /// Ends this instance, and its group starts another one.
    ///
    /// # Errors
    /// AWS cannot be reached or refuses: the instance ends already.
    pub async fn replace(&self, instance: &str) -> Result<(), AwsError> {
        let ended = self.terminate(instance, false).await;
        ended.map_err(|e| AwsError::new(format!("replace the instance {instance}"), e))
    }

    async fn terminate(
        &self,
        instance: &str,
        one_less: bool,
    ) -> Result<(), SdkError<TerminateInstanceInAutoScalingGroupError>> {
        let request = self.client.terminate_instance_in_auto_scaling_group().instance_id(instance);
        request.should_decrement_desired_capacity(one_less).send().await.map(drop)
    }

    /// Lets an instance that waits in a lifecycle hook go on to its end.
    ///
    /// # Errors
    /// AWS cannot be reached or refuses: the instance does not wait.
    pub async fn complete_hook(&self, group: &str, hook: &str, instance: &str) -> Result<(), AwsError> {
        let request = self.client.complete_lifecycle_action().auto_scaling_group_name(group);
        let request = request.lifecycle_hook_name(hook).instance_id(instance);
        let completed = request.lifecycle_action_result("CONTINUE").send().await;
        completed.map(drop).map_err(|e| AwsError::new(format!("complete the hook {hook:?} of {instance}"), e))
    }

    /// Prolongs the wait of an instance in a lifecycle hook by the hook's timeout.
    ///
    /// # Errors
    /// AWS cannot be reached or refuses: the instance does not wait.
    pub async fn prolong_hook(&self, group: &str, hook: &str, instance: &str) -> Result<(), AwsError> {
        let request = self.client.record_lifecycle_action_heartbeat().auto_scaling_group_name(group);
        let prolonged = request.lifecycle_hook_name(hook).instance_id(instance).send().await;
        prolonged.map(drop).map_err(|e| AwsError::new(format!("prolong the hook {hook:?} of {instance}"), e))
    }
}
