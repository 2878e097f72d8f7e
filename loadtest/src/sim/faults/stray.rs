//! Outcomes that nobody waits for, to the end.

use std::sync::Arc;
use std::time::Duration;

use millrace_schemas::env_step::EnvStepDone;
use millrace_schemas::{Event, Outcome, OutcomeBody, RolloutId, TaskKey};
use tokio::time::sleep;

use crate::sim::fleet::Fleet;
use crate::sim::scenario::FaultKind;

/// Between two of them: often enough that no minute goes by without one.
const EVERY: Duration = Duration::from_secs(10);

/// A group of which no run has as many.
const UNKNOWN_GROUP: u64 = 1 << 40;

/// Sends outcomes of a rollout that the run does not have, as a worker does that was away for long. One sender is enough.
pub(super) fn send(fleet: &Arc<Fleet>) {
    let world = fleet.world.clone();
    if world.counts().get(&FaultKind::StrayOutcomes).is_some_and(|count| *count > 1) {
        return;
    }
    let run = world.any_run();
    world.clone().loose(async move {
        let rollout = RolloutId { group: UNKNOWN_GROUP, index: 0, attempt: 0 };
        let (key, broker) = (TaskKey::EnvStep { rollout, turn: 0 }, world.plain());
        for answers in 0.. {
            sleep(EVERY).await;
            let worker = "stray".parse().expect("a word is a worker's name");
            let body = OutcomeBody::EnvStep(EnvStepDone { observation: vec![1], ..EnvStepDone::default() });
            let outcome = Outcome { key, worker, busy_us: 1, request_fingerprint: Some(answers), body };
            let stored = broker.append(run.as_str(), &Event::Outcome(outcome)).await;
            stored.expect("the queue in memory answers");
        }
    });
}
