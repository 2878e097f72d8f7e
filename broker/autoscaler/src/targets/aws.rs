//! An AWS auto-scaling group. AWS counts machines; each runs one worker of the pool, or several.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use async_trait::async_trait;
use millrace_aws::{AwsError, GroupState, Instance, Phase, ScalingGroups};
use millrace_schemas::WorkerId;
use tokio::time::Instant;

use super::{Machines, Order, Target, TargetError};
use empty::Empty;

mod empty;

/// One auto-scaling group.
#[async_trait]
trait Group: Send + Sync + 'static {
    async fn describe(&self) -> Result<GroupState, AwsError>;
    async fn set_desired(&self, desired: u32) -> Result<(), AwsError>;
    /// Ends an instance; the group keeps one less.
    async fn end(&self, instance: &str) -> Result<(), AwsError>;
    /// Ends an instance; the group starts another one.
    async fn replace(&self, instance: &str) -> Result<(), AwsError>;
}

struct AwsGroup {
    groups: ScalingGroups,
    name: String,
}

#[async_trait]
impl Group for AwsGroup {
    async fn describe(&self) -> Result<GroupState, AwsError> {
        self.groups.describe(&self.name).await
    }
    async fn set_desired(&self, desired: u32) -> Result<(), AwsError> {
        self.groups.set_desired(&self.name, desired).await
    }
    async fn end(&self, instance: &str) -> Result<(), AwsError> {
        self.groups.end(instance).await
    }
    async fn replace(&self, instance: &str) -> Result<(), AwsError> {
        self.groups.replace(instance).await
    }
}

pub(super) struct Aws {
    group: Box<dyn Group>,
    name: String,
    workers_per_machine: u32,
    seen: Mutex<GroupMemory>,
    /// The setting differs from what machines run; told once.
    other_number: Once,
}

/// What was seen of the group's instances, and done about those without a worker.
#[derive(Default)]
struct GroupMemory {
    empty: Empty,
    replaced: Vec<WorkerId>,
}

/// What to ask of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// It is as it should be.
    Nothing,
    /// It keeps so many instances.
    Set(u32),
    /// These instances end, one less each.
    End(Vec<String>),
}

/// The step from a group's state to `desired` machines. `order` has those that may go, as they should go.
/// A number outside of the group's bounds goes as far as they allow.
fn step<'a>(state: &GroupState, desired: u32, order: impl Iterator<Item = &'a str>) -> Step {
    let desired = desired.clamp(state.min, state.max.max(state.min));
    if desired >= state.desired {
        return if desired == state.desired { Step::Nothing } else { Step::Set(desired) };
    }
    let active: BTreeSet<&str> = active(state).map(|instance| instance.id.as_str()).collect();
    let count = u32::try_from(active.len()).unwrap_or(u32::MAX);
    if count < state.desired {
        // AWS has not found all of them. It forgets the others, and none that it has ends by that.
        return Step::Set(desired.max(count));
    }
    let mut left = active;
    let chosen = order.filter(|name| left.remove(name)).take((state.desired - desired) as usize);
    let chosen: Vec<String> = chosen.map(str::to_owned).collect();
    // Without a name to give, AWS chooses among all.
    if chosen.is_empty() { Step::Set(desired) } else { Step::End(chosen) }
}

/// The instances that count towards the group's number.
fn active(state: &GroupState) -> impl Iterator<Item = &Instance> {
    state.instances.iter().filter(|instance| instance.phase != Phase::Apart)
}

fn failed(error: &AwsError) -> TargetError {
    TargetError(error.to_string())
}

impl Aws {
    pub(super) async fn connect(group: String, workers_per_machine: u32) -> Self {
        let client = AwsGroup { groups: ScalingGroups::connect().await, name: group.clone() };
        Self::of(Box::new(client), group, workers_per_machine)
    }

    fn of(group: Box<dyn Group>, name: String, workers_per_machine: u32) -> Self {
        Self { group, name, workers_per_machine, seen: Mutex::default(), other_number: Once::new() }
    }

    fn seen(&self) -> MutexGuard<'_, GroupMemory> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, desired: u32, state: &GroupState, machines: &Machines) {
        let group = &self.name;
        if desired > state.max || desired < state.min {
            let (min, max) = (state.min, state.max);
            tracing::warn!(group, desired, min, max, "the group's bounds are narrower than the pool's");
        }
        let most = machines.live.iter().map(|machine| machine.workers.len()).max().unwrap_or_default();
        let workers_per_machine = self.workers_per_machine;
        if most > workers_per_machine as usize {
            self.other_number.call_once(|| {
                tracing::warn!(
                    group,
                    most,
                    workers_per_machine,
                    "machines run more workers than the pool's workers_per_machine: too many are started; \
                     set it to what they run"
                );
            });
        }
    }

    /// Ends each of these. One that AWS refuses does not keep the others.
    async fn end(&self, instances: Vec<String>) -> Result<(), TargetError> {
        let mut ended = Ok(());
        for instance in instances {
            let one = self.group.end(&instance).await.map_err(|e| failed(&e));
            ended = ended.and(one);
        }
        ended
    }

    /// Replaces the instance that has been without a worker for too long, if there is one.
    async fn heal(&self, state: &GroupState, machines: &Machines) -> Result<(), TargetError> {
        let Some((instance, empty_s)) = self.seen().empty.overdue(state, machines.start_up) else {
            return Ok(());
        };
        self.group.replace(&instance).await.map_err(|e| failed(&e))?;
        let group = &self.name;
        tracing::warn!(
            group,
            instance,
            empty_s,
            "no worker lives on the instance: it was drained, or never came up; another one replaces it. Its \
             console and journal say more"
        );
        metrics::counter!("millrace_scale_replaced_machines_total", "group" => group.clone()).increment(1);
        let mut seen = self.seen();
        seen.empty.replaced(&instance);
        seen.replaced.extend(instance.parse::<WorkerId>());
        Ok(())
    }
}

#[async_trait]
impl Target for Aws {
    async fn follow(&self, desired: u32, order: &Order) -> Result<(), TargetError> {
        let state = self.group.describe().await.map_err(|e| failed(&e))?;
        let machines = &order.machines;
        let desired = desired.div_ceil(self.workers_per_machine);
        self.check(desired, &state, machines);
        let empty = {
            let mut seen = self.seen();
            seen.empty.look(&state, machines, Instant::now());
            // One that serves unseen is not to be taken for one that starts.
            if machines.all_known { seen.empty.youngest_first(&state, machines) } else { Vec::new() }
        };
        let live = machines.live.iter().map(|machine| machine.name.as_str());
        match step(&state, desired, empty.iter().map(String::as_str).chain(live)) {
            Step::Nothing => self.heal(&state, machines).await,
            Step::Set(desired) => self.group.set_desired(desired).await.map_err(|e| failed(&e)),
            Step::End(instances) => self.end(instances).await,
        }
    }

    fn replaced(&self) -> Vec<WorkerId> {
        std::mem::take(&mut self.seen().replaced)
    }
}

#[cfg(test)]
mod tests;
